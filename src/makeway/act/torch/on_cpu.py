"""A plan on the CPU: threads set, shared memory joined, collectives rerouted; all undone at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

import torch.distributed as dist

from makeway.act.cpu.controls import CpuBackend
from makeway.act.cpu.cores import Seat, launched_seat
from makeway.act.cpu.direct import DirectGroup
from makeway.act.torch.collectives import Copies, Routes, rerouted
from makeway.act.torch.meeting import shared_memory
from makeway.values.control import Chunks, CommPriority, Control, CopyEngine, OwnCores, SmPartition, control_word
from makeway.values.errors import MakewayError
from makeway.values.receipt import Receipt

_OF_THREADS = (SmPartition, OwnCores, CommPriority)
NOT_REROUTED = "collectives of this group stay with Gloo; call those of the DirectGroup itself"


class OnCpu:
    """The controls of a plan in force on this process, for a group (None: the default one).

    `join` takes shared memory with the ranks of the group, and `seat` finds those that use the same cores; all of them
    must enter. Without `seat` the launcher's word counts. Only collectives of the default
    group are rerouted, and `copies` counts them. `at_first`: the controls to begin with, where `switch` may ask for
    others of `controls` later.
    """

    def __init__(
        self,
        controls: Sequence[Control],
        group: dist.ProcessGroup | None = None,
        *,
        join: Callable[[dist.ProcessGroup | None], DirectGroup] = shared_memory,
        seat: Callable[[dist.ProcessGroup | None], Seat] | None = None,
        copies: Copies | None = None,
        at_first: Sequence[Control] | None = None,
    ) -> None:
        self.controls = self._all = tuple(controls)
        self._at_first = self.controls if at_first is None else tuple(at_first)
        self.direct: DirectGroup | None = None
        self.copying: CopyEngine | None = None  # the control, where collectives go through shared memory
        self.receipts: tuple[Receipt, ...] = ()
        self._group, self._join, self._seat, self._copies = group, join, seat, copies or Copies()
        self._backend: CpuBackend | None = None
        self._threads = ExitStack()  # set again when threads of another group start
        self._routes: Routes | None = None  # in place since collectives first went through shared memory
        self._placed = ExitStack()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            reason = None
            copy = next((control for control in self.controls if isinstance(control, CopyEngine)), None)
            if copy is not None:
                try:
                    self.direct = stack.enter_context(self._join(self._group))
                except MakewayError as error:
                    reason = str(error)
            self._backend = CpuBackend(self.direct, seat=self._seated(), no_direct=reason)
            stack.callback(self._threads.close)
            stack.callback(self._placed.close)
            self.receipts = self.switch(self._at_first)
            self._stack = stack.pop_all()
        return self

    def _seated(self) -> Seat:
        if self._seat is not None and any(isinstance(control, SmPartition | OwnCores) for control in self.controls):
            return self._seat(self._group)
        return launched_seat(_place_in(self._group))

    def refusal(self, controls: Sequence[Control], *, exact: bool) -> str | None:
        """Why a set of controls cannot be in force as a whole; `exact`: no result may change, not even by rounding."""
        assert self._backend is not None
        for control in controls:
            reason = self._backend.refusal(control)
            if reason is None and exact:
                reason = self._backend.rounding(control) or self._other_buckets(control)
            if reason is not None:
                return f"{control_word(control)}: {reason}"
        if self._backend.seat.ranks == 1 and set(controls) == {OwnCores()}:
            return "own-cores: no other rank uses this rank's cores"
        return None

    def _other_buckets(self, control: Control) -> str | None:
        ranks = _place_in(self._group)[1]
        if not isinstance(control, Chunks) or ranks <= 2:
            return None
        return f"{ranks} ranks add up other buckets in another order: sums may round differently"

    def switch(self, controls: Sequence[Control]) -> tuple[Receipt, ...]:
        """Undo what is in force and apply these controls; every rank must do so between the same collectives."""
        self._threads.close()
        self.controls = tuple(controls)
        receipts = self._set_threads()
        copy = next((control for control in self.controls if isinstance(control, CopyEngine)), None)
        assert self._backend is not None
        default = self._group is None or self._group is dist.group.WORLD
        self.copying = copy if default and self._backend.copying else None
        if self.copying is not None and self._routes is None:
            assert self.direct is not None
            self._routes = self._placed.enter_context(rerouted(self.direct, self._copies))
        if self._routes is not None:
            self._routes.open = self.copying is not None
        if default or not self._backend.copying:
            return receipts
        return tuple(
            replace(receipt, status="no effect", detail=NOT_REROUTED) if receipt.control == copy else receipt
            for receipt in receipts
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def settled(self) -> None:
        """No other controls follow: routes that are closed go."""
        if self.copying is None:
            self._placed.close()
            self._routes = None

    @property
    def may_copy(self) -> bool:
        """Whether some control that it was made for copies through shared memory."""
        return any(isinstance(control, CopyEngine) for control in self._all)

    def release_threads(self) -> None:
        """Undo what was set on threads; routes stay, since peers rely on them."""
        self._threads.close()
        self.controls = tuple(control for control in self.controls if not isinstance(control, _OF_THREADS))

    def set_new_threads(self) -> tuple[Receipt, ...]:
        """Set all threads again: those of another group started with the settings of compute threads."""
        if not any(isinstance(control, _OF_THREADS) for control in self.controls):
            return ()
        self._threads.close()
        return tuple(receipt for receipt in self._set_threads() if isinstance(receipt.control, _OF_THREADS))

    def _set_threads(self) -> tuple[Receipt, ...]:
        assert self._backend is not None
        return self._threads.enter_context(self._backend.applied(self.controls))


def _place_in(group: dist.ProcessGroup | None) -> tuple[int, int]:
    return (dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else (0, 1)
