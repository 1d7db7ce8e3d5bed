"""Controls as options of torch's NCCL process group, and as variables that must be there before it starts.

Not yet run on hardware. Names as in torch 2.13: torch/_C/_distributed_c10d.pyi (is_high_priority_stream,
config.min_ctas, max_ctas, cga_cluster_size) and torch/distributed/fsdp/_fully_shard/_fully_shard.py
(config.cta_policy, ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO), which the type file lacks: each is looked for before it
is set, and read back after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from makeway.act.backend import Receipt, Status
from makeway.act.export.nccl import env
from makeway.act.export.values import Library
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Control,
    CopyEngine,
    LaunchOrder,
    Plan,
    SmemPad,
    SmPartition,
    TileChoice,
)

Setting = tuple[str, int | bool | str]
ZERO_CTA = "NCCL_CTA_POLICY_ZERO"
NEEDS_WINDOWS = (
    "NCCL copies only symmetric windows (torch.distributed._symmetric_memory), and else uses blocks silently"
)


def option_settings(control: Control) -> tuple[Setting, ...]:
    """The options that a control sets; none where process groups have no such option."""
    match control:
        case CommBlocks(blocks):
            return (("config.min_ctas", blocks), ("config.max_ctas", blocks))
        case CommPriority():
            return (("is_high_priority_stream", True),)
        case CopyEngine():
            return (("config.cta_policy", ZERO_CTA),)
        case SmemPad() | TileChoice() | LaunchOrder() | CommThreads() | SmPartition() | Chunks():
            return ()
        case _:
            assert_never(control)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Options for init_process_group or new_group (pg_options=), and a receipt for each control that has any."""

    options: Any
    receipts: tuple[Receipt, ...]


def process_group_options(nccl: Any, controls: Sequence[Control], *, cluster: int | None = None) -> GroupOptions:
    """Fresh options under the controls; `nccl` is torch.distributed.ProcessGroupNCCL.

    `cluster` is the number of NCCL's blocks that must become resident together, 4 by default from sm_90 on.
    """
    options = nccl.Options()
    if cluster is not None:
        options.config.cga_cluster_size = cluster
    receipts = [
        _set(nccl, options, control, settings) for control in controls if (settings := option_settings(control))
    ]
    return GroupOptions(options=options, receipts=tuple(receipts))


def _wanted(nccl: Any, settings: tuple[Setting, ...]) -> list[tuple[str, Any]]:
    return [(name, getattr(nccl, str(value), None) if value == ZERO_CTA else value) for name, value in settings]


def _set(nccl: Any, options: Any, control: Control, settings: tuple[Setting, ...]) -> Receipt:
    wanted = _wanted(nccl, settings)
    for name, value in wanted:
        holder, field = _holder(options, name)
        if value is None or not hasattr(holder, field):
            lacking = f"Options.{name}" if value is not None else ZERO_CTA
            return Receipt(control=control, status="refused", detail=f"ProcessGroupNCCL of this torch has no {lacking}")
    for name, value in wanted:
        holder, field = _holder(options, name)
        setattr(holder, field, value)
    return read_back(nccl, options, control, "in options for the next process group")


def read_back(nccl: Any, options: Any, control: Control, where: str) -> Receipt:
    """The receipt for a control as these options have it: those of a group that was made are the ones that count."""
    wanted = _wanted(nccl, option_settings(control))
    found = [(name, getattr(*_holder(options, name), None)) for name, _ in wanted]
    words = ", ".join(f"{name} = {value}" for name, value in found)
    note = f"; {NEEDS_WINDOWS}" if isinstance(control, CopyEngine) else ""
    status: Status = "applied" if found == wanted else "no effect"
    return Receipt(control=control, status=status, detail=f"{words} {where}{note}")


def overriding(control: Control, environ: Mapping[str, str], library: Library) -> str | None:
    """The variable that is set to something else than the control and that NCCL prefers to options, if any."""
    for name, value in start_environment((control,), library).items():
        if name.startswith("NCCL_") and environ.get(name, value) != value:
            return f"{name}={environ[name]} in the environment overrides the options"
    return None


def _holder(options: Any, name: str) -> tuple[Any, str]:
    *path, field = name.split(".")
    for part in path:
        options = getattr(options, part, None)
    return options, field


# --- before the program starts ------------------------------------------------------------------


def start_environment(controls: Sequence[Control], library: Library) -> dict[str, str]:
    """Variables that NCCL and torch read once when they start; those of `makeway export --to env`."""
    carried = env(Plan(controls=tuple(controls)), library).carried
    return {name: str(value) for answer in carried for name, value in answer.settings}


def environment_receipt(control: Control, environ: Mapping[str, str], library: Library) -> Receipt:
    """Whether the variables of a control were there in time: they cannot be set for a running process."""
    answered = env(Plan(controls=(control,)), library)
    if answered.not_carried:
        return Receipt(control=control, status="refused", detail=answered.not_carried[0].reason)
    wanted = start_environment((control,), library)
    if not wanted:
        return Receipt(control=control, status="applied", detail=answered.carried[0].note or "already so")
    words = " ".join(f"{name}={value}" for name, value in wanted.items())
    if all(environ.get(name) == value for name, value in wanted.items()):
        return Receipt(control=control, status="applied", detail=f"{words} in the environment")
    return Receipt(
        control=control, status="refused", detail=f"read once at start: start the program with {words} (makeway run)"
    )
