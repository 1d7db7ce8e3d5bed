"""The spans of one rank by stream, and when each is ready to run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from operator import attrgetter

from makeway.decide.analysis.intervals import RangeMax
from makeway.values.timeline import Span, Timeline, Wait

# A kernel starts at most this long after it gets room or its wait ends.
SETTLE_NS = 10_000
# Looks at running kernels, in all delays of a rank together: they keep hostile traces from taking for ever.
LOOKS, LOOKS_PER_KERNEL = 100_000, 20


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
        self.fits: dict[tuple[int, int], bool] = {}  # whether a collective's block fits beside a launch, by their ids
        self._looks_left = LOOKS + LOOKS_PER_KERNEL * len(self.kernels)
        self.waits: StreamWaits | None = None
        if timeline.waits is not None:
            self.waits = StreamWaits((wait for wait in timeline.waits if wait.rank == rank), self.streams)

    def before(self, span: Span) -> Span | None:
        """The previous span on its stream."""
        return self._before.get(id(span))

    def running(self, start_ns: int, end_ns: int) -> list[Span]:
        """Kernels that run at any time in between."""
        first, last = self._between(start_ns, end_ns)
        return [span for span in self.kernels[first:last] if span.end_ns > start_ns]

    def may_look(self, kernels: int) -> bool:
        """Whether that many more kernels may be looked at; recordings take about one look at each."""
        self._looks_left -= kernels
        return self._looks_left >= 0

    def effort(self, start_ns: int, end_ns: int) -> int:
        """How many kernels a search for those that run in between looks at."""
        first, last = self._between(start_ns, end_ns)
        return last - first

    def _between(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        last = bisect_left(self._starts, end_ns)
        return bisect_right(self._latest_end, start_ns, 0, last), last


class StreamWaits:
    """The recorded waits of one rank, indexed for look-ups."""

    def __init__(self, waits: Iterable[Wait], streams: Mapping[str, list[Span]]) -> None:
        by_pair: dict[tuple[str, str], list[tuple[int, int]]] = {}  # asked and recorded, by both streams
        by_stream: dict[str, list[tuple[int, int | None]]] = {}  # asked, and the end of what it waits for
        ends = {stream: _Ends(line) for stream, line in streams.items()}
        for wait in sorted(waits, key=attrgetter("asked_ns")):
            by_pair.setdefault((wait.stream, wait.on_stream), []).append((wait.asked_ns, wait.recorded_ns))
            end = ends[wait.on_stream].before(wait.recorded_ns) if wait.on_stream in ends else None
            by_stream.setdefault(wait.stream, []).append((wait.asked_ns, end))
        self._latest = {
            pair: ([asked for asked, _ in times], list(accumulate((recorded for _, recorded in times), max)))
            for pair, times in by_pair.items()
        }
        self._ends = {
            stream: ([asked for asked, _ in times], RangeMax([end for _, end in times]))
            for stream, times in by_stream.items()
        }

    def recorded_ns(self, stream: str, on_stream: str, until_ns: int) -> int | None:
        """Of the waits of a stream for another, asked for until then: what was launched before this time is over."""
        asked, latest = self._latest.get((stream, on_stream), ((), ()))
        at = bisect_right(asked, until_ns)
        return latest[at - 1] if at else None

    def end_ns(self, stream: str, since_ns: int, until_ns: int) -> int | None:
        """When the last span ended that the waits asked for in between wait for."""
        if stream not in self._ends:
            return None
        asked, ends = self._ends[stream]
        return ends.of(bisect_left(asked, since_ns), bisect_right(asked, until_ns))


class _Ends:
    """When all that was launched on a stream before a time has ended."""

    def __init__(self, line: list[Span]) -> None:
        launched = sorted((span.launched_ns, span.end_ns) for span in line if span.launched_ns is not None)
        self._launched = [time for time, _ in launched]
        self._latest = list(accumulate((end for _, end in launched), max))

    def before(self, time_ns: int) -> int | None:
        at = bisect_left(self._launched, time_ns)
        return self._latest[at - 1] if at else None


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
