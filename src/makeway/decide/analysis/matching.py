"""Match the collectives of several ranks: what was transfer, what was waiting, and for whom.

A collective cannot end before its last rank arrives. So the rank that spends the least time in it arrived last,
and what the others spend beyond that is waiting. This needs no common clock, only the right pairs.

Pairs lie within one group (where recorded) or one stream. They share a recorded sequence number, or else a position:
straight where ranks recorded the same collectives, aligned on names, sizes and end times where they did not (a
profiler that starts late on one rank misses the first). Only collectives that every rank of the group recorded
count as matched: without its last rank, waiting would pass for transfer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from statistics import median

from makeway.decide.analysis.findings import Matched, Matching
from makeway.values.timeline import Span

# A rank is a straggler when the others wait for it
STRAGGLER_SHARE = 0.5  # for at least this share of all waiting,
STRAGGLER_LEAD = 2.0  # at least this many times as long as for any other rank,
STRAGGLER_WEIGHT = 0.1  # and for at least this share of all time in matched collectives.

MOST_SPREAD_NS = 1_000_000  # ends further apart than this do not belong to one collective
SAMPLES = 64  # collectives of one rank compared with all of another's to find the clock offset
REACH = 4  # positions before and after the nearest end where a counterpart may be

_SYMMETRIC = ("all-reduce", "all-gather", "reduce-scatter")  # every rank sends and receives the same amount

_Lane = tuple[str, ...]  # the group or the stream
_Key = tuple[object, ...]  # what every rank records identically for one collective


def match_collectives(
    by_rank: Mapping[int, Sequence[Span]], *, runs: Sequence[Collection[int]] | None = None
) -> Matching:
    """The collectives that several ranks share; empty for a single rank.

    `by_rank` holds the comm spans of each rank. The ranks' clocks may differ by a constant. `runs` lists the ranks of
    each run, where there are several: only ranks of one run are matched.
    """
    matched: list[Matched] = []
    recorded: dict[int, int] = {}
    for run in (by_rank,) if runs is None else runs:
        own = {rank: by_rank[rank] for rank in run if rank in by_rank}
        lanes = _lanes(own) if len(own) > 1 else {}
        matched += [collective for lane in lanes.values() if len(lane) > 1 for collective in _matched(lane)]
        recorded |= {rank: len(spans) for rank, spans in own.items()} if lanes else {}
    matched.sort(key=lambda collective: collective.members[0][1])
    return _summary(matched, recorded)


def _summary(matched: Sequence[Matched], recorded: Mapping[int, int]) -> Matching:
    waited: dict[int, int] = dict.fromkeys(recorded, 0)
    caused: dict[int, int] = dict.fromkeys(recorded, 0)
    left = dict(recorded)
    total_ns = transfer_ns = 0
    for collective in matched:
        shortest, last = collective.transfer_ns, collective.last_rank
        transfer_ns += shortest
        for rank, start, end in collective.members:
            waited[rank] += end - start - shortest
            caused[last] += end - start - shortest
            total_ns += end - start
            left[rank] -= 1
    waiting = sum(caused.values())
    late = sorted(((rank, ns / waiting) for rank, ns in caused.items() if ns), key=lambda item: (-item[1], item[0]))
    straggler, share = straggler_of(caused, total_ns)
    return Matching(
        matched=tuple(matched),
        unmatched=tuple((rank, count) for rank, count in sorted(left.items()) if count),
        transfer_ns=transfer_ns,
        waiting_ns=tuple(sorted(waited.items())),
        late_ranks=tuple(late),
        straggler_rank=straggler,
        straggler_share=share,
    )


def straggler_of(caused: Mapping[int, int], total_ns: int) -> tuple[int | None, float | None]:
    """The rank that stands out among those waited for, and its share of all waiting; else None."""
    waiting = sum(caused.values())
    if not waiting:
        return None, None
    (most, rank), (second, _) = sorted(((ns, rank) for rank, ns in caused.items()), reverse=True)[:2]
    stands_out = (
        most >= STRAGGLER_SHARE * waiting and most >= STRAGGLER_LEAD * second and most >= STRAGGLER_WEIGHT * total_ns
    )
    return (rank, most / waiting) if stands_out else (None, None)


# --- lanes: matched separately -------------------------------------------------------------------


def _lanes(by_rank: Mapping[int, Sequence[Span]]) -> dict[_Lane, dict[int, list[Span]]]:
    """Each rank's spans by group, or by stream where no group is recorded, in order of start."""
    streams = {rank: _streams(spans) for rank, spans in by_rank.items()}
    # Each process numbers its streams, but a program creates them in the same order on every rank.
    # If the ranks differ in their number of streams, only the order of the collectives remains.
    separate = len({len(own) for own in streams.values()}) == 1
    lanes: dict[_Lane, dict[int, list[Span]]] = defaultdict(dict)
    groups = _Groups()
    for rank, spans in sorted(by_rank.items()):
        position = {stream: str(index if separate else 0) for index, stream in enumerate(streams[rank])}
        for span in sorted(spans, key=attrgetter("start_ns", "end_ns")):
            lane = groups.of(span) or ("stream", position[span.stream])
            lanes[lane].setdefault(rank, []).append(span)
    return lanes


def _streams(spans: Iterable[Span]) -> list[str]:
    names = {span.stream for span in spans if not _has_group(span)}
    return sorted(names, key=lambda name: (len(name), name))  # 7 before 20


def _has_group(span: Span) -> bool:
    return span.exchange is not None and (span.exchange.group is not None or bool(span.exchange.group_ranks))


class _Groups:
    """Numbers for lists of ranks, which are long and shared by many spans."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        self._by_id: dict[int, int] = {}  # spans keep the lists alive

    def of(self, span: Span) -> _Lane | None:
        exchange = span.exchange
        if exchange is None or not _has_group(span):
            return None
        ranks = exchange.group_ranks
        if id(ranks) not in self._by_id:
            self._by_id[id(ranks)] = self._numbers.setdefault(ranks, len(self._numbers))
        return ("group", exchange.group or "", str(self._by_id[id(ranks)]))


# --- rows: the spans of one collective -----------------------------------------------------------


def _matched(lane: Mapping[int, Sequence[Span]]) -> list[Matched]:
    rows = _by_sequence(lane)
    if rows is None:
        rows = _by_order(lane)
    return [_collective(row) for row in rows if len(row) == len(lane)]


def _collective(row: Mapping[int, Span]) -> Matched:
    members = tuple((rank, span.start_ns, span.end_ns) for rank, span in sorted(row.items()))
    return Matched(name=next(iter(row.values())).name, members=members)


def _by_sequence(lane: Mapping[int, Sequence[Span]]) -> list[dict[int, Span]] | None:
    """Rows by recorded sequence number; None where a number is missing or repeated on a rank."""
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
    """Rows by order, keys and end times; each rank is paired with the one that recorded fewest."""
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
    """Whether every rank arrived before the first one left, as in any true collective.

    A sender may leave before its receiver arrives, so only symmetric collectives are checked.
    """
    if any(span.exchange is None or span.exchange.kind not in _SYMMETRIC for span in row.values()):
        return True
    arrived = max(span.start_ns - offsets[rank] for rank, span in row.items())
    left = min(span.end_ns - offsets[rank] for rank, span in row.items())
    return arrived <= left + slack_ns


# --- pairs: two ranks ----------------------------------------------------------------------------


def _pairs(first: Sequence[Span], second: Sequence[Span]) -> tuple[int, dict[int, int]]:
    """How far the second rank's clock is ahead, and the index of its span for each of the first rank's."""
    keys, second_keys = [_key(span) for span in first], [_key(span) for span in second]
    spread = _spread_ns(first)
    offset = _offset_ns(first, second, keys, second_keys, spread)
    straight = dict(zip(range(len(first)), range(len(second)), strict=False)) if keys == second_keys else {}

    def close(pairs: Mapping[int, int]) -> int:
        return sum(abs(second[to].end_ns - first[at].end_ns - offset) <= spread for at, to in pairs.items())

    if straight and 2 * close(straight) >= len(first):
        return offset, straight
    aligned = _aligned(first, second, keys, second_keys, offset, spread)
    if straight and 2 * close(aligned) < len(first):  # the clocks do not decide, so the order does
        return round(median(theirs.end_ns - ours.end_ns for ours, theirs in zip(first, second, strict=True))), straight
    return offset, aligned


def _key(span: Span) -> _Key:
    """What every rank records identically; sizes may differ in all-to-all and send-recv."""
    exchange = span.exchange
    if exchange is None:
        return (span.name,)
    sizes = (exchange.in_bytes, exchange.out_bytes) if exchange.kind in _SYMMETRIC else ()
    return (span.name, exchange.kind, *sizes)


def _spread_ns(spans: Sequence[Span]) -> int:
    """How far apart the ends of one collective may lie without reaching its neighbours."""
    gaps = [after.end_ns - before.end_ns for before, after in pairwise(spans)]
    return max(1, min(MOST_SPREAD_NS, abs(round(median(gaps))) // 2)) if gaps else MOST_SPREAD_NS


def _offset_ns(
    first: Sequence[Span], second: Sequence[Span], keys: Sequence[_Key], second_keys: Sequence[_Key], spread_ns: int
) -> int:
    """How far the second rank's clock is ahead: the median of the largest set of end times that agree.

    Ranks of one host share a clock, so the offset is 0 where most collectives agree with that. Ranks whose clocks
    differ by exactly one beat of a regular rhythm are therefore matched one beat off; their records do not show it.
    """
    ends: dict[_Key, list[int]] = defaultdict(list)
    for span, key in zip(second, second_keys, strict=True):
        ends[key].append(span.end_ns)
    sample = range(0, len(first), max(1, len(first) // SAMPLES))
    ahead = sorted(end - first[at].end_ns for at in sample for end in ends.get(keys[at], ()))
    if not ahead:
        return 0
    shared = ahead[bisect_left(ahead, -spread_ns) : bisect_right(ahead, spread_ns)]
    if 2 * len(shared) <= len(sample):
        if keys == second_keys and (offset := straight_offset_ns(_apart(first, second), spread_ns)) is not None:
            return offset
        shared = _densest(ahead, 2 * spread_ns)
    return round(median(shared))


def _apart(first: Sequence[Span], second: Sequence[Span]) -> list[int]:
    return [theirs.end_ns - ours.end_ns for ours, theirs in zip(first, second, strict=True)]


def straight_offset_ns(apart: Sequence[int], spread_ns: int) -> int | None:
    """How far one clock is ahead if two ranks recorded the same collectives in order; None if their ends disagree.

    `apart` is how much later each collective ended by that clock.
    """
    middle = round(median(apart))
    near = range(middle - spread_ns, middle + spread_ns + 1)
    return middle if 2 * sum(map(near.__contains__, apart)) >= len(apart) else None


def _densest(ordered: list[int], width: int) -> list[int]:
    """The largest run of sorted numbers that spans at most `width`."""
    low = best_low = best_high = 0
    for high, number in enumerate(ordered, start=1):
        while number - ordered[low] > width:
            low += 1
        if high - low > best_high - best_low:
            best_low, best_high = low, high
    return ordered[best_low:best_high]


def _aligned(
    first: Sequence[Span],
    second: Sequence[Span],
    keys: Sequence[_Key],
    second_keys: Sequence[_Key],
    offset_ns: int,
    spread_ns: int,
) -> dict[int, int]:
    """The pairs of equal keys, in order on both ranks, whose ends agree best.

    This is the heaviest increasing chain of candidate pairs; closer ends weigh more, and every pair weighs something.
    `best` is a Fenwick tree over the second rank's positions that holds the heaviest chain ending before each.
    """
    ends = [span.end_ns - offset_ns for span in second]
    best: list[tuple[float, int]] = [(0.0, -1)] * (len(second) + 1)
    chain: list[tuple[int, int, int]] = []  # position in first, position in second, previous pair
    for at, span in enumerate(first):
        near = bisect_left(ends, span.end_ns)
        candidates = []
        for to in range(max(0, near - REACH), min(len(second), near + REACH + 1)):
            if second_keys[to] != keys[at]:
                continue
            weight, before = _heaviest(best, to)
            candidates.append((weight + 0.1 + spread_ns / (spread_ns + abs(ends[to] - span.end_ns)), to, before))
        for weight, to, before in candidates:
            chain.append((at, to, before))
            _raise(best, to, (weight, len(chain) - 1))
    pairs = {}
    last = _heaviest(best, len(second))[1]
    while last >= 0:
        at, to, last = chain[last]
        pairs[at] = to
    return pairs


def _heaviest(tree: Sequence[tuple[float, int]], before: int) -> tuple[float, int]:
    """The largest entry at positions below `before`."""
    heaviest, position = (0.0, -1), before
    while position > 0:
        heaviest = max(heaviest, tree[position])
        position -= position & -position
    return heaviest


def _raise(tree: list[tuple[float, int]], at: int, entry: tuple[float, int]) -> None:
    position = at + 1
    while position < len(tree):
        tree[position] = max(tree[position], entry)
        position += position & -position
