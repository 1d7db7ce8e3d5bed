"""What happened: spans on streams and ranks, measured, imported or predicted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from makeway.values.collective import CollectiveKind
from makeway.values.errors import InputError
from makeway.values.kernel import Launch
from makeway.values.recorded_device import RecordedLimits

# copy: communication on copy engines (peer to peer); memory: copies to and from the host, within the device, and fills.
SpanKind = Literal["compute", "comm", "copy", "memory"]
Origin = Literal["measured", "imported", "predicted"]
# synchronisation: blocked until the GPU is done; loading: fetching the next batch; allocator: device memory.
HostCallKind = Literal["synchronisation", "loading", "allocator"]
Evidence = Literal[
    "own-pattern",  # the user's --comm-names
    "name",  # a bundled pattern of a library's kernel names
    "metadata",  # the profiler recorded a collective's arguments with the kernel
    "record_param_comms",  # PyTorch launched it inside a collective call
    "nvtx-range",  # launched inside a range that NCCL marks
    "backend-range",  # a range that PyTorch's backend records while a collective of CPU ranks runs
    "xla-operation",  # the operation of a compiled program is a collective, or devices meet in it
    "peer-copy",  # a copy between two GPUs
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommRule:
    """Why a span counts as communication: the evidence, and the library where it is known."""

    by: Evidence
    library: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What a collective moves, as far as the trace says."""

    kind: CollectiveKind | None = None
    in_bytes: int | None = None  # of this rank, before
    out_bytes: int | None = None  # of this rank, after
    group: str | None = None
    group_ranks: tuple[int, ...] = ()
    sequence: int | None = None  # its number among the collectives of its group


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One kernel, collective or copy on a stream."""

    name: str
    kind: SpanKind
    stream: str
    start_ns: int
    end_ns: int
    rank: int = 0
    waiting_ns: int = 0  # of a collective: resident, but another rank is not ready yet
    launch: Launch | None = None
    launched_ns: int | None = None  # when the host launched it
    exchange: Exchange | None = None
    priority: int | None = None  # of its stream; lower is more urgent, as CUDA counts
    rule: CommRule | None = None  # why it counts as communication; None: it does not, or nothing says why
    inputs: int | None = None  # stands for the input sizes of the operator that launched it; equal sizes, equal number

    def __post_init__(self) -> None:
        if self.end_ns < self.start_ns:
            raise InputError(f"span {self.name!r} ends before it starts ({self.start_ns} to {self.end_ns} ns)")

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """From `time_ns` on, `sms` SMs of a rank hold these blocks: ((operation, blocks), ...)."""

    time_ns: int
    rank: int
    sms: int
    blocks: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a program as its host marked it (a profiler step)."""

    number: int
    rank: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """An order between streams.

    What is launched on `stream` after `asked_ns` runs after all that was launched on `on_stream` before
    `recorded_ns` (both host times).
    """

    rank: int
    stream: str
    asked_ns: int
    on_stream: str
    recorded_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """A stretch of time in which the host did something that keeps it from launching kernels."""

    rank: int
    kind: HostCallKind
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One recorded rank, its GPU, and what its record lacks."""

    rank: int
    device: str | None = None  # as the profiler names the GPU
    sms: int | None = None
    world: int | None = None  # ranks of the whole job
    library: str | None = None  # "nccl-2.17.1"
    source: str = ""  # the file
    notes: tuple[str, ...] = ()  # what was left out, in plain sentences
    limits: RecordedLimits | None = None  # of its GPU, where the record has them
    occupancy_recorded: bool = False  # whether the record holds Kineto's own estimate of occupancy


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Spans of one or more ranks, and where they come from."""

    spans: tuple[Span, ...]
    origin: Origin
    device: str | None = None
    holdings: tuple[Holding, ...] = ()  # what SMs held over time, where it is known
    ranks: tuple[Rank, ...] = ()
    steps: tuple[Step, ...] = ()
    waits: tuple[Wait, ...] | None = None  # None: the record has no synchronisation events
    host: tuple[HostCall, ...] = ()  # calls that keep the host from launching, disjoint per rank and kind

    def of(self, *kinds: SpanKind, rank: int = 0) -> list[Span]:
        """The spans of these kinds on one rank."""
        return [span for span in self.spans if span.kind in kinds and span.rank == rank]


def union_ns(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Disjoint intervals, in order, that cover the same time."""
    merged: list[tuple[int, int]] = []
    ordered = iter(sorted(intervals))
    first = next(ordered, None)
    if first is None:
        return merged
    open_start, open_end = first
    for start, end in ordered:
        if start > open_end:
            merged.append((open_start, open_end))
            open_start, open_end = start, end
        elif end > open_end:
            open_end = end
    merged.append((open_start, open_end))
    return merged


def covered_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Time covered by at least one of the intervals."""
    return sum(end - start for start, end in union_ns(intervals))


def overlap_ns(left: Iterable[tuple[int, int]], right: Iterable[tuple[int, int]]) -> int:
    """Time covered by both sets of intervals."""
    firsts, seconds = union_ns(left), union_ns(right)
    total = index = 0
    for start, end in firsts:
        while index < len(seconds) and seconds[index][1] <= start:
            index += 1
        at = index
        while at < len(seconds) and seconds[at][0] < end:
            total += min(end, seconds[at][1]) - max(start, seconds[at][0])
            at += 1
        index = max(index, at - 1)  # the last one may reach into the next interval
    return total


def overlap_rate(timeline: Timeline, *, rank: int = 0) -> float | None:
    """The share of communication time during which compute runs too; None without communication."""
    comm = [(span.start_ns, span.end_ns) for span in timeline.of("comm", "copy", rank=rank)]
    compute = [(span.start_ns, span.end_ns) for span in timeline.of("compute", rank=rank)]
    total = covered_ns(comm)
    return overlap_ns(comm, compute) / total if total else None


def share_of_ideal(*, t_sequential: float, t: float, t_compute: float, t_comm: float) -> float | None:
    """(t_seq / t - 1) / (t_seq / max(t_compute, t_comm) - 1): 0 is no gain over sequential, 1 is ideal.

    None when nothing could be gained.
    """
    ideal = max(t_compute, t_comm)
    possible = t_sequential / ideal - 1.0 if ideal else 0.0
    return (t_sequential / t - 1.0) / possible if possible > 1e-9 and t else None
