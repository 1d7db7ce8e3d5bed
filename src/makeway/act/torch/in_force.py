"""A plan in force for a block of code or for a function, whatever the hardware."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator, ExitStack, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from makeway.act.backend import Backend, Receipt
from makeway.act.cuda.machine import load_torch
from makeway.act.torch.groups import Where, where_runs
from makeway.act.torch.plans import PlanLike, plan_of
from makeway.values.control import Control, CopyEngine, control_word
from makeway.values.errors import InputError, MakewayError


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What became of each control, and what the controls gave to launch through."""

    where: Where
    receipts: tuple[Receipt, ...]
    compute_stream: Any | None = None  # current inside the block; None: as before
    comm_stream: Any | None = None  # for copies of one's own; NCCL has its own streams
    group: Any | None = None  # a process group with the plan's options
    direct: Any | None = None  # a DirectGroup: collectives through shared memory, on CPUs

    def table(self) -> str:
        """One line per control: its word, its status, what was read back."""
        words = [control_word(receipt.control) for receipt in self.receipts]
        width = max(map(len, words), default=0)
        lines = zip(words, self.receipts, strict=True)
        return "\n".join(f"{word:{width}}  {receipt.status:9}  {receipt.detail}" for word, receipt in lines)


def overlap(plan: PlanLike, *, group: Any | None = None, backend: Backend | None = None) -> Overlap:
    """The plan in force: `with overlap(plan) as applied:`, or `@overlap(plan)` on a function.

    The hardware is that of `group`, by default of the default process group. On CPUs the plan acts on the threads of
    this process and, for `copy-engine`, takes shared memory with the ranks of the group, so that all of them must
    enter. On a GPU the block runs on the confined compute stream if the plan has a partition. Leaving undoes
    everything, also after an exception. The same plan may be entered again inside, which changes nothing; another one
    is an error.
    """
    return Overlap(plan_of(plan).controls, group, backend)


class Overlap(ContextDecorator):
    """The context manager and decorator that `overlap` gives; it may be entered any number of times."""

    def __init__(self, controls: Sequence[Control], group: Any | None, backend: Backend | None) -> None:
        self._controls, self._group, self._backend = tuple(controls), group, backend
        self._entered: list[ExitStack] = []

    def _recreate_cm(self) -> Overlap:
        return Overlap(self._controls, self._group, self._backend)

    def __enter__(self) -> Applied:
        with ExitStack() as stack:
            applied = stack.enter_context(_IN_FORCE.entered(self._controls, self._apply))
            if applied.compute_stream is not None:
                stack.enter_context(_on(applied.compute_stream, load_torch()))
            self._entered.append(stack.pop_all())
        return applied

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)

    def _apply(self, stack: ExitStack) -> Applied:
        where = where_runs(self._group)
        if self._backend is None and where == "cpu":
            return _on_threads(self._controls, self._group, stack)
        backend = self._backend or _gpu_backend(where)
        receipts = stack.enter_context(backend.applied(self._controls))
        session = getattr(backend, "session", None)
        given = {name: getattr(session, name, None) for name in ("compute_stream", "comm_stream", "group")}
        return Applied(where=where, receipts=receipts, **given)


@contextmanager
def _on(stream: Any, torch: Any) -> Iterator[None]:
    """Work goes on that stream, after what was launched before and before what is launched later."""
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


def _on_threads(controls: tuple[Control, ...], group: Any | None, stack: ExitStack) -> Applied:
    """The CPU's controls; without a process group there is nobody to share memory with."""
    import torch.distributed as dist

    from makeway.act.cpu.controls import CpuBackend
    from makeway.act.torch.collectives import Copies, rerouted
    from makeway.act.torch.meeting import place_on_host, shared_memory

    direct, reason = None, None
    copy = next((control for control in controls if isinstance(control, CopyEngine)), None)
    if copy is not None:
        try:
            direct = stack.enter_context(shared_memory(group))
        except MakewayError as error:
            reason = str(error)
    rank, ranks = place_on_host() or _place(group)
    receipts = stack.enter_context(CpuBackend(direct, rank=rank, ranks=ranks).applied(controls))
    if copy is not None and reason is not None:
        refused = Receipt(control=copy, status="refused", detail=reason)
        receipts = tuple(refused if receipt.control == copy else receipt for receipt in receipts)
    copying = any(receipt.control == copy and receipt.status == "applied" for receipt in receipts)
    if direct is not None and copying and (group is None or group is dist.group.WORLD):
        stack.enter_context(rerouted(direct, Copies()))
    return Applied(where="cpu", receipts=receipts, direct=direct)


def _place(group: Any | None) -> tuple[int, int]:
    import torch.distributed as dist

    return (dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else (0, 1)


@dataclass
class _InForce:
    """The one plan of this process, however often it was entered."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    controls: tuple[Control, ...] = ()
    applied: Applied | None = None
    times: int = 0
    stack: ExitStack = field(default_factory=ExitStack)

    @contextmanager
    def entered(self, controls: tuple[Control, ...], apply: Callable[[ExitStack], Applied]) -> Iterator[Applied]:
        with self.lock:
            if self.times and controls != self.controls:
                inside = ", ".join(map(control_word, self.controls))
                raise InputError(f"another plan is in force in this process ({inside}); leave it before the next")
            if not self.times:
                with ExitStack() as stack:
                    self.applied = apply(stack)
                    self.stack = stack.pop_all()
                self.controls = controls
            self.times += 1
            assert self.applied is not None
            applied = self.applied
        with ExitStack() as leaving:  # learns of an error in the block: peers may never finish what is under way then
            leaving.push(self._left)
            yield applied

    def _left(self, *error: Any) -> None:
        with self.lock:
            self.times -= 1
            if not self.times:
                self.applied, self.controls = None, ()
                self.stack.__exit__(*error)


_IN_FORCE = _InForce()
