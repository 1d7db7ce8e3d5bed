"""Barriers between ranks around copies: memory operations of a stream, or torch's kernels. Not yet run on hardware.

torch's symmetric-memory barrier is a kernel of one block (PyTorch, torch/csrc/distributed/c10d/symm_mem/
CUDASymmetricMemory.cu, `barrier`): on a full GPU it waits for room as NCCL's kernels do. NCCL's own copies meet without
a block (NCCL, src/ce_coll.cc, `ncclPrepUCSync`): a rank writes a number, copies it to every peer, and its stream waits
for theirs. `StreamBarrier` does the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from makeway.values.errors import UnsupportedError

Barrier = Callable[[], None]  # on the current stream

WITHOUT_BLOCKS = "the barriers are memory operations of the stream, without a block"
WITH_BLOCKS = "the barriers are torch's kernels of one block, at the highest priority; on a full GPU they wait for room"


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


class MemoryOperations(Protocol):
    """Writes and waits that a stream performs in order, without a block."""

    def write(self, stream: int, address: int, value: int) -> None: ...
    def wait(self, stream: int, address: int, value: int) -> None:
        """Hold the stream until the word has reached the value, counted cyclically."""


@dataclass(frozen=True, slots=True)
class DriverOperations:
    """cuStreamWriteValue32 and cuStreamWaitValue32, from cuda.bindings.driver."""

    driver: Any

    def write(self, stream: int, address: int, value: int) -> None:
        self._check(self.driver.cuStreamWriteValue32(stream, address, value, 0), "write")

    def wait(self, stream: int, address: int, value: int) -> None:
        at_least = int(self.driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
        self._check(self.driver.cuStreamWaitValue32(stream, address, value, at_least), "wait")

    @staticmethod
    def _check(answer: tuple[Any, ...], what: str) -> None:
        if int(answer[0]):
            raise UnsupportedError(f"the driver refused a stream's {what} of a value: {answer[0]}")


def memory_operations(torch: Any) -> MemoryOperations | None:
    """The driver's, once it has proved them on a word of this GPU; None where it offers none.

    HIP waits only on memory that was allocated for signals (HIP runtime API, hipStreamWaitValue32), which symmetric
    memory is not.
    """
    if getattr(torch.version, "hip", None) is not None:
        return None
    try:
        operations = DriverOperations(importlib.import_module("cuda.bindings.driver"))
        word = torch.zeros(1, dtype=torch.int32, device="cuda")
        stream = torch.cuda.current_stream().cuda_stream
        operations.write(stream, word.data_ptr(), 1)
        operations.wait(stream, word.data_ptr(), 1)
        torch.cuda.synchronize()
        return operations if int(word.item()) == 1 else None
    except Exception:  # no cuda.bindings, or the driver's refusal
        return None


@dataclass
class StreamBarrier:
    """Holds the current stream until every rank's stream has come this far, without a block.

    `flags` is this rank's symmetric words: one per rank for arrivals, and a last one to send from. Rounds count up, so
    that a peer that is a round ahead has arrived too. Not for graph capture, which would repeat one round's number.
    """

    peers: Peers  # of `flags`
    flags: Any
    operations: MemoryOperations
    streams: Streams
    _round: int = field(default=0, init=False)
    _arrivals: list[Any] = field(default_factory=list, init=False)  # this rank's word at each peer

    def __call__(self) -> None:
        self._round = (self._round + 1) % 2**32
        rank, ranks = self.peers.rank, self.peers.world_size
        stream, number = self.streams.current_stream().cuda_stream, self.flags[ranks:]
        self.operations.write(stream, number.data_ptr(), self._round)
        others = pull_order(rank, ranks)
        if not self._arrivals:
            words = (self.peers.get_buffer(peer, self.flags.shape, self.flags.dtype) for peer in others)
            self._arrivals = [flags[rank : rank + 1] for flags in words]
        for arrival in self._arrivals:
            arrival.copy_(number, non_blocking=True)
        for peer in others:
            self.operations.wait(stream, self.flags[peer:].data_ptr(), self._round)


def stream_barrier(torch: Any, module: Any, group: Any, operations: MemoryOperations) -> StreamBarrier:
    """A barrier over fresh words in symmetric memory; a collective call."""
    ranks = torch.distributed.get_world_size(group)
    flags = module.empty(ranks + 1, dtype=torch.int32, device="cuda")
    flags.zero_()
    peers = module.rendezvous(flags, group)
    peers.barrier()  # with a block, once: nobody's arrival may be overwritten by zeros
    torch.cuda.synchronize()
    return StreamBarrier(peers, flags, operations, torch.cuda)


@dataclass(frozen=True, slots=True)
class KernelBarrier:
    """torch's barrier on a stream of the highest priority, which the current stream waits for."""

    peers: Peers
    streams: Streams
    urgent: Any  # a stream

    def __call__(self) -> None:
        main = self.streams.current_stream()
        self.urgent.wait_stream(main)
        with self.streams.stream(self.urgent):
            self.peers.barrier()
        main.wait_stream(self.urgent)
