"""A plan in force for a block of code or for a function, whatever the hardware."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from makeway.act.backend import Backend
from makeway.act.cuda.machine import load_torch
from makeway.act.plans import PlanLike, plan_of
from makeway.act.torch.where import Where, where_runs
from makeway.values.control import (
    CommBlocks,
    CommPriority,
    Control,
    CopyEngine,
    OwnCores,
    SmemPad,
    TileChoice,
    control_word,
)
from makeway.values.errors import InputError
from makeway.values.receipt import Receipt

# What a GPU backend prepares for makeway's own GEMM and copies; no launch of the program goes through it.
_OWN_KERNELS = "no kernel of the program takes it: use makeway.torch.padded or tiled, or makeway run"
_OWN_COPIES = (
    "no collective of the program is rerouted to copy engines: use makeway.torch.prepare_fsdp2 for all-gathers, "
    "copy_engine_buffer for the program's own"
)
_NO_GROUP = "options of a process group, and none exists yet: make it with makeway.torch.init_process_group"


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """A plan in force: a receipt per control, and what the controls provide to launch through."""

    where: Where
    receipts: tuple[Receipt, ...]
    compute_stream: Any | None = None  # current inside the block; None: as before
    comm_stream: Any | None = None  # for the program's own copies; NCCL has its own streams
    group: Any | None = None  # a process group with the plan's options
    direct: Any | None = None  # a DirectGroup: collectives through shared memory, on CPUs

    def table(self) -> str:
        """One line per control: its name, its status, what was read back."""
        names = [control_word(receipt.control) for receipt in self.receipts]
        width = max(map(len, names), default=0)
        lines = zip(names, self.receipts, strict=True)
        return "\n".join(f"{name:{width}}  {receipt.status:9}  {receipt.detail}" for name, receipt in lines)


def overlap(plan: PlanLike, *, group: Any | None = None, backend: Backend | None = None) -> Overlap:
    """The plan in force: `with overlap(plan) as in_force:`, or `@overlap(plan)` on a function.

    The hardware is that of `group`, by default of the default process group. On CPUs the plan acts on the threads of
    this process and, for `copy-engine` and `own-cores`, agrees with the ranks of the group, so that all of them must
    enter. On a GPU the block runs on the confined compute stream if the plan has a partition. Leaving undoes
    everything, also after an exception. The same plan may be entered again inside, which changes nothing; another one
    is an error.
    """
    return Overlap(plan_of(plan).controls, group, backend)


class Overlap(ContextDecorator):
    """The context manager and decorator that `overlap` returns; it may be entered any number of times."""

    def __init__(self, controls: Sequence[Control], group: Any | None, backend: Backend | None) -> None:
        self._controls, self._group, self._backend = tuple(controls), group, backend
        self._entered: list[ExitStack] = []

    def _recreate_cm(self) -> Overlap:
        return Overlap(self._controls, self._group, self._backend)

    def __enter__(self) -> InForce:
        with ExitStack() as stack:
            in_force = stack.enter_context(_CURRENT.entered(self._controls, self._apply))
            if in_force.compute_stream is not None:
                stack.enter_context(_on(in_force.compute_stream, load_torch()))
            self._entered.append(stack.pop_all())
        return in_force

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)

    def _apply(self, stack: ExitStack) -> InForce:
        where = where_runs(self._group)
        if self._backend is None and where == "cpu":
            from makeway.act.torch.meeting import seated
            from makeway.act.torch.on_cpu import OnCpu

            seat = seated if OwnCores() in self._controls else None
            on_cpu = stack.enter_context(OnCpu(self._controls, self._group, seat=seat))
            return InForce(where=where, receipts=on_cpu.receipts, direct=on_cpu.direct)
        backend = self._backend or _gpu_backend(where)
        receipts = stack.enter_context(backend.applied(self._controls))
        session = getattr(backend, "session", None)
        provided = {name: getattr(session, name, None) for name in ("compute_stream", "comm_stream", "group")}
        seen = tuple(_for_program(receipt, provided["group"]) for receipt in receipts)
        return InForce(where=where, receipts=seen, **provided)


def _for_program(receipt: Receipt, group: Any | None) -> Receipt:
    """The receipt of a GPU backend as it concerns the program, which launches nothing through the backend."""
    if receipt.status != "applied":
        return receipt
    match receipt.control:
        case SmemPad() | TileChoice():
            return replace(receipt, status="no effect", detail=_OWN_KERNELS)
        case CopyEngine():
            return replace(receipt, status="no effect", detail=_OWN_COPIES)
        case CommPriority() | CommBlocks() if group is None:
            return replace(receipt, status="no effect", detail=_NO_GROUP)
        case CommPriority() | CommBlocks():
            return replace(receipt, detail=f"{receipt.detail}: for collectives called with group=in_force.group")
        case _:
            return receipt


@contextmanager
def _on(stream: Any, torch: Any) -> Iterator[None]:
    """Work goes on that stream, ordered after what was launched before and before what is launched later."""
    before = torch.cuda.current_stream()
    stream.wait_stream(before)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        before.wait_stream(stream)


def _gpu_backend(where: Where) -> Backend:
    if where == "rocm":
        from makeway.act.rocm.backend import RocmBackend

        return RocmBackend()
    from makeway.act.cuda.backend import CudaBackend

    return CudaBackend()


@dataclass
class _Current:
    """The one plan of this process, however often it was entered."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    controls: tuple[Control, ...] = ()
    in_force: InForce | None = None
    times: int = 0
    stack: ExitStack = field(default_factory=ExitStack)

    @contextmanager
    def entered(self, controls: tuple[Control, ...], apply: Callable[[ExitStack], InForce]) -> Iterator[InForce]:
        with self.lock:
            if self.times and controls != self.controls:
                inside = ", ".join(map(control_word, self.controls))
                raise InputError(f"another plan is in force in this process ({inside}); leave it before the next")
            if not self.times:
                with ExitStack() as stack:
                    self.in_force = apply(stack)
                    self.stack = stack.pop_all()
                self.controls = controls
            self.times += 1
            assert self.in_force is not None
            in_force = self.in_force
        with ExitStack() as leaving:  # learns of an error in the block: peers may never finish what is under way then
            leaving.push(self._left)
            yield in_force

    def _left(self, *error: Any) -> None:
        with self.lock:
            self.times -= 1
            if not self.times:
                self.in_force, self.controls = None, ()
                self.stack.__exit__(*error)


_CURRENT = _Current()
