"""Why a plan is what it is: plain sentences with the judge's numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from makeway.decide.planning.control_sets import Candidates
from makeway.decide.planning.error import ErrorOfDifference
from makeway.decide.planning.score import Controls, Judge, Score
from makeway.decide.planning.search import TIE
from makeway.model.compression import MOST_RANKS, Link, compression_of, payoff
from makeway.model.simulate.compressed import gradient_types
from makeway.model.simulate.rewrite import rewritten
from makeway.values.control import CommBlocks, Compress, Control, CopyEngine, SmemPad, SmPartition, control_word, lossy
from makeway.values.plan import PolicyTimes, Rejected
from makeway.values.units import format_bytes
from makeway.values.workload import ELEMENT_BYTES

_ADDS_NOTHING = "changes nothing"


def summary(
    plan: Score, best: Score, judge: Judge, error: ErrorOfDifference, policies: tuple[PolicyTimes, ...], *, leave: bool
) -> Iterator[str]:
    """The verdict, the dispatch policies, and the range that it lies in.

    `best` is the fastest set; it differs from `plan` where a gain is within the error, or a control was worth too
    little.
    """
    naive, base = judge.score(()), judge.baseline
    saved = (naive.t_ns - plan.t_ns) / base.t_sequential_ns
    if leave:
        more = [control_word(control) for control in best.controls if control not in plan.controls]
        gain = _percent((plan.t_ns - best.t_ns) / base.t_sequential_ns)
        fastest = (
            f"the best set ({', '.join(more)}) saves {gain} of the sequential time, within the model's error"
            if more
            else "nothing is faster"
        )
        required = f", {_ms(plan.t_ns)} with the required ones" if plan.controls else ""
        yield f"Leave as is: {_ms(naive.t_ns)} without controls{required}; {fastest}."
    else:
        word = "Worth doing" if saved > error.value else "Slower" if plan.t_ns > naive.t_ns * (1 + TIE) else "No gain"
        change = _change(plan.t_ns, naive.t_ns)
        yield f"{word}: {_ms(plan.t_ns)} with the plan, {_ms(naive.t_ns)} without ({change})."
    yield _policies(policies)
    yield f"Differences between settings are off by {_percent(error.value)} of the sequential time on average."
    shares = [judge.share_of_ideal(score.t_ns) for score in (naive, plan)]
    if any(map(lossy, plan.controls)):  # the ideal moves all bytes
        yield f"Sequential: {_ms(base.t_sequential_ns)}; perfect overlap of all bytes: {_ms(base.ideal_ns)}."
    elif shares[0] is not None and shares[1] is not None:
        yield (
            f"Sequential: {_ms(base.t_sequential_ns)}; perfect overlap: {_ms(base.ideal_ns)}; share of ideal: "
            f"{100 * shares[0]:.0f} % without the plan, {100 * shares[1]:.0f} % with it."
        )


def _policies(policies: tuple[PolicyTimes, ...]) -> str:
    times = [
        f"{item.dispatch} {_ms(item.t_naive_ns)}"
        + (" either way" if item.t_plan_ns == item.t_naive_ns else f" without and {_ms(item.t_plan_ns)} with the plan")
        for item in policies
    ]
    others = "; the first is the vendor's" if len(policies) > 1 else ""
    return f"Judged under dispatch policies: {', '.join(times)}{others}."


def reason(control: Control, plan: Score, judge: Judge, offered: Candidates) -> str:
    """What a control of the plan is worth: the time without it, all others kept."""
    if control in offered.forced:
        return "required"
    without = judge.attempt(offered.point(other for other in plan.controls if other != control))
    if isinstance(without, str):
        return _companion(control, plan, judge, offered) or f"the others cannot run without it: {without}"
    worth = f"{_ms(plan.t_ns)} with it, {_ms(without.t_ns)} without it ({_change(plan.t_ns, without.t_ns)})"
    return f"{worth}; {_sent(control, judge)}" if isinstance(control, Compress) else worth


def _sent(control: Compress, judge: Judge) -> str:
    """What compression saves on the wire, and what it costs."""
    before, after = (
        sum(op.collective.wire_bytes for op in workload.collectives)
        for workload in (judge.workload, rewritten(judge.workload, (control,)))
    )
    sent = f"a rank sends {format_bytes(round(after))} in place of {format_bytes(round(before))}"
    return "; ".join([sent, *_where_it_pays(control, judge), "results change"])


def _where_it_pays(control: Compress, judge: Judge) -> Iterator[str]:
    """Up to which link rate and how many ranks the largest all-reduce gains by itself, where that is known."""
    device, workload = judge.device, judge.workload
    reduced = [op for op in workload.collectives if op.collective.kind == "all-reduce"]
    if not reduced or device.hbm_bytes_per_s is None or device.fp32_flops_per_s is None:
        return
    largest = max(reduced, key=lambda op: op.collective.size_bytes)
    ranks, width = largest.collective.ranks, ELEMENT_BYTES[gradient_types(workload)[largest.name]]
    link = Link(
        bytes_per_s=1e9 * sum(op.collective.wire_bytes for op in workload.collectives) / judge.baseline.t_comm_ns,
        hbm_bytes_per_s=device.hbm_bytes_per_s,
        flops_per_s=device.fp32_flops_per_s,
    )
    answer = payoff(compression_of(control), largest.collective.size_bytes / width, ranks, link, element_bytes=width)
    below, most = answer.pays_below_bytes_per_s, answer.pays_up_to_ranks
    rate = "no link rate" if below is None else f"link rates below {_gigabytes(below)}"
    number = (
        "no number of ranks"
        if most is None
        else "any number of ranks"
        if most == MOST_RANKS
        else f"up to {most:,} ranks"
    )
    yield (
        f"by itself an all-reduce of {format_bytes(largest.collective.size_bytes)} gains at {rate} among {ranks:,} "
        f"ranks, and at the {_gigabytes(link.bytes_per_s)} of this link with {number}"
    )


def _gigabytes(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s"


def _exposed(judge: Judge, plan: Controls) -> str:
    """How much communication compression could shorten at most."""
    base = judge.baseline
    exposed_ns = max(judge.score(plan).t_ns - base.t_compute_ns, 0.0)
    return f"{_ms(exposed_ns)} of {_ms(base.t_comm_ns)} of communication is exposed without it"


def _companion(control: Control, plan: Score, judge: Judge, offered: Candidates) -> str | None:
    """Why a partition needs its channels: the time without both."""
    partition = next((other for other in plan.controls if isinstance(other, SmPartition)), None)
    if not isinstance(control, CommBlocks) or partition is None:
        return None
    rest = offered.point(other for other in plan.controls if other not in (control, partition))
    without = judge.attempt(rest)
    needs = f"{control_word(partition)} has no room for the library's own blocks"
    if isinstance(without, str):
        return needs
    return f"{needs}; {_ms(plan.t_ns)} with both, {_ms(without.t_ns)} without ({_change(plan.t_ns, without.t_ns)})"


def rejections(
    plan: Controls, offered: Candidates, judge: Judge, quick: Mapping[Controls, Score], error: ErrorOfDifference
) -> Iterator[Rejected]:
    """The candidates that are not in the plan, and why: for each kind the best value beside the plan's other controls.

    Figures are the judge's. A value that the search found no better is not judged, and its reason has no figure.
    """
    yield from offered.rejected
    for axis in offered.axes:
        kept = next((item for item in plan if any(item == option[0] for option in axis)), None)
        beside = {option[0]: offered.point(offered.replaced(plan, option)) for option in axis if option[0] not in plan}
        if any(controls == plan for controls in beside.values()):
            yield Rejected(control=axis[0][0], reason="idle: copy engines carry every collective")
            continue
        known = {value: quick[controls] for value, controls in beside.items() if controls in quick}
        if not known:
            continue
        value = min(known, key=lambda item: (known[item].t_ns, repr(item)))
        reference = quick.get(plan)
        better = reference is None or known[value].t_ns < reference.t_ns * (1 - TIE)
        if better or judge.knows(beside[value]):
            verdict = _judged(judge.attempt(beside[value]), judge, plan, kept, error)
        else:
            assert reference is not None
            slower = known[value].t_ns > reference.t_ns * (1 + TIE)
            verdict = _in_place("slower" if slower else "as fast", kept) if kept else _beside(slower, plan)
        room = f"; {offered.pad_room}" if isinstance(value, SmemPad) and offered.pad_room else ""
        if verdict.startswith(_ADDS_NOTHING):
            verdict = _alone(offered.point((value,)), judge, plan) + verdict
        pays = (
            [_exposed(judge, plan), *_where_it_pays(value, judge)] if isinstance(value, Compress) and not kept else []
        )
        yield Rejected(control=value, reason="; ".join([verdict + room, *pays]))


def _alone(controls: Controls, judge: Judge, plan: Controls) -> str:
    """What a control that adds nothing to the plan gains without it, where the judge has already said so."""
    score = judge.attempt(controls) if plan and controls != plan and judge.knows(controls) else None
    naive = judge.baseline
    if not isinstance(score, Score) or score.t_ns >= naive.t_ns * (1 - TIE):
        return ""
    return f"{_change(score.t_ns, naive.t_ns)} without the plan; "


def _beside(slower: bool, plan: Controls) -> str:
    where = " beside the plan" if plan else ""
    return f"slower{where}, by the search" if slower else f"{_ADDS_NOTHING}{where}, by the search"


def _in_place(verdict: str, kept: Control) -> str:
    return f"{verdict} in place of {control_word(kept)}, by the search"


def _judged(score: Score | str, judge: Judge, plan: Controls, kept: Control | None, error: ErrorOfDifference) -> str:
    if isinstance(score, str):
        return f"cannot: {score}"
    reference = judge.score(plan)
    change, instead = _change(score.t_ns, reference.t_ns), f" in place of {control_word(kept)}" if kept else ""
    if score.t_ns > reference.t_ns * (1 + TIE):
        return f"slower: {change}{instead}" if kept else f"does not help: {change}"
    if score.t_ns >= reference.t_ns * (1 - TIE):
        return f"as fast as {control_word(kept)}: {change}" if kept else f"{_ADDS_NOTHING}: {change}"
    if reference.t_ns - score.t_ns > error.value * judge.baseline.t_sequential_ns:
        return f"slower than nothing under another dispatch policy; {change} under the vendor's"
    return f"not worth it: {change}{instead}, within the model's error"


def not_carried(plan: Controls) -> Iterator[str]:
    """What no carrier sets."""
    for control in plan:
        if isinstance(control, CopyEngine) and control != CopyEngine():
            yield f"{control_word(control)}: no carrier sets variant and prelaunch; the library chooses how it copies"


def _change(t_ns: float, reference_ns: float) -> str:
    return f"{100 * (t_ns / reference_ns - 1):+.1f} %"


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def _ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:.3f} ms"
