"""Modules of `fully_shard` (FSDP2) under a plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllocMixin

from makeway.act.backend import TORCH_CARRIERS
from makeway.act.cpu.direct import DirectGroup
from makeway.act.cuda.options import group_receipt
from makeway.act.plans import PlanLike, plan_of
from makeway.act.torch.collectives import carried
from makeway.act.torch.meeting import shared_memory
from makeway.act.torch.where import where_runs
from makeway.act.torch.windows import NOT_SEEN, zero_cta
from makeway.values.control import CommBlocks, CommPriority, Control, CopyEngine, LaunchOrder
from makeway.values.errors import InputError, MakewayError
from makeway.values.receipt import Receipt

_SYMMETRIC_GATHER = "SymmMemAllGather"  # torch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py
NOT_HERE = "fully_shard has nothing to set for it; apply the plan with makeway.torch.overlap"


class _Gather(DefaultAllocMixin, AllGather):
    def __init__(self, direct: DirectGroup) -> None:
        self._direct = direct

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        gather = partial(self._direct.all_gather_into_tensor, output_tensor, input_tensor)
        return carried("all_gather", gather, input_tensor, output_tensor, async_op=async_op)


class _Scatter(DefaultAllocMixin, ReduceScatter):
    def __init__(self, direct: DirectGroup) -> None:
        self._direct = direct

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        match op:
            case dist.ReduceOp.SUM:
                scatter = partial(self._direct.reduce_scatter_tensor, output_tensor, input_tensor)
            case dist.ReduceOp.AVG:
                scatter = partial(self._direct.reduce_scatter_tensor, output_tensor, input_tensor, "avg")
            case _:
                return dist.reduce_scatter_single(output_tensor, input_tensor, op, group, async_op)  # type: ignore
        return carried("reduce_scatter", scatter, input_tensor, output_tensor, async_op=async_op)


def prepare_fsdp2(model: torch.nn.Module, plan: PlanLike, *, direct: DirectGroup | None = None) -> tuple[Receipt, ...]:
    """Apply a plan to a model after its last `fully_shard`; one receipt per control.

    `comm-first` gathers the next layer before the current one computes, in the order the layers were defined, and on a
    CPU asynchronously. `copy-engine` gathers and scatters through shared memory on a CPU (`direct`, or a group made
    for it: all ranks must call this then), and through NCCL's symmetric memory on a GPU, where the group needs the
    zero-CTA policy of `process_group_options`. Not yet run on a GPU.
    """
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not modules:
        raise InputError("the model has no fully_shard module; call torch.distributed.fsdp.fully_shard first")
    carrier = TORCH_CARRIERS["cpu" if _on_cpu(model) else where_runs()]
    receipts = [_apply(control, model, modules, direct) for control in plan_of(plan).controls]
    return tuple(replace(receipt, carrier=carrier) for receipt in receipts)


def _on_cpu(model: torch.nn.Module) -> bool:
    return next(model.parameters()).device.type == "cpu"


def _apply(
    control: Control, model: torch.nn.Module, modules: Sequence[FSDPModule], direct: DirectGroup | None
) -> Receipt:
    on_cpu = _on_cpu(model)
    match control:
        case LaunchOrder():
            return _prefetch(control, modules, on_cpu=on_cpu)
        case CopyEngine():
            return _copy(control, modules, direct) if on_cpu else _symmetric(control, modules)
        case CommPriority() | CommBlocks() if not on_cpu:
            return group_receipt(torch, _group(_with_parameters(modules)[0]), control, "in the group of the mesh")
        case _:
            return Receipt(control=control, status="no effect", detail=NOT_HERE)


def _group(module: FSDPModule) -> dist.ProcessGroup:
    groups = module._get_fsdp_state()._fsdp_param_groups
    if not groups:
        raise InputError("a fully_shard module has no parameters of its own")
    group: dist.ProcessGroup = groups[0]._all_gather_process_group
    return group


def _with_parameters(modules: Sequence[FSDPModule]) -> list[FSDPModule]:
    return [module for module in modules if module._get_fsdp_state()._fsdp_param_groups]


def _prefetch(control: Control, modules: Sequence[FSDPModule], *, on_cpu: bool) -> Receipt:
    layers = _with_parameters(modules)
    for layer, following in pairwise(layers):
        layer.set_modules_to_forward_prefetch([following])
    for module in modules[: 1 if on_cpu else 0]:
        module._set_unshard_async_op(True)  # a CPU has no streams: nothing would overlap
    held = sum(bool(layer._get_fsdp_state()._states_to_forward_prefetch) for layer in layers)
    detail = f"{held} of {len(layers)} sharded modules gather the next one ahead{', asynchronously' if on_cpu else ''}"
    return Receipt(control=control, status="applied" if held else "no effect", detail=detail)


def _copy(control: CopyEngine, modules: Sequence[FSDPModule], direct: DirectGroup | None) -> Receipt:
    if control.variant != "parallel-copy" or control.prelaunch:
        detail = "on a CPU every rank pulls for itself (parallel-copy), once the data is ready"
        return Receipt(control=control, status="refused", detail=detail)
    sharded = _with_parameters(modules)
    try:
        groups = {_group(module) for module in sharded}
        if len(groups) > 1:
            raise InputError(f"the modules are sharded over {len(groups)} groups; copies are for one")
        direct = direct or shared_memory(groups.pop())
        for module in sharded:
            module.set_custom_all_gather(_Gather(direct))
            module.set_custom_reduce_scatter(_Scatter(direct))
    except (MakewayError, ValueError) as error:
        return Receipt(control=control, status="refused", detail=str(error))
    detail = f"{len(sharded)} sharded modules gather and scatter through shared memory"
    return Receipt(control=control, status="applied", detail=detail)


def _symmetric(control: CopyEngine, modules: Sequence[FSDPModule], *, torch: Any = torch) -> Receipt:
    """Staging buffers of all-gathers in NCCL's symmetric memory; nothing changes unless copy engines may take them."""
    refused = Receipt(control=control, status="refused", detail="")
    if not all(hasattr(module, "set_symm_mem_for_comm") for module in modules):
        return replace(refused, detail="FSDPModule in this torch has no set_symm_mem_for_comm")
    sharded = _with_parameters(modules)
    for module in sharded:
        reason, held = zero_cta(torch, _group(module), os.environ)
        if reason is not None:
            return replace(held, status="refused", detail=reason)
    try:
        for module in sharded:
            module.set_symm_mem_for_comm()
    except Exception as error:  # a gather of the program's own, or symmetric memory of another kind
        return replace(refused, detail=f"{type(error).__name__}: {error}")
    groups = [group for module in sharded for group in module._get_fsdp_state()._fsdp_param_groups]
    count = sum(type(group._all_gather_comm).__name__ == _SYMMETRIC_GATHER for group in groups)
    return replace(
        held,
        status="applied" if count == len(groups) else "no effect",
        detail=f"{count} of {len(groups)} parameter groups gather into symmetric windows; {held.detail}; {NOT_SEEN}",
        evidence=(*held.evidence, ("parameter groups in windows", count)),
    )
