"""DistributedDataParallel that a program makes under a plan: `makeway.torch.prepare_ddp`."""

import os
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch.nn.parallel import DistributedDataParallel

from makeway.act.backend import TORCH_CARRIERS
from makeway.act.cpu.direct import DirectGroup
from makeway.act.plans import PlanLike, plan_of
from makeway.act.torch.collectives import Copies
from makeway.act.torch.compression import Compressed, add_compression, cannot_compress, compression_receipt
from makeway.act.torch.gradients import (
    Gradients,
    add_hook,
    buckets_receipt,
    carrier_of,
    no_hook,
    no_hook_at_all,
    smaller_buckets,
)
from makeway.act.torch.groups import group_controls, options_in_force, process_group_options
from makeway.act.torch.meeting import shared_memory
from makeway.act.torch.where import where_runs
from makeway.values.control import Chunks, Compress, Control, CopyEngine
from makeway.values.errors import MakewayError
from makeway.values.receipt import Receipt
from makeway.values.units import format_bytes

OWN_GROUP = "the program passes its own process_group, which stays as it is"
NO_ALL_REDUCE = (
    "DistributedDataParallel all-reduces gradients; NCCL's copy engines gather, scatter and exchange, and cannot add "
    "(NCCL, src/ce_coll.cc)"
)
ONE_HOOK = "a module has one hook for its gradients, and compress takes it"
NOTHING_RAN = "nothing has gone through shared memory: the module has not run a backward pass"


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
    carrier = carrier_of(module)
    if refusal := cannot_compress(control) or no_hook_at_all(module):
        return _as_written(Receipt(control=control, status="refused", detail=refusal, carrier=carrier))
    state = Compressed(module, control)
    add_compression(module, state)
    return lambda: compression_receipt(control, state.counts, (), carrier)


def _copy(
    module: DistributedDataParallel, control: CopyEngine, direct: DirectGroup | None, *, hook_taken: bool
) -> Callable[[], Receipt]:
    """Register the hook that copies, and count buckets as the module runs."""
    carrier = carrier_of(module)
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
