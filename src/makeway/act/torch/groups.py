"""NCCL's options of a process group for a plan. Not yet run on hardware.

Nothing here starts CUDA: a program may make its group before it chooses its device, and may fork after that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from makeway.act.backend import TORCH_CARRIERS
from makeway.act.cuda.machine import load_torch
from makeway.act.cuda.options import GroupOptions, group_receipt, option_settings, overriding
from makeway.act.cuda.options import process_group_options as nccl_options
from makeway.act.export.values import Library
from makeway.act.plans import PlanLike, plan_of
from makeway.act.torch.where import may_be_nccl, where_runs
from makeway.values.control import Control, CopyEngine
from makeway.values.errors import UnsupportedError
from makeway.values.receipt import Receipt, Status

NO_WINDOWS = "the program's buffers are not such windows unless it registers them itself"
OWN_OPTIONS = "the program passes its own pg_options to its process group, and they stay as they are"


def process_group_options(plan: PlanLike, *, cluster: int | None = None, torch: Any | None = None) -> GroupOptions:
    """Options for `init_process_group(..., pg_options=)` or `new_group`, and a receipt for each control in them.

    `cluster` is the number of NCCL's blocks that must become resident together, 4 by default from sm_90 on.
    """
    torch = torch or load_torch()
    nccl = getattr(torch.distributed, "ProcessGroupNCCL", None)
    if nccl is None:
        raise UnsupportedError(
            f"options of a process group are NCCL's, and torch {torch.__version__} was built without NCCL; on CPUs "
            "apply the plan with makeway.torch.overlap"
        )
    return nccl_options(nccl, plan_of(plan).controls, cluster=cluster)


def init_process_group(
    plan: PlanLike, backend: str | None = None, *, torch: Any | None = None, **arguments: Any
) -> tuple[Receipt, ...]:
    """`torch.distributed.init_process_group` under a plan; receipts for the controls that are options of a group.

    Gloo has no such options: the group is made as without a plan, and nothing takes effect.
    """
    torch = torch or load_torch()
    controls = group_controls(plan_of(plan).controls)
    status: Status | None = None
    if not may_be_nccl(backend, torch):
        status, detail = "no effect", "Gloo has no options for it; apply the plan with makeway.torch.overlap"
    elif arguments.get("pg_options") is not None:
        status, detail = "refused", OWN_OPTIONS
    if status is not None:
        torch.distributed.init_process_group(backend, **arguments)
        carrier = TORCH_CARRIERS[where_runs(torch=torch)]
        return tuple(Receipt(control=control, status=status, detail=detail, carrier=carrier) for control in controls)
    made = process_group_options(controls, torch=torch)
    torch.distributed.init_process_group(backend, **arguments, pg_options=made.options)
    return options_in_force(made.receipts, environ=os.environ, torch=torch)


def group_controls(controls: Sequence[Control]) -> tuple[Control, ...]:
    """The controls that are options of an NCCL process group."""
    return tuple(control for control in controls if option_settings(control))


def options_in_force(
    receipts: Sequence[Receipt],
    *,
    environ: Mapping[str, str],
    group: Any | None = None,
    where: str = "in the default process group",
    torch: Any | None = None,
) -> tuple[Receipt, ...]:
    """The receipts again, as read back from a group (None: the default one) and from variables that override it."""
    torch = torch or load_torch()
    group = group if group is not None else torch.distributed.group.WORLD
    rocm = getattr(torch.version, "hip", None) is not None
    library = Library(name="rccl") if rocm else Library(name="nccl", version=tuple(torch.cuda.nccl.version()[:3]))
    carrier = TORCH_CARRIERS["rocm" if rocm else "cuda"]

    def in_force(receipt: Receipt) -> Receipt:
        if receipt.status != "applied":
            return receipt
        held = group_receipt(torch, group, receipt.control, where)
        if reason := overriding(receipt.control, environ, library):
            return replace(held, status="no effect", detail=reason)
        if isinstance(held.control, CopyEngine) and held.status == "applied":
            return replace(held, status="no effect", detail=f"{held.detail}; {NO_WINDOWS}")
        return held

    return tuple(replace(in_force(receipt), carrier=carrier) for receipt in receipts)
