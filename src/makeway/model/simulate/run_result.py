"""What one run of an engine gives: times of operations, and what SMs held meanwhile."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimes:
    """When an operation reached its queue, placed its first block, moved its first byte, and ended."""

    arrived_ns: float
    started_ns: float
    moving_ns: float  # a collective's first byte: every rank holds a block of it; a kernel: its start
    ended_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the SMs of one rank hold from a moment on: ((operation, blocks), ...) and on how many SMs."""

    time_ns: float
    rank: int
    holdings: tuple[tuple[tuple[tuple[int, int], ...], int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far each operation is after an event: ended blocks of a kernel, work of a collective; and resident blocks."""

    time_ns: float
    done: tuple[float, ...]
    resident: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One simulated run."""

    times: tuple[OpTimes, ...]
    samples: tuple[Sample, ...]
    events: int
    progress: tuple[Progress, ...] = ()
    fallback: str | None = None  # why the fluid engine left this run to another one

    @property
    def end_ns(self) -> float:
        return max(times.ended_ns for times in self.times)
