"""Compressed gradients of DistributedDataParallel: one hook that follows a `Compress` control and counts bytes.

fp16 and bf16 are torch's own hooks, PowerSGD is torch's, too; top-k with error feedback is ours. All ranks end with the
same gradients, which are not those of an uncompressed step.

DistributedDataParallel compares a hook's annotations with its own types, so they must not be strings here.
"""

import math
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket, _register_comm_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel

from makeway.values.control import Compress, control_word
from makeway.values.errors import InputError
from makeway.values.receipt import Receipt, Status
from makeway.values.units import format_bytes

HALF_HOOKS: dict[str, Callable[..., Any]] = {"fp16": fp16_compress_hook, "bf16": bf16_compress_hook}
NO_NUMPY = "torch's PowerSGD hook needs numpy, which is not installed; pip install numpy"
NO_JOIN = "join(divide_by_initial_world_size=False) divides by the ranks that are left, which a hook cannot know"
NOTHING_COMPRESSED = "no gradient has been compressed: no DistributedDataParallel module ran"
_FIRST_STEP = 2  # of PowerSGD: the least that torch allows, since buckets are laid out anew after the first step
_MOST_INT32 = 2**31
Future = torch.futures.Future[torch.Tensor]


@dataclass(slots=True)
class Counts:
    """Buckets that were compressed, and their bytes before and after."""

    buckets: int = 0
    before: int = 0
    after: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, before: int, after: int) -> bool:
        """Count a bucket; True for the first that makes a difference."""
        with self.lock:
            first = after < before and self.after >= self.before
            self.buckets += 1
            self.before += before
            self.after += after
        return first


class Compressed:
    """The hook's state for one module."""

    def __init__(
        self,
        module: DistributedDataParallel,
        control: Compress,
        *,
        counts: Counts | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.module = weakref.ref(module)
        self.group: dist.ProcessGroup = module.process_group
        self.control = control
        self.counts = counts or Counts()
        self.theirs: tuple[Any, Callable[..., Any]] | None = None  # a hook the program registered later
        self._on_change = on_change  # after the first bucket that shrank
        self._errors: dict[int, torch.Tensor] = {}  # of top-k by bucket: what was not sent yet
        self._power: Any = None
        if control.method == "powersgd":
            from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

            self._power = PowerSGDState(
                self.group, matrix_approximation_rank=control.rank, start_powerSGD_iter=_FIRST_STEP
            )

    def averaged(self, bucket: GradBucket) -> Future:
        """The bucket's average over the ranks, compressed on the way."""
        module, buffer = self.module(), bucket.buffer()
        if module is not None and not getattr(module, "_divide_by_initial_world_size", True):
            raise InputError(f"{NO_JOIN}; leave {control_word(self.control)} out of the plan")
        if buffer.layout != torch.strided or not buffer.is_floating_point():
            return allreduce_hook(self.group, bucket)
        match self.control.method:
            case "fp16" | "bf16":
                self._count(buffer.nbytes, 2 * buffer.numel())
                averaged: Future = HALF_HOOKS[self.control.method](self.group, bucket)
                return averaged
            case "powersgd":
                return self._low_rank(bucket)
            case "topk":
                return self._largest(bucket)

    def _low_rank(self, bucket: GradBucket) -> Future:
        """torch's PowerSGD, one bucket after another.

        Its second collective starts when the first has ended, in a thread of the process group: with several buckets
        under way the ranks would start them in different orders.
        """
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook

        size, element = bucket.buffer().nbytes, bucket.buffer().element_size()
        plain = self._power.iter < self._power.start_powerSGD_iter
        sent = self._power.total_numel_after_compression
        averaged: Future = powerSGD_hook(self._power, bucket)
        averaged.wait()
        after = size if plain else (self._power.total_numel_after_compression - sent) * element
        self._count(size, after)
        return averaged

    def _largest(self, bucket: GradBucket) -> Future:
        """The largest elements of the gradient and of what earlier steps left out; the rest waits for later steps."""
        assert self.control.share is not None
        buffer, ranks = bucket.buffer(), dist.get_world_size(self.group)
        error = self._errors.get(bucket.index())
        whole = buffer.float().div(ranks)
        if error is not None and error.numel() == whole.numel():  # buckets are laid out anew after the first step
            whole += error
        count = max(math.ceil(self.control.share * whole.numel()), 1)
        places = whole.abs().topk(count, sorted=False).indices
        values = whole[places]
        whole[places] = 0
        self._errors[bucket.index()] = whole
        wide = torch.int32 if whole.numel() < _MOST_INT32 else torch.int64
        payload = torch.cat((values.view(torch.uint8), places.to(wide).view(torch.uint8)))
        gathered = payload.new_empty(ranks * payload.numel())
        self._count(buffer.nbytes, payload.nbytes)
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the older is deprecated
        sent: dist.Work = gather(gathered, payload, group=self.group, async_op=True)

        def added(_: torch.futures.Future[Any]) -> torch.Tensor:
            total = torch.zeros_like(whole)
            for part in gathered.chunk(ranks):  # in the order of ranks: every rank gets the same bits
                mine, theirs = part[: values.nbytes].view(values.dtype), part[values.nbytes :].view(wide)
                total.index_add_(0, theirs.long(), mine)
            return buffer.copy_(total)

        return sent.get_future().then(added)

    def _count(self, before: int, after: int) -> None:
        if self.counts.add(before, after):
            with suppress(Exception):  # the collective is about to run
                self._on_change()


def compressing_hook(state: Compressed, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket under the state's control, or under the hook that the program registered after ours."""
    if state.theirs is not None:
        theirs, hook = state.theirs
        future: torch.futures.Future[torch.Tensor] = hook(theirs, bucket)
        return future
    return state.averaged(bucket)


def add_compression(module: DistributedDataParallel, state: Compressed) -> None:
    """Register the hook in the reducer only: what the module itself keeps, it saves, copies and logs."""
    _register_comm_hook(module.reducer, state, compressing_hook)


def cannot_compress(control: Compress) -> str | None:
    """Why this process has no such compression; None when it has."""
    return NO_NUMPY if control.method == "powersgd" and find_spec("numpy") is None else None


def compression_receipt(control: Compress, counts: Counts, refusals: tuple[str, ...], carrier: str) -> Receipt:
    """The receipt for what was compressed so far."""
    refused = "; ".join(dict.fromkeys(refusals))
    status: Status
    if counts.after < counts.before:
        status = "applied"
        detail = (
            f"{counts.buckets:,} gradient buckets: {format_bytes(counts.before)} sent as {format_bytes(counts.after)}; "
            "results change"
        )
        detail = f"{detail}; refused: {refused}" if refused else detail
    elif refused:
        status, detail = "refused", refused
    elif counts.buckets:
        status = "no effect"
        detail = f"{counts.buckets:,} gradient buckets have no fewer bytes as {control.method}"
    else:
        status, detail = "no effect", NOTHING_COMPRESSED
    evidence = (("gradient buckets", counts.buckets), ("bytes before", counts.before), ("bytes after", counts.after))
    return Receipt(control=control, status=status, detail=detail, carrier=carrier, evidence=evidence)
