"""What each control would do to a recorded step, and how well the simulator reproduces that step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from makeway.decide.analysis.findings import Advice, RankFindings
from makeway.decide.analysis.ledger import EXPOSED
from makeway.decide.analysis.recorded import RecordedStep
from makeway.decide.analysis.wording import wording_for
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    Control,
    CopyEngine,
    LaunchOrder,
    SmPartition,
    control_word,
    describe,
)
from makeway.values.device import Device
from makeway.values.errors import MakewayError
from makeway.values.plan import Rejected
from makeway.values.timeline import Timeline
from makeway.values.workload import Workload

if TYPE_CHECKING:
    from makeway.model.simulate.predict import PredictedRun

# A replay further off than this does not predict changes reliably.
TRUSTED_ERROR = 0.10
# What-if comes after the figures and takes a small part of their time: all runs together simulate at most one operation
# for so many recorded kernels and copies (one takes about as long as reading five), or this many if that is more.
KERNELS_PER_OPERATION = 8
LEAST_OPERATIONS = 1_000


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
    """Controls whose effect a recorded step does not show, or shows already."""
    order = Rejected(
        control=LaunchOrder(), reason="a trace does not show which data a collective needs, so its order is kept"
    )
    size = Rejected(
        control=CopyEngine(), reason="the sizes of the collectives are not recorded, and a copy's time depends on them"
    )
    present = (Rejected(control=item.control, reason=f"already in force: {item.evidence}") for item in step.in_force)
    return (order, *(() if step.sizes_known else (size,)), *present)


def standard_controls(step: RecordedStep) -> tuple[Control, ...]:
    """One of each control that needs no search, for a first look; `makeway plan` searches."""
    blocks = max((op.blocks or 1 for op in step.workload.collectives), default=1)
    fewer = (CommBlocks(max(blocks // 2, 1)),) if blocks > 1 else ()
    partition = (SmPartition(min(blocks, step.device.sms - 1)),) if step.device.sms > 1 else ()
    not_shown = {type(item.control) for item in not_shown_by_a_trace(step)}
    controls: tuple[Control, ...] = (CommPriority(), *fewer, *partition, CopyEngine(), Chunks(4))
    return tuple(control for control in controls if type(control) not in not_shown)


def what_if(
    step: RecordedStep, controls: Sequence[Control] | None = None, *, most_operations: int | None = None
) -> WhatIf:
    """The recorded step under each control alone.

    `most_operations` bounds all runs together.
    """
    workload, device = step.workload, step.device
    chosen = standard_controls(step) if controls is None else controls
    runs = len(chosen)
    if most_operations is not None:
        runs = min(runs, max(most_operations // len(workload.operations) - 1, 1))
    run = partial(_run, workload, device)
    plain = run(())
    end_ns = plain.result.end_ns
    outcomes = [_outcome(run, control, end_ns) for control in chosen[:runs]]
    left_out = "not simulated: what-if takes a small part of the time of an analysis; `makeway plan` tries it"
    outcomes += [Outcome(control=control, gain_ns=None, why_not=left_out) for control in chosen[runs:]]
    outcomes += [
        Outcome(control=item.control, gain_ns=None, why_not=f"already in force: {item.evidence}")
        for item in step.in_force
    ]
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


def _run(workload: Workload, device: Device, controls: Sequence[Control]) -> PredictedRun:
    # loaded here, since figures and ledger come first and need none of it
    from makeway.model.simulate.predict import predicted_run

    return predicted_run(workload, device, controls)


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


def _outcome(run: Callable[[Sequence[Control]], PredictedRun], control: Control, plain_ns: float) -> Outcome:
    try:
        changed = run((control,))
    except MakewayError as error:
        return Outcome(control=control, gain_ns=None, why_not=str(error).partition("\n")[0])
    idle = changed.compiled.without_effect
    return Outcome(control=control, gain_ns=plain_ns - changed.result.end_ns, why_not=idle[0] if idle else None)


def by_relevance(controls: Sequence[Control], advice: Sequence[Advice]) -> tuple[Control, ...]:
    """The controls, first those that the advice asks for, in its order."""
    asked = [type(control) for item in advice for control in item.controls]
    return tuple(
        sorted(controls, key=lambda control: asked.index(type(control)) if type(control) in asked else len(asked))
    )


def with_gains(
    advice: Sequence[Advice], answers: WhatIf | None, *, no_answers: str | None, ranks: Sequence[RankFindings]
) -> tuple[Advice, ...]:
    """The advice with the best predicted gain of its controls, or why there is none; then the other controls that gain.

    A gain counts up to the time that the advice can take off its line.
    """
    gains = _gains(answers)
    items: list[Advice] = []
    used: set[type[Control]] = set()
    for item in advice:
        fitting = [gains[type(control)] for control in item.controls if type(control) in gains]
        best = max(fitting, key=lambda outcome: min(outcome.gain_ns or 0.0, item.at_most_ns), default=None)
        if best is not None and best.gain_ns is not None:
            used.add(type(best.control))
            gain_ns = min(best.gain_ns, float(item.at_most_ns))
            items.append(replace(item, controls=(best.control,), predicted_gain_ns=gain_ns))
        else:
            items.append(replace(item, controls=(), why_no_gain=_why_no_gain(item, answers, no_answers)))
    if answers is not None:
        items += [_of_control(item, answers.rank, ranks) for kind, item in gains.items() if kind not in used]
    return tuple(sorted(items, key=lambda item: -item.at_most_ns))


def _gains(answers: WhatIf | None) -> dict[type[Control], Outcome]:
    """The controls that gain more than the replay may be off by."""
    if answers is None or not answers.replay.trusted:
        return {}
    worth = answers.replay.worth_ns
    return {type(item.control): item for item in answers.outcomes if (item.gain_ns or 0.0) >= worth}


def _of_control(outcome: Outcome, rank: int, ranks: Sequence[RankFindings]) -> Advice:
    """Advice to set a control that no cause asks for: it shortens the longest line of exposed communication."""
    lines = next(item.ledger.lines for item in ranks if item.rank == rank)
    held = [line for line in lines if line.kind in EXPOSED] or [line for line in lines if line.kind == "compute"]
    longest = max(held, key=lambda line: line.ns)
    gain_ns = min(outcome.gain_ns or 0.0, float(longest.ns))
    return Advice(
        text=describe(outcome.control),
        why="the simulator predicts this gain for the recorded step",
        at_most_ns=round(gain_ns),
        line=wording_for(item.device for item in ranks).line(longest),
        cause="contention",
        controls=(outcome.control,),
        predicted_gain_ns=gain_ns,
    )


def _why_no_gain(item: Advice, answers: WhatIf | None, no_answers: str | None) -> str:
    if not item.controls:
        return "changes the program, which is not simulated"
    if answers is None:
        return f"not simulated: {(no_answers or 'no step').partition(chr(10))[0]}"
    if not answers.replay.trusted:
        return f"the replay is off by {100 * answers.replay.error:+.0f} %, too much to read gains from"
    outcomes = {type(outcome.control): outcome for outcome in answers.outcomes}
    tried = [outcomes[type(control)] for control in item.controls if type(control) in outcomes]
    if not tried:
        return "this recording does not show what its controls need"
    best = max(tried, key=lambda outcome: outcome.gain_ns if outcome.gain_ns is not None else float("-inf"))
    if best.gain_ns is None:
        return f"{control_word(best.control)}: {best.why_not}"
    effect = "gains" if best.gain_ns >= 0 else "loses"
    return (
        f"{control_word(best.control)} {effect} {abs(best.gain_ns) / 1e6:.3f} ms in the simulator, which may be "
        f"off by {answers.replay.worth_ns / 1e6:.3f} ms"
    )
