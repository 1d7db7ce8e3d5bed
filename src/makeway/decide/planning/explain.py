"""Why a plan is what it is: plain sentences with the numbers that decided."""

from __future__ import annotations

from collections.abc import Iterator

from makeway.decide.planning.candidates import Candidates
from makeway.decide.planning.score import Score, Scorer
from makeway.decide.planning.search import TIE, Controls
from makeway.values.control import Control, SmemPad, control_word
from makeway.values.plan import Rejected

# Mean absolute error of t / t_sequential against Fig. 2 of arXiv 2606.09200 (docs/model.md, section 7); MI300X: of the
# share of ideal against ConCCL's ladder (section 8), two points, which is less than 0.02 of the sequential time.
MODEL_ERROR: dict[str, float] = {"sm_80": 0.011, "sm_86": 0.025, "gfx90a": 0.031, "gfx942": 0.02}
# A device without published results gets the largest of them.
LARGEST_ERROR = max(MODEL_ERROR.values())


def model_error(arch: str) -> float:
    """The model's average error of t / t_sequential; a smaller gain counts as none."""
    return MODEL_ERROR.get(arch, LARGEST_ERROR)


def summary(plan: Score, best: Score, scorer: Scorer, *, leave: bool) -> Iterator[str]:
    """The verdict, under which conditions, and the range that it lies in.

    `best` is the fastest set found; it differs from `plan` only if `leave`: its gain is too small.
    """
    naive, base, arch = scorer.score(()), scorer.baseline, scorer.device.arch
    error, saved = model_error(arch), (naive.t_ns - plan.t_ns) / base.t_sequential_ns
    if leave:
        more = [control_word(control) for control in best.controls if control not in plan.controls]
        gain = _percent((plan.t_ns - best.t_ns) / base.t_sequential_ns)
        fastest = (
            f"the best set found ({', '.join(more)}) saves {gain} of the sequential time, within the model's error"
            if more
            else "nothing faster was found"
        )
        required = f", {_ms(plan.t_ns)} with the required ones" if plan.controls else ""
        yield f"Leave as is: {_ms(naive.t_ns)} without controls{required}; {fastest}."
    else:
        word = "Worth doing" if saved > error else "Slower" if plan.t_ns > naive.t_ns * (1 + TIE) else "Not worth doing"
        change = _change(plan.t_ns, naive.t_ns)
        yield f"{word}: {_ms(plan.t_ns)} with the plan, {_ms(naive.t_ns)} without ({change})."
    names = [name for name, _ in naive.by_dispatch]
    times = (
        f"Times are the slowest under the {' and '.join(names)} dispatch policies"
        if len(names) > 1
        else f"Times are for {names[0]} dispatch"
    )
    whose = "" if arch in MODEL_ERROR else " (the largest error of all validated devices)"
    yield f"{times}; on average the model is off by {_percent(error)} of the sequential time{whose}."
    shares = [scorer.share_of_ideal(score.t_ns) for score in (naive, plan)]
    if None not in shares:
        yield (
            f"Sequential: {_ms(base.t_sequential_ns)}; perfect overlap: {_ms(base.ideal_ns)}; share of ideal: "
            f"{shares[0]:.2f} without the plan, {shares[1]:.2f} with it."
        )


def reason(control: Control, plan: Score, scorer: Scorer, offered: Candidates) -> str:
    """What a control of the plan is worth."""
    if control in offered.forced:
        return "required"
    without = scorer.attempt(tuple(other for other in plan.controls if other != control))
    if isinstance(without, str):
        return f"the others cannot run without it: {without}"
    return f"{_ms(plan.t_ns)} with it, {_ms(without.t_ns)} without it ({_change(plan.t_ns, without.t_ns)})"


def rejections(plan: Controls, offered: Candidates, search: Scorer, budget_ms: float) -> Iterator[Rejected]:
    """The candidates that are not in the plan, and why.

    For each kind the best value beside the plan's other controls, by the scores of the search, which may be coarser
    than those that decided; at least one value is tried while the budget lasts.
    """
    yield from offered.rejected
    reference = search.attempt(plan)
    for axis in offered.axes:
        kept = next((control for control in plan if type(control) is type(axis[0])), None)
        beside = {value: offered.point([*(c for c in plan if c != kept), value]) for value in axis if value != kept}
        known = {value: controls for value, controls in beside.items() if search.known(controls)}
        if not known and search.spent_ms < budget_ms:
            known = dict(list(beside.items())[:1])
        attempts = {value: search.attempt(controls) for value, controls in known.items()}
        scores = {value: score for value, score in attempts.items() if isinstance(score, Score)}
        if any(controls == plan for controls in beside.values()):
            yield Rejected(control=axis[0], reason="idle: copy engines carry every collective")
        elif scores and isinstance(reference, Score):
            value = min(scores, key=lambda value: (scores[value].t_ns, repr(value)))
            room = f"; {offered.pad_room}" if isinstance(value, SmemPad) and offered.pad_room else ""
            yield Rejected(control=value, reason=_verdict(scores[value], reference, kept) + room)
        elif attempts:
            value, why = next(iter(attempts.items()))
            yield Rejected(control=value, reason=f"cannot: {why}")
        elif kept is None:
            yield Rejected(control=axis[0], reason="not tried: the budget was spent")


def _verdict(score: Score, reference: Score, kept: Control | None) -> str:
    change = _change(score.t_ns, reference.t_ns)
    if score.t_ns > reference.t_ns * (1 + TIE):
        return f"slower: {change} in place of {control_word(kept)}" if kept else f"does not help: {change}"
    if score.t_ns >= reference.t_ns * (1 - TIE):
        return f"as fast as {control_word(kept)}: {change}" if kept else f"changes nothing: {change}"
    return f"not worth it: {change}, within the model's error"


def _change(t_ns: float, reference_ns: float) -> str:
    return f"{100 * (t_ns / reference_ns - 1):+.1f} %"


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def _ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:.3f} ms"
