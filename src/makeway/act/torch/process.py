"""One process of a program under a plan: its controls, from the first process group to the last."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from makeway.act.backend import Receipt
from makeway.act.cpu.controls import CpuBackend
from makeway.act.cpu.direct import DirectGroup
from makeway.act.cuda.options import GroupOptions, environment_receipt
from makeway.act.export.values import Library
from makeway.act.torch.collectives import rerouted
from makeway.act.torch.groups import (
    OWN_OPTIONS,
    argument,
    carried,
    may_be_nccl,
    options_in_force,
    process_group_options,
    where_runs,
)
from makeway.act.torch.ledger import Ledger
from makeway.act.torch.meeting import met, place_on_host
from makeway.act.torch.modules import NO_MODULE, Modules
from makeway.read.plan_file import load_plan
from makeway.values.control import (
    Chunks,
    CommPriority,
    CommThreads,
    Control,
    CopyEngine,
    LaunchOrder,
    SmPartition,
    TileChoice,
)
from makeway.values.errors import MakewayError

T = TypeVar("T")
WORLD = "the default group"
_OF_THREADS = (SmPartition, CommPriority)
FOR_WHOEVER_LAUNCHES = "only code that launches the operations can do it: makeway.torch has the calls"


class Process:
    """Applies the plan when the program makes a process group; no method raises because of the plan."""

    def __init__(self, plan_path: Path, receipts: Path | None) -> None:
        self.ledger = Ledger(receipts)
        self.controls: tuple[Control, ...] = ()
        self.modules: Modules | None = None
        self._life = ExitStack()  # what is undone with the default group
        self._threads = ExitStack()  # what is set anew when threads of another group come
        self._direct: dict[str, DirectGroup] = {}  # by name of the group
        self._backend: CpuBackend | None = None
        self._asked: GroupOptions | None = None
        self._meetings = 0
        with self._guarded():
            self.controls = load_plan(plan_path).controls
            atexit.register(self._at_exit)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.ledger.fail(error, self.controls)

    def wanted(self, kind: type[T]) -> T | None:
        """The plan's control of a kind, if it has one."""
        return next((control for control in self.controls if isinstance(control, kind)), None)

    # --- before a group is made ----------------------------------------------------------------

    def group_options(
        self, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The keyword arguments of `init_process_group` or `new_group`, with NCCL's options under the plan."""
        options = None
        with self._guarded():
            options = self._options(call, args, kwargs)
        return kwargs if options is None else {**kwargs, "pg_options": options}

    def _options(self, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any | None:
        controls = carried(self.controls)
        if not controls or not may_be_nccl(argument(call, args, kwargs, "backend"), torch):
            return None
        if argument(call, args, kwargs, "pg_options") is not None:
            self.ledger.set(Receipt(control=one, status="refused", detail=OWN_OPTIONS) for one in controls)
            return None
        made = process_group_options(controls)
        if (timeout := argument(call, args, kwargs, "timeout")) is not None:
            made.options._timeout = timeout  # torch warns when the two differ
        self._asked = self._asked or made
        return made.options

    # --- while there is one --------------------------------------------------------------------

    def group_made(self) -> None:
        """The default group is there: everything that can be set is set and read back."""
        with self._guarded():
            self.ledger.rank = dist.get_rank()
            self.ledger.backend = where_runs()
            if self.ledger.backend == "cpu":
                self._apply_to_threads()
            else:
                self.ledger.set(self._gpu_receipts())

    def _apply_to_threads(self) -> None:
        direct, reason = self._shared_memory()
        rank, ranks = place_on_host() or (dist.get_rank(), dist.get_world_size())
        self._backend = CpuBackend(direct, rank=rank, ranks=ranks)
        if direct is not None:
            self._direct[WORLD] = direct
        receipts = self._set_threads()
        copy = self.wanted(CopyEngine)
        if copy is not None and reason is not None:
            receipts[copy] = Receipt(control=copy, status="refused", detail=reason)
        self.ledger.set(receipts.values())
        chunks = self.wanted(Chunks)
        copying = copy if self._backend.copying else None
        self.modules = modules = Modules(copy=copying, chunks=chunks, share=self.share, ledger=self.ledger)
        self._life.enter_context(modules.watched())
        if direct is not None and copying is not None:
            self._life.enter_context(rerouted(direct, modules.copies))
        self.modules.tell()
        if chunks is not None:
            self.ledger.say(chunks, "no effect", NO_MODULE)

    def _shared_memory(self) -> tuple[DirectGroup | None, str | None]:
        """Shared memory where the plan wants copies, or why there is none."""
        if self.wanted(CopyEngine) is None:
            return None, None
        try:
            return self._life.enter_context(self._meet(dist.group.WORLD)), None
        except MakewayError as error:
            return None, str(error)

    def share(self, group: dist.ProcessGroup) -> DirectGroup:
        """Shared memory with the ranks of a group: the first time, all of them must ask."""
        name = WORLD if group is dist.group.WORLD else str(group.group_name)
        if name not in self._direct:
            self._direct[name] = self._life.enter_context(self._meet(group))
        return self._direct[name]

    def _meet(self, group: dist.ProcessGroup | None) -> DirectGroup:
        assert group is not None
        self._meetings += 1
        return met(group, number=self._meetings)

    def _set_threads(self) -> dict[Control, Receipt]:
        assert self._backend is not None
        receipts = self._threads.enter_context(self._backend.applied(self.controls))
        return {receipt.control: receipt for receipt in receipts}

    def group_added(self) -> None:
        """Another group has threads of its own, which began with the settings of compute threads: set all anew."""
        if self._backend is None or not any(isinstance(control, _OF_THREADS) for control in self.controls):
            return
        with self._guarded():
            self._threads.close()
            receipts = self._set_threads()
            self.ledger.set(receipts[control] for control in receipts if isinstance(control, _OF_THREADS))

    def group_goes(self, group: dist.ProcessGroup | None) -> None:
        """With the default group all of it is undone; the next one starts anew."""
        if group is not None and group is not dist.group.WORLD:
            return
        with self._guarded():
            self._tell_all()
            self._threads.close()
            self._life.__exit__(*sys.exc_info())  # after an error peers may never finish what is under way
            self._direct.clear()
            self._backend = self.modules = self._asked = None

    def _at_exit(self) -> None:
        with self._guarded():
            self._tell_all()

    def _tell_all(self) -> None:
        if self.modules is not None:
            self.modules.tell()

    # --- on a GPU: not yet run on hardware -----------------------------------------------------

    def _gpu_receipts(self) -> list[Receipt]:
        """Options as the group has them, variables as they were at the start; pads are the launch shim's to tell."""
        asked = self._asked.receipts if self._asked is not None else ()
        found = {receipt.control: receipt for receipt in options_in_force(asked, environ=os.environ)}
        library = Library(name="rccl" if self.ledger.backend == "rocm" else "nccl")
        for control in self.controls:
            if isinstance(control, CommThreads):
                found[control] = environment_receipt(control, os.environ, library)
            elif isinstance(control, SmPartition | TileChoice | LaunchOrder | Chunks):
                found[control] = Receipt(control=control, status="no effect", detail=FOR_WHOEVER_LAUNCHES)
        return list(found.values())
