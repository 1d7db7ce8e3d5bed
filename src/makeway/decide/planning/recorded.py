"""Plans for recordings: the step of the rank with most exposed communication is the workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from makeway.decide.analysis.rank import Question, findings, most_exposed, rank_records
from makeway.decide.analysis.recorded import with_arrivals
from makeway.decide.planning.planner import PLANNER, plan
from makeway.decide.planning.what_if import not_shown_by_a_trace
from makeway.model.simulate.policies import Dispatch
from makeway.read.traces.ranks import map_traces
from makeway.read.traces.read import find_traces
from makeway.values.control import Control
from makeway.values.device import Device
from makeway.values.errors import UnsupportedError
from makeway.values.plan import Plan, Rejected
from makeway.values.workload import Workload

BUDGET_MS = 1_000.0  # less than for workloads: reading takes time, too


@dataclass(frozen=True, slots=True, kw_only=True)
class StepToPlan:
    """A recorded step to plan for, and the controls that a recording says nothing about."""

    workload: Workload
    device: Device
    excluded: tuple[Rejected, ...]
    notes: tuple[str, ...]


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
    budget_ms: float = BUDGET_MS,
    timelines: bool = False,
    progress: Callable[[Path, int], None] | None = None,
) -> Plan | NothingToPlan:
    """The plan for the most exposed step in these recordings, on the GPU that they name or on `device`.

    `progress` gets each file and the bytes read of it so far; the other options are those of `plan`.
    """
    exposed = step_to_plan(paths, device, step=step, progress=progress)
    if isinstance(exposed, NothingToPlan):
        return exposed
    answer = plan(
        exposed.workload,
        exposed.device,
        controls=controls,
        heuristic=heuristic,
        dispatch=dispatch,
        excluded=exposed.excluded,
        budget_ms=budget_ms,
        timelines=timelines,
    )
    assert answer.search is not None
    return replace(answer, search=replace(answer.search, notes=(*answer.search.notes, *exposed.notes)))


def step_to_plan(
    paths: Sequence[Path],
    device: Device | None = None,
    *,
    step: int | None = None,
    progress: Callable[[Path, int], None] | None = None,
) -> StepToPlan | NothingToPlan:
    """The step of the rank with most exposed communication, as a workload; or why there is none."""
    traces = find_traces(paths)
    work = partial(rank_records, question=Question(device=device, step=step))
    records = [record for ranks in map_traces(traces.files, work, progress=progress) for record in ranks]
    result = findings(records)
    notes = (*traces.notes, *result.notes)
    chosen = most_exposed(records)
    if chosen is None or chosen.step is None or chosen.device is None:
        names = {record.device.name for record in records if record.device}
        if not names:
            raise UnsupportedError("the recordings do not name a known GPU: pass --device (see `makeway devices`)")
        reason = next((record.no_step for record in records if record.no_step), "no rank has a step")
        return NothingToPlan(reason=reason.partition("\n")[0], device=", ".join(sorted(names)), notes=notes)
    arrived = with_arrivals(chosen.step, result.matching)
    return StepToPlan(
        workload=replace(arrived.workload, name=f"rank {arrived.rank} of {paths[0].name}"),
        device=chosen.device,
        excluded=not_shown_by_a_trace(arrived),
        notes=(*notes, *arrived.workload.assumed),
    )
