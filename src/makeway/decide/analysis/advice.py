"""What to change, derived from the causes: each piece of advice carries the time its cause accounts for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from makeway.decide.analysis.findings import Advice, CauseGroup, CauseKind, Loss, Matching
from makeway.decide.analysis.names import short_name
from makeway.values.control import Chunks, CommBlocks, CommPriority, Control, CopyEngine, SmPartition

# Advice about less than this part of the recorded span is noise.
WORTH = 0.005
# The late ranks that advice names account for at least this share of all waiting.
MOSTLY = 0.8

_TITLES: dict[tuple[CauseKind, Loss], str] = {
    ("straggler", "exposed"): "find out why {late_ranks}",
    ("no-room", "late"): "make room for the collective: raise its priority, then reserve SMs or shrink its footprint",
    ("dependency", "late"): "launch collectives as soon as their data is ready: smaller buckets, earlier prefetch",
    ("dependency", "exposed"): "give the GPU compute that does not need the result: prefetch, or split the collective",
    ("launch-bound", "exposed"): "launch compute earlier: CUDA graphs, torch.compile, fewer small kernels",
    ("serialised", "exposed"): "put the collective on a stream of its own (async_op=True, or a side stream)",
    ("contention", "slowed"): "take less from compute: fewer communication blocks, or copy engines",
}

# Controls that may help against each cause; the simulator predicts their gains.
_CONTROLS: dict[tuple[CauseKind, Loss], tuple[Control, ...]] = {
    ("no-room", "late"): (CommPriority(), SmPartition(16), CopyEngine()),
    ("dependency", "exposed"): (Chunks(4),),
    ("contention", "slowed"): (CommBlocks(8), CopyEngine()),
}


def advice(groups: Sequence[CauseGroup], matching: Matching, *, span_ns: int) -> tuple[Advice, ...]:
    """What to change, the most time first; undetermined causes ask for a better recording."""
    items: list[Advice] = []
    for group in groups:
        if group.most_on_one_rank_ns < WORTH * span_ns:
            continue
        key = (group.kind, group.of)
        if group.kind == "undetermined":
            items.append(_better_recording(group))
        elif key in _TITLES:
            items.append(
                Advice(
                    title=_TITLES[key].format(late_ranks=_late_ranks(matching)),
                    why=_why(group, matching),
                    at_most_ns=group.most_on_one_rank_ns,
                    cause=group.kind,
                    controls=_CONTROLS.get(key, ()),
                )
            )
    return _merged(items)


def _late_ranks(matching: Matching) -> str:
    """The fewest ranks that account for most of the waiting, in words."""
    named: list[int] = []
    covered = 0.0
    for rank, share in matching.late_ranks:
        if covered >= MOSTLY:
            break
        named.append(rank)
        covered += share
    if not named or len(named) > 3:
        return "ranks take turns arriving late"
    first = ", ".join(map(str, sorted(named)[:-1]))
    return f"ranks {first} and {max(named)} arrive late" if first else f"rank {named[0]} arrives late"


def _why(group: CauseGroup, matching: Matching) -> str:
    if group.kind == "straggler":
        shares = ", ".join(f"rank {rank} {share:.0%}" for rank, share in matching.late_ranks[:3])
        return f"share of all waiting by the rank waited for: {shares}"
    if group.kind == "no-room" and group.kernel:
        return f"{short_name(group.kernel)} leaves a block of the collective short of {group.short_by or 'room'}"
    return group.evidence


def _better_recording(group: CauseGroup) -> Advice:
    return Advice(
        title=f"record more: {group.record_next}",
        why=f"this trace does not show the cause of this time: {group.evidence}",
        at_most_ns=group.most_on_one_rank_ns,
        cause="undetermined",
    )


def _merged(items: Sequence[Advice]) -> tuple[Advice, ...]:
    """Each title once, with the added times of all its items."""
    by_title: dict[str, Advice] = {}
    for item in items:
        first = by_title.get(item.title)
        by_title[item.title] = replace(first, at_most_ns=first.at_most_ns + item.at_most_ns) if first else item
    return tuple(sorted(by_title.values(), key=lambda item: (-item.at_most_ns, item.title)))
