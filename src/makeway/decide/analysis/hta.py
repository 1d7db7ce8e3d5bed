"""The figures of HolisticTraceAnalysis (HTA), by its own rules, to compare with makeway's.

The rules are those of release 0.5.0 (facebookresearch/HolisticTraceAnalysis: hta/common/trace.py,
hta/common/trace_parser.py, hta/utils/utils.py, hta/analyzers). They differ from `figures` in four ways:

- With two or more profiler steps, a kernel or copy counts only if the trace holds its launch and, by default, the
  host launched it before the last step began. (With `include_last_profiler_step=True` HTA means to stop at the end
  of the last step. But it compares launch times relative to the first event with an absolute end, so no real clock
  ever reaches it; the same holds here.)
- Times with fractions of a microsecond are rounded: starts up, ends down. An event within one microsecond gets a
  negative length and counts as such.
- Communication is any kernel named `nccl...Kernel...`; any other collective is compute.
- Kernels with "Sync" or "Memcpy" in their name are neither compute nor communication, but not idle.

Digits differ where HTA counts what a timeline does not hold:

- synchronisation events (`cuda_sync`), which HTA counts as busy time;
- host events with a stream: HTA counts a `cpu_op` of a Triton kernel with a "stream" argument as a kernel;
- profiler steps annotated on the GPU without a stream: HTA starts the last step at the later of host and GPU, which
  matters only if the last step is left out;
- absolute times with fractions (about 1.7e15 us), where HTA's floating-point ends have steps of a quarter microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from makeway.decide.analysis.findings import Figures
from makeway.decide.analysis.intervals import Interval
from makeway.values.timeline import Span, Timeline, covered_ns, overlap_ns, union_ns
from makeway.values.units import ceil_to, floor_to

_US = 1000  # ns
_COMM = re.compile(r"^nccl.*Kernel")
_MEMORY = re.compile(r"(^Memcpy)|(^Memset)|(^dma)")
_NOT_COMPUTE = re.compile(r"(^nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)")

_Kind = Literal["compute", "comm", "memory", "other"]


def hta_figures(timeline: Timeline, rank: int, *, include_last_step: bool = True) -> Figures | None:
    """HTA's figures for one rank; None if its rules leave nothing to count.

    `include_last_step` is HTA's include_last_profiler_step, which is off by default in HTA. `kernels` and
    `comm_kernels` count kernels by name, without copies, as HTA does.
    """
    spans = _counted(timeline, rank, include_last_step=include_last_step)
    if not spans:
        return None
    cut = _has_fractions(timeline, rank)
    by_kind: dict[_Kind, list[Interval]] = {"compute": [], "comm": [], "memory": [], "other": []}
    for span in spans:
        start, end = (_up(span.start_ns), _down(span.end_ns)) if cut else (span.start_ns, span.end_ns)
        by_kind[_kind(span.name)].append((start, end))
    compute, comm, memory = by_kind["compute"], by_kind["comm"], by_kind["memory"]
    busy = union_ns([*compute, *comm, *memory, *by_kind["other"]])
    span_ns, comm_ns = busy[-1][1] - busy[0][0], covered_ns(comm)
    both_ns = overlap_ns(_lasting(comm), _lasting(compute))
    return Figures(
        kernels=len(compute) + len(comm),
        comm_kernels=len(comm),
        compute_ns=covered_ns(compute),
        comm_ns=comm_ns,
        memory_ns=covered_ns(memory),
        overlap_ns=both_ns,
        exposed_ns=comm_ns - both_ns,
        idle_ns=span_ns - covered_ns(busy),
        span_ns=span_ns,
    )


def _counted(timeline: Timeline, rank: int, *, include_last_step: bool) -> list[Span]:
    spans = [span for span in timeline.spans if span.rank == rank]
    steps = [step for step in timeline.steps if step.rank == rank]
    if len({step.number for step in steps}) < 2:
        return spans
    launched = [span for span in spans if span.launched_ns is not None]
    if include_last_step:
        return launched
    cut = _has_fractions(timeline, rank)
    last = max(step.start_ns for step in steps)
    return [span for span in launched if _launch_ns(span, cut=cut) < (_up(last) if cut else last)]


def _launch_ns(span: Span, *, cut: bool) -> int:
    assert span.launched_ns is not None
    return _up(span.launched_ns) if cut else span.launched_ns


def _has_fractions(timeline: Timeline, rank: int) -> bool:
    return any(span.start_ns % _US for span in timeline.spans if span.rank == rank)


def _up(time_ns: int) -> int:
    return ceil_to(time_ns, _US)


def _down(time_ns: int) -> int:
    return floor_to(time_ns, _US)


def _lasting(intervals: Sequence[Interval]) -> list[Interval]:
    return [(start, end) for start, end in intervals if start < end]


@lru_cache(maxsize=4096)
def _kind(name: str) -> _Kind:
    if _COMM.match(name):
        return "comm"
    if _MEMORY.match(name):
        return "memory"
    return "other" if _NOT_COMPUTE.match(name) else "compute"
