"""Overlap, exposed and idle time of one rank, over a whole timeline or step by step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from makeway.decide.analysis.findings import Figures, StepFigures
from makeway.decide.analysis.intervals import Interval
from makeway.values.errors import TraceError
from makeway.values.timeline import Span, Step, Timeline, covered_ns, overlap_ns, union_ns


def figures(spans: Sequence[Span]) -> Figures:
    """Interval unions over one rank's spans; copies between GPUs count as communication, not as kernels."""
    compute: list[Interval] = []
    comm: list[Interval] = []
    memory: list[Interval] = []
    copies = 0
    for span in spans:
        match span.kind:
            case "compute":
                compute.append((span.start_ns, span.end_ns))
            case "comm":
                comm.append((span.start_ns, span.end_ns))
            case "copy":
                comm.append((span.start_ns, span.end_ns))
                copies += 1
            case "memory":
                memory.append((span.start_ns, span.end_ns))
    return unions(compute, comm, memory, copies=copies)


def unions(
    compute: Sequence[Interval], comm: Sequence[Interval], memory: Sequence[Interval], *, copies: int = 0
) -> Figures:
    """The figures of three kinds of intervals; `copies` of the comm intervals are not kernels."""
    compute_union, comm_union, memory_union = union_ns(compute), union_ns(comm), union_ns(memory)
    busy = union_ns([*compute_union, *comm_union, *memory_union])
    span_ns = busy[-1][1] - busy[0][0] if busy else 0
    comm_ns, both_ns = _length(comm_union), overlap_ns(comm_union, compute_union)
    return Figures(
        kernels=len(compute) + len(comm) - copies,
        comm_kernels=len(comm) - copies,
        compute_ns=_length(compute_union),
        comm_ns=comm_ns,
        memory_ns=_length(memory_union),
        overlap_ns=both_ns,
        exposed_ns=comm_ns - both_ns,
        idle_ns=span_ns - covered_ns(busy),
        span_ns=span_ns,
    )


def _length(disjoint: Sequence[Interval]) -> int:
    return sum([end - start for start, end in disjoint])


# --- step by step ------------------------------------------------------------------------------


def step_figures(timeline: Timeline, rank: int) -> tuple[StepFigures, ...]:
    """The figures of every step of `rank`, in order; empty where no steps are recorded."""
    steps = _steps(timeline, rank)
    return tuple(
        StepFigures(number=step.number, figures=figures(spans))
        for step, spans in zip(steps, _by_step(timeline, rank, steps), strict=True)
    )


def spans_of_step(timeline: Timeline, rank: int, number: int) -> tuple[Span, ...]:
    """The spans of one step: those that the host launched within it.

    A span without a recorded launch belongs to the step in which it starts. Spans outside every step belong to none.
    """
    steps = _steps(timeline, rank)
    if number not in (step.number for step in steps):
        source = next((info.source for info in timeline.ranks if info.rank == rank), "") or f"rank {rank}"
        known = ", ".join(str(step.number) for step in steps)
        known = f"its steps are {known}" if known else "it records no profiler steps"
        raise TraceError(f"{source} has no step {number}; {known}")
    by_step = zip(steps, _by_step(timeline, rank, steps), strict=True)
    return tuple(span for step, spans in by_step if step.number == number for span in spans)


def step_window(timeline: Timeline, rank: int, spans: Sequence[Span], step: int | None) -> Interval | None:
    """The wall time of the marked steps of `rank`, or of one, whose spans are given; None where none is marked.

    All steps: from the first host mark or span to the last. One step of several: from the end of what was launched
    before it, so that the steps of a recording do not overlap.
    """
    steps = _steps(timeline, rank)
    if not steps:
        return None
    marked = steps if step is None else [item for item in steps if item.number == step]
    start, end = marked[0].start_ns, max(item.end_ns for item in marked)
    if step is not None:
        earlier = (span.end_ns for span in timeline.spans if span.rank == rank and _launched_ns(span) < start)
        start = max(start, max(earlier, default=start))
        end = end if marked[-1] is steps[-1] or not spans else start
    return min([start, *(span.start_ns for span in spans)]), max([end, *(span.end_ns for span in spans)])


def spans_by_step(timeline: Timeline, rank: int) -> tuple[list[Step], list[list[Span]]]:
    """The marked steps of `rank` in order, and the spans that were launched within each."""
    steps = _steps(timeline, rank)
    return steps, _by_step(timeline, rank, steps)


def _launched_ns(span: Span) -> int:
    return span.start_ns if span.launched_ns is None else span.launched_ns


def _steps(timeline: Timeline, rank: int) -> list[Step]:
    return sorted((step for step in timeline.steps if step.rank == rank), key=lambda step: step.start_ns)


def _by_step(timeline: Timeline, rank: int, steps: Sequence[Step]) -> list[list[Span]]:
    starts = [step.start_ns for step in steps]
    spans: list[list[Span]] = [[] for _ in steps]
    for span in timeline.spans:
        if span.rank != rank:
            continue
        time_ns = _launched_ns(span)
        index = bisect_right(starts, time_ns) - 1
        if index >= 0 and time_ns < steps[index].end_ns:
            spans[index].append(span)
    return spans
