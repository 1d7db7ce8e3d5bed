"""Calls that keep the host from launching kernels: synchronisation, fetching data, allocating device memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from makeway.values.timeline import HostCall, HostCallKind, union_ns

Calls = Mapping[HostCallKind, Sequence[tuple[int, int]]]  # start_ns and end_ns, by kind

# cudaDeviceSynchronize, cuStreamSynchronize, hipEventSynchronize; Nsight adds "_v3020" to a name.
_SYNCHRONISES = re.compile(r"(?:Device|Stream|Event|Ctx|Thread)Synchronize(?:_|$)")
# Stream-ordered allocation (cudaMallocAsync) does not block.
_ALLOCATES = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free)(?:3D|Array|Host|Managed|Mipmapped\w*|Pitch)?(?:_|$)|(?:cuda|hip)Host(?:Alloc|Malloc|Free)"
    r"|(?:cu|hip)Mem(?:Alloc|Free)(?:Host|Pitch|Managed)?(?:_|$)|(?:cu|hip)Mem(?:Create|Map|Unmap|Release|SetAccess)(?:_|$)"
)
# torch/utils/data/dataloader.py: enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__
LOADING = b'"enumerate(DataLoader)'


def host_kind(name: str) -> HostCallKind | None:
    """What a call of the CUDA or HIP library keeps the host busy with; None for any other call."""
    if _SYNCHRONISES.search(name):
        return "synchronisation"
    return "allocator" if _ALLOCATES.match(name) else None


def host_calls(calls: Calls, ranks: Iterable[int], *, base_ns: int = 0) -> tuple[HostCall, ...]:
    """The calls as disjoint values of each rank that the process drives."""
    merged = {kind: union_ns(intervals) for kind, intervals in calls.items()}
    return tuple(
        HostCall(rank=rank, kind=kind, start_ns=start + base_ns, end_ns=end + base_ns)
        for rank in ranks
        for kind, intervals in merged.items()
        for start, end in intervals
        if end > start
    )
