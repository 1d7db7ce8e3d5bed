"""All-gather and all-to-all by peer copies on copy engines, without a block. Not yet run on hardware.

ConCCL's one-step algorithm (arXiv 2412.14335): every rank pulls from every peer at once, with one stream, and so one
copy engine, per peer. Copies go through symmetric memory, and torch documents that they use no SM (torch 2.13,
torch/distributed/_symmetric_memory, `_low_contention_all_gather`). Copies cannot add, so there is no all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from makeway.act.cuda.machine import symmetric_memory
from makeway.values.errors import InputError, UnsupportedError


class Peers(Protocol):
    """The part of torch's symmetric-memory handle that we use."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: Any) -> Any: ...
    def barrier(self) -> None: ...


class Streams(Protocol):
    """The part of torch.cuda that we use."""

    def Stream(self, *, priority: int = 0) -> Any: ...  # noqa: N802 (torch's name)
    def current_stream(self) -> Any: ...
    def stream(self, stream: Any) -> AbstractContextManager[Any]: ...


def pull_order(rank: int, ranks: int) -> tuple[int, ...]:
    """The peers of a rank; every rank starts with a different one, so that no peer serves all at once."""
    return tuple((rank - step) % ranks for step in range(1, ranks))


@dataclass
class CopyGroup:
    """Collectives over one symmetric buffer: each rank fills it, and its peers pull from it.

    Ordering is that of torch's collectives: work waits for the current stream, which then waits for the work. The
    buffer may be written again once every rank has passed the second barrier, which the current stream waits for.
    """

    peers: Peers
    streams: Streams
    _side: list[Any] = field(default_factory=list)  # one per peer

    def all_gather(self, shard: Any, *, out: Any | None = None) -> Any:
        """Every rank's shard, in rank order. `shard` is this rank's buffer in symmetric memory."""
        ranks = self.peers.world_size
        gathered = (ranks * shard.shape[0], *shard.shape[1:])
        result = shard.new_empty(gathered) if out is None else out
        whole = result.view((ranks, *shard.shape))

        def pull(peer: int) -> None:
            source = shard if peer == self.peers.rank else self._buffer(peer, shard)
            whole[peer].copy_(source, non_blocking=True)

        self._from_all(pull)
        return result

    def all_to_all(self, sent: Any, *, out: Any | None = None) -> Any:
        """The pieces that all ranks send to this one. `sent` is this rank's buffer: equal pieces, one per rank."""
        ranks, rank = self.peers.world_size, self.peers.rank
        if sent.shape[0] % ranks:
            raise InputError(f"{sent.shape[0]} rows cannot be divided among {ranks} ranks")
        rows = sent.shape[0] // ranks
        received = sent.new_empty(sent.shape) if out is None else out

        def pull(peer: int) -> None:
            source = sent if peer == rank else self._buffer(peer, sent)
            received[peer * rows : (peer + 1) * rows].copy_(source[rank * rows : (rank + 1) * rows], non_blocking=True)

        self._from_all(pull)
        return received

    def _buffer(self, peer: int, like: Any) -> Any:
        return self.peers.get_buffer(peer, like.shape, like.dtype)

    def _from_all(self, pull: Callable[[int], None]) -> None:
        peers = pull_order(self.peers.rank, self.peers.world_size)
        if not self._side:
            self._side = [self.streams.Stream() for _ in peers]
        self.peers.barrier()  # on the current stream: every buffer is written
        main = self.streams.current_stream()
        for peer, side in zip(peers, self._side, strict=True):
            side.wait_stream(main)
            with self.streams.stream(side):
                pull(peer)
        pull(self.peers.rank)
        for side in self._side:
            main.wait_stream(side)
        self.peers.barrier()  # every buffer is read


def symmetric_group(torch: Any, buffer: Any, group: Any) -> CopyGroup:
    """The copy group of a buffer from torch.distributed._symmetric_memory.empty; a collective call."""
    module = symmetric_memory(torch)
    if module is None:
        raise UnsupportedError("this torch has no symmetric memory, which copies between peers need.")
    return CopyGroup(peers=module.rendezvous(buffer, group), streams=torch.cuda)
