"""Match the collectives of one communicator over all its ranks, column by column.

The rules are those of `makeway.decide.analysis.matching`, and so are the results; what differs is that a rank's
collectives are columns of numbers and only the columns of a few ranks are in memory. Where the quick rules do not
decide a pair of ranks, `matching` itself pairs them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from operator import add, sub
from statistics import median

from makeway.decide.analysis.many.summary import CollectiveKey, Lane, StoredSummary
from makeway.decide.analysis.matching import _SYMMETRIC, MOST_SPREAD_NS, SAMPLES, _pairs, straight_offset_ns
from makeway.values.timeline import Exchange, Span

BATCH = 64  # ranks whose columns are in memory at once
_FAR = 1 << 62  # later than any time; the negative of it is earlier


@dataclass(frozen=True, slots=True)
class Member:
    """A rank's collectives in a lane: several lanes where its streams are taken together."""

    stored: StoredSummary
    lanes: tuple[Lane, ...]

    @property
    def rank(self) -> int:
        return self.stored.summary.rank

    @property
    def rows(self) -> int:
        return sum(lane.rows for lane in self.lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneMatch:
    """The matched collectives of a lane: one entry per collective in each column."""

    transfer_ns: array[int]  # the shortest rank's time
    last: array[int]  # the rank with that time: the others waited for it
    total_ns: array[int]  # of all ranks
    kept: array[int] | None  # the candidates that matched; None: all
    rows: Mapping[int, array[int]]  # rank -> its row for each candidate; absent: the same number

    def rows_of(self, rank: int) -> Sequence[int] | None:
        """The rank's own row of each collective; None: all its rows, in order."""
        own = self.rows.get(rank)
        if own is None:
            return self.kept
        return own if self.kept is None else [own[row] for row in self.kept]


def match_lane(members: Sequence[Member]) -> LaneMatch:
    """The collectives that every member recorded; members are in order of rank."""
    rows = _by_sequence(members)
    if rows is None:
        return _by_order(members)
    amount = len(rows[members[0].rank]) if rows else members[0].rows
    shortest = _Shortest(amount)
    for batch in _batches(members):
        shortest.add([m.rank for m in batch], [_picked(durations_ns(m), rows.get(m.rank)) for m in batch])
    return shortest.result(bytearray(b"\1" * amount), rows)


# --- columns of a member -------------------------------------------------------------------------


def order_of(member: Member) -> list[int] | None:
    """The order of start and end in which the rows of several lanes interleave; None for one lane."""
    if len(member.lanes) == 1:
        return None
    starts = [time for lane in member.lanes for time in member.stored.starts_ns(lane)]
    durations = [time for lane in member.lanes for time in member.stored.durations_ns(lane)]
    return sorted(range(len(starts)), key=lambda row: (starts[row], durations[row]))


def durations_ns(member: Member) -> Sequence[int]:
    """How long each collective took."""
    return _interleaved(member, [member.stored.durations_ns(lane) for lane in member.lanes])


def _interleaved(member: Member, columns: Sequence[Sequence[int]]) -> Sequence[int]:
    order = order_of(member)
    if order is None:
        return columns[0]
    numbers = [number for column in columns for number in column]
    return [numbers[row] for row in order]


def _starts_ns(member: Member, earlier_ns: int = 0) -> Sequence[int]:
    return _interleaved(member, [member.stored.starts_ns(lane, earlier_ns=earlier_ns) for lane in member.lanes])


def _keys(member: Member) -> Sequence[int]:
    return _interleaved(member, [member.stored.keys(lane) for lane in member.lanes])


def _picked(column: Sequence[int], rows: Sequence[int] | None) -> Sequence[int]:
    return column if rows is None else [column[row] for row in rows]


def _batches(members: Sequence[Member]) -> Iterator[Sequence[Member]]:
    return (members[at : at + BATCH] for at in range(0, len(members), BATCH))


# --- by recorded number --------------------------------------------------------------------------


def _by_sequence(members: Sequence[Member]) -> dict[int, array[int]] | None:
    """Each rank's row in each collective that all recorded; None where a number is missing or repeated on a rank.

    Empty where all ranks recorded the same numbers in the same order.
    """
    if any(lane.first_sequence is None for member in members for lane in member.lanes):
        return None
    first = _numbers(members[0])
    common, same = set(first), True
    if len(common) < len(first):
        return None
    for member in members[1:]:
        numbers = _numbers(member)
        if numbers == first:
            continue
        same = False
        distinct = set(numbers)
        if len(distinct) < len(numbers):
            return None
        common &= distinct
    if same:
        return {}
    wanted = [number for number in first if number in common]
    rows = {}
    for member in members:
        places = {number: row for row, number in enumerate(_numbers(member))}
        rows[member.rank] = array("q", [places[number] for number in wanted])
    return rows


def _numbers(member: Member) -> list[tuple[int, str | None]]:
    kinds = [key.kind for key in member.stored.summary.keys]
    columns = [member.stored.sequence(lane) or [] for lane in member.lanes]
    return list(zip(_interleaved(member, columns), map(kinds.__getitem__, _keys(member)), strict=True))


# --- by order ------------------------------------------------------------------------------------


class _Pairing:
    """The rank with fewest collectives, against which all others are paired."""

    def __init__(self, least: Member) -> None:
        self.least = least
        self.starts = list(_starts_ns(least))
        self.ends = list(map(add, self.starts, durations_ns(least)))
        self.keys = _same_keys(least)
        self._columns = _keys(least), least.stored.summary.keys
        gaps = [after - before for before, after in pairwise(self.ends)]
        self.spread = max(1, min(MOST_SPREAD_NS, abs(round(median(gaps))) // 2)) if gaps else MOST_SPREAD_NS
        self._sample = range(0, len(self.ends), max(1, len(self.ends) // SAMPLES))
        self._spans: list[Span] | None = None

    def of(self, member: Member) -> tuple[int, array[int] | None, bool]:
        """How far the member's clock is ahead, its row for each of ours, and whether it surely meets the others.

        Rows are None if they are the same, and -1 where there is none. A member surely meets the others if its ends
        lie within the spread of ours and each start is before our end: then it starts before anybody's end and spread.
        """
        if self._has_same_columns(member) or _same_keys(member) == self.keys:
            durations = durations_ns(member)
            ends = list(map(add, _starts_ns(member), durations))
            apart = list(map(sub, ends, self.ends))
            offset = self._shared_offset(ends)
            if offset is None:
                offset = straight_offset_ns(apart, self.spread)
            if offset is not None:
                low, high = offset - self.spread, offset + self.spread
                if min(apart) >= low and max(apart) <= high:
                    return offset, None, max(map(sub, apart, durations)) <= offset
                if 2 * sum(map(range(low, high + 1).__contains__, apart)) >= len(apart):
                    return offset, None, False
        if self._spans is None:
            self._spans = _spans(self.least)
        offset, pairs = _pairs(self._spans, _spans(member))
        return offset, array("q", [pairs.get(row, -1) for row in range(len(self.ends))]), False

    def _has_same_columns(self, member: Member) -> bool:
        rows, table = self._columns
        return member.stored.summary.keys == table and _keys(member) == rows

    def _shared_offset(self, ends: Sequence[int]) -> int | None:
        """The offset between clocks that most sampled ends share about 0; None where they do not."""
        order: Sequence[int] = range(len(ends))
        ordered = sorted(ends)
        if ordered != ends:
            order = sorted(order, key=ends.__getitem__)
        shared = []
        for at in self._sample:
            end, key = self.ends[at], self.keys[at]
            low, high = bisect_left(ordered, end - self.spread), bisect_right(ordered, end + self.spread)
            shared += [ordered[place] - end for place in range(low, high) if self.keys[order[place]] == key]
        return round(median(shared)) if 2 * len(shared) > len(self._sample) else None


def _same_keys(member: Member) -> list[tuple[object, ...]]:
    """What every rank records identically for each collective."""
    table = [_same_key(key) for key in member.stored.summary.keys]
    return [table[key] for key in _keys(member)]


def _same_key(key: CollectiveKey) -> tuple[object, ...]:
    if not key.moves:
        return (key.name,)
    return (key.name, key.kind, *((key.in_bytes, key.out_bytes) if key.kind in _SYMMETRIC else ()))


def _spans(member: Member) -> list[Span]:
    table = member.stored.summary.keys
    exchanges = [
        Exchange(kind=key.kind, in_bytes=key.in_bytes, out_bytes=key.out_bytes) if key.moves else None for key in table
    ]
    return [
        Span(name=table[key].name, kind="comm", stream="", start_ns=start, end_ns=start + time, exchange=exchanges[key])
        for start, time, key in zip(_starts_ns(member), durations_ns(member), _keys(member), strict=True)
    ]


def _by_order(members: Sequence[Member]) -> LaneMatch:
    """Rows by order, keys and end times; each rank is paired with the one that recorded fewest."""
    pairing = _Pairing(min(members, key=lambda member: (member.rows, member.rank)))
    table = pairing.least.stored.summary.keys
    symmetric = bytes(table[key].kind in _SYMMETRIC for key in _keys(pairing.least))
    meeting = _Meeting(len(symmetric)) if any(symmetric) else None
    match = _ordered(members, pairing, None, sure=meeting is not None)
    if match is None:
        match = _ordered(members, pairing, (symmetric, meeting) if meeting else None, sure=False)
    assert match is not None
    return match


class _Meeting:
    """When the last rank arrived at each collective and the first one left, by the clock of one rank."""

    def __init__(self, amount: int) -> None:
        self.arrived, self.left = [-_FAR] * amount, [_FAR] * amount

    def add(self, starts: Sequence[Sequence[int]], ends: Sequence[Sequence[int]]) -> None:
        self.arrived, self.left = list(map(max, self.arrived, *starts)), list(map(min, self.left, *ends))


def _ordered(
    members: Sequence[Member], pairing: _Pairing, checked: tuple[bytes, _Meeting] | None, *, sure: bool
) -> LaneMatch | None:
    """The rows of all members; None as soon as one does not surely meet the others, where that is asked for.

    `checked` are the collectives whose ranks must have met, and when they did.
    """
    amount = len(pairing.ends)
    complete, shortest = bytearray(b"\1" * amount), _Shortest(amount)
    rows: dict[int, array[int]] = {}
    for batch in _batches(members):
        durations: list[Sequence[int]] = []
        starts: list[Sequence[int]] = []
        ends: list[Sequence[int]] = []
        for member in batch:
            offset, own, meets = (0, None, True) if member is pairing.least else pairing.of(member)
            if sure and not meets:
                return None
            if own is not None:
                rows[member.rank] = own
                for row in (row for row, other in enumerate(own) if other < 0):
                    complete[row] = 0
            time = durations_ns(member)
            durations.append(_picked(time, own))  # -1 picks any, since that row is dropped
            if checked:
                start = _starts_ns(member, offset)
                starts.append(_picked(start, own))
                ends.append(_picked(list(map(add, start, time)), own))
        if checked:
            checked[1].add(starts, ends)
        shortest.add([member.rank for member in batch], durations)
    if checked:
        symmetric, meeting = checked
        for row in compress(range(amount), symmetric):
            if meeting.arrived[row] > meeting.left[row] + pairing.spread:
                complete[row] = 0
    return shortest.result(complete, rows)


class _Shortest:
    """The shortest time of each collective, the lowest rank that has it, and the sum over the ranks seen so far."""

    def __init__(self, amount: int) -> None:
        self._least = [_FAR] * amount
        self._last = [0] * amount
        self._total = [0] * amount

    def add(self, ranks: Sequence[int], durations: Sequence[Sequence[int]]) -> None:
        """Add ranks in order, each with its column of durations."""
        least, last, total = self._least, self._last, self._total
        for row, times in enumerate(zip(*durations, strict=True)):
            shortest = min(times)
            total[row] += sum(times)
            if shortest < least[row]:
                least[row] = shortest
                last[row] = ranks[times.index(shortest)]

    def result(self, complete: bytearray, rows: Mapping[int, array[int]]) -> LaneMatch:
        everything = 0 not in complete
        kept = None if everything else array("q", compress(range(len(complete)), complete))

        def column(numbers: Sequence[int]) -> array[int]:
            return array("q", numbers if everything else compress(numbers, complete))

        return LaneMatch(
            transfer_ns=column(self._least),
            last=column(self._last),
            total_ns=column(self._total),
            kept=kept,
            rows=rows,
        )
