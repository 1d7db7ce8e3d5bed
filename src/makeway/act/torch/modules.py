"""DistributedDataParallel modules of an unmodified program."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import BuiltinCommHookType
from torch._compile import _disable_dynamo  # torch.compiler.disable, but loads the compiler only when called
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from makeway.act.backend import TORCH_CARRIERS
from makeway.act.cpu.direct import DirectGroup
from makeway.act.launch.receipt_file import ReceiptFile
from makeway.act.torch.collectives import Copies
from makeway.act.torch.compression import (
    Compressed,
    Counts,
    add_compression,
    cannot_compress,
    compression_receipt,
)
from makeway.act.torch.gradients import (
    OWN_HOOK,
    Gradients,
    add_hook,
    buckets_receipt,
    no_hook,
    no_hook_at_all,
    smaller_buckets,
)
from makeway.act.torch.reducers import Switched
from makeway.act.torch.replacing import Original, replaced, stand_in
from makeway.values.control import Chunks, Compress, Control, CopyEngine
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
        self,
        controls: Sequence[Control],
        *,
        share: Callable[[dist.ProcessGroup], DirectGroup],
        file: ReceiptFile,
        carrier: str = CARRIER,
    ) -> None:
        self.chunks = next((control for control in controls if isinstance(control, Chunks)), None)
        self.compress = next((control for control in controls if isinstance(control, Compress)), None)
        self.copy: CopyEngine | None = None  # while it is in force
        self.gradients: list[Gradients] = []
        self.copies = Copies(on_change=self.record_copies)  # of collectives that the program calls itself
        self.switched: Switched | None = None  # where the plan may change between steps
        self._share, self._file, self._carrier = share, file, carrier
        self._cut = False
        self._compressing: list[Compressed] = []
        self._counts: dict[Compress, Counts] = {}
        self._uncompressed: list[str] = []  # why gradients of some module were not compressed
        self._past: weakref.WeakKeyDictionary[DistributedDataParallel, Copies] = weakref.WeakKeyDictionary()

    @contextmanager
    def watched(self, *, copy: CopyEngine | None) -> Iterator[None]:
        """Inside the block the plan reaches every module that is made; `copy`: gradients go through shared memory."""
        self.copy = copy
        self.record_copies()
        self.record_compression()
        if self.chunks is not None:
            self._file.set(Receipt(control=self.chunks, status="no effect", detail=NO_MODULE, carrier=self._carrier))
        wrappers: list[tuple[type, str, Callable[[Original], Any], dict[str, Any]]] = [
            (DistributedDataParallel, "__init__", self._make, {}),
            (DistributedDataParallel, "_pre_forward", self._before_forward, _FORWARD),
            (DistributedDataParallel, "register_comm_hook", self._hook, {}),
            (DistributedDataParallel, "_register_builtin_comm_hook", self._hook_builtin, {}),
            (Join, "notify_join_context", self._notify, {"unless": _not_joining}),
        ]
        with ExitStack() as stack:
            for owner, name, around, options in wrappers:
                original = getattr(owner, name)
                other = stand_in(original, around, self._failed, **options)
                stack.enter_context(replaced(original, other, owner))
            yield

    # --- when a module is made -----------------------------------------------------------------

    def _make(self, original: Original) -> None:
        cap = smaller_buckets(self.chunks, *(original.given.get(name) for name in _CAPS))
        original(**{} if cap is None else {"bucket_cap_mb": cap})
        module = original.given["self"]
        if self.chunks is not None:
            receipt = replace(buckets_receipt(self.chunks, module, cap), carrier=self._carrier)
            if not self._cut:  # one module whose gradients were cut is enough
                self._file.set(receipt)
            self._cut = self._cut or receipt.status == "applied"
        if self.switched is not None:
            self.add(module, chosen=any(original.given.get(name) is not None for name in _CAPS))
        elif self.compress is None and self.copy is not None and _may_be_hooked(module):
            # All ranks of the group meet here anyway.
            _WAITING[module] = self._share(module.process_group)
        else:
            self._wait(module, None)

    def _wait(self, module: DistributedDataParallel, direct: DirectGroup | None) -> None:
        """Note which hook a module gets when it next runs: one that compresses, or one that copies."""
        if self.compress is not None and dist.get_world_size(module.process_group) > 1:
            _WAITING[module] = self.compress
        elif direct is not None:
            _WAITING[module] = direct
        else:
            _WAITING.pop(module, None)

    def add(self, module: DistributedDataParallel, *, chosen: bool) -> None:
        """A module whose plan may change between steps; `chosen`: the program chose its bucket size."""
        assert self.switched is not None
        direct = self._share(module.process_group) if self.switched.copies and _may_be_hooked(module) else None
        self.switched.add(module, direct, chosen=chosen)
        self._wait(module, direct if self.copy is not None else None)

    # --- when it first runs --------------------------------------------------------------------

    def _before_forward(self, original: Original) -> Any:
        """Register the hook, unless the program has registered its own by now."""
        module = original.given["self"]
        _NOTIFIED.pop(module, None)
        direct = _WAITING.pop(module, None)
        if isinstance(direct, Compress):
            self._start_compressing(module, direct)
        elif direct is not None and direct.usable:  # its group still exists
            if reason := no_hook(module, builtin=module in _BUILTIN):
                self.copies.refuse(MakewayError(reason))
            else:
                left = functools.partial(_ranks_left, weakref.ref(module))
                state = Gradients(module, direct, on_change=self.record_copies, ranks_left=left)
                state.copies = self._past.pop(module, state.copies)
                add_hook(module, state)
                self.gradients.append(state)
        return original()

    def _start_compressing(self, module: DistributedDataParallel, control: Compress) -> None:
        refusal = cannot_compress(control) or no_hook_at_all(module, builtin=module in _BUILTIN)
        if refusal:
            self._uncompressed.append(refusal)
            self.record_compression()
            return
        counts = self._counts.setdefault(control, Counts())
        state = Compressed(module, control, counts=counts, on_change=self.record_compression)
        add_compression(module, state)
        self._compressing.append(state)

    def switch(self, *, copy: CopyEngine | None, chunks: Chunks | None, compress: Compress | None = None) -> None:
        """Other controls from the next step on; every rank must do so between the same collectives.

        A hook cannot be taken from a reducer and a bucket size cannot change, so modules get a new reducer.
        """
        assert self.switched is not None
        if (copy, chunks, compress) == (self.copy, self.chunks, self.compress):
            return
        self.record_compression()  # of the control that goes
        self.copy, self.chunks, self.compress = copy, chunks, compress
        self.record_copies()
        self.record_compression()
        for module, known in self.switched.modules():
            hooked = self._state_of(module)
            if refusal := known.refusal(module) or (OWN_HOOK if module in _BUILTIN else None):
                if copy is not None or chunks is not None:
                    self.copies.refuse(MakewayError(refusal))
                if compress is not None:
                    self._uncompressed.append(refusal)
                    self.record_compression()
                continue
            direct = known.direct if copy is not None and known.direct is not None and known.direct.usable else None
            cap_mib = smaller_buckets(chunks, None, None) if not known.chosen else None
            known.rebuild(module, cap_mib)
            self._compressing = [state for state in self._compressing if state.module() not in (module, None)]
            if isinstance(hooked, Gradients):
                self._past[module] = hooked.copies  # counts go on with the next hook
                hooked.buckets.release()
                self.gradients.remove(hooked)
            self._wait(module, direct)
            if chunks is not None:
                self._file.set(replace(buckets_receipt(chunks, module, cap_mib), carrier=self._carrier))

    def _notify(self, original: Original) -> Any:
        """Keep the sum of ranks with inputs left, which a join takes before each of their steps."""
        work = original()
        module = original.given["joinable"]
        if work is not None and isinstance(module, DistributedDataParallel):
            _NOTIFIED[module] = work
        return work

    def _failed(self, error: Exception) -> None:
        """Note an error of ours in the receipts."""
        if not isinstance(error, MakewayError):
            self._file.fail(error)
        self.copies.refuse(error)

    def _hook(self, original: Original) -> None:
        module, hook = original.given["self"], original.given["hook"]
        ours = self._state_of(module)
        if ours is None:
            original()
            return
        original.committed = True  # an error in the check is the program's
        module._check_comm_hook(hook)
        module.logger._set_comm_hook_name(hook.__qualname__)
        module._comm_hooks.append((hook, original.given["state"]))
        ours.theirs = (original.given["state"], hook)
        self._displaced(ours)

    def _displaced(self, ours: Gradients | Compressed) -> None:
        """Note that a hook of the program took over from ours."""
        if isinstance(ours, Gradients):
            self.copies.refuse(MakewayError(OWN_HOOK))
        else:
            self._uncompressed.append(OWN_HOOK)
            self.record_compression()

    def _hook_builtin(self, original: Original) -> None:
        module, kind = original.given["self"], original.given["comm_hook_type"]
        ours = self._state_of(module)
        if ours is None:
            original()
            _BUILTIN.add(module)
            return
        ours.theirs = (module.process_group, _SAME_IN_PYTHON[kind])
        module.logger._set_comm_hook_name(str(kind))
        original.committed = True
        self._displaced(ours)

    def _state_of(self, module: DistributedDataParallel) -> Gradients | Compressed | None:
        """Our hook in this module, if gradients still go through it."""
        ours: tuple[Gradients | Compressed, ...] = (*self.gradients, *self._compressing)
        states = (state for state in ours if state.module() is module and state.theirs is None)
        return next(states, None)

    # --- what was compressed -------------------------------------------------------------------

    def record_compression(self) -> None:
        """Write the receipt for what has been compressed so far."""
        if self.compress is not None:
            counts = self._counts.get(self.compress, Counts())
            refusals = tuple(self._uncompressed)
            self._file.set(compression_receipt(self.compress, counts, refusals, self._carrier))

    # --- what went through shared memory --------------------------------------------------------

    def record_copies(self) -> None:
        """Write the receipt for what has gone through shared memory so far."""
        if self.copy is None:
            return
        states = (state.copies for state in self.gradients)
        used = [copies for copies in (*self._past.values(), *states) if copies.calls]
        buckets, size = sum(copies.calls for copies in used), sum(copies.bytes for copies in used)
        calls = self.copies.calls
        parts = []
        if used:
            parts.append(f"{buckets:,} gradient buckets ({format_bytes(size)}) of {_counted(len(used), 'module')}")
        if calls:
            parts.append(f"{_counted(calls, 'collective')} ({format_bytes(self.copies.bytes)})")
        refused = "; ".join(dict.fromkeys(self.copies.refusals))
        detail = f"{' and '.join(parts)} through shared memory"
        status: Status
        if parts:
            status, detail = "applied", f"{detail}; refused: {refused}" if refused else detail
        elif refused:
            status, detail = "refused", refused
        else:
            status, detail = "no effect", NOTHING_COPIED
        counts = (("gradient buckets", buckets), ("collectives", calls), ("bytes", size + self.copies.bytes))
        self._file.set(Receipt(control=self.copy, status=status, detail=detail, carrier=self._carrier, evidence=counts))


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_CAPS = ("bucket_cap_mb", "bucket_cap_mb_list")
_WAITING: weakref.WeakKeyDictionary[DistributedDataParallel, DirectGroup | Compress] = weakref.WeakKeyDictionary()
_NOTIFIED: weakref.WeakKeyDictionary[DistributedDataParallel, dist.Work] = weakref.WeakKeyDictionary()
_SAME_IN_PYTHON: dict[Any, Callable[..., Any]] = {
    BuiltinCommHookType.ALLREDUCE: allreduce_hook,
    BuiltinCommHookType.FP16_COMPRESS: fp16_compress_hook,
}
_BUILTIN: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def _nothing_to_do(*_: Any, **__: Any) -> bool:
    """Whether forward passes are as without a plan."""
    return not _WAITING and not _NOTIFIED


def _not_joining(joinable: Any = None, *_: Any) -> bool:
    return not getattr(getattr(joinable, "_join_config", None), "enable", False)


_FORWARD = {"unless": _nothing_to_do, "wrap": _disable_dynamo}  # the compiler does not look at what is ours


def _may_be_hooked(module: DistributedDataParallel) -> bool:
    """A module on CPUs with peers; `no_hook` decides the rest when it first runs."""
    return module.device_type == "cpu" and dist.get_world_size(module.process_group) > 1


def _ranks_left(module: weakref.ref[DistributedDataParallel]) -> int:
    """Ranks that take part in the current step; all of them outside a join."""
    alive = module()
    assert alive is not None
    work = _NOTIFIED.get(alive)
    if work is None:  # outside a join, or this rank has no inputs left: then it adds zeros
        return dist.get_world_size(alive.process_group)
    work.wait()
    return int(work.result()[0].item())
