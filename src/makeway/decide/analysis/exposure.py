"""Why communication ran without compute beside it: which compute came next, and when the host launched it.

The exposed time of a rank is split into pieces, each assigned to the collective that has run longest. So the pieces
of all causes add up to the exposed time.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator

from makeway.decide.analysis.findings import Cause, Confidence, cause_of
from makeway.decide.analysis.intervals import interval, split
from makeway.decide.analysis.lateness import RECORD_SYNC
from makeway.decide.analysis.names import short_name
from makeway.decide.analysis.streams import SETTLE_NS, StreamView, milliseconds
from makeway.values.timeline import Span, union_ns

RECORD_LAUNCHES = "the host's launches: CPU activity beside GPU activity, in the same trace"


def exposed_causes(view: StreamView) -> list[Cause]:
    """The causes of a rank's exposed time, piece by piece."""
    lines = [[span for span in line if span.kind == "compute"] for line in view.streams.values()]
    compute = [(line, [span.start_ns for span in line]) for line in lines if line]
    return [
        cause
        for comm, start, end in exposed_pieces(view.spans)
        for cause in _piece_causes(view, compute, comm, start, end)
    ]


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
    view: StreamView, compute: list[tuple[list[Span], list[int]]], comm: Span, start: int, end: int
) -> Iterator[Cause]:
    following = [line[at] for line, starts in compute if (at := bisect_left(starts, start)) < len(line)]
    when = (start, end)
    if not following:
        evidence = "no compute follows it in the recording"
        yield cause_of(comm, "undetermined", "exposed", when, "low", evidence, record_next="a longer recording")
        return
    upcoming = min(following, key=lambda span: span.start_ns)
    if comm.stream == upcoming.stream:
        evidence = (
            f"{short_name(upcoming.name)} comes next on the same stream ({comm.stream}), and a stream keeps its order"
        )
        yield cause_of(comm, "serialised", "exposed", when, "high", evidence, kernel=upcoming.name)
        return
    launches = [span.launched_ns for span in following if span.launched_ns is not None]
    if not launches:
        evidence = "the trace does not record when the host launched the compute that follows"
        yield cause_of(comm, "undetermined", "exposed", when, "low", evidence, record_next=RECORD_LAUNCHES)
        return
    launched = min(launches)
    if launched > start:
        yield _host_late(comm, start, min(launched, end), launched, upcoming)
    if launched < end:
        yield _queued(view, comm, (max(launched, start), end), upcoming)


def _host_late(comm: Span, start: int, end: int, launched: int, upcoming: Span) -> Cause:
    late = launched - comm.end_ns
    evidence = f"the host launched no compute until {milliseconds(launched - start)} into it"
    if late >= 0:
        evidence = (
            f"the host launched the next compute ({short_name(upcoming.name)}) {milliseconds(late)} after it ended: "
            "the host was late, or waited for it"
        )
    confidence: Confidence = "medium" if late >= 0 else "high"
    return cause_of(comm, "launch-bound", "exposed", (start, end), confidence, evidence, kernel=upcoming.name)


def _queued(view: StreamView, comm: Span, when: tuple[int, int], upcoming: Span) -> Cause:
    """Compute was launched and did not run: it waited for this collective or for something else."""
    name = short_name(upcoming.name)
    if 0 <= upcoming.start_ns - comm.end_ns <= SETTLE_NS:
        after = milliseconds(upcoming.start_ns - comm.end_ns)
        evidence = f"{name} was queued and started {after} after the collective ended, so it waited for it"
        confidence: Confidence = "high" if _waits_for(view, upcoming, comm) else "medium"
        record = None if confidence == "high" else RECORD_SYNC
        return cause_of(
            comm, "dependency", "exposed", when, confidence, evidence, kernel=upcoming.name, record_next=record
        )
    earlier = view.before(upcoming)
    if earlier is not None and earlier.kind == "compute" and upcoming.start_ns - earlier.end_ns <= SETTLE_NS:
        evidence = "gaps of a few microseconds between short kernels of a stream: the cost of a launch on the GPU"
        return cause_of(comm, "launch-bound", "exposed", when, "medium", evidence)
    if earlier is not None and earlier.kind == "memory" and upcoming.start_ns - earlier.end_ns <= SETTLE_NS:
        evidence = f"{name} was queued behind {short_name(earlier.name)} on its stream"
        return cause_of(comm, "dependency", "exposed", when, "medium", evidence, kernel=upcoming.name)
    evidence = (
        f"compute was queued ({name} came next), the collective left SMs free, and the trace does not record what it "
        "waited for"
    )
    return cause_of(
        comm, "undetermined", "exposed", when, "low", evidence, kernel=upcoming.name, record_next=RECORD_SYNC
    )


def _waits_for(view: StreamView, span: Span, comm: Span) -> bool:
    """Whether a recorded stream wait orders the span after the collective."""
    if view.waits is None or span.launched_ns is None or comm.launched_ns is None:
        return False
    return any(
        wait.stream == span.stream
        and wait.on_stream == comm.stream
        and wait.asked_ns <= span.launched_ns
        and comm.launched_ns < wait.recorded_ns
        for wait in view.waits
    )
