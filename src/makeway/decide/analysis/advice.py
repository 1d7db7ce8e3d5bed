"""What to change, from the causes found: each piece of advice with the time its cause accounts for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from makeway.decide.analysis.causes import CauseGroup
from makeway.decide.analysis.findings import Advice, CauseKind, Matching
from makeway.decide.analysis.names import short_name
from makeway.values.control import Chunks, CommBlocks, CommPriority, Control, CopyEngine, SmPartition

# Advice about less than this part of the recorded span is noise.
WORTH = 0.005
# Ranks are named when together they account for so much of the waiting.
MOSTLY = 0.8

_TITLES: dict[tuple[CauseKind, str], str] = {
    ("straggler", "exposed"): "find out why {rank}",
    ("no-room", "late"): "let the collective in: priority first, then SMs set apart or a smaller footprint",
    ("dependency", "late"): "launch collectives as soon as their data is there: smaller buckets, earlier prefetch",
    ("dependency", "exposed"): "give the GPU compute that does not need the result: prefetch, or split the collective",
    ("launch-bound", "exposed"): "launch compute earlier: CUDA graphs, torch.compile, fewer small kernels",
    ("serialised", "exposed"): "put the collective on a stream of its own (async_op=True, or a side stream)",
    ("contention", "slowed"): "take less from compute: fewer communication blocks, or copy engines",
}

# What the simulator can be asked about each cause; the gains are its answer, not ours.
_CONTROLS: dict[tuple[CauseKind, str], tuple[Control, ...]] = {
    ("no-room", "late"): (CommPriority(), SmPartition(16), CopyEngine()),
    ("dependency", "exposed"): (Chunks(4),),
    ("contention", "slowed"): (CommBlocks(8), CopyEngine()),
}


def advice(groups: Sequence[CauseGroup], matching: Matching, *, span_ns: int) -> tuple[Advice, ...]:
    """What to change, the most time first; causes that are not determined ask for a better record."""
    found: list[Advice] = []
    for group in groups:
        if group.rank_ns < WORTH * span_ns:
            continue
        key = (group.kind, group.of)
        if group.kind == "undetermined":
            found.append(_better_record(group))
        elif key in _TITLES:
            rank = _late_ranks(matching)
            found.append(
                Advice(
                    title=_TITLES[key].format(rank=rank),
                    why=_why(group, matching),
                    bound_ns=group.rank_ns,
                    cause=group.kind,
                    controls=_CONTROLS.get(key, ()),
                )
            )
    return _once(found)


def blamed(matching: Matching) -> list[tuple[int, float]]:
    """Each rank that came last somewhere, with its share of all waiting; the largest first."""
    caused: dict[int, int] = {}
    for matched in matching.matched:
        waited = sum(end - start - matched.transfer_ns for _, start, end in matched.members)
        caused[matched.last_rank] = caused.get(matched.last_rank, 0) + waited
    whole = sum(caused.values())
    return sorted(((rank, time / whole) for rank, time in caused.items() if time), key=lambda item: (-item[1], item[0]))


def _late_ranks(matching: Matching) -> str:
    """The fewest ranks that account for most of the waiting."""
    named: list[int] = []
    covered = 0.0
    for rank, share in blamed(matching):
        if covered >= MOSTLY:
            break
        named.append(rank)
        covered += share
    if not named or len(named) > 3:
        return "ranks take turns in coming late"
    first = ", ".join(map(str, sorted(named)[:-1]))
    return f"ranks {first} and {max(named)} come late" if first else f"rank {named[0]} comes late"


def _why(group: CauseGroup, matching: Matching) -> str:
    if group.kind == "straggler":
        shares = ", ".join(f"rank {rank} {share:.0%}" for rank, share in blamed(matching)[:3])
        return f"of all waiting, so much is for each rank: {shares}"
    if group.kind == "no-room" and group.kernel:
        return f"{short_name(group.kernel)} leaves a block of it short of {group.short_by or 'room'}"
    return group.evidence


def _better_record(group: CauseGroup) -> Advice:
    return Advice(
        title=f"record more: {group.record_next}",
        why=f"the cause of this time cannot be told from this trace: {group.evidence}",
        bound_ns=group.rank_ns,
        cause="undetermined",
    )


def _once(found: Sequence[Advice]) -> tuple[Advice, ...]:
    """Each title once, with the time of all that share it."""
    merged: dict[str, Advice] = {}
    for item in found:
        first = merged.get(item.title)
        merged[item.title] = replace(first, bound_ns=first.bound_ns + item.bound_ns) if first else item
    return tuple(sorted(merged.values(), key=lambda item: (-item.bound_ns, item.title)))
