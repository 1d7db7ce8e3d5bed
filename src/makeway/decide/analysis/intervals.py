"""How much of many spans a set of intervals covers, without comparing every pair."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from makeway.values.timeline import Span, union_ns

Interval = tuple[int, int]  # start_ns, end_ns


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


def cover(intervals: Iterable[Interval]) -> Cover:
    """The time that at least one of the intervals covers."""
    merged = union_ns(intervals)
    before, total = [], 0
    for start, end in merged:
        before.append(total)
        total += end - start
    return Cover(tuple(start for start, _ in merged), tuple(end for _, end in merged), tuple(before))
