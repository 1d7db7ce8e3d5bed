"""The process group of this rank, and what ranks exchange outside the timed parts."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from makeway.act.measure.launch import MEETING_VARIABLE
from makeway.values.errors import RankError

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # makeway needs no numpy
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore
    from torch.distributed import distributed_c10d as c10d
    from torch.distributed.rendezvous import rendezvous

T = TypeVar("T")

_LONGEST_BYTES = 64 << 20  # of one message; the spans of a round are kilobytes
_MEETING_S = 300.0  # the launcher's own limit is shorter, and the launcher knows who is missing


@dataclass(slots=True, kw_only=True)
class World:
    """This rank among all ranks.

    Values travel as JSON of a known type and size through the ranks' store: what another process wrote there can be
    wrong, but never code.
    """

    rank: int
    ranks: int
    store: c10d.Store
    _messages: int = 0

    def barrier(self) -> None:
        if self.ranks > 1:
            dist.barrier()

    def broadcast(self, decide: Callable[[], T], kind: Any) -> T:
        """What rank 0 decides, on every rank."""
        self._messages += 1
        key = f"broadcast/{self._messages}"
        if self.rank == 0:
            decision = decide()
            self._put(key, decision)
            return decision
        received: T = self._got(key, kind)
        return received

    def gathered(self, value: T, kind: Any) -> list[T] | None:
        """The value of every rank on rank 0, None elsewhere."""
        self._messages += 1
        self._put(f"{self._messages}/{self.rank}", value)
        return self._all(kind) if self.rank == 0 else None

    def everywhere(self, value: T, kind: Any) -> list[T]:
        """The value of every rank, on every rank."""
        self._messages += 1
        self._put(f"{self._messages}/{self.rank}", value)
        return self._all(kind)

    def _all(self, kind: Any) -> list[T]:
        return [self._got(f"{self._messages}/{rank}", kind) for rank in range(self.ranks)]

    def _put(self, key: str, value: object) -> None:
        self.store.set(key, msgspec.json.encode(value).decode())

    def _got(self, key: str, kind: Any) -> Any:
        data = self.store.get(key)
        if len(data) > _LONGEST_BYTES:
            raise RankError(f"message {key} of {len(data):,} bytes is above the limit of {_LONGEST_BYTES:,}")
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise RankError(f"message {key} is not what a rank sends: {error}") from None


def meet() -> tuple[c10d.Store, int, int]:
    """The ranks' store, this rank and the number of ranks.

    Ranks that makeway starts meet in a file without a name, which they inherit. Ranks of another launcher (torchrun,
    srun) meet at its MASTER_ADDR and MASTER_PORT.
    """
    path = os.environ.get(MEETING_VARIABLE)
    if path is None:
        store, rank, ranks = next(rendezvous("env://", timeout=timedelta(seconds=_MEETING_S)))
        return store, rank, ranks
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = FileStore(path, ranks)
    store.set_timeout(timedelta(seconds=_MEETING_S))
    return store, rank, ranks


def join(timeout_s: float) -> World:
    """Meet the other ranks.

    Meeting may take long, since torch is slow to load; `timeout_s` is for collectives after it.
    """
    store, rank, ranks = meet()
    store.set(f"makeway/here/{rank}", "yes")
    store.wait([f"makeway/here/{other}" for other in range(ranks)], timedelta(seconds=_MEETING_S))
    limit = timedelta(seconds=timeout_s)
    dist.init_process_group(
        "gloo", store=c10d.PrefixStore("makeway/gloo", store), rank=rank, world_size=ranks, timeout=limit
    )
    store.set_timeout(limit)
    return World(rank=rank, ranks=ranks, store=c10d.PrefixStore("makeway/values", store))


def leave() -> None:
    dist.destroy_process_group()
