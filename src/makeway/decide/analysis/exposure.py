"""Why communication ran without compute beside it: which compute came next, and when the host launched it.

The exposed time of a rank is split into pieces, each assigned to the collective that has run longest. So the pieces
of all causes add up to the exposed time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from makeway.decide.analysis.findings import Cause, Confidence, cause_of
from makeway.decide.analysis.intervals import interval, split
from makeway.decide.analysis.lateness import RECORD_SYNC
from makeway.decide.analysis.names import short_name
from makeway.decide.analysis.streams import SETTLE_NS, StreamView, milliseconds
from makeway.values.timeline import Span, union_ns

RECORD_LAUNCHES = "the host's launches: CPU activity beside GPU activity, in the same trace"
RECORD_STACKS = (
    "the Python calls between operators, for a look in Perfetto (`makeway record --stacks`, with_stack=True in "
    "torch.profiler)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a piece of exposed time shows, in the words of the hardware it ran on."""

    same_stream: str
    late: str  # the next compute was launched while the collective ran
    after: str  # it was launched after the collective had ended
    waited: str
    gaps: str
    unknown: str
    record: str  # what would show more


ON_GPU = Evidence(
    same_stream="{name} comes next on the same stream ({stream}), and a stream keeps its order",
    late="the host launched no compute until {time} into it",
    after="the host launched the next compute ({name}) {time} after it ended: the host was late, or waited for it",
    waited="{name} was queued and started {time} after the collective ended, so it waited for it",
    gaps="gaps of a few microseconds between short kernels of a stream: the cost of a launch on the GPU",
    unknown=(
        "compute was queued ({name} came next), the collective left SMs free, and the trace does not record what it "
        "waited for"
    ),
    record=RECORD_SYNC,
)
ON_CPU = Evidence(
    same_stream="{name} comes next on the same thread ({stream}), which runs the collective itself",
    late="no operator started until {time} into it",
    after="the next operator ({name}) started {time} after it ended: the program did something else, or waited for it",
    waited="{name} started {time} after the collective ended, and its thread waited for it",
    gaps="gaps of a few microseconds between short operators of a thread",
    unknown="{name} came next on its thread, and the trace does not record what it waited for",
    record=RECORD_STACKS,
)


def exposed_causes(view: StreamView, texts: Evidence = ON_GPU) -> list[Cause]:
    """The causes of a rank's exposed time, piece by piece."""
    following = _Following(view)
    return [
        cause
        for comm, start, end in exposed_pieces(view.spans)
        for cause in _piece_causes(view, following, comm, start, end, texts=texts)
    ]


class _Following:
    """The next compute of every stream while time moves on: which starts first, and when one was first launched."""

    def __init__(self, view: StreamView) -> None:
        lines = ([span for span in line if span.kind == "compute"] for line in view.streams.values())
        self._lines = [iter(line) for line in lines]
        self._next: dict[int, Span] = {}  # by the stream's number
        self._starts: list[tuple[int, int]] = []  # start and stream of each in `_next`
        self._launches: list[tuple[int, int, int]] = []  # launch, stream and id; entries may be outdated
        for stream in range(len(self._lines)):
            self._take(stream)

    def _take(self, stream: int) -> None:
        span = next(self._lines[stream], None)
        if span is None:
            self._next.pop(stream, None)
            return
        self._next[stream] = span
        heapq.heappush(self._starts, (span.start_ns, stream))
        if span.launched_ns is not None:
            heapq.heappush(self._launches, (span.launched_ns, stream, id(span)))

    def at(self, time_ns: int) -> Span | None:
        """The first compute to start at or after a time, which never goes back."""
        while self._starts and self._starts[0][0] < time_ns:
            self._take(heapq.heappop(self._starts)[1])
        return self._next[self._starts[0][1]] if self._starts else None

    def launched_ns(self) -> int | None:
        """The earliest launch among the next compute of all streams; None where no launch is recorded."""
        while self._launches:
            launched, stream, span = self._launches[0]
            if stream in self._next and id(self._next[stream]) == span:
                return launched
            heapq.heappop(self._launches)
        return None


def exposed_pieces(spans: list[Span]) -> Iterator[tuple[Span, int, int]]:
    """Times with communication and without compute, each with the collective that has run longest."""
    comm = sorted((span for span in spans if span.kind in ("comm", "copy")), key=lambda span: span.start_ns)
    compute = union_ns(interval(span) for span in spans if span.kind == "compute")
    return (
        (span, start, end) for span, start, end, side in split(_longest_running(comm), compute) if side == "outside"
    )


def _longest_running(comm: list[Span]) -> Iterator[tuple[Span, int, int]]:
    """The union of the spans in disjoint pieces, each with the earliest of the spans then running."""
    running: list[tuple[int, int, int]] = []  # start, index, end
    position = 0
    for index, span in enumerate(comm):
        while running and position < span.start_ns:
            _, first, end = running[0]
            until = min(end, span.start_ns)
            if until > position:
                yield comm[first], position, until
                position = until
            if end <= position:
                heapq.heappop(running)
            else:
                break
        position = max(position, span.start_ns)
        heapq.heappush(running, (span.start_ns, index, span.end_ns))
    while running:
        _, first, end = heapq.heappop(running)
        if end > position:
            yield comm[first], position, end
            position = end


def _piece_causes(
    view: StreamView, following: _Following, comm: Span, start: int, end: int, *, texts: Evidence
) -> Iterator[Cause]:
    upcoming = following.at(start)
    when = (start, end)
    if upcoming is None:
        evidence = "no compute follows it in the recording"
        yield cause_of(comm, "undetermined", "exposed", when, "low", evidence, record_next="a longer recording")
        return
    if comm.stream == upcoming.stream:
        evidence = texts.same_stream.format(name=short_name(upcoming.name), stream=comm.stream)
        yield cause_of(comm, "serialised", "exposed", when, "high", evidence, kernel=upcoming.name)
        return
    launched = following.launched_ns()
    if launched is None:
        evidence = "the trace does not record when the host launched the compute that follows"
        yield cause_of(comm, "undetermined", "exposed", when, "low", evidence, record_next=RECORD_LAUNCHES)
        return
    if launched > start:
        yield _host_late(comm, (start, min(launched, end)), launched, upcoming, texts)
    if launched < end:
        yield _queued(view, comm, (max(launched, start), end), upcoming, texts)


def _host_late(comm: Span, when: tuple[int, int], launched: int, upcoming: Span, texts: Evidence) -> Cause:
    late = launched - comm.end_ns
    evidence = texts.late.format(time=milliseconds(launched - when[0]))
    if late >= 0:
        evidence = texts.after.format(name=short_name(upcoming.name), time=milliseconds(late))
    confidence: Confidence = "medium" if late >= 0 else "high"
    return cause_of(comm, "launch-bound", "exposed", when, confidence, evidence, kernel=upcoming.name)


def _queued(view: StreamView, comm: Span, when: tuple[int, int], upcoming: Span, texts: Evidence) -> Cause:
    """Compute was launched and did not run: it waited for this collective or for something else."""
    name = short_name(upcoming.name)
    known = _waits_for(view, upcoming, comm)
    after_ns = upcoming.start_ns - comm.end_ns
    if after_ns >= 0 and (known or after_ns <= SETTLE_NS):
        evidence = texts.waited.format(name=name, time=milliseconds(after_ns))
        confidence: Confidence = "high" if known else "medium"
        record = None if confidence == "high" else texts.record
        return cause_of(
            comm, "dependency", "exposed", when, confidence, evidence, kernel=upcoming.name, record_next=record
        )
    if (ended := _waited_until(view, upcoming)) is not None and ended > when[0]:
        after = milliseconds(upcoming.start_ns - ended)
        evidence = f"{name} waited for another collective, which ended {after} before it started"
        return cause_of(comm, "dependency", "exposed", when, "high", evidence, kernel=upcoming.name)
    earlier = view.before(upcoming)
    if earlier is not None and earlier.kind == "compute" and upcoming.start_ns - earlier.end_ns <= SETTLE_NS:
        return cause_of(comm, "launch-bound", "exposed", when, "medium", texts.gaps)
    if earlier is not None and earlier.kind == "memory" and upcoming.start_ns - earlier.end_ns <= SETTLE_NS:
        evidence = f"{name} was queued behind {short_name(earlier.name)} on its stream"
        return cause_of(comm, "dependency", "exposed", when, "medium", evidence, kernel=upcoming.name)
    return cause_of(
        comm,
        "undetermined",
        "exposed",
        when,
        "low",
        texts.unknown.format(name=name),
        kernel=upcoming.name,
        record_next=texts.record,
    )


def _waited_until(view: StreamView, span: Span) -> int | None:
    """When what the span's own wait is for had ended; None where the wait is not its own."""
    if view.waits is None or span.launched_ns is None:
        return None
    return view.waits.end_ns(span.stream, span.launched_ns, span.launched_ns)


def _waits_for(view: StreamView, span: Span, comm: Span) -> bool:
    """Whether a recorded stream wait orders the span after the collective."""
    if view.waits is None or span.launched_ns is None or comm.launched_ns is None:
        return False
    recorded = view.waits.recorded_ns(span.stream, comm.stream, span.launched_ns)
    return recorded is not None and comm.launched_ns < recorded
