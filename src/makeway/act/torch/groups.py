"""Which hardware a process group runs on, and NCCL's options for a plan. On GPUs not yet run on hardware."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from makeway.act.backend import Receipt
from makeway.act.cuda.machine import load_torch
from makeway.act.cuda.options import GroupOptions, option_settings, overriding, read_back
from makeway.act.cuda.options import process_group_options as nccl_options
from makeway.act.export.values import Library
from makeway.act.torch.plans import PlanLike, plan_of
from makeway.values.control import Control, CopyEngine
from makeway.values.errors import UnsupportedError

Where = Literal["cpu", "cuda", "rocm"]
NO_WINDOWS = "the program's buffers are no such windows unless it registers them itself"
OWN_OPTIONS = "the program gives its process group pg_options of its own, which stay as they are"


def where_runs(group: Any | None = None, *, torch: Any | None = None) -> Where:
    """The hardware of a group's collectives; without a process group, that of the process."""
    torch = torch or load_torch()
    if not torch.cuda.is_available():
        return "cpu"
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        names = str(distributed.get_backend_config(group))
        if "nccl" not in names and "undefined" not in names:
            return "cpu"
    return "rocm" if getattr(torch.version, "hip", None) else "cuda"


def process_group_options(plan: PlanLike, *, cluster: int | None = None, torch: Any | None = None) -> GroupOptions:
    """Options for `init_process_group(..., pg_options=)` or `new_group`, and a receipt for each control they carry.

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

    Gloo has no such options: there the group is made as without a plan, and nothing is claimed.
    """
    torch = torch or load_torch()
    controls = carried(plan_of(plan).controls)
    if not may_be_nccl(backend, torch):
        torch.distributed.init_process_group(backend, **arguments)
        detail = "Gloo has no options for it; apply the plan with makeway.torch.overlap"
        return tuple(Receipt(control=control, status="no effect", detail=detail) for control in controls)
    if arguments.get("pg_options") is not None:
        torch.distributed.init_process_group(backend, **arguments)
        return tuple(Receipt(control=control, status="refused", detail=OWN_OPTIONS) for control in controls)
    made = process_group_options(controls, torch=torch)
    torch.distributed.init_process_group(backend, **arguments, pg_options=made.options)
    return options_in_force(made.receipts, environ=os.environ, torch=torch)


def carried(controls: Sequence[Control]) -> tuple[Control, ...]:
    """The controls that are options of an NCCL process group."""
    return tuple(control for control in controls if option_settings(control))


def may_be_nccl(backend: str | None, torch: Any) -> bool:
    """True when a group with this backend will have NCCL (or RCCL) in it."""
    if not torch.cuda.is_available() or getattr(torch.distributed, "ProcessGroupNCCL", None) is None:
        return False
    return backend is None or "nccl" in backend


def options_in_force(
    asked: Sequence[Receipt], *, environ: Mapping[str, str], torch: Any | None = None
) -> tuple[Receipt, ...]:
    """Receipts as the options of the default group have it now, and as variables that NCCL prefers may undo."""
    torch = torch or load_torch()
    device = torch.device("cuda", torch.cuda.current_device())
    real = torch.distributed.group.WORLD._get_backend(device).options
    rocm = getattr(torch.version, "hip", None) is not None
    library = Library(name="rccl") if rocm else Library(name="nccl", version=tuple(torch.cuda.nccl.version()))
    return tuple(_in_force(receipt, real, environ, library, torch) for receipt in asked)


def _in_force(receipt: Receipt, real: Any, environ: Mapping[str, str], library: Library, torch: Any) -> Receipt:
    if receipt.status != "applied":
        return receipt
    control = receipt.control
    if words := overriding(control, environ, library):
        return Receipt(control=control, status="no effect", detail=words)
    found = read_back(torch.distributed.ProcessGroupNCCL, real, control, "in the default process group")
    if isinstance(control, CopyEngine) and found.status == "applied":
        return Receipt(control=control, status="no effect", detail=f"{found.detail}; {NO_WINDOWS}")
    return found


def argument(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """What a call gives for a parameter, by place or by name; None when it gives nothing."""
    return inspect.signature(call).bind_partial(*args, **kwargs).arguments.get(name)
