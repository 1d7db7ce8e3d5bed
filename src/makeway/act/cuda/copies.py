"""All-gather and all-to-all by peer copies on copy engines. Not yet run on hardware.

ConCCL's one-step algorithm (arXiv 2412.14335): every rank pulls from every peer at once, on several streams. What
peers send is copied without a block. This rank's own piece is a copy within the device, which the driver may run on SMs
(NCCL, src/ce_coll.cc, NCCL_CE_INTRA_GPU_MEMCPY_ENABLE), and the barriers around the copies are those of
makeway.act.cuda.barriers. Copies cannot add, so there is no all-reduce.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from makeway.act.cuda.barriers import (
    Barrier,
    KernelBarrier,
    Peers,
    Streams,
    memory_operations,
    pull_order,
    stream_barrier,
)
from makeway.act.cuda.machine import symmetric_memory
from makeway.act.cuda.streams import prioritised_stream
from makeway.values.errors import InputError, UnsupportedError

# Streams that the hardware can feed at once, by the variable that sets it: CUDA programming guide, environment
# variables (8 unless set); HIP, GPU_MAX_HW_QUEUES (4).
_CONNECTIONS = {"cuda": ("CUDA_DEVICE_MAX_CONNECTIONS", 8), "hip": ("GPU_MAX_HW_QUEUES", 4)}


@dataclass
class CopyGroup:
    """Collectives over one symmetric buffer: each rank fills it, and its peers pull from it.

    Ordering is that of torch's collectives: work waits for the current stream, which then waits for the work. The
    buffer may be written again once every rank has passed the second barrier, which the current stream waits for.
    """

    peers: Peers
    streams: Streams
    sides: Sequence[Any]  # streams that the copies from peers take turns on
    barrier: Barrier

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
        self.barrier()  # every buffer is written
        main = self.streams.current_stream()
        for side in self.sides:
            side.wait_stream(main)
        for peer, side in zip(pull_order(self.peers.rank, self.peers.world_size), cycle(self.sides), strict=False):
            with self.streams.stream(side):
                pull(peer)
        pull(self.peers.rank)
        for side in self.sides:
            main.wait_stream(side)
        self.barrier()  # every buffer is read


def side_streams(ranks: int, others: int, *, amd: bool, environ: Mapping[str, str]) -> int:
    """How many streams copies from peers may use beside `others`, so that no two share a hardware queue."""
    name, default = _CONNECTIONS["hip" if amd else "cuda"]
    value = environ.get(name, "")
    return max(min(ranks - 1, (int(value) if value.isdecimal() else default) - others), 1)


@dataclass
class HeldStreams:
    """The streams of one process, each created once, and the barrier of its copies.

    torch hands out 32 streams of a priority in turn (PyTorch, c10/cuda/CUDAStream.h, stream pool note): what is asked
    for again and again is soon the stream of something else, and what should overlap runs in order.
    """

    torch: Any
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    _compute: list[Any] = field(default_factory=list, init=False)
    _comm: Any | None = field(default=None, init=False)
    _sides: list[Any] = field(default_factory=list, init=False)
    _barrier: Barrier | None = field(default=None, init=False)

    def compute(self, count: int) -> Sequence[Any]:
        """The first streams for kernels."""
        self._compute += [self.torch.cuda.Stream() for _ in range(count - len(self._compute))]
        return self._compute[:count]

    @property
    def comm(self) -> Any:
        """The stream that collectives follow."""
        self._comm = self._comm or self.torch.cuda.Stream()
        return self._comm

    def copies(self, buffer: Any, group: Any, *, in_flight: int = 1) -> CopyGroup:
        """The copy group of a buffer from torch.distributed._symmetric_memory.empty; a collective call."""
        module = symmetric_memory(self.torch)
        if module is None:
            raise UnsupportedError("this torch has no symmetric memory, which copies between peers need.")
        peers = module.rendezvous(buffer, group)
        if not self._sides:
            amd = getattr(self.torch.version, "hip", None) is not None
            others = in_flight + 2  # compute streams, the one of collectives, and the current one
            count = side_streams(peers.world_size, others, amd=amd, environ=self.environ)
            self._sides = [self.torch.cuda.Stream() for _ in range(count)]
            self._barrier = self._made_barrier(module, peers, group)
        assert self._barrier is not None
        return CopyGroup(peers=peers, streams=self.torch.cuda, sides=self._sides, barrier=self._barrier)

    def _made_barrier(self, module: Any, peers: Peers, group: Any) -> Barrier:
        operations = memory_operations(self.torch)
        if operations is not None:
            return stream_barrier(self.torch, module, group, operations)
        urgent = prioritised_stream(self.torch, self.torch.cuda.current_device())
        return KernelBarrier(peers, self.torch.cuda, urgent)
