"""The spans of one rank by stream, and when each was ready to run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from makeway.values.timeline import Span, Timeline, Wait

# A kernel starts up to so much after its room appears or its wait ends.
SETTLE_NS = 10_000


class StreamView:
    """The spans of one rank, ordered for look-ups."""

    def __init__(self, timeline: Timeline, rank: int) -> None:
        self.spans = sorted((span for span in timeline.spans if span.rank == rank), key=_start)
        self.streams: dict[str, list[Span]] = {}
        for span in self.spans:
            self.streams.setdefault(span.stream, []).append(span)
        self._before: dict[int, Span] = {
            id(span): earlier for line in self.streams.values() for earlier, span in pairwise(line)
        }
        self.kernels = [span for span in self.spans if span.kind in ("compute", "comm")]
        self._starts = [span.start_ns for span in self.kernels]
        self._latest_end = _running_maximum([span.end_ns for span in self.kernels])
        self.waits: list[Wait] | None = None
        if timeline.waits is not None:
            self.waits = [wait for wait in timeline.waits if wait.rank == rank]

    def before(self, span: Span) -> Span | None:
        """What ran before it on its stream."""
        return self._before.get(id(span))

    def running(self, start_ns: int, end_ns: int) -> list[Span]:
        """Kernels that run at some time between."""
        last = bisect_left(self._starts, end_ns)
        first = bisect_right(self._latest_end, start_ns, 0, last)
        return [span for span in self.kernels[first:last] if span.end_ns > start_ns]


def _start(span: Span) -> int:
    return span.start_ns


def _running_maximum(values: Sequence[int]) -> list[int]:
    most, result = 0, []
    for value in values:
        most = max(most, value)
        result.append(most)
    return result


def ready_ns(view: StreamView, span: Span) -> int | None:
    """When nothing but room and other streams kept it from starting; None when its launch is not recorded."""
    if span.launched_ns is None:
        return None
    earlier = view.before(span)
    return max(span.launched_ns, earlier.end_ns) if earlier else span.launched_ns


def milliseconds(time_ns: int) -> str:
    """A time in words, with three digits."""
    if time_ns >= 999_500_000:
        return f"{time_ns / 1e9:.2f} s"
    return f"{time_ns / 1e6:.3g} ms" if time_ns >= 100_000 else f"{time_ns / 1e3:.3g} us"
