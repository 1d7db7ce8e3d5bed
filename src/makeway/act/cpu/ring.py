"""The order in which Gloo's ring adds the tensors of the ranks: sums in the same order have the same bits.

A tensor is cut into one chunk per rank, of whole segments (gloo/allreduce.cc, `ring`; segments of at most 1 MiB as
gloo/allreduce.h has it). Chunk c starts at rank c - 1 and goes down the ranks, each of which adds its own part, to rank
c. ProcessGroupGloo reduces and scatters by the same ring over the whole input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from makeway.values.units import MIB, ceil_to

_SEGMENT_BYTES = MIB
_SEGMENTS = 2  # per rank, at least


@dataclass(frozen=True, slots=True)
class Ring:
    """The order of additions in one tensor."""

    ranks: int
    chunk_bytes: int

    def runs(self, start: int, count: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """The bytes from `start` on in runs that are added in one order: each's start, count, and ranks in order."""
        end = start + count
        while start < end:
            chunk = start // self.chunk_bytes
            until = min((chunk + 1) * self.chunk_bytes, end)
            yield start, until - start, tuple((chunk - 1 - turn) % self.ranks for turn in range(self.ranks))
            start = until


def ring_over(size: int, itemsize: int, ranks: int) -> Ring:
    """Gloo's ring over a tensor of `size` bytes."""
    if ranks <= 2:
        return Ring(ranks, max(size, 1))  # a + b is b + a
    longest = max(_SEGMENT_BYTES // itemsize, 1) * itemsize
    segments = ceil_to(max(-(-size // longest), _SEGMENTS * ranks), ranks)
    return Ring(ranks, max(ceil_to(-(-size // segments), itemsize), itemsize) * (segments // ranks))
