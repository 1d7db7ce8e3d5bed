"""torch.distributed's own collectives of CPU tensors, through shared memory.

Whether a call is rerouted depends only on what all ranks must agree on anyway: its kind, group, number type and
reduction. All of them give the bits that Gloo gives, sums too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from makeway.act.cpu.calls import SUMMED, overlap
from makeway.act.cpu.comm_thread import Work
from makeway.act.cpu.direct import DirectGroup
from makeway.act.torch.profiled import Recording, recording
from makeway.act.torch.replacing import Original, all_replaced, stand_in
from makeway.values.errors import MakewayError


class Copies:
    """Counts the collectives that went through shared memory, and keeps why others did not."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.calls = 0
        self.bytes = 0
        self.refusals: list[str] = []
        self._on_change = on_change  # after the first call, and after each refusal
        self._lock = threading.Lock()

    def count(self, size: int) -> None:
        with self._lock:
            self.calls += 1
            self.bytes += size
            first = self.calls == 1
        if first:
            self._changed()

    def refuse(self, error: Exception) -> None:
        """Note an error of ours; the collective goes through the process group."""
        cause = error.__cause__ if isinstance(error, dist.DistBackendError) else error
        self.refusals.append(str(cause) if isinstance(cause, MakewayError) else f"{type(error).__name__}: {error}")
        self._changed()

    def _changed(self) -> None:
        with suppress(Exception):  # the collective has run, or is about to
            self._on_change()


@contextmanager
def errors_of_torch() -> Iterator[None]:
    """Errors of a direct collective become those that a program expects of a process group."""
    try:
        yield
    except MakewayError as error:
        raise dist.DistBackendError(str(error)) from error


class DirectWork(dist.Work):
    """A direct collective as torch's own Work."""

    def __init__(
        self,
        work: Work,
        result: list[torch.Tensor],
        *,
        after: Callable[[], None] = lambda: None,
        record: Recording | None = None,
    ) -> None:
        super().__init__()
        self._work, self._after, self._result = work, after, result
        self._recorded = record.until(work.get_future()) if record is not None else None
        self._over = threading.Lock()
        self._done = False

    def _finish(self) -> None:
        with self._over:
            if not self._done:
                self._after()
                self._done = True

    def wait(self, timeout: Any = None) -> bool:
        with errors_of_torch():
            self._work.wait(timeout.total_seconds() if timeout else None)
        if self._recorded is not None:
            self._recorded.wait()  # a profiler that stops now has seen the end
        self._finish()
        return True

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def is_success(self) -> bool:
        return self._work.is_completed() and self.exception() is None

    def exception(self) -> Any:
        try:
            self.wait()
        except Exception as error:
            return error
        return None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        def finished(future: torch.futures.Future[Any]) -> list[torch.Tensor]:
            with errors_of_torch():
                future.value()
            self._finish()
            return self._result

        return (self._recorded or self._work.get_future()).then(finished)


def carried(
    name: str,
    collective: Callable[..., Work | None],
    given: torch.Tensor,
    output: torch.Tensor,
    *,
    async_op: bool,
    after: Callable[[], None] = lambda: None,
) -> DirectWork | None:
    """Run `collective(async_op=)` as torch would run its own, with its range in a recording and torch's errors."""
    record = recording(name, given)
    try:
        with errors_of_torch():
            # Gloo's collectives end in another thread; in a recording ours do so, too.
            work = collective(async_op=async_op or record is not None)
    except BaseException:
        if record is not None:
            record.cancel()
        raise
    if work is None:
        after()
        return None
    result = DirectWork(work, [output], after=after, record=record)
    if async_op:
        return result
    result.wait()
    return None


@contextmanager
def rerouted(direct: DirectGroup, copies: Copies) -> Iterator[Routes]:
    """Inside the block, collectives of CPU tensors in the default group go through `direct` where routes are open."""
    routes = Routes(direct, copies)
    originals = (dist.all_gather_single, dist.reduce_scatter_single, dist.all_reduce, dist.all_to_all_single)
    with all_replaced(
        {
            original: stand_in(original, getattr(routes, original.__name__), copies.refuse, unless=routes.closed)
            for original in originals
        }
    ):
        yield routes


_PLAIN = (torch.Tensor, torch.nn.Parameter)  # a subclass may redefine collectives
_SUM = dist.ReduceOp.SUM
_IN_PLACE = ("all_gather", "reduce_scatter")


class Routes:
    """torch's collectives by name; calls that are not ours go to the original.

    `open` may change between collectives, on every rank between the same ones: at no cost, where putting the routes in
    place looks through all loaded modules.
    """

    def __init__(self, direct: DirectGroup, copies: Copies) -> None:
        self.direct, self.copies = direct, copies
        self.open = True

    def closed(self, *_: Any, **__: Any) -> bool:
        """Whether a call goes straight to the original."""
        return not self.open or torch.compiler.is_compiling()

    def _ours(self, call: Original, *tensors: Any) -> bool:
        """True for dense CPU tensors in the default group, outside a coalescing block; a reduction must be a sum."""
        group = call.given.get("group")
        if group is not None and group is not dist.group.WORLD:
            return False
        if not self.direct.usable or dist.group.WORLD in dist.distributed_c10d._world.pg_coalesce_state:
            return False
        if call.given.get("op", _SUM) != _SUM:
            return False
        return all(
            type(tensor) in _PLAIN
            and tensor.device.type == "cpu"
            and tensor.layout == torch.strided
            and not tensor.is_complex()
            for tensor in tensors
        )

    def _run(
        self,
        call: Original,
        name: str,
        collective: Callable[..., Work | None],
        output: torch.Tensor,
        given: torch.Tensor,
    ) -> DirectWork | None:
        """Run `collective(output, given, async_op=)` on contiguous tensors; a strided output is filled at the end."""
        async_op = bool(call.given.get("async_op", False))
        into = output.detach()
        compact = into if into.is_contiguous() else into.contiguous()
        source = compact if given is output else given.detach().contiguous()
        if source is not compact and overlap(source, compact):  # Gloo takes it, and peers may not know
            source = source if name in _IN_PLACE and self._own_part(source, compact) else source.clone()

        def after() -> None:
            if compact is not into:
                into.copy_(compact)

        try:
            work = carried(name, partial(collective, compact, source), given, output, async_op=async_op, after=after)
        except Exception:
            call.committed = not self.direct.usable  # it broke off half-way: peers may have finished
            raise
        call.committed = True
        self.copies.count(given.nbytes)
        return work

    def _own_part(self, source: torch.Tensor, into: torch.Tensor) -> bool:
        """True when the smaller of the two is this rank's part of the larger, which is how to work in place."""
        part, whole = sorted((source, into), key=lambda tensor: tensor.nbytes)
        return part.data_ptr() == whole.data_ptr() + self.direct.rank * part.nbytes

    def all_gather_single(self, call: Original) -> Any:
        output, given = (call.given[name] for name in ("output_tensor", "input_tensor"))
        if not self._ours(call, output, given):
            return call()
        return self._run(call, "all_gather", self.direct.all_gather_into_tensor, output, given)

    def reduce_scatter_single(self, call: Original) -> Any:
        output, given = (call.given[name] for name in ("output", "input"))
        if not self._ours(call, output, given) or output.dtype not in SUMMED:
            return call()
        return self._run(call, "reduce_scatter", self.direct.reduce_scatter_tensor, output, given)

    def all_reduce(self, call: Original) -> Any:
        # DistributedDataParallel.join passes the Work of a single number to C++, where a Work made in Python does not
        # survive; only some ranks wait for that sum at once, so waiting must not decide.
        tensor = call.given["tensor"]
        if not self._ours(call, tensor) or tensor.numel() == 1 or tensor.dtype not in SUMMED:
            return call()

        def reduce(into: torch.Tensor, _: torch.Tensor, *, async_op: bool) -> Work | None:
            return self.direct.all_reduce(into, async_op=async_op)

        return self._run(call, "all_reduce", reduce, tensor, tensor)

    def all_to_all_single(self, call: Original) -> Any:
        output, given = (call.given[name] for name in ("output", "input"))
        if not self._ours(call, output, given):
            return call()

        def exchange(into: torch.Tensor, given: torch.Tensor, *, async_op: bool) -> Work | None:
            # None and an empty list both mean equal parts to torch.
            takes, gives = (call.given.get(f"{side}_split_sizes") or None for side in ("output", "input"))
            return self.direct.all_to_all_single(into, given, takes, gives, async_op=async_op)

        return self._run(call, "all_to_all", exchange, output, given)
