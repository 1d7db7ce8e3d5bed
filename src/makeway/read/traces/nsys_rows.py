"""Rows of an Nsight Systems export as values: host calls, the limits of a GPU, launches, process ids."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from makeway.read.traces.launch import recorded_launch
from makeway.values.kernel import Launch
from makeway.values.recorded_device import RecordedLimits

_THREAD_BITS = 24  # a global thread id is machine, process (24 bits), thread (24 bits)
LIMITS = (
    "smCount", "computeMajor", "computeMinor", "totalMemory", "maxRegistersPerSm", "maxThreadsPerSm",
    "maxThreadsPerBlock", "threadsPerWarp", "maxShmemPerSm", "maxShmemPerBlockOptin", "maxShmemPerBlock",
)  # fmt: skip


@dataclass(slots=True)
class Calls:
    """The calls of one process, in the order of their correlation ids."""

    correlations: array[int] = field(default_factory=lambda: array("q"))
    times: array[int] = field(default_factory=lambda: array("q"))
    threads: array[int] = field(default_factory=lambda: array("q"))

    def add(self, correlation: int, time_ns: int, thread: object) -> None:
        self.correlations.append(correlation)
        self.times.append(time_ns)
        self.threads.append(thread if type(thread) is int else 0)

    def find(self, correlation: object) -> tuple[int, int] | None:
        """The time and the thread of the call with that id."""
        if type(correlation) is not int:
            return None
        at = bisect_left(self.correlations, correlation)
        if at == len(self.correlations) or self.correlations[at] != correlation:
            return None
        return self.times[at], self.threads[at]


def process_of(thread: object) -> int:
    """Machine and process of a serialised process or thread id; 0 if the export has none."""
    return thread >> _THREAD_BITS if isinstance(thread, int) else 0


def limits_of(row: Sequence[Any]) -> RecordedLimits:
    sms, major, minor, *rest = (value if type(value) is int and value >= 0 else None for value in row)
    memory, registers, threads, block_threads, warp, smem, smem_block, smem_default = (value or None for value in rest)
    return RecordedLimits(
        vendor="nvidia",
        arch=None if major is None or minor is None else f"sm_{major}{minor}",
        sms=sms or None,
        memory_bytes=memory,
        registers=registers,
        threads=threads,
        max_threads_per_block=block_threads,
        warp_threads=warp,
        smem_bytes=smem,
        smem_block_bytes=smem_block,
        smem_default_block_bytes=smem_default,
    )


def launch_of(shape: Sequence[Any]) -> Launch | None:
    registers, static_bytes, dynamic_bytes, *cluster = shape[6:]
    sized = type(static_bytes) is int and type(dynamic_bytes) is int
    sides = [side or 1 for side in cluster]
    return recorded_launch(
        shape[:3],
        shape[3:6],
        registers_per_thread=registers,
        smem_bytes=static_bytes + dynamic_bytes if sized else None,
        cluster=prod(sides) if all(type(side) is int for side in sides) else None,
    )
