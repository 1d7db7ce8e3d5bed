"""Ranks that meet at a step boundary: all learn the same decision, and none waits for long."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from makeway.act.torch.meeting import all_present

PATIENCE = timedelta(seconds=30)
OFF = b"off"


class Agreement:
    """Meetings of the ranks of a job at its own store, without a collective.

    A rank that does not come within `patience` ends the meetings for all: it may have stopped taking steps, which is
    the program's right.
    """

    def __init__(self, store: Store, rank: int, ranks: int, *, patience: timedelta = PATIENCE) -> None:
        self.rank, self.ranks = rank, ranks
        self._store, self._patience = store, patience
        # torchrun may keep its store when it restarts the ranks.
        self._keys = f"makeway/steps/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._number = 0

    @property
    def patience_s(self) -> float:
        return self._patience.total_seconds()

    def meet(self, own: bytes, decide: Callable[[Sequence[bytes]], bytes]) -> bytes | None:
        """What rank 0 decides from the reports of all ranks; None, on every rank, when the meeting is called off."""
        self._number += 1
        key = f"{self._keys}/{self._number}"
        self._store.set(f"{key}/report/{self.rank}", own.decode())
        if not all_present(self._store, self.ranks, key, self._patience):
            return None
        verdict = f"{key}/decision"
        if self.rank == 0:
            decision = OFF
            try:
                decision = decide([self._store.get(f"{key}/report/{rank}") for rank in range(self.ranks)])
            finally:  # peers learn of an error of ours, too
                decision = self._store.compare_set(verdict, "", decision.decode())
            self._forget(self._number - 1)
        else:
            try:
                self._store.wait([verdict], self._patience)
            except (RuntimeError, dist.DistStoreError):
                self._store.compare_set(verdict, "", OFF.decode())
            decision = self._store.get(verdict)
        return None if decision == OFF else decision

    def _forget(self, number: int) -> None:
        """Free the keys of an earlier meeting, which every rank has left; some stores cannot."""
        with suppress(RuntimeError, dist.DistStoreError, NotImplementedError):
            for name in ("present", "verdict", "decision", *(f"report/{rank}" for rank in range(self.ranks))):
                self._store.delete_key(f"{self._keys}/{number}/{name}")
