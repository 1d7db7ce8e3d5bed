"""Plans for programs on PyTorch's NCCL backend: process-group options, and Megatron's communicator file.

data/support/torch-module.toml and megatron.toml name the sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from makeway.act.export.nccl import AMD_HAS_NO_CLUSTERS, no_clusters, too_many_blocks, zero_cta_note
from makeway.act.export.values import Entry, Request, SettingValue, Target, setting_word
from makeway.values.control import CommBlocks, CommPriority, Control, CopyEngine, SmPartition

ZERO_CTA = "NCCL_CTA_POLICY_ZERO"


def option_settings(control: Control) -> tuple[tuple[str, SettingValue], ...]:
    """The options of torch's NCCL process group that a control sets; none where there is no such option."""
    match control:
        case CommBlocks():
            return tuple((f"config.{name}", value) for name, value in _communicator(control))
        case CommPriority():
            return (("is_high_priority_stream", True),)
        case CopyEngine():
            return (("config.cta_policy", ZERO_CTA),)
        case _:
            return ()


def _communicator(control: CommBlocks) -> tuple[tuple[str, int], ...]:
    """The blocks of a control as keys of a communicator's configuration, in the words of torch and Megatron."""
    cluster = (("cga_cluster_size", control.cluster),) if control.cluster else ()
    return (("min_ctas", control.blocks), ("max_ctas", control.blocks), *cluster)


# --- process-group options ---------------------------------------------------------------------

_OPTIONS = "options."
_NUM_SMS = "num_sms"  # of the green context


def _options(control: Control, request: Request, limits: str) -> Entry:
    if isinstance(control, SmPartition):
        return Entry(control=control, settings=((_NUM_SMS, f"sms - {control.comm_sms}"),), note=limits)
    if isinstance(control, CommBlocks) and (reason := too_many_blocks(control.blocks, request.library)):
        return Entry(control=control, refusal=reason)
    settings = tuple(
        (_OPTIONS + name, f"dist.ProcessGroupNCCL.{value}" if value == ZERO_CTA else str(value))
        for name, value in option_settings(control)
    )
    if isinstance(control, CopyEngine):
        limits = zero_cta_note(control, request.library, limits)
    return _without_amds_clusters(Entry(control=control, settings=settings, note=limits), request)


def _without_amds_clusters(entry: Entry, request: Request) -> Entry:
    if request.library.name != "rccl":
        return entry
    settings = tuple(setting for setting in entry.settings if not setting[0].endswith("cga_cluster_size"))
    return replace(entry, settings=settings, note=entry.note + no_clusters(entry.control, AMD_HAS_NO_CLUSTERS))


def _module(carried: tuple[Entry, ...], _: Request) -> str:
    settings = [setting for entry in carried for setting in entry.settings]
    options = [f"    {key} = {value}" for key, value in settings if key.startswith(_OPTIONS)]
    compute_sms = [str(value) for key, value in settings if key == _NUM_SMS]
    parts = []
    if compute_sms:
        parts.append("import torch")
    if options:
        parts += ["import torch.distributed as dist", *_options_function(options)]
    if compute_sms:
        parts += _stream_function(compute_sms[0])
    return "\n".join(parts)


def _options_function(assignments: Sequence[str]) -> list[str]:
    return [
        "",
        "",
        "def process_group_options():",
        '    """Use as pg_options= of init_process_group or new_group; a fresh value for each group."""',
        "    options = dist.ProcessGroupNCCL.Options()",
        *assignments,
        "    return options",
    ]


def _stream_function(compute_sms: str) -> list[str]:
    return [
        "",
        "",
        "def compute_stream():",
        '    """A stream for all compute, and the context it lives in: keep both."""',
        "    from torch.cuda.green_contexts import GreenContext",
        "",
        "    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count",
        f"    context = GreenContext.create(num_sms={compute_sms})",
        "    return context, context.Stream()",
    ]


TORCH = Target(carrier="torch module", entry=_options, body=_module)


# --- Megatron's communicator file --------------------------------------------------------------

DEFAULT_GROUPS = ("dp", "dp_cp", "ep", "ep_dp", "tp")


def _group_settings(control: Control, request: Request, limits: str) -> Entry:
    match control:
        case CommBlocks(blocks):
            if reason := too_many_blocks(blocks, request.library):
                return Entry(control=control, refusal=reason)
            return _without_amds_clusters(Entry(control=control, settings=_communicator(control), note=limits), request)
        case CommPriority():
            flag = f"--high-priority-stream-groups {' '.join(request.groups)}"
            note = f"needs a Megatron that reads this key, or {flag}; {limits}"
            return Entry(control=control, settings=(("is_high_priority_stream", True),), note=note)
        case _:
            raise AssertionError(f"the support table refuses {control}")


def _yaml(carried: tuple[Entry, ...], request: Request) -> str:
    settings = [setting_word(*setting).replace("=", ": ") for entry in carried for setting in entry.settings]
    if not settings:
        return "{}"  # Megatron reads an empty file as None and then looks for groups in it
    lines = ["# pass --nccl-communicator-config-path with the name of this file"]
    for group in request.groups:
        lines += [f"{group}:", *(f"  {setting}" for setting in settings)]
    return "\n".join(lines)


MEGATRON = Target(carrier="Megatron", entry=_group_settings, body=_yaml)
