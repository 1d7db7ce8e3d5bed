"""Tensors in memory that every rank of a group sees: collectives read them without a copy into a segment.

A shared tensor is symmetric: every rank makes one of the same size, in the same order of calls. A collective reads it
in place when every rank passes the same part of the same shared tensor; pulling is then one copy per peer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from makeway.act.cpu.calls import Op
from makeway.act.cpu.copiers import Copiers
from makeway.act.cpu.ring import Ring
from makeway.act.cpu.segments import Segment
from makeway.values.units import KIB

SUMMED_BYTES = 512 * KIB  # at a time: benchmarks/bench_direct.py --windows, on cores with 2 MiB of cache
_PLACE_BITS = 48  # of a place: the offset; above it the number of the shared tensor


@dataclass(frozen=True, slots=True)
class SharedTensor:
    """One segment of every rank."""

    segments: tuple[Segment, ...]
    size: int
    rank: int
    adopted: torch.UntypedStorage | None = None  # kept alive, so that its address is not reused

    def offset_of(self, tensor: torch.Tensor) -> int | None:
        """Where a tensor lies in this rank's segment; None when it lies elsewhere."""
        home = self.segments[self.rank].address if self.adopted is None else self.adopted.data_ptr()
        offset = tensor.data_ptr() - home
        return offset if offset >= 0 and offset + tensor.nbytes <= self.size else None

    def close(self) -> None:
        """Unmap every rank's memory; an adopted tensor of this rank keeps its own mapping."""
        for segment in self.segments:
            segment.close()


@dataclass(frozen=True, slots=True)
class Shared:
    """A part of a shared tensor, as it lies in the memory of every rank."""

    tensor: SharedTensor
    number: int
    offset: int

    @property
    def place(self) -> int:
        return self.number << _PLACE_BITS | self.offset

    def of(self, rank: int, start: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """`count` bytes of that part from `start`, in the memory of a rank."""
        return self.tensor.segments[rank].view(self.offset + start, count, dtype)

    def address(self, rank: int, start: int = 0) -> int:
        return self.tensor.segments[rank].address + self.offset + start


def shared_part(tensors: Mapping[int, SharedTensor], part: torch.Tensor) -> Shared | None:
    """`part` as a part of a shared tensor; None when none holds it."""
    for number, tensor in tensors.items():
        offset = tensor.offset_of(part)
        if offset is not None and part.nbytes:
            return Shared(tensor, number, offset)
    return None


def add_up(shared: Shared, ring: Ring, start: int, count: int, dtype: torch.dtype, op: Op) -> None:
    """Sum `count` bytes of all ranks' memory from `start` on, in the ring's order, and hand the sum to all of them.

    All of it in place, piece by piece while a piece is in cache; an average scales each part first.
    """
    for begin, size, order in ring.runs(start, count):
        for at in range(begin, begin + size, SUMMED_BYTES):
            parts = [shared.of(rank, at, min(SUMMED_BYTES, begin + size - at), dtype) for rank in order]
            if op == "avg":
                for part in parts:
                    part.mul_(1.0 / ring.ranks)  # multiplied, as DistributedDataParallel's reducer does it
            total, *others = parts
            for part in others:
                total.add_(part)
            for part in others:
                part.copy_(total)


def pull(copiers: Copiers, into: torch.Tensor, shared: Shared, rank: int, start: int) -> None:
    """Fill `into` from the memory of a rank, in one copy."""
    copiers.copy(into.data_ptr(), shared.address(rank, start), into.nbytes)
