"""Why communication ran without compute beside it: which compute came next, and when the host had asked for it.

The exposed time of a rank is cut into pieces, each given to the collective that had been running longest, so the
pieces of all causes add up to the exposed time itself.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator

from makeway.decide.analysis.findings import Cause, CauseKind, Confidence
from makeway.decide.analysis.lateness import RECORD_SYNC
from makeway.decide.analysis.names import short_name
from makeway.decide.analysis.streams import SETTLE_NS, StreamView, milliseconds
from makeway.values.timeline import Span, union_ns

RECORD_LAUNCHES = "the host's launches: CPU activity beside GPU activity, in the same trace"


def exposed_causes(view: StreamView) -> list[Cause]:
    """The exposed time of a rank, piece by piece, each with its cause."""
    lines = [[span for span in line if span.kind == "compute"] for line in view.streams.values()]
    compute = [(line, [span.start_ns for span in line]) for line in lines if line]
    return [
        cause
        for comm, start, end in exposed_pieces(view.spans)
        for cause in _piece_causes(view, compute, comm, start, end)
    ]


def exposed_pieces(spans: list[Span]) -> Iterator[tuple[Span, int, int]]:
    """Times with communication and without compute, each with the collective that had been running longest."""
    comm = sorted((span for span in spans if span.kind in ("comm", "copy")), key=lambda span: span.start_ns)
    covered = union_ns((span.start_ns, span.end_ns) for span in spans if span.kind == "compute")
    at = 0
    for span, start, end in _longest_running(comm):
        while at < len(covered) and covered[at][1] <= start:
            at += 1
        here, position = at, start
        while here < len(covered) and covered[here][0] < end:
            if covered[here][0] > position:
                yield span, position, covered[here][0]
            position = covered[here][1]
            here += 1
        if position < end:
            yield span, position, end


def _longest_running(comm: list[Span]) -> Iterator[tuple[Span, int, int]]:
    """The union of the spans in disjoint pieces, each with the span that started first among those running."""
    waiting: list[tuple[int, int, int]] = []  # started, place, end
    position = 0
    for place, span in enumerate(comm):
        while waiting and position < span.start_ns:
            _, first, end = waiting[0]
            until = min(end, span.start_ns)
            if until > position:
                yield comm[first], position, until
                position = until
            if end <= position:
                heapq.heappop(waiting)
            else:
                break
        position = max(position, span.start_ns)
        heapq.heappush(waiting, (span.start_ns, place, span.end_ns))
    while waiting:
        _, first, end = heapq.heappop(waiting)
        if end > position:
            yield comm[first], position, end
            position = end


def _piece_causes(
    view: StreamView, compute: list[tuple[list[Span], list[int]]], comm: Span, start: int, end: int
) -> Iterator[Cause]:
    following = [line[at] for line, starts in compute if (at := bisect_left(starts, start)) < len(line)]
    if not following:
        yield _cause("undetermined", comm, start, end, "low", "no compute follows it in the record", "a longer record")
        return
    upcoming = min(following, key=_start)
    if comm.stream == upcoming.stream:
        yield _cause(
            "serialised", comm, start, end, "high",
            f"{short_name(upcoming.name)} comes next on the same stream ({comm.stream}), and a stream keeps its order",
            kernel=upcoming.name,
        )  # fmt: skip
        return
    launches = [span.launched_ns for span in following if span.launched_ns is not None]
    if not launches:
        words = "when the host launched the compute that follows is not recorded"
        yield _cause("undetermined", comm, start, end, "low", words, RECORD_LAUNCHES)
        return
    asked = min(launches)
    if asked > start:
        yield _host_late(comm, start, min(asked, end), asked, upcoming)
    if asked < end:
        yield _queued(view, comm, max(asked, start), end, upcoming)


def _start(span: Span) -> int:
    return span.start_ns


def _host_late(comm: Span, start: int, end: int, asked: int, upcoming: Span) -> Cause:
    late = asked - comm.end_ns
    words = f"the host launched no compute until {milliseconds(asked - start)} into it"
    if late >= 0:
        words = (
            f"the host launched the next compute ({short_name(upcoming.name)}) {milliseconds(late)} after it ended: "
            "the host was late, or waited for it"
        )
    return _cause("launch-bound", comm, start, end, "medium" if late >= 0 else "high", words, kernel=upcoming.name)


def _queued(view: StreamView, comm: Span, start: int, end: int, upcoming: Span) -> Cause:
    """Compute had been launched and did not run: it waited, for this collective or for something else."""
    name = short_name(upcoming.name)
    if 0 <= upcoming.start_ns - comm.end_ns <= SETTLE_NS:
        after = milliseconds(upcoming.start_ns - comm.end_ns)
        words = f"{name} was queued and started {after} after it ended: it waited for it"
        confidence: Confidence = "high" if _waits_for(view, upcoming, comm) else "medium"
        record = None if confidence == "high" else RECORD_SYNC
        return _cause("dependency", comm, start, end, confidence, words, record, kernel=upcoming.name)
    earlier = view.before(upcoming)
    if earlier is not None and earlier.kind == "compute" and upcoming.start_ns - earlier.end_ns <= SETTLE_NS:
        words = "gaps of a few microseconds between short kernels of a stream: what a launch costs on the GPU"
        return _cause("launch-bound", comm, start, end, "medium", words)
    if earlier is not None and earlier.kind == "memory" and upcoming.start_ns - earlier.end_ns <= SETTLE_NS:
        words = f"{name} was queued behind {short_name(earlier.name)} on its stream"
        return _cause("dependency", comm, start, end, "medium", words, kernel=upcoming.name)
    words = (
        f"compute was queued ({name} came next), the collective left SMs free, and what it waited for is not recorded"
    )
    return _cause("undetermined", comm, start, end, "low", words, RECORD_SYNC, kernel=upcoming.name)


def _waits_for(view: StreamView, span: Span, comm: Span) -> bool:
    """Whether a recorded stream wait says that the span came after the collective."""
    if view.waits is None or span.launched_ns is None or comm.launched_ns is None:
        return False
    return any(
        wait.stream == span.stream
        and wait.on_stream == comm.stream
        and wait.asked_ns <= span.launched_ns
        and comm.launched_ns < wait.recorded_ns
        for wait in view.waits
    )


def _cause(
    kind: CauseKind,
    comm: Span,
    start: int,
    end: int,
    confidence: Confidence,
    evidence: str,
    record_next: str | None = None,
    *,
    kernel: str | None = None,
) -> Cause:
    return Cause(
        kind=kind,
        of="exposed",
        collective=comm.name,
        rank=comm.rank,
        at_ns=start,
        time_ns=end - start,
        confidence=confidence,
        evidence=evidence,
        kernel=kernel,
        record_next=record_next,
    )
