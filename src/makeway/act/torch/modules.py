"""DistributedDataParallel modules of an unmodified program."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch._compile import _disable_dynamo  # torch.compiler.disable, but loads the compiler only when called
from torch.nn.parallel import DistributedDataParallel

from makeway.act.backend import TORCH_CARRIERS
from makeway.act.cpu.direct import DirectGroup
from makeway.act.launch.receipt_file import ReceiptFile
from makeway.act.torch.collectives import Copies
from makeway.act.torch.ddp import OWN_HOOK, Gradients, buckets_receipt, gradient_hook, no_hook, smaller_buckets
from makeway.act.torch.groups import argument
from makeway.values.control import Chunks, Control, CopyEngine
from makeway.values.errors import MakewayError
from makeway.values.receipt import Receipt, Status
from makeway.values.units import format_bytes

CARRIER = TORCH_CARRIERS["cpu"]
NOTHING_COPIED = "nothing has gone through shared memory: no DistributedDataParallel module, no collective seen"
NO_MODULE = "no DistributedDataParallel module was made whose buckets could be divided"


class Modules:
    """Gives modules the plan's bucket size when they are made, and the plan's hook when they first run.

    A hook that the program registers stays, before ours or after it: then ours passes each bucket on.
    """

    def __init__(
        self, controls: Sequence[Control], *, share: Callable[[dist.ProcessGroup], DirectGroup], file: ReceiptFile
    ) -> None:
        self.chunks = next((control for control in controls if isinstance(control, Chunks)), None)
        self.copy: CopyEngine | None = None  # while it is in force
        self.gradients: list[Gradients] = []
        self.copies = Copies(on_first=self.record_copies)  # of collectives that the program calls itself
        self.refusals: list[str] = []
        self._share, self._file = share, file
        self._cut = False

    @contextmanager
    def watched(self, *, copy: CopyEngine | None) -> Iterator[None]:
        """Inside the block the plan reaches every module that is made; `copy`: gradients go through shared memory."""
        self.copy = copy
        self.record_copies()
        if self.chunks is not None:
            self._file.set(Receipt(control=self.chunks, status="no effect", detail=NO_MODULE, carrier=CARRIER))
        wrappers = {
            "__init__": self._making,
            "register_comm_hook": self._hooking,
            "_register_builtin_comm_hook": self._hooking_builtin,
        }
        originals = {name: getattr(DistributedDataParallel, name) for name in wrappers}
        for name, wrap in wrappers.items():
            setattr(DistributedDataParallel, name, wrap(originals[name]))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(DistributedDataParallel, name, original)

    # --- when a module is made -----------------------------------------------------------------

    def _making(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def make(module: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
            given = {name: argument(original, (module, *args), kwargs, name) for name in _CAPS}
            cap = smaller_buckets(self.chunks, *given.values())
            original(module, *args, **kwargs if cap is None else kwargs | {"bucket_cap_mb": cap})
            self._made(module, cap)

        return make

    def _made(self, module: DistributedDataParallel, cap_mib: float | None) -> None:
        try:
            if self.chunks is not None:
                receipt = buckets_receipt(self.chunks, module, cap_mib)
                if not self._cut:  # one module whose gradients were cut is enough
                    self._file.set(receipt)
                self._cut = self._cut or receipt.status == "applied"
            if self.copy is None or not _may_be_hooked(module):
                return
            direct = self._share(module.process_group)  # all ranks of the group meet here anyway
            handle = module.register_forward_pre_hook(_before_first_forward)
            _WAITING[module] = (self, direct, handle)
        except MakewayError as error:
            self._refuse(str(error))
        except Exception as error:
            self._file.fail(error)

    # --- when it first runs --------------------------------------------------------------------

    def first_forward(self, module: DistributedDataParallel, direct: DirectGroup) -> None:
        """Register the hook, unless the program has registered its own by now."""
        try:
            if reason := no_hook(module, builtin=module in _BUILTIN):
                self._refuse(reason)
                return
            state = Gradients(module, direct, on_first=self.record_copies)
            module.register_comm_hook(state, gradient_hook)
            self.gradients.append(state)
        except Exception as error:
            self._file.fail(error)

    def _refuse(self, reason: str) -> None:
        self.refusals.append(reason)
        self.record_copies()

    def _hooking(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def register_comm_hook(module: DistributedDataParallel, state: object, hook: Callable[..., Any]) -> None:
            ours = next((state for state in self.gradients if state.module() is module and state.theirs is None), None)
            if ours is None:
                original(module, state, hook)
                return
            module._check_comm_hook(hook)  # type: ignore[no-untyped-call]
            ours.theirs = (state, hook)
            self._refuse(OWN_HOOK)

        return register_comm_hook

    def _hooking_builtin(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def register_builtin(module: DistributedDataParallel, kind: Any) -> None:
            original(module, kind)
            _BUILTIN.add(module)

        return register_builtin

    # --- what went through shared memory --------------------------------------------------------

    def record_copies(self) -> None:
        """Write the receipt for what has gone through shared memory so far."""
        if self.copy is None:
            return
        used = [state.copies for state in self.gradients if state.copies.calls]
        buckets, size = sum(copies.calls for copies in used), sum(copies.bytes for copies in used)
        calls = self.copies.calls
        parts = []
        if used:
            parts.append(f"{buckets:,} gradient buckets ({format_bytes(size)}) of {_counted(len(used), 'module')}")
        if calls:
            parts.append(f"{_counted(calls, 'collective')} ({format_bytes(self.copies.bytes)})")
        refused = "; ".join(dict.fromkeys(self.refusals))
        detail = f"{' and '.join(parts)} through shared memory"
        status: Status
        if parts:
            status, detail = "applied", f"{detail}; refused: {refused}" if refused else detail
        elif refused:
            status, detail = "refused", refused
        else:
            status, detail = "no effect", NOTHING_COPIED
        counts = (("gradient buckets", buckets), ("collectives", calls), ("bytes", size + self.copies.bytes))
        self._file.set(Receipt(control=self.copy, status=status, detail=detail, carrier=CARRIER, evidence=counts))


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_CAPS = ("bucket_cap_mb", "bucket_cap_mb_list")
_WAITING: weakref.WeakKeyDictionary[DistributedDataParallel, tuple[Modules, DirectGroup, Any]] = (
    weakref.WeakKeyDictionary()
)
_BUILTIN: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def _may_be_hooked(module: DistributedDataParallel) -> bool:
    """A module on CPUs with peers; `no_hook` decides the rest when it first runs."""
    return module.device_type == "cpu" and dist.get_world_size(module.process_group) > 1


@_disable_dynamo
def _before_first_forward(module: DistributedDataParallel, inputs: Any) -> None:
    modules, direct, handle = _WAITING.pop(module)
    handle.remove()
    modules.first_forward(module, direct)
