"""The work on one piece: into this rank's segment, out of a peer's, or summed in the order of Gloo's ring."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from makeway.act.cpu.calls import Op
from makeway.act.cpu.copiers import Copiers
from makeway.act.cpu.flows import Piece, Place, Step
from makeway.act.cpu.links import COMMON, PAIR
from makeway.act.cpu.ring import Ring


def piece_of(part: torch.Tensor, piece: Piece) -> torch.Tensor:
    """The elements of a flat tensor that a piece covers."""
    return part[piece.offset // part.itemsize : (piece.offset + piece.count) // part.itemsize]


class Pieces:
    """Builds the steps of collectives from flat tensors."""

    def __init__(self, rank: int, ranks: int, piece_bytes: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.peers = tuple(peer for peer in range(ranks) if peer != rank)
        self.copiers = Copiers()
        self._scratch = torch.empty(piece_bytes, dtype=torch.uint8)

    def pull(self, part: torch.Tensor, peer: int, channel: int) -> Step:
        """`part` from a peer's segment."""

        def work(piece: Piece) -> None:
            self.copiers.copy(part.data_ptr() + piece.offset, piece.sources[peer].address, piece.count)

        return Step(size=part.nbytes, work=work, sources=(peer,), source_channel=channel)

    def give(self, part: torch.Tensor, peer: int, op: Op = "sum") -> Step:
        """`part` to one peer; an average divides it while copying."""
        return Step(size=part.nbytes, work=lambda piece: self.fill(part, piece, op), receivers=(peer,), channel=PAIR)

    def give_all(self, part: torch.Tensor, op: Op = "sum", *, keep: torch.Tensor | None = None) -> Step:
        """`part` to all peers, and to `keep` while it is in cache."""

        def work(piece: Piece) -> None:
            self.fill(part, piece, op)
            if keep is not None and keep.data_ptr() != part.data_ptr():
                self.copiers.copy(keep.data_ptr() + piece.offset, part.data_ptr() + piece.offset, piece.count)

        return Step(size=part.nbytes, work=work, receivers=self.peers, channel=COMMON)

    def keep(self, part: torch.Tensor, given: torch.Tensor) -> Step:
        """This rank's own part, which needs no segment."""

        def work(piece: Piece) -> None:
            self.copiers.copy(part.data_ptr() + piece.offset, given.data_ptr() + piece.offset, piece.count)

        return Step(size=part.nbytes, work=work)

    def reduce(self, part: torch.Tensor, into: torch.Tensor, op: Op, ring: Ring, *, start: int, channel: int) -> Step:
        """`into`: the sum of this rank's `part`, which begins at `start` of the ring, and the peers' pieces."""

        def work(piece: Piece) -> None:
            self._combine(piece_of(part, piece), piece.sources, piece_of(into, piece), op, ring, start + piece.offset)

        return Step(size=part.nbytes, work=work, sources=self.peers, source_channel=channel)

    def reduce_for_all(self, part: torch.Tensor, op: Op, ring: Ring, *, start: int) -> Step:
        """The sum of this rank's slice, in place, and to all peers."""

        def work(piece: Piece) -> None:
            assert piece.into is not None
            mine = piece_of(part, piece)
            into = piece.into.view(piece.count, part.dtype)
            self._combine(mine, piece.sources, into, op, ring, start + piece.offset)
            self.copiers.copy(mine.data_ptr(), piece.into.address, piece.count)

        return Step(size=part.nbytes, work=work, sources=self.peers, receivers=self.peers, channel=COMMON)

    def fill(self, part: torch.Tensor, piece: Piece, op: Op) -> None:
        """Put a piece into this rank's segment."""
        if piece.into is None:
            return
        if op == "avg":
            torch.mul(piece_of(part, piece), 1.0 / self.ranks, out=piece.into.view(piece.count, part.dtype))
        else:
            self.copiers.copy(piece.into.address, part.data_ptr() + piece.offset, piece.count)

    def _combine(
        self, own: torch.Tensor, sources: Mapping[int, Place], into: torch.Tensor, op: Op, ring: Ring, start: int
    ) -> None:
        scratch = self._scratch[: own.nbytes].view(own.dtype)
        if op == "avg":
            own = torch.mul(own, 1.0 / self.ranks, out=scratch)
        elif self.ranks > 2 and own.data_ptr() == into.data_ptr():
            own = scratch.copy_(own)  # the sum of the ranks before this one would overwrite it
        parts = [own if rank == self.rank else sources[rank].view(own.nbytes, own.dtype) for rank in range(self.ranks)]
        if len(parts) == 1:
            into.copy_(own)
            return
        for at, size, order in ring.runs(start, own.nbytes):
            run = slice((at - start) // own.itemsize, (at - start + size) // own.itemsize)
            first, second, *others = (parts[rank][run] for rank in order)
            torch.add(first, second, out=into[run])
            for part in others:
                into[run].add_(part)
