"""Plans for recordings of CPU ranks: what a recording shows, and nothing that only a measurement can tell.

Ranks of one host exchange through the loopback, on the cores that compute. `copy-engine` needs less time and processor
time for the same bytes; `priority` lets communication run at once. By how much that helps, the job itself shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from makeway.decide.analysis.analyze import Analysis
from makeway.decide.planning.carried import routes, unusable
from makeway.read.traces.cpu_ranks import CPU_HOST
from makeway.values.control import Chunks, CommPriority, Control, CopyEngine, SmPartition
from makeway.values.errors import InputError
from makeway.values.plan import MadeFor, Plan, Rejected
from makeway.values.support import Support

NOT_SHOWN = "a recording does not show what it gains; `makeway run --tune` measures it in the job"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """A plan for ranks of a CPU host; times of a step are those of the rank with most exposed communication."""

    SHOWN: ClassVar = ("exposed_share",)

    plan: Plan
    routes: tuple[tuple[Support, ...], ...]  # for each control, what applies it
    destination: str | None
    rank: int
    steps: int
    step_ns: float
    comm_ns: float
    exposed_ns: float
    notes: tuple[str, ...] = ()

    @property
    def exposed_share(self) -> float:
        """Of the step."""
        return round(self.exposed_ns / self.step_ns, 6)


def of_host_ranks(analysis: Analysis) -> bool:
    """Whether the recordings are of CPU ranks."""
    return bool(analysis.ranks) and all(rank.device == CPU_HOST for rank in analysis.ranks)


def plan_host_ranks(
    analysis: Analysis,
    *,
    name: str,
    controls: Sequence[Control] = (),
    destination: str | None = None,
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> HostPlan | None:
    """What to set for the ranks of these recordings; None when they exchange nothing."""
    worst = analysis.worst
    figures, steps = worst.figures, max(len(worst.steps), 1)
    if not figures.comm_ns:
        return None
    step_ns = (worst.step_ns or figures.span_ns) / steps
    comm_ns, exposed_ns = figures.comm_ns / steps, figures.exposed_ns / steps
    rejected = list(unusable("cpu", destination=destination, only=only, exclude=exclude, required=controls))
    barred = {type(item.control) for item in rejected}
    required = {type(control): control for control in controls}
    if foreign := [control for control in controls if not routes(control, "cpu", destination, ())]:
        raise InputError(f"{foreign[0].name} is required by --control, and nothing applies it to CPU ranks")
    reasons = {
        CopyEngine: (
            f"ranks of one host exchange through shared memory: {exposed_ns / 1e6:.1f} of {step_ns / 1e6:.1f} ms per "
            "step is exposed communication, and all of it takes processor time from compute"
        ),
        CommPriority: (
            f"communication runs at once when it wakes: {(comm_ns - exposed_ns) / 1e6:.1f} ms per step of it shares "
            "the cores with compute"
        ),
    }
    chosen = {kind: required.pop(kind, kind()) for kind in reasons if kind not in barred}
    rejected += [
        Rejected(control=control, reason=NOT_SHOWN)
        for control in (Chunks(4), SmPartition(1))
        if type(control) not in barred and type(control) not in required
    ]
    everything = (*chosen.values(), *required.values())
    plan = Plan(
        controls=everything,
        reasons=(*(reasons[kind] for kind in chosen), *("required by --control" for _ in required)),
        made_for=MadeFor(workload=f"rank {worst.rank} of {name}", device=CPU_HOST, ranks=len(analysis.ranks)),
        rejected=tuple(rejected),
    )
    return HostPlan(
        plan=plan,
        routes=tuple(tuple(routes(control, "cpu", destination, ())) for control in everything),
        destination=destination,
        rank=worst.rank,
        steps=steps,
        step_ns=step_ns,
        comm_ns=comm_ns,
        exposed_ns=exposed_ns,
        notes=analysis.notes,
    )
