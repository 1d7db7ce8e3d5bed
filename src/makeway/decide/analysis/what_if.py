"""What each control would do to a recorded step, and how well the simulator reproduces that step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from makeway.decide.analysis.findings import Advice
from makeway.decide.analysis.recorded import RecordedStep
from makeway.model.simulate.predict import PredictedRun, predicted_run
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

# A replay further off than this does not predict changes reliably.
TRUSTED_ERROR = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A recorded step simulated as it was."""

    recorded_ns: int
    predicted_ns: float
    timeline: Timeline | None = None  # of the recorded rank, in the recording's clock

    @property
    def error(self) -> float:
        """Predicted over recorded, minus 1."""
        return self.predicted_ns / self.recorded_ns - 1.0 if self.recorded_ns else 0.0

    @property
    def trusted(self) -> bool:
        return abs(self.error) <= TRUSTED_ERROR

    @property
    def worth_ns(self) -> float:
        """The smallest gain worth reporting: the replay's own error, and at least 0.5 % of the step."""
        return max(abs(self.predicted_ns - self.recorded_ns), 0.005 * self.recorded_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One control on the recorded step: the predicted gain, and why it is missing or zero."""

    control: Control
    gain_ns: float | None
    why_not: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Predictions for a recorded step, relative to its replay."""

    rank: int
    device: str
    replay: Replay
    outcomes: tuple[Outcome, ...]  # the largest gain first
    assumed: tuple[str, ...]

    def gain_percent(self, outcome: Outcome) -> float | None:
        """The gain as a percentage of the simulated step."""
        return None if outcome.gain_ns is None else 100.0 * outcome.gain_ns / self.replay.predicted_ns


def not_shown_by_a_trace(step: RecordedStep) -> tuple[Rejected, ...]:
    """Controls whose effect a recorded step does not show."""
    order = Rejected(
        control=LaunchOrder(), reason="a trace does not show which data a collective needs, so its order is kept"
    )
    size = Rejected(
        control=CopyEngine(), reason="the sizes of the collectives are not recorded, and a copy's time depends on them"
    )
    return (order,) if step.sizes_known else (order, size)


def standard_controls(step: RecordedStep) -> tuple[Control, ...]:
    """One of each control that needs no search, for a first look; `makeway plan` searches."""
    blocks = max((op.blocks or 1 for op in step.workload.collectives), default=1)
    fewer = (CommBlocks(max(blocks // 2, 1)),) if blocks > 1 else ()
    partition = (SmPartition(min(blocks, step.device.sms - 1)),) if step.device.sms > 1 else ()
    not_shown = {type(item.control) for item in not_shown_by_a_trace(step)}
    controls: tuple[Control, ...] = (CommPriority(), *fewer, *partition, CopyEngine(), Chunks(4))
    return tuple(control for control in controls if type(control) not in not_shown)


def what_if(step: RecordedStep, controls: Sequence[Control] | None = None) -> WhatIf:
    """The recorded step under each control alone."""
    workload, device = step.workload, step.device
    plain = predicted_run(workload, device)
    end_ns = plain.result.end_ns
    chosen = standard_controls(step) if controls is None else controls
    outcomes = [_outcome(workload, device, control, end_ns) for control in chosen]
    outcomes.sort(key=lambda outcome: -(outcome.gain_ns if outcome.gain_ns is not None else float("-inf")))
    return WhatIf(
        rank=step.rank,
        device=device.name,
        replay=Replay(
            recorded_ns=step.recorded_ns,
            predicted_ns=end_ns - _began_ns(plain),
            timeline=_in_recorded_time(plain.timeline, step),
        ),
        outcomes=tuple(outcomes),
        assumed=workload.assumed,
    )


def _began_ns(run: PredictedRun) -> float:
    """The start of the first operation."""
    return min(times.started_ns for times in run.result.times)


def _in_recorded_time(timeline: Timeline, step: RecordedStep) -> Timeline:
    """The first simulated rank, which stands for the recorded one, with the recording's times and number."""
    moved = (
        replace(span, rank=step.rank, start_ns=span.start_ns + step.origin_ns, end_ns=span.end_ns + step.origin_ns)
        for span in timeline.spans
        if span.rank == 0
    )
    return replace(timeline, spans=tuple(moved), holdings=())


def _outcome(workload: Workload, device: Device, control: Control, plain_ns: float) -> Outcome:
    try:
        run = predicted_run(workload, device, (control,))
    except MakewayError as error:
        return Outcome(control=control, gain_ns=None, why_not=str(error).partition("\n")[0])
    idle = run.compiled.without_effect
    return Outcome(control=control, gain_ns=plain_ns - run.result.end_ns, why_not=idle[0] if idle else None)


def with_gains(advice: Sequence[Advice], answers: WhatIf, *, worth_ns: float) -> tuple[Advice, ...]:
    """The advice with the best predicted gain of its controls, then the remaining controls that gain `worth_ns`."""
    gains = {type(item.control): item for item in answers.outcomes if (item.gain_ns or 0.0) >= worth_ns}
    items: list[Advice] = []
    used: set[type[Control]] = set()
    for item in advice:
        fitting = [gains[type(control)] for control in item.controls if type(control) in gains]
        best = max(fitting, key=lambda outcome: outcome.gain_ns or 0.0, default=None)
        if best is not None:
            used.add(type(best.control))
            items.append(replace(item, controls=(best.control,), predicted_gain_ns=best.gain_ns))
        else:
            items.append(replace(item, controls=()))
    items += [
        Advice(
            title=describe(outcome.control),
            why="the simulator predicts this gain for the recorded step",
            at_most_ns=round(outcome.gain_ns or 0.0),
            cause="contention",
            controls=(outcome.control,),
            predicted_gain_ns=outcome.gain_ns,
        )
        for kind, outcome in gains.items()
        if kind not in used
    ]
    return tuple(items)
