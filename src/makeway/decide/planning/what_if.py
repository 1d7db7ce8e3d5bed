"""What each control would do to a recorded step, and how well the simulator reproduces the step as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from makeway.decide.analysis.findings import Advice, Findings
from makeway.decide.analysis.recorded import RecordedStep
from makeway.model.simulate.driver import run
from makeway.model.simulate.predict import Settings, compile_for, timeline_of, vendor_dispatch
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    Control,
    CopyEngine,
    LaunchOrder,
    SmPartition,
    describe,
)
from makeway.values.device import Device
from makeway.values.errors import MakewayError
from makeway.values.plan import Rejected
from makeway.values.timeline import Timeline
from makeway.values.workload import Workload

# A replay that misses the recorded time by more than this says nothing reliable about changes to it.
TRUSTED_ERROR = 0.10
# Classes of blocks, not single ones: recorded kernels are many and short.
_SETTINGS = Settings(engine="class")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A recorded step simulated as it was."""

    recorded_ns: int
    predicted_ns: float
    timeline: Timeline | None = None  # of the recorded rank, by the record's clock

    @property
    def error(self) -> float:
        """Predicted over recorded, minus 1."""
        return self.predicted_ns / self.recorded_ns - 1.0 if self.recorded_ns else 0.0

    @property
    def trusted(self) -> bool:
        return abs(self.error) <= TRUSTED_ERROR

    @property
    def worth_ns(self) -> float:
        """The least gain to speak of: what the replay misses, and not below half a per cent of the step."""
        return max(abs(self.predicted_ns - self.recorded_ns), 0.005 * self.recorded_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One control on the recorded step: the predicted gain, or why there is none; where it does nothing, why."""

    control: Control
    gain_ns: float | None
    why_not: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Predictions about a recorded step: always of the simulated step, beside how far that is from the record."""

    rank: int
    device: str
    replay: Replay
    outcomes: tuple[Outcome, ...]  # the largest gain first
    assumed: tuple[str, ...]


def not_shown_by_a_trace(step: RecordedStep) -> tuple[Rejected, ...]:
    """Controls whose effect cannot be told from a recorded step."""
    order = Rejected(
        control=LaunchOrder(), reason="a trace does not show which data a collective needs, so its order is kept"
    )
    size = Rejected(
        control=CopyEngine(),
        reason="the sizes of the collectives are not recorded, and a copy's time follows from them",
    )
    return (order,) if step.sizes_known else (order, size)


def standard_controls(step: RecordedStep, device: Device) -> tuple[Control, ...]:
    """One of each control that needs no search, for a first look; `makeway plan` searches."""
    workload = step.workload
    blocks = max((op.blocks or 1 for op in workload.collectives), default=1)
    fewer = (CommBlocks(max(blocks // 2, 1)),) if blocks > 1 else ()
    apart = (SmPartition(min(blocks, device.sms - 1)),) if device.sms > 1 else ()
    unknown = {type(item.control) for item in not_shown_by_a_trace(step)}
    every: tuple[Control, ...] = (CommPriority(), *fewer, *apart, CopyEngine(), Chunks(4))
    return tuple(control for control in every if type(control) not in unknown)


def what_if(step: RecordedStep, device: Device, controls: Sequence[Control] | None = None) -> WhatIf:
    """The recorded step under each control alone."""
    workload = step.workload
    plain = _run(workload, device, ())
    chosen = standard_controls(step, device) if controls is None else tuple(controls)
    outcomes = [_outcome(workload, device, control, plain.ended_ns) for control in chosen]
    outcomes.sort(key=lambda outcome: -(outcome.gain_ns if outcome.gain_ns is not None else float("-inf")))
    return WhatIf(
        rank=step.rank,
        device=device.name,
        replay=Replay(
            recorded_ns=step.recorded_ns,
            predicted_ns=plain.ended_ns - plain.began_ns,
            timeline=_by_the_records_clock(plain.timeline, step),
        ),
        outcomes=tuple(outcomes),
        assumed=workload.assumed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    ended_ns: float
    began_ns: float  # its first operation
    timeline: Timeline
    without_effect: tuple[str, ...]  # the controls that did nothing


def _run(workload: Workload, device: Device, controls: tuple[Control, ...]) -> _Ran:
    dispatch = vendor_dispatch(device)
    compiled = compile_for(workload, device, controls, dispatch, _SETTINGS)
    result = run(compiled.program, engine="class", dispatch=dispatch)
    return _Ran(
        ended_ns=result.end_ns,
        began_ns=min(times.started_ns for times in result.times),
        timeline=timeline_of(compiled.program, result, device),
        without_effect=compiled.without_effect,
    )


def what_if_found(result: Findings, step: RecordedStep, device: Device) -> tuple[Findings, WhatIf]:
    """The recorded step under each control, and the findings with the gains that are worth telling."""
    answers = what_if(step, device)
    if answers.replay.trusted:
        result = replace(result, advice=with_gains(result.advice, answers, worth_ns=answers.replay.worth_ns))
    return result, answers


def _by_the_records_clock(timeline: Timeline, step: RecordedStep) -> Timeline:
    """The first simulated rank, which stands for the recorded one, with the record's times and number."""
    moved = (
        replace(span, rank=step.rank, start_ns=span.start_ns + step.origin_ns, end_ns=span.end_ns + step.origin_ns)
        for span in timeline.spans
        if span.rank == 0
    )
    return replace(timeline, spans=tuple(moved), holdings=())


def _outcome(workload: Workload, device: Device, control: Control, plain_ns: float) -> Outcome:
    try:
        ran = _run(workload, device, (control,))
    except MakewayError as error:
        return Outcome(control=control, gain_ns=None, why_not=str(error).partition("\n")[0])
    why_not = ran.without_effect[0] if ran.without_effect else None
    return Outcome(control=control, gain_ns=plain_ns - ran.ended_ns, why_not=why_not)


def with_gains(advice: Sequence[Advice], answers: WhatIf, *, worth_ns: float) -> tuple[Advice, ...]:
    """The advice with the best predicted gain of its controls, then other controls; gains below `worth_ns` are none."""
    gains = {type(item.control): item for item in answers.outcomes if (item.gain_ns or 0.0) >= worth_ns}
    found: list[Advice] = []
    used: set[type[Control]] = set()
    for item in advice:
        fitting = [gains[type(control)] for control in item.controls if type(control) in gains]
        best = max(fitting, key=lambda outcome: outcome.gain_ns or 0.0, default=None)
        if best is not None:
            used.add(type(best.control))
        found.append(
            replace(item, controls=(best.control,) if best else (), predicted_gain_ns=best.gain_ns if best else None)
            if item.controls
            else item
        )
    for outcome in answers.outcomes:
        if type(outcome.control) not in used and (outcome.gain_ns or 0.0) >= worth_ns:
            found.append(
                Advice(
                    title=describe(outcome.control),
                    why="the simulator finds it on this very step",
                    bound_ns=round(outcome.gain_ns or 0.0),
                    cause="contention",
                    controls=(outcome.control,),
                    predicted_gain_ns=outcome.gain_ns,
                )
            )
    return tuple(found)
