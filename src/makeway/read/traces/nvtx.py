"""Ranges that NCCL marks with NVTX on the host: what is launched inside one is its communication.

Source: NVIDIA/nccl, src/include/nvtx.h and src/collectives.cc (NVTX3_FUNC_WITH_PARAMS marks each call with its name).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from makeway.values.collective import CollectiveKind

# Calls that launch communication; a group's kernels are launched when it ends.
COLLECTIVE_CALLS: Mapping[str, CollectiveKind | None] = {
    "ncclAllReduce": "all-reduce",
    "ncclAllGather": "all-gather",
    "ncclReduceScatter": "reduce-scatter",
    "ncclAlltoAll": "all-to-all",
    "ncclAllToAll": "all-to-all",
    "ncclSend": "send-recv",
    "ncclRecv": "send-recv",
    "ncclBroadcast": None,
    "ncclReduce": None,
    "ncclGather": None,
    "ncclScatter": None,
    "ncclGroupEnd": None,
}
_DEPTH = 4  # calls within calls


@dataclass(slots=True)
class CallRanges:
    """The ranges of each thread, in order of start."""

    by_thread: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_thread)

    def add(self, thread: int, start: object, end: object, name: str) -> None:
        """Add a range, unless its times are missing or reversed."""
        if type(start) is int and type(end) is int and start <= end:
            self.by_thread.setdefault(thread, []).append((start, end, name))

    def ordered(self) -> CallRanges:
        for ranges in self.by_thread.values():
            ranges.sort()
        return self

    def around(self, thread: int, time_ns: int) -> str | None:
        """The innermost range of the thread at that time."""
        ranges = self.by_thread.get(thread, [])
        at = bisect_right(ranges, (time_ns, 1 << 62, ""))
        inside = (name for _, end, name in reversed(ranges[max(0, at - _DEPTH) : at]) if end >= time_ns)
        return next(inside, None)
