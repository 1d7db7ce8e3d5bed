"""What did happen: spans on streams and ranks, whether measured, imported or predicted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from makeway.errors import InputError

SpanKind = Literal["compute", "comm", "copy"]
Origin = Literal["measured", "imported", "predicted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One kernel, collective or copy on a stream."""

    name: str
    kind: SpanKind
    stream: str
    start_ns: int
    end_ns: int
    rank: int = 0
    waiting_ns: int = 0  # of a collective: resident, but some rank was not ready yet

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
class Timeline:
    """Spans of one or more ranks, and where they come from."""

    spans: tuple[Span, ...]
    origin: Origin
    device: str | None = None
    holdings: tuple[Holding, ...] = ()  # what SMs held over time, where it is known

    def of(self, *kinds: SpanKind, rank: int = 0) -> list[Span]:
        """The spans of these kinds on one rank."""
        return [span for span in self.spans if span.kind in kinds and span.rank == rank]


def union_ns(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Disjoint intervals, in order, that cover the same time."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def covered_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Time covered by at least one of the intervals."""
    return sum(end - start for start, end in union_ns(intervals))


def overlap_ns(one: Iterable[tuple[int, int]], other: Iterable[tuple[int, int]]) -> int:
    """Time covered by both sets of intervals."""
    one, other = list(one), list(other)
    return covered_ns(one) + covered_ns(other) - covered_ns([*one, *other])


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
