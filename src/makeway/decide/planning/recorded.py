"""Plans for recordings: the step of the rank with most exposed communication is the workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from makeway.decide.analysis.analyze import Analysis, Progress, analyze
from makeway.decide.analysis.what_if import not_shown_by_a_trace
from makeway.decide.planning.host_ranks import HostPlan, of_host_ranks, plan_host_ranks
from makeway.decide.planning.planner import PLANNER, plan
from makeway.model.simulate.policies import Dispatch
from makeway.read.traces.cpu_ranks import CPU_HOST
from makeway.values.control import Control
from makeway.values.device import Device
from makeway.values.errors import InputError, UnsupportedError
from makeway.values.plan import Plan, Rejected
from makeway.values.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class StepToPlan:
    """A recorded step to plan for, and the controls that a recording says nothing about."""

    workload: Workload
    device: Device
    excluded: tuple[Rejected, ...]
    notes: tuple[str, ...]
    times: str  # which time of the recording is which, as `makeway analyze` says it


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToPlan:
    """Recordings for which no control can be chosen, and why."""

    reason: str
    device: str
    notes: tuple[str, ...]


def plan_recorded(
    paths: Sequence[Path],
    device: Device | None = None,
    *,
    step: int | None = None,
    controls: Sequence[Control] = (),
    heuristic: str = PLANNER,
    dispatch: Dispatch | None = None,
    destination: str | None = None,
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
    timelines: bool = False,
    progress: Progress | None = None,
    stage: Callable[[str], None] | None = None,
) -> Plan | HostPlan | NothingToPlan:
    """The plan for the most exposed step in these recordings, on the GPU that they name or on `device`.

    Recordings of CPU ranks get a plan for their host, without a predicted time.
    `progress` gets the share of all bytes read and the file just read from, `stage` what the planner does then; the
    other options are those of `plan`.
    """
    analysis = analyze(paths, device=device, step=step, what_if=False, progress=progress)
    if of_host_ranks(analysis):
        if heuristic != PLANNER or dispatch is not None:
            raise InputError("--heuristic and --dispatch are for GPUs, and these recordings are of CPU ranks")
        host = plan_host_ranks(
            analysis, name=paths[0].name, controls=controls, destination=destination, only=only, exclude=exclude
        )
        return host or NothingToPlan(reason="the ranks exchange nothing", device=CPU_HOST, notes=analysis.notes)
    exposed = _exposed(analysis, paths[0].name)
    if isinstance(exposed, NothingToPlan):
        return exposed
    answer = plan(
        exposed.workload,
        exposed.device,
        controls=controls,
        heuristic=heuristic,
        dispatch=dispatch,
        excluded=exposed.excluded,
        destination=destination,
        only=only,
        exclude=exclude,
        timelines=timelines,
        progress=stage,
    )
    assert answer.search is not None
    first, *others = answer.search.summary
    search = replace(
        answer.search, summary=(first, exposed.times, *others), notes=(*answer.search.notes, *exposed.notes)
    )
    return replace(answer, search=search)


def step_to_plan(
    paths: Sequence[Path],
    device: Device | None = None,
    *,
    step: int | None = None,
    progress: Progress | None = None,
) -> StepToPlan | NothingToPlan:
    """The step of the rank with most exposed communication, as a workload; or why there is none."""
    return _exposed(analyze(paths, device=device, step=step, what_if=False, progress=progress), paths[0].name)


def _exposed(analysis: Analysis, name: str) -> StepToPlan | NothingToPlan:
    recorded = analysis.step
    if recorded is None:
        if not analysis.devices:
            raise UnsupportedError("the recordings do not name a known GPU: pass --device (see `makeway devices`)")
        reason = (analysis.no_step or "no rank has a step").partition("\n")[0]
        return NothingToPlan(reason=reason, device=", ".join(analysis.devices), notes=analysis.notes)
    return StepToPlan(
        workload=replace(recorded.workload, name=f"rank {recorded.rank} of {name}"),
        device=recorded.device,
        excluded=not_shown_by_a_trace(recorded),
        notes=(*analysis.notes, *recorded.workload.assumed),
        times=analysis.which_times,
    )
