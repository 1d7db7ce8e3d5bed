"""Gradients of DistributedDataParallel under a plan: through shared memory on CPUs, and in buckets of another size.

DistributedDataParallel compares a hook's annotations with its own types, so they must not be strings here.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket, _register_comm_hook  # torch.distributed only re-exports them
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from makeway.act.backend import TORCH_CARRIERS
from makeway.act.cpu.calls import FRACTIONS
from makeway.act.cpu.direct import DirectGroup
from makeway.act.cpu.hook import SharedBuckets, direct_hook, shared_hook
from makeway.act.torch.collectives import Copies
from makeway.act.torch.compression import NO_JOIN
from makeway.act.torch.profiled import recording
from makeway.act.torch.where import where_runs
from makeway.values.control import Chunks
from makeway.values.errors import InputError
from makeway.values.receipt import Receipt, Status
from makeway.values.units import MIB

DEFAULT_CAP_MIB = 25  # torch/nn/parallel/distributed.py, _DEFAULT_BUCKET_CAP_MB
OWN_HOOK = "the program registered its own hook for gradients, which stays"


class Gradients:
    """The hook's state for one module: where its buckets go, and how many went there."""

    def __init__(
        self,
        module: DistributedDataParallel,
        direct: DirectGroup,
        *,
        on_change: Callable[[], None] = lambda: None,
        ranks_left: Callable[[], int] | None = None,
    ) -> None:
        self.group: dist.ProcessGroup = module.process_group
        self.direct = direct
        self.buckets = buckets = SharedBuckets(direct)
        self.in_place = not module.gradient_as_bucket_view  # the program itself never sees a bucket
        self.module = weakref.ref(module, lambda _: buckets.release())
        self.copies = Copies(on_change)
        self.ranks_left = ranks_left  # how many have inputs left in a join; None: nobody knows
        self.theirs: tuple[Any, Callable[..., Any]] | None = None  # a hook the program registered later


def gradient_hook(state: Gradients, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket through shared memory; what direct collectives cannot add goes through the process group.

    Each gradient is multiplied by one over the number of ranks before it is added, as DistributedDataParallel does by
    itself, and sums are added as Gloo adds them: the result is the same to the bit.
    """
    if state.theirs is not None:
        theirs, hook = state.theirs
        future: torch.futures.Future[torch.Tensor] = hook(theirs, bucket)
        return future
    module, buffer, left = state.module(), bucket.buffer(), None
    if module is not None and not getattr(module, "_divide_by_initial_world_size", True):
        if state.ranks_left is None:
            raise InputError(
                "join(divide_by_initial_world_size=False) divides by the ranks that are left, which this hook cannot "
                "know; enter it before the first step, or leave copy-engine out of the plan"
            )
        left = state.ranks_left()
    if buffer.layout != torch.strided or buffer.dtype not in FRACTIONS:
        if left is not None:
            buffer.mul_(state.direct.ranks / left)
        return allreduce_hook(state.group, bucket)
    record = recording("all_reduce", buffer)
    try:
        averaged = _averaged(state, bucket) if left is None else _divided_by(left, state.direct, buffer)
    except BaseException:
        if record is not None:
            record.cancel()
        raise
    state.copies.count(buffer.nbytes)
    return averaged if record is None else record.until(averaged)


def _averaged(state: Gradients, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Buckets are added up in place, unless the program's gradients are views of them: it may hand those to a child."""
    return shared_hook(state.buckets, bucket) if state.in_place else direct_hook(state.direct, bucket)


def _divided_by(ranks: int, direct: DirectGroup, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    work = direct.all_reduce(buffer.mul_(1.0 / ranks), async_op=True)  # multiplied, as the reducer does it
    assert work is not None
    return work.get_future()


def add_hook(module: DistributedDataParallel, state: Gradients) -> None:
    """Register `gradient_hook` in the reducer only: what the module itself keeps, it saves, copies and logs."""
    _register_comm_hook(module.reducer, state, gradient_hook)


def no_hook(module: DistributedDataParallel, *, builtin: bool = False) -> str | None:
    """Why this module's gradients cannot go through shared memory; None when they can.

    `builtin`: the program registered one of torch's hooks in C++, which the module does not record.
    """
    if module.device_type != "cpu":
        return "copies through shared memory are for modules on a CPU"
    return no_hook_at_all(module, builtin=builtin)


def no_hook_at_all(module: DistributedDataParallel, *, builtin: bool = False) -> str | None:
    """Why this module can have no hook of ours on any device; None when it can."""
    if builtin or module._comm_hooks:
        return OWN_HOOK
    if module._use_python_reducer or not hasattr(module, "reducer"):
        return "this module reduces gradients without buckets, where no hook can be registered"
    if not getattr(module, "_divide_by_initial_world_size", True):
        return NO_JOIN
    return None


def smaller_buckets(chunks: Chunks | None, cap_mib: float | None, caps_mib: Any | None) -> float | None:
    """The bucket size in MiB that divides default buckets; None: leave it to the program or to torch."""
    if chunks is None or cap_mib is not None or caps_mib is not None:
        return None
    return DEFAULT_CAP_MIB / chunks.pieces


def buckets_receipt(chunks: Chunks, module: DistributedDataParallel, given_mib: float | None) -> Receipt:
    """The receipt for Chunks from a module's bucket size now; `given_mib`: the size it was made with, if ours."""
    cap = module.bucket_bytes_cap
    size = sum(parameter.nbytes for parameter in module.parameters() if parameter.requires_grad)
    status: Status
    if given_mib is None:
        status, detail = "refused", f"the program chose buckets of {cap:,} bytes itself, which stay"
    elif size <= cap:
        status = "no effect"
        detail = f"all gradients of a module ({size:,} bytes) fit one bucket of {cap:,} bytes: nothing was divided"
    else:
        status = "applied" if cap == int(given_mib * MIB) else "no effect"
        detail = f"gradients in buckets of {cap:,} bytes, the default of {DEFAULT_CAP_MIB} MiB in {chunks.pieces}"
    counts = (("bucket bytes", cap), ("gradient bytes", size))
    return Receipt(control=chunks, status=status, detail=detail, carrier=carrier_of(module), evidence=counts)


def carrier_of(module: DistributedDataParallel) -> str:
    """The carrier of controls that act on a module."""
    return TORCH_CARRIERS["cpu" if module.device_type == "cpu" else where_runs(module.process_group)]
