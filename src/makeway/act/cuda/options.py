"""Controls as options of torch's NCCL process group, and as variables set before the program starts.

Not yet run on hardware. Names as in torch 2.13: torch/_C/_distributed_c10d.pyi (is_high_priority_stream,
config.min_ctas, max_ctas, cga_cluster_size) and torch/distributed/fsdp/_fully_shard/_fully_shard.py
(config.cta_policy, ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO), which the type file lacks: each is looked up before it is
set, and read back after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from makeway.act.export.frameworks import ZERO_CTA as ZERO_CTA
from makeway.act.export.frameworks import option_settings as option_settings
from makeway.act.export.targets import environment
from makeway.act.export.values import Library, SettingValue
from makeway.values.control import Control, CopyEngine
from makeway.values.plan import Plan
from makeway.values.receipt import Receipt, Status

Setting = tuple[str, SettingValue]
NEEDS_WINDOWS = (
    "NCCL copies only symmetric windows (torch.distributed._symmetric_memory) and silently uses blocks otherwise"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Options for init_process_group or new_group (pg_options=), and a receipt for each control that has any."""

    options: Any
    receipts: tuple[Receipt, ...]


def process_group_options(nccl: Any, controls: Sequence[Control], *, cluster: int | None = None) -> GroupOptions:
    """Fresh options under the controls; `nccl` is torch.distributed.ProcessGroupNCCL.

    `cluster` is the number of NCCL's blocks that must be resident together, 4 by default from sm_90 on.
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
    """The receipt for a control as these options hold it; the options of an existing group are the ones that count."""
    wanted = _wanted(nccl, option_settings(control))
    actual = [(name, getattr(*_holder(options, name), None)) for name, _ in wanted]
    settings = ", ".join(f"{name} = {value}" for name, value in actual)
    note = f"; {NEEDS_WINDOWS}" if isinstance(control, CopyEngine) else ""
    status: Status = "applied" if actual == wanted else "no effect"
    evidence = tuple((name, int(value)) for name, value in actual if isinstance(value, int))
    return Receipt(control=control, status=status, detail=f"{settings} {where}{note}", evidence=evidence)


def group_receipt(torch: Any, group: Any, control: Control, where: str) -> Receipt:
    """The receipt for a control as an existing NCCL group holds it.

    The backend is asked for by the kind of device: asking which device is current would start CUDA on the first one,
    before the program has chosen its own.
    """
    options = group._get_backend(torch.device("cuda")).options
    return read_back(torch.distributed.ProcessGroupNCCL, options, control, where)


def overriding(control: Control, environ: Mapping[str, str], library: Library) -> str | None:
    """The environment variable that contradicts the control, if any: NCCL prefers it to options."""
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
    """Variables that NCCL and torch read once, at start: those of `makeway export --to env`."""
    carried = environment(Plan(controls=tuple(controls)), library).carried
    return {name: str(value) for entry in carried for name, value in entry.settings}


def environment_receipt(control: Control, environ: Mapping[str, str], library: Library) -> Receipt:
    """Whether the variables of a control were set in time: a running process does not read them again."""
    exported = environment(Plan(controls=(control,)), library)
    (entry,) = exported.entries
    wanted = start_environment((control,), library)
    status: Status = "applied"
    if entry.refusal:
        status, detail = "refused", entry.refusal
    elif not wanted:
        detail = entry.note or entry.as_text
    elif all(environ.get(name) == value for name, value in wanted.items()):
        detail = f"{entry.as_text} in the environment"
    else:
        status, detail = "refused", f"read once at start: start the program with {entry.as_text} (makeway run)"
    return Receipt(control=control, status=status, detail=detail, carrier=exported.carrier)
