"""The process group of this rank, and what ranks exchange outside the timed parts."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # makeway needs no numpy
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d
    from torch.distributed.rendezvous import rendezvous

T = TypeVar("T")

_MEETING_S = 300.0  # the launcher's own limit is shorter, and the launcher knows who is missing


@dataclass(slots=True, kw_only=True)
class World:
    """This rank among all ranks.

    Values travel through the ranks' store: torch's object collectives need numpy. They come from our own ranks, so
    unpickling them is safe.
    """

    rank: int
    ranks: int
    store: c10d.Store
    _messages: int = 0

    def barrier(self) -> None:
        if self.ranks > 1:
            dist.barrier()

    def broadcast(self, decide: Callable[[], T]) -> T:
        """What rank 0 decides, on every rank."""
        self._messages += 1
        key = f"broadcast/{self._messages}"
        if self.rank == 0:
            decision = decide()
            self.store.set(key, pickle.dumps(decision))  # type: ignore[arg-type]  # bytes are fine
            return decision
        received: T = pickle.loads(self.store.get(key))
        return received

    def gathered(self, value: T) -> list[T] | None:
        """The value of every rank on rank 0, None elsewhere."""
        self._messages += 1
        self._give(value)
        return self._take() if self.rank == 0 else None

    def everywhere(self, value: T) -> list[T]:
        """The value of every rank, on every rank."""
        self._messages += 1
        self._give(value)
        return self._take()

    def _give(self, value: object) -> None:
        self.store.set(f"{self._messages}/{self.rank}", pickle.dumps(value))  # type: ignore[arg-type]

    def _take(self) -> list[Any]:
        return [pickle.loads(self.store.get(f"{self._messages}/{rank}")) for rank in range(self.ranks)]


def join(timeout_s: float) -> World:
    """Meet the other ranks at MASTER_ADDR and MASTER_PORT.

    Meeting may take long, since torch is slow to load; `timeout_s` is for collectives after it.
    """
    store, rank, ranks = next(rendezvous("env://", timeout=timedelta(seconds=_MEETING_S)))
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
