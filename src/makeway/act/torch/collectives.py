"""torch.distributed's own collectives of CPU tensors, through shared memory.

Whether a call is rerouted depends only on what all ranks must agree on anyway: its kind, group, number type and
reduction. Gather and all-to-all give the same bits as Gloo; sums are added in rank order, which for more than two ranks
may round differently from Gloo's ring.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from makeway.act.cpu.calls import SUMMED
from makeway.act.cpu.comm_thread import Work
from makeway.act.cpu.direct import DirectGroup
from makeway.act.torch.replacing import replaced


class Copies:
    """Counts the collectives that went through shared memory."""

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self.calls = 0
        self.bytes = 0
        self._on_first = on_first
        self._lock = threading.Lock()

    def count(self, size: int) -> None:
        with self._lock:
            self.calls += 1
            self.bytes += size
            first = self.calls == 1
        if first:
            self._on_first()


class DirectWork(dist.Work):
    """A direct collective as torch's own Work."""

    def __init__(self, work: Work, after: Callable[[], None], result: list[torch.Tensor]) -> None:
        super().__init__()
        self._work, self._after, self._result = work, after, result
        self._over = threading.Lock()
        self._done = False

    def _finish(self) -> None:
        with self._over:
            if not self._done:
                self._after()
                self._done = True

    def wait(self, timeout: Any = None) -> bool:
        self._work.wait(timeout.total_seconds() if timeout else None)
        self._finish()
        return True

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def is_success(self) -> bool:
        return self._work.is_completed() and self.exception() is None

    def exception(self) -> Any:
        try:
            self._work.wait()
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
            future.value()  # raises the collective's error
            self._finish()
            return self._result

        return self._work.get_future().then(finished)


@contextmanager
def rerouted(direct: DirectGroup, copies: Copies) -> Iterator[None]:
    """Inside the block, collectives of CPU tensors in the default group go through `direct`."""
    routes = _Routes(direct, copies)
    with ExitStack() as stack:
        for name in ("all_gather_single", "reduce_scatter_single", "all_reduce", "all_to_all_single"):
            original = getattr(dist, name)
            stack.enter_context(replaced(original, _wrapped(original, getattr(routes, name))))
        yield


def _wrapped(original: Callable[..., Any], route: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        return route(original, *args, **kwargs)

    return collective


_PLAIN = (torch.Tensor, torch.nn.Parameter)  # a subclass may redefine collectives
_SUM = dist.ReduceOp.SUM


class _Routes:
    """torch's collectives by name and signature, behind the original; calls that are not ours go to the original."""

    def __init__(self, direct: DirectGroup, copies: Copies) -> None:
        self.direct, self.copies = direct, copies

    def _ours(self, group: dist.ProcessGroup | None, *tensors: Any) -> bool:
        """True for dense CPU tensors in the default group, outside a coalescing block."""
        if group is not None and group is not dist.group.WORLD:
            return False
        if not self.direct.usable or dist.group.WORLD in dist.distributed_c10d._world.pg_coalesce_state:
            return False
        return all(
            type(tensor) in _PLAIN
            and tensor.device.type == "cpu"
            and tensor.layout == torch.strided
            and not tensor.is_complex()
            for tensor in tensors
        )

    def _run(
        self, call: Callable[..., Work | None], output: torch.Tensor, given: torch.Tensor, async_op: bool
    ) -> DirectWork | None:
        """Run `call(output, given, async_op=)` on contiguous tensors; a strided output is filled at the end."""
        into = output.detach()
        compact = into if into.is_contiguous() else into.contiguous()
        source = compact if given is output else given.detach().contiguous()
        self.copies.count(given.nbytes)

        def after() -> None:
            if compact is not into:
                into.copy_(compact)

        work = call(compact, source, async_op=async_op)
        if work is not None:
            return DirectWork(work, after, [output])
        after()
        return None

    def all_gather_single(
        self, original: Any, output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
    ) -> Any:
        if not self._ours(group, output_tensor, input_tensor):
            return original(output_tensor, input_tensor, group, async_op)
        return self._run(self.direct.all_gather_into_tensor, output_tensor, input_tensor, async_op)

    def reduce_scatter_single(
        self,
        original: Any,
        output: Any,
        input: Any,  # noqa: A002  # torch's name
        op: Any = _SUM,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        if op != _SUM or not self._ours(group, output, input) or output.dtype not in SUMMED:
            return original(output, input, op, group, async_op)
        return self._run(self.direct.reduce_scatter_tensor, output, input, async_op)

    def all_reduce(self, original: Any, tensor: Any, op: Any = _SUM, group: Any = None, async_op: bool = False) -> Any:
        # DistributedDataParallel.join passes the Work of a single number to C++, where a Work made in Python does not
        # survive; only some ranks wait for that sum at once, so waiting must not decide.
        single = isinstance(tensor, torch.Tensor) and tensor.numel() == 1
        if op != _SUM or single or not self._ours(group, tensor) or tensor.dtype not in SUMMED:
            return original(tensor, op, group, async_op)

        def reduce(into: torch.Tensor, _: torch.Tensor, *, async_op: bool) -> Work | None:
            return self.direct.all_reduce(into, async_op=async_op)

        return self._run(reduce, tensor, tensor, async_op)

    def all_to_all_single(
        self,
        original: Any,
        output: Any,
        input: Any,  # noqa: A002  # torch's name
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        if not self._ours(group, output, input):
            return original(output, input, output_split_sizes, input_split_sizes, group, async_op)

        def exchange(into: torch.Tensor, given: torch.Tensor, *, async_op: bool) -> Work | None:
            # None and an empty list both mean equal parts to torch.
            takes, gives = output_split_sizes or None, input_split_sizes or None
            return self.direct.all_to_all_single(into, given, takes, gives, async_op=async_op)

        return self._run(exchange, output, input, async_op)
