"""The spans of one rank by stream, and when each is ready to run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise
from operator import attrgetter

from makeway.values.timeline import Span, Timeline, Wait

# A kernel starts at most this long after it gets room or its wait ends.
SETTLE_NS = 10_000


class StreamView:
    """The spans of one rank, indexed for look-ups."""

    def __init__(self, timeline: Timeline, rank: int) -> None:
        self.spans = sorted((span for span in timeline.spans if span.rank == rank), key=attrgetter("start_ns"))
        self.streams: dict[str, list[Span]] = {}
        for span in self.spans:
            self.streams.setdefault(span.stream, []).append(span)
        self._before: dict[int, Span] = {
            id(span): earlier for line in self.streams.values() for earlier, span in pairwise(line)
        }
        self.kernels = [span for span in self.spans if span.kind in ("compute", "comm")]
        self._starts = [span.start_ns for span in self.kernels]
        self._latest_end = list(accumulate((span.end_ns for span in self.kernels), max))
        self.waits: list[Wait] | None = None
        if timeline.waits is not None:
            self.waits = [wait for wait in timeline.waits if wait.rank == rank]

    def before(self, span: Span) -> Span | None:
        """The previous span on its stream."""
        return self._before.get(id(span))

    def running(self, start_ns: int, end_ns: int) -> list[Span]:
        """Kernels that run at any time in between."""
        last = bisect_left(self._starts, end_ns)
        first = bisect_right(self._latest_end, start_ns, 0, last)
        return [span for span in self.kernels[first:last] if span.end_ns > start_ns]


def ready_ns(view: StreamView, span: Span) -> int | None:
    """When only room and other streams keep it from starting; None if its launch is not recorded."""
    if span.launched_ns is None:
        return None
    earlier = view.before(span)
    return max(span.launched_ns, earlier.end_ns) if earlier else span.launched_ns


def milliseconds(time_ns: int) -> str:
    """A time as text, with three digits."""
    if time_ns >= 999_500_000:
        return f"{time_ns / 1e9:.2f} s"
    return f"{time_ns / 1e6:.3g} ms" if time_ns >= 100_000 else f"{time_ns / 1e3:.3g} us"
