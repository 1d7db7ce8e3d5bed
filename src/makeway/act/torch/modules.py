"""DistributedDataParallel modules of a program that knows nothing of the plan."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch._compile import _disable_dynamo  # torch.compiler.disable, but loads the compiler only when called
from torch.nn.parallel import DistributedDataParallel

from makeway.act.cpu.direct import DirectGroup
from makeway.act.torch.collectives import Copies
from makeway.act.torch.ddp import (
    OWN_HOOK,
    Gradients,
    buckets_receipt,
    gradient_hook,
    no_hook,
    smaller_buckets,
)
from makeway.act.torch.groups import argument
from makeway.act.torch.ledger import Ledger
from makeway.values.control import Chunks, CopyEngine
from makeway.values.errors import MakewayError
from makeway.values.units import format_bytes

NOTHING_COPIED = "nothing has gone through shared memory: no DistributedDataParallel module, no collective seen"
NO_MODULE = "no DistributedDataParallel module was made, whose buckets could be cut"


class Modules:
    """Gives modules the plan's bucket size when they are made, and the plan's hook when they first run.

    A hook the program registers stays, before our own or after it: then ours hands each bucket over.
    """

    def __init__(
        self,
        *,
        copy: CopyEngine | None,
        chunks: Chunks | None,
        share: Callable[[dist.ProcessGroup], DirectGroup],
        ledger: Ledger,
    ) -> None:
        self.copy, self.chunks = copy, chunks
        self.gradients: list[Gradients] = []
        self.copies = Copies(on_first=self.tell)  # of collectives that the program calls itself
        self.refusals: list[str] = []
        self._share, self._ledger = share, ledger
        self._cut = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block every module that is made is taken care of."""
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
                    self._ledger.set([receipt])
                self._cut = self._cut or receipt.status == "applied"
            if self.copy is None or not _may_be_hooked(module):
                return
            direct = self._share(module.process_group)  # here, where all ranks of the group meet anyway
            handle = module.register_forward_pre_hook(_before_first_forward)
            _WAITING[module] = (self, direct, handle)
        except MakewayError as error:
            self._refuse(str(error))
        except Exception as error:
            self._ledger.fail(error)

    # --- when it first runs --------------------------------------------------------------------

    def first_forward(self, module: DistributedDataParallel, direct: DirectGroup) -> None:
        """The program has registered its hook by now, if it has one."""
        try:
            if reason := no_hook(module, builtin=module in _BUILTIN):
                self._refuse(reason)
                return
            state = Gradients(module, direct, on_first=self.tell)
            module.register_comm_hook(state, gradient_hook)
            self.gradients.append(state)
        except Exception as error:
            self._ledger.fail(error)

    def _refuse(self, reason: str) -> None:
        self.refusals.append(reason)
        self.tell()

    def _hooking(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def register_comm_hook(module: DistributedDataParallel, state: object, hook: Callable[..., Any]) -> None:
            ours = next((one for one in self.gradients if one.module() is module and one.theirs is None), None)
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

    # --- what became of it ---------------------------------------------------------------------

    def tell(self) -> None:
        """Write what has gone through shared memory so far."""
        if self.copy is None:
            return
        used = [one.copies for one in self.gradients if one.copies.calls]
        words = []
        if used:
            buckets, size = sum(one.calls for one in used), sum(one.bytes for one in used)
            words.append(f"{buckets:,} gradient buckets ({format_bytes(size)}) of {_counted(len(used), 'module')}")
        if self.copies.calls:
            words.append(f"{_counted(self.copies.calls, 'collective')} ({format_bytes(self.copies.bytes)})")
        refused = "; ".join(dict.fromkeys(self.refusals))
        if words:
            detail = f"{' and '.join(words)} through shared memory"
            self._ledger.say(self.copy, "applied", f"{detail}; refused: {refused}" if refused else detail)
        elif refused:
            self._ledger.say(self.copy, "refused", refused)
        else:
            self._ledger.say(self.copy, "no effect", NOTHING_COPIED)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_CAPS = ("bucket_cap_mb", "bucket_cap_mb_list")
_WAITING: weakref.WeakKeyDictionary[DistributedDataParallel, tuple[Modules, DirectGroup, Any]] = (
    weakref.WeakKeyDictionary()
)
_BUILTIN: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def _may_be_hooked(module: DistributedDataParallel) -> bool:
    """A module on CPUs; what else may forbid a hook shows when it runs."""
    return module.device_type == "cpu" and dist.get_world_size(module.process_group) > 1


@_disable_dynamo
def _before_first_forward(module: DistributedDataParallel, inputs: Any) -> None:
    modules, direct, handle = _WAITING.pop(module)
    handle.remove()
    modules.first_forward(module, direct)
