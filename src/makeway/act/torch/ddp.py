"""DistributedDataParallel under a plan: gradients through shared memory on CPUs, bucket sizes, a group with options.

DistributedDataParallel compares a hook's annotations with its own types, so they must not be strings here.
"""

import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket, _register_comm_hook  # torch.distributed only re-exports them
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from makeway.act.backend import TORCH_CARRIERS
from makeway.act.cpu.calls import FRACTIONS
from makeway.act.cpu.direct import DirectGroup
from makeway.act.cpu.hook import SharedBuckets, direct_hook, shared_hook
from makeway.act.plans import PlanLike, plan_of
from makeway.act.torch.collectives import Copies
from makeway.act.torch.compression import (
    NO_JOIN,
    Compressed,
    add_compression,
    cannot_compress,
    compression_receipt,
)
from makeway.act.torch.groups import group_controls, options_in_force, process_group_options, where_runs
from makeway.act.torch.meeting import shared_memory
from makeway.act.torch.profiled import recording
from makeway.values.control import Chunks, Compress, Control, CopyEngine
from makeway.values.errors import InputError, MakewayError
from makeway.values.receipt import Receipt, Status
from makeway.values.units import MIB, format_bytes

DEFAULT_CAP_MIB = 25  # torch/nn/parallel/distributed.py, _DEFAULT_BUCKET_CAP_MB
OWN_GROUP = "the program passes its own process_group, which stays as it is"
NO_ALL_REDUCE = (
    "DistributedDataParallel all-reduces gradients; NCCL's copy engines gather, scatter and exchange, and cannot add "
    "(NCCL, src/ce_coll.cc)"
)
ONE_HOOK = "a module has one hook for its gradients, and compress takes it"
NOTHING_RAN = "nothing has gone through shared memory: the module has not run a backward pass"
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

    Each gradient is divided by the number of ranks before it is added, as DistributedDataParallel does by itself; with
    two ranks the result is the same to the bit, with more it differs by the order of additions.
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
    """Peers read buckets in place, unless the program's gradients are views of them: those it may hand to a child."""
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
    return Receipt(control=chunks, status=status, detail=detail, carrier=_carrier(module), evidence=counts)


def _carrier(module: DistributedDataParallel) -> str:
    return TORCH_CARRIERS["cpu" if module.device_type == "cpu" else where_runs(module.process_group)]


class LiveReceipts(Sequence[Receipt]):
    """Receipts that are written when they are read: what a hook does, it counts as the module runs."""

    def __init__(self, written: Sequence[Callable[[], Receipt]]) -> None:
        self._written = tuple(written)

    def __len__(self) -> int:
        return len(self._written)

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Receipt, ...]: ...
    def __getitem__(self, index: int | slice) -> Receipt | tuple[Receipt, ...]:
        if isinstance(index, slice):
            return tuple(write() for write in self._written[index])
        return self._written[index]()


def _as_written(receipt: Receipt) -> Callable[[], Receipt]:
    return lambda: receipt


def prepare_ddp(
    model: torch.nn.Module, plan: PlanLike, *, direct: DirectGroup | None = None, **arguments: Any
) -> tuple[DistributedDataParallel, LiveReceipts]:
    """DistributedDataParallel of a model under a plan, and a receipt for each control that acts on it.

    Read the receipts after a step: `copy-engine` and `compress` are applied once a bucket has gone through them, and
    their evidence counts buckets and bytes.

    CPU and Gloo: `copy-engine` sends gradients through shared memory (`direct`, or a group made for it: all ranks must
    call this then). NCCL: the module gets a process group with the plan's options, without `copy-engine`, which cannot
    all-reduce. `chunks` divides the default bucket size. `compress` averages gradients in fewer bytes, which changes
    results. `arguments` are DistributedDataParallel's own and win over the plan. Not yet run on a GPU.
    """
    controls = plan_of(plan).controls
    receipts = list[Callable[[], Receipt]]()
    if where_runs(arguments.get("process_group")) != "cpu":
        made, held = module_group(controls, arguments.get("process_group"))
        receipts += map(_as_written, held)
        arguments |= {} if made is None else {"process_group": made}
    chunks = next((control for control in controls if isinstance(control, Chunks)), None)
    cap = smaller_buckets(chunks, arguments.get("bucket_cap_mb"), arguments.get("bucket_cap_mb_list"))
    module = DistributedDataParallel(model, **arguments if cap is None else arguments | {"bucket_cap_mb": cap})
    if chunks is not None:
        receipts.append(_as_written(buckets_receipt(chunks, module, cap)))
    compress = next((control for control in controls if isinstance(control, Compress)), None)
    if compress is not None:
        receipts.append(_compress(module, compress))
    for control in controls:
        if isinstance(control, CopyEngine) and module.device_type == "cpu":
            receipts.append(_copy(module, control, direct, hook_taken=compress is not None))
    return module, LiveReceipts(receipts)


def _compress(module: DistributedDataParallel, control: Compress) -> Callable[[], Receipt]:
    """Register the hook that compresses, and count bytes as the module runs."""
    carrier = _carrier(module)
    if refusal := cannot_compress(control) or no_hook_at_all(module):
        return _as_written(Receipt(control=control, status="refused", detail=refusal, carrier=carrier))
    state = Compressed(module, control)
    add_compression(module, state)
    return lambda: compression_receipt(control, state.counts, (), carrier)


def _copy(
    module: DistributedDataParallel, control: CopyEngine, direct: DirectGroup | None, *, hook_taken: bool
) -> Callable[[], Receipt]:
    """Register the hook that copies, and count buckets as the module runs."""
    carrier = _carrier(module)
    if hook_taken:
        return _as_written(Receipt(control=control, status="no effect", detail=ONE_HOOK, carrier=carrier))
    state = _register(module, direct)
    if isinstance(state, str):
        return _as_written(Receipt(control=control, status="refused", detail=state, carrier=carrier))
    return lambda: _copied(control, state.copies, carrier)


def _copied(control: CopyEngine, copies: Copies, carrier: str) -> Receipt:
    size = format_bytes(copies.bytes)
    return Receipt(
        control=control,
        status="applied" if copies.calls else "no effect",
        detail=f"{copies.calls:,} gradient buckets ({size}) through shared memory" if copies.calls else NOTHING_RAN,
        carrier=carrier,
        evidence=(("gradient buckets", copies.calls), ("bytes", copies.bytes)),
    )


def module_group(
    controls: Sequence[Control], given: Any | None, *, torch: Any = torch
) -> tuple[Any | None, list[Receipt]]:
    """A group with the plan's options for a module on GPUs, and what was read back; None: the module keeps its own."""
    carrier = TORCH_CARRIERS[where_runs(given, torch=torch)]
    asked = group_controls(controls)
    none = [
        Receipt(control=control, status="no effect", detail=NO_ALL_REDUCE, carrier=carrier)
        for control in asked
        if isinstance(control, CopyEngine)
    ]
    options = [control for control in asked if not isinstance(control, CopyEngine)]
    if given is not None:
        refused = [Receipt(control=control, status="refused", detail=OWN_GROUP, carrier=carrier) for control in options]
        return None, refused + none
    if not options:
        return None, none
    made = process_group_options(options, torch=torch)
    group = torch.distributed.new_group(backend="nccl", pg_options=made.options)
    where = "in the process group of the module"
    held = options_in_force(made.receipts, environ=os.environ, group=group, where=where, torch=torch)
    return group, [*held, *none]


def _register(module: DistributedDataParallel, direct: DirectGroup | None) -> Gradients | str:
    """Register the hook, or say why not."""
    if reason := no_hook(module):
        return reason
    try:
        direct = direct or shared_memory(module.process_group)
    except MakewayError as error:
        return str(error)
    state = Gradients(module, direct)
    add_hook(module, state)
    return state
