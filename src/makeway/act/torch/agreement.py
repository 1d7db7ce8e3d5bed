"""Ranks that meet at a step boundary: all learn the same decision, and none waits for long."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

PATIENCE = timedelta(seconds=30)
OFF = b"off"


class Agreement:
    """Meetings of the ranks of a job at its own store, without a collective.

    A rank that does not come within `patience` ends the meetings for all: it may have stopped taking steps, which is
    the program's right. A meeting takes a rank four requests to the store: programs with short steps notice more.
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
        decision = self._led(key, own, decide) if self.rank == 0 else self._followed(key, own)
        # Every rank has read what the meeting before decided: its keys are free.
        own_key = "decision" if self.rank == 0 else f"report/{self.rank}"
        with suppress(RuntimeError, dist.DistStoreError, NotImplementedError):  # some stores cannot
            self._store.delete_key(f"{self._keys}/{self._number - 1}/{own_key}")
        return None if decision == OFF else decision

    def _led(self, key: str, own: bytes, decide: Callable[[Sequence[bytes]], bytes]) -> bytes:
        """The first decision on record counts, as for every rank: ours, or that of a rank that has waited too long."""
        others = [f"{key}/report/{rank}" for rank in range(1, self.ranks)]
        decision, present = OFF, True
        try:
            if others:
                self._store.wait(others, self._patience)
        except (RuntimeError, dist.DistStoreError):
            present = False
        try:
            if present:
                decision = decide([own, *map(self._store.get, others)])
        finally:  # peers learn of an error of ours, too
            decision = bytes(self._store.compare_set(f"{key}/decision", "", decision.decode()))
        return decision

    def _followed(self, key: str, own: bytes) -> bytes:
        verdict = f"{key}/decision"
        self._store.set(f"{key}/report/{self.rank}", own.decode())
        try:
            self._store.wait([verdict], self._patience)
        except (RuntimeError, dist.DistStoreError):
            return bytes(self._store.compare_set(verdict, "", OFF.decode()))
        return bytes(self._store.get(verdict))
