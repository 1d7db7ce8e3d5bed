"""How much of many spans a set of intervals covers, without comparing every pair."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from makeway.values.timeline import Span, union_ns

Interval = tuple[int, int]  # start_ns, end_ns
_T = TypeVar("_T")


def interval(span: Span) -> Interval:
    """When `span` runs."""
    return span.start_ns, span.end_ns


@dataclass(frozen=True, slots=True)
class Cover:
    """Disjoint intervals in order, and the time covered before each of them starts."""

    starts_ns: tuple[int, ...]
    ends_ns: tuple[int, ...]
    before_ns: tuple[int, ...]

    def until_ns(self, time_ns: int) -> int:
        """Covered time before `time_ns`."""
        last = bisect_right(self.starts_ns, time_ns) - 1
        if last < 0:
            return 0
        return self.before_ns[last] + min(time_ns, self.ends_ns[last]) - self.starts_ns[last]

    def within_ns(self, start_ns: int, end_ns: int) -> int:
        """Covered time between `start_ns` and `end_ns`."""
        return self.until_ns(end_ns) - self.until_ns(start_ns)


class RangeMax:
    """The largest of neighbouring numbers, for many ranges: each row holds the maxima of twice as many."""

    def __init__(self, numbers: Sequence[int | None]) -> None:
        lowest = min((number for number in numbers if number is not None), default=0) - 1
        self._none = lowest
        self._rows = [[lowest if number is None else number for number in numbers]]
        width = 1
        while 2 * width <= len(numbers):
            row = self._rows[-1]
            self._rows.append([max(row[at], row[at + width]) for at in range(len(row) - width)])
            width *= 2

    def of(self, first: int, end: int) -> int | None:
        """The largest from `first` up to but without `end`; None where there is none."""
        if first >= end:
            return None
        level = (end - first).bit_length() - 1
        row = self._rows[level]
        largest = max(row[first], row[end - (1 << level)])
        return None if largest == self._none else largest


def split(
    labelled: Iterable[tuple[_T, int, int]], by: Sequence[Interval]
) -> Iterator[tuple[_T, int, int, Literal["inside", "outside"]]]:
    """The non-empty parts of labelled intervals that lie inside and outside `by`; both are disjoint and in order."""
    at = 0
    for label, start, end in labelled:
        while at < len(by) and by[at][1] <= start:
            at += 1
        position, here = start, at
        while here < len(by) and by[here][0] < end:
            inside_start, inside_end = max(position, by[here][0]), min(end, by[here][1])
            if position < inside_start:
                yield label, position, inside_start, "outside"
            if inside_start < inside_end:
                yield label, inside_start, inside_end, "inside"
            position = max(position, inside_end)
            here += 1
        if position < end:
            yield label, position, end, "outside"


def cover(intervals: Iterable[Interval]) -> Cover:
    """The time that at least one of the intervals covers."""
    merged = union_ns(intervals)
    before, total = [], 0
    for start, end in merged:
        before.append(total)
        total += end - start
    return Cover(tuple(start for start, _ in merged), tuple(end for _, end in merged), tuple(before))
