"""Which collectives of several ranks are one: what was transfer, what was waiting, and for whom.

A collective cannot end before its last rank has arrived, so the rank that spends the least time in it came
last, and what the others spend beyond that is waiting. That needs no common clock, only the right pairs.

Pairs are found within one group (where it is recorded) or one stream, by the sequence number of the record, or
else by order: straight where ranks have the same collectives, and by alignment on names, sizes and end times
where they recorded different ones (a profiler that starts late on one rank misses the first). Only collectives
that all ranks of the group recorded count as matched: without its last rank, waiting would pass for transfer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from statistics import median

from makeway.decide.analysis.findings import Matched, Matching
from makeway.values.timeline import Span

# A rank is a straggler when the others wait for it
STRAGGLER_SHARE = 0.5  # for at least this share of all waiting,
STRAGGLER_LEAD = 2.0  # at least so many times as long as for any other rank,
STRAGGLER_WEIGHT = 0.1  # and for at least this share of all time spent in matched collectives.

MOST_SPREAD_NS = 1_000_000  # ends of one collective further apart than this are no evidence for it
SAMPLES = 64  # collectives of one rank whose ends are compared with all of another's to find the clock offset
REACH = 4  # places before and after the nearest end at which a counterpart is looked for

_SYMMETRIC = ("all-reduce", "all-gather", "reduce-scatter")  # every rank gives and gets equally much

_Lane = tuple[str, ...]  # the group or the stream
_Key = tuple[object, ...]  # what all ranks record alike of one collective


def match_collectives(by_rank: Mapping[int, Sequence[Span]]) -> Matching:
    """The collectives that several ranks have in common; nothing when there is one rank only.

    `by_rank` holds the comm spans of each rank. Clocks of ranks may differ by a constant.
    """
    lanes = _lanes(by_rank) if len(by_rank) > 1 else {}
    found = [one for lane in lanes.values() if len(lane) > 1 for one in _matched(lane)]
    found.sort(key=lambda one: one.members[0][1])
    return _summary(found, {rank: len(spans) for rank, spans in by_rank.items()} if lanes else {})


def _summary(matched: Sequence[Matched], recorded: Mapping[int, int]) -> Matching:
    waited: dict[int, int] = dict.fromkeys(recorded, 0)
    caused: dict[int, int] = dict.fromkeys(recorded, 0)
    left = dict(recorded)
    total_ns = transfer_ns = 0
    for one in matched:
        shortest, last = one.transfer_ns, one.last_rank
        transfer_ns += shortest
        for rank, start, end in one.members:
            waited[rank] += end - start - shortest
            caused[last] += end - start - shortest
            total_ns += end - start
            left[rank] -= 1
    straggler, share = _straggler(caused, total_ns)
    return Matching(
        matched=tuple(matched),
        unmatched=tuple((rank, count) for rank, count in sorted(left.items()) if count),
        transfer_ns=transfer_ns,
        waiting_ns=tuple(sorted(waited.items())),
        straggler_rank=straggler,
        straggler_share=share,
    )


def _straggler(caused: Mapping[int, int], total_ns: int) -> tuple[int | None, float | None]:
    """The rank that the others waited for, if one stands out, and its share of all waiting."""
    waiting = sum(caused.values())
    if not waiting:
        return None, None
    (most, rank), (second, _) = sorted(((ns, rank) for rank, ns in caused.items()), reverse=True)[:2]
    stands_out = (
        most >= STRAGGLER_SHARE * waiting and most >= STRAGGLER_LEAD * second and most >= STRAGGLER_WEIGHT * total_ns
    )
    return (rank, most / waiting) if stands_out else (None, None)


# --- lanes: what is matched apart ----------------------------------------------------------------


def _lanes(by_rank: Mapping[int, Sequence[Span]]) -> dict[_Lane, dict[int, list[Span]]]:
    """Each rank's spans by group, or by stream where no group is recorded, in the order in which they start."""
    streams = {rank: _streams(spans) for rank, spans in by_rank.items()}
    # Stream numbers are each process's own, but a program makes its streams in the same order on every rank.
    # Where ranks do not even have equally many, only the order of the collectives is left.
    apart = len({len(own) for own in streams.values()}) == 1
    lanes: dict[_Lane, dict[int, list[Span]]] = defaultdict(dict)
    for rank, spans in sorted(by_rank.items()):
        place = {stream: str(index if apart else 0) for index, stream in enumerate(streams[rank])}
        for span in sorted(spans, key=attrgetter("start_ns", "end_ns")):
            lane = _group(span) or ("stream", place[span.stream])
            lanes[lane].setdefault(rank, []).append(span)
    return lanes


def _streams(spans: Iterable[Span]) -> list[str]:
    names = {span.stream for span in spans if _group(span) is None}
    return sorted(names, key=lambda name: (len(name), name))  # 7 before 20


def _group(span: Span) -> _Lane | None:
    exchange = span.exchange
    if exchange is None or (exchange.group is None and not exchange.group_ranks):
        return None
    return ("group", exchange.group or "", *map(str, exchange.group_ranks))


# --- rows: the spans of one collective -----------------------------------------------------------


def _matched(lane: Mapping[int, Sequence[Span]]) -> list[Matched]:
    rows = _by_sequence(lane)
    if rows is None:
        rows = _by_order(lane)
    return [_one(row) for row in rows if len(row) == len(lane)]


def _one(row: Mapping[int, Span]) -> Matched:
    members = tuple((rank, span.start_ns, span.end_ns) for rank, span in sorted(row.items()))
    return Matched(name=next(iter(row.values())).name, members=members)


def _by_sequence(lane: Mapping[int, Sequence[Span]]) -> list[dict[int, Span]] | None:
    """Rows by recorded sequence number; None where a number is missing or a rank has it twice."""
    rows: dict[tuple[object, ...], dict[int, Span]] = {}
    for rank, spans in lane.items():
        for span in spans:
            if span.exchange is None or span.exchange.sequence is None:
                return None
            row = rows.setdefault((span.exchange.sequence, span.exchange.kind), {})
            if rank in row:
                return None
            row[rank] = span
    return list(rows.values())


def _by_order(lane: Mapping[int, Sequence[Span]]) -> list[dict[int, Span]]:
    """Rows by order, keys and end times, each rank against the one that recorded fewest."""
    least = min(lane, key=lambda rank: (len(lane[rank]), rank))
    rows = [{least: span} for span in lane[least]]
    offsets = {least: 0}
    for rank, spans in lane.items():
        if rank == least:
            continue
        offsets[rank], pairs = _pairs(lane[least], spans)
        for index, other in pairs.items():
            rows[index][rank] = spans[other]
    slack = _spread_ns(lane[least])
    return [row for row in rows if _meet(row, offsets, slack)]


def _meet(row: Mapping[int, Span], offsets: Mapping[int, int], slack_ns: int) -> bool:
    """Whether every rank had come before the first one left: no other row can be one collective.

    Senders may leave before their receiver comes, so only collectives that hold every rank are judged.
    """
    if any(span.exchange is None or span.exchange.kind not in _SYMMETRIC for span in row.values()):
        return True
    came = max(span.start_ns - offsets[rank] for rank, span in row.items())
    left = min(span.end_ns - offsets[rank] for rank, span in row.items())
    return came <= left + slack_ns


# --- pairs: two ranks ----------------------------------------------------------------------------


def _pairs(one: Sequence[Span], other: Sequence[Span]) -> tuple[int, dict[int, int]]:
    """How far the other rank's clock is ahead, and which of its spans belongs to which of the first rank's."""
    keys, other_keys = [_key(span) for span in one], [_key(span) for span in other]
    spread = _spread_ns(one)
    offset = _offset_ns(one, other, keys, other_keys, spread)
    straight = dict(zip(range(len(one)), range(len(other)), strict=False)) if keys == other_keys else {}

    def close(pairs: Mapping[int, int]) -> int:
        return sum(abs(other[to].end_ns - one[at].end_ns - offset) <= spread for at, to in pairs.items())

    if straight and 2 * close(straight) >= len(one):
        return offset, straight
    aligned = _aligned(one, other, keys, other_keys, offset, spread)
    if straight and 2 * close(aligned) < len(one):  # the clocks do not tell: the order does
        return round(median(span.end_ns - own.end_ns for own, span in zip(one, other, strict=True))), straight
    return offset, aligned


def _key(span: Span) -> _Key:
    """What all ranks of a collective record alike: sizes may differ in all-to-all and send-recv."""
    exchange = span.exchange
    if exchange is None:
        return (span.name,)
    sizes = (exchange.in_bytes, exchange.out_bytes) if exchange.kind in _SYMMETRIC else ()
    return (span.name, exchange.kind, *sizes)


def _spread_ns(spans: Sequence[Span]) -> int:
    """How far apart the ends of one collective may be and still tell it from its neighbours."""
    gaps = [after.end_ns - before.end_ns for before, after in pairwise(spans)]
    return max(1, min(MOST_SPREAD_NS, abs(round(median(gaps))) // 2)) if gaps else MOST_SPREAD_NS


def _offset_ns(
    one: Sequence[Span], other: Sequence[Span], keys: Sequence[_Key], other_keys: Sequence[_Key], spread_ns: int
) -> int:
    """How far the other rank's clock is ahead: the median of the largest set of end times that agree on it.

    Ranks of one host share a clock: no offset is believed when most collectives agree with it. So ranks whose
    clocks differ by just one beat of a regular rhythm are matched one beat off: nothing in their records tells.
    """
    ends: dict[_Key, list[int]] = defaultdict(list)
    for span, key in zip(other, other_keys, strict=True):
        ends[key].append(span.end_ns)
    every = max(1, len(one) // SAMPLES)
    sample = range(0, len(one), every)
    ahead = sorted(end - one[at].end_ns for at in sample for end in ends.get(keys[at], ()))
    if not ahead:
        return 0
    shared = ahead[bisect_left(ahead, -spread_ns) : bisect_right(ahead, spread_ns)]
    if 2 * len(shared) <= len(sample):
        shared = _densest(ahead, 2 * spread_ns)
    return round(median(shared))


def _densest(ordered: list[int], width: int) -> list[int]:
    """The most numbers, of those in order, that lie within `width`."""
    low = best_low = best_high = 0
    for high, number in enumerate(ordered, start=1):
        while number - ordered[low] > width:
            low += 1
        if high - low > best_high - best_low:
            best_low, best_high = low, high
    return ordered[best_low:best_high]


def _aligned(
    one: Sequence[Span],
    other: Sequence[Span],
    keys: Sequence[_Key],
    other_keys: Sequence[_Key],
    offset_ns: int,
    spread_ns: int,
) -> dict[int, int]:
    """The pairs of equal keys, in order on both ranks, whose ends agree best.

    The heaviest increasing chain of candidate pairs: a pair weighs more the closer its ends are, and always
    something. `best[j]` is a Fenwick tree over the other rank's places: the heaviest chain that ends before j.
    """
    ends = [span.end_ns - offset_ns for span in other]
    best: list[tuple[float, int]] = [(0.0, -1)] * (len(other) + 1)
    chain: list[tuple[int, int, int]] = []  # place here, place there, the pair before
    for at, span in enumerate(one):
        near = bisect_left(ends, span.end_ns)
        found = []
        for to in range(max(0, near - REACH), min(len(other), near + REACH + 1)):
            if other_keys[to] != keys[at]:
                continue
            weight, before = _heaviest(best, to)
            found.append((weight + 0.1 + spread_ns / (spread_ns + abs(ends[to] - span.end_ns)), to, before))
        for weight, to, before in found:
            chain.append((at, to, before))
            _raise(best, to, (weight, len(chain) - 1))
    pairs = {}
    last = _heaviest(best, len(other))[1]
    while last >= 0:
        at, to, last = chain[last]
        pairs[at] = to
    return pairs


def _heaviest(tree: Sequence[tuple[float, int]], before: int) -> tuple[float, int]:
    """The largest entry at the places below `before`."""
    found, place = (0.0, -1), before
    while place > 0:
        found = max(found, tree[place])
        place -= place & -place
    return found


def _raise(tree: list[tuple[float, int]], at: int, entry: tuple[float, int]) -> None:
    place = at + 1
    while place < len(tree):
        tree[place] = max(tree[place], entry)
        place += place & -place
