"""Plans for recordings: the step of the rank with most exposed communication is the workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from makeway.decide.analysis.analyze import Analysis, Progress, analyze
from makeway.decide.analysis.what_if import not_shown_by_a_trace
from makeway.decide.planning.host_recorded import plan_host
from makeway.decide.planning.planner import PLANNER, plan
from makeway.model.simulate.policies import Dispatch
from makeway.read.traces.cpu_ranks import CPU_HOST
from makeway.values.control import Compress, Control
from makeway.values.device import Device
from makeway.values.errors import InputError, UnsupportedError
from makeway.values.plan import Plan, Rejected
from makeway.values.workload import Workload

_NO_SIZES = Rejected(
    control=Compress("bf16"), reason="the sizes of the collectives are not recorded, and compression depends on them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepToPlan:
    """A recorded step to plan for, and the controls that a recording says nothing about."""

    workload: Workload
    device: Device
    excluded: tuple[Rejected, ...]
    notes: tuple[str, ...]
    sizes_known: bool  # of all collectives
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
    allow_lossy: bool = False,
    timelines: bool = False,
    progress: Progress | None = None,
    stage: Callable[[str], None] | None = None,
    host: Callable[[], Device] | None = None,
) -> Plan | NothingToPlan:
    """The plan for the most exposed step in these recordings, on the GPU that they name or on `device`.

    Recordings of CPU ranks are planned for `device`, or else for what `host` returns: a calibrated host.

    `progress` gets the share of all bytes read and the file just read from, `stage` what the planner does then; the
    other options are those of `plan`.
    """
    on_host = device is not None and device.vendor == "cpu"
    analysis = analyze(paths, device=None if on_host else device, step=step, what_if=False, progress=progress)
    calibrated = _always(device) if device is not None and on_host else host if device is None else None
    if calibrated is not None and all(rank.device == CPU_HOST for rank in analysis.ranks):
        if heuristic != PLANNER or dispatch is not None:
            raise InputError("--heuristic and --dispatch are of GPUs; these recordings are of CPU ranks")
        spans = analyze(paths, step=step, what_if=False, keep_spans=True)  # recordings of GPUs are too large for it
        return plan_host(
            spans,
            calibrated,
            name=f"rank {analysis.worst.rank} of {paths[0].name}",
            controls=controls,
            destination=destination,
            only=only,
            exclude=exclude,
            allow_lossy=allow_lossy,
        )
    exposed = _step_to_plan(analysis, paths)
    if isinstance(exposed, NothingToPlan):
        return exposed
    answer = plan(
        exposed.workload,
        exposed.device,
        controls=controls,
        heuristic=heuristic,
        dispatch=dispatch,
        excluded=(*exposed.excluded, *(() if exposed.sizes_known or not allow_lossy else (_NO_SIZES,))),
        destination=destination,
        only=only,
        exclude=exclude,
        allow_lossy=allow_lossy,
        timelines=timelines,
        progress=stage,
    )
    assert answer.search is not None
    first, *others = answer.search.summary
    search = replace(
        answer.search, summary=(first, exposed.times, *others), notes=(*answer.search.notes, *exposed.notes)
    )
    return replace(answer, search=search)


def _always(device: Device) -> Callable[[], Device]:
    return lambda: device


def step_to_plan(
    paths: Sequence[Path],
    device: Device | None = None,
    *,
    step: int | None = None,
    progress: Progress | None = None,
) -> StepToPlan | NothingToPlan:
    """The step of the rank with most exposed communication, as a workload; or why there is none."""
    return _step_to_plan(analyze(paths, device=device, step=step, what_if=False, progress=progress), paths)


def _step_to_plan(analysis: Analysis, paths: Sequence[Path]) -> StepToPlan | NothingToPlan:
    recorded = analysis.step
    if recorded is None:
        if not analysis.devices:
            raise UnsupportedError("the recordings do not name a known GPU: pass --device (see `makeway devices`)")
        reason = (analysis.no_step or "no rank has a step").partition("\n")[0]
        return NothingToPlan(reason=reason, device=", ".join(analysis.devices), notes=analysis.notes)
    return StepToPlan(
        workload=replace(recorded.workload, name=f"rank {recorded.rank} of {paths[0].name}"),
        device=recorded.device,
        excluded=not_shown_by_a_trace(recorded),
        notes=(*analysis.notes, *recorded.workload.assumed),
        sizes_known=recorded.sizes_known,
        times=analysis.which_times,
    )
