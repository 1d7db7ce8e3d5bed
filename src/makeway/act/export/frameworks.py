"""Plans for programs on PyTorch's NCCL backend: process-group options, and Megatron's communicator file.

Sources: PyTorch, documentation of 2.12 and 2.14, which agree (torch.cuda.green_contexts, in beta; copy-engine
collectives on the symmetric-memory page); NVIDIA/Megatron-LM, megatron/core/parallel_state.py, `get_nccl_options`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import assert_never

from makeway.act.export.nccl import (
    AT_LAUNCH,
    BY_ENV,
    IN_KERNEL,
    IN_PROGRAM,
    no_zero_cta,
    too_many_blocks,
    zero_cta_note,
)
from makeway.act.export.values import Answer, Carried, Exported, Library, NotCarried, exported, spelled
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Control,
    CopyEngine,
    LaunchOrder,
    SmemPad,
    SmPartition,
    TileChoice,
)
from makeway.values.errors import InputError
from makeway.values.plan import Plan

NO_THREADS = f"NCCL's communicator configuration has no number of threads; {BY_ENV}"


def _no_ctas(blocks: int, library: Library) -> str | None:
    if library.name == "nccl" and library.before(2, 17):
        return f"communicators have no number of blocks before NCCL 2.17; {BY_ENV}"
    return too_many_blocks(blocks, library)


# --- process-group options ---------------------------------------------------------------------

_OPTIONS = "options."
_NUM_SMS = "num_sms"  # of the green context


def torch(plan: Plan, library: Library) -> Exported:
    """A Python module: `process_group_options()` for init_process_group or new_group, and a stream for compute."""
    return exported(plan, "torch", (_by_options(control, library) for control in plan.controls), _python)


def _python(carried: tuple[Carried, ...]) -> str:
    settings = [setting for answer in carried for setting in answer.settings]
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


def _by_options(control: Control, library: Library) -> Answer:
    match control:
        case CommBlocks(blocks):
            if reason := _no_ctas(blocks, library):
                return NotCarried(control=control, reason=reason)
            return Carried(
                control=control,
                settings=((f"{_OPTIONS}config.min_ctas", blocks), (f"{_OPTIONS}config.max_ctas", blocks)),
                note="NCCL_MIN_CTAS and NCCL_MAX_CTAS in the environment would override it",
            )
        case CommPriority():
            return Carried(control=control, settings=((f"{_OPTIONS}is_high_priority_stream", "True"),))
        case CopyEngine():
            if reason := no_zero_cta(library):
                return NotCarried(control=control, reason=reason)
            policy = "dist.ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO"
            return Carried(
                control=control,
                settings=((f"{_OPTIONS}config.cta_policy", policy),),
                note=f"{zero_cta_note(control, library)}; windows are made by symm_mem.set_backend('NCCL'), "
                "symm_mem.empty and symm_mem.rendezvous of torch.distributed._symmetric_memory",
            )
        case SmPartition() if library.name == "rccl":
            return NotCarried(control=control, reason="green contexts are CUDA's; PyTorch has no CU masks")
        case SmPartition(comm_sms):
            return Carried(
                control=control,
                settings=((_NUM_SMS, f"sms - {comm_sms}"),),
                note="needs all compute on the stream of compute_stream(); CUDA rounds the number of SMs; only "
                "compute is confined, communication may run on its SMs too",
            )
        case CommThreads():
            return NotCarried(control=control, reason=NO_THREADS)
        case LaunchOrder():
            return NotCarried(control=control, reason="the program launches in its own order; no option changes it")
        case SmemPad():
            return NotCarried(control=control, reason=AT_LAUNCH)
        case TileChoice():
            return NotCarried(control=control, reason=IN_KERNEL)
        case Chunks():
            return NotCarried(control=control, reason=IN_PROGRAM)
        case _:
            assert_never(control)


# --- Megatron's communicator file --------------------------------------------------------------

DEFAULT_GROUPS = ("dp", "dp_cp", "ep", "tp")


def megatron(plan: Plan, library: Library, groups: Sequence[str] = DEFAULT_GROUPS) -> Exported:
    """The YAML file of --nccl-communicator-config-path: the same settings for each of the process groups."""
    for group in groups:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", group):
            raise InputError(f"{group!r} is no name of a Megatron process group; write for example dp,ep")
    if not groups:
        raise InputError("no process groups to export for; write for example --groups dp,ep")
    answers = [_by_group(control, library, groups) for control in plan.controls]
    return exported(plan, "megatron", answers, lambda carried: _yaml(carried, groups))


def _yaml(carried: tuple[Carried, ...], groups: Sequence[str]) -> str:
    settings = [spelled(*setting).replace("=", ": ") for answer in carried for setting in answer.settings]
    if not settings:
        return "{}"  # an empty file would be read as None, in which Megatron then looks for groups
    lines = ["# pass --nccl-communicator-config-path with the name of this file"]
    for group in groups:
        lines += [f"{group}:", *(f"  {setting}" for setting in settings)]
    return "\n".join(lines)


def _by_group(control: Control, library: Library, groups: Sequence[str]) -> Answer:
    match control:
        case CommBlocks(blocks):
            if reason := _no_ctas(blocks, library):
                return NotCarried(control=control, reason=reason)
            return Carried(
                control=control,
                settings=(("min_ctas", blocks), ("max_ctas", blocks)),
                note="NCCL_MIN_CTAS and NCCL_MAX_CTAS in the environment would override it",
            )
        case CommPriority():
            return Carried(
                control=control,
                settings=(("is_high_priority_stream", True),),
                note=f"needs a Megatron that reads this key, or --high-priority-stream-groups {' '.join(groups)}; with "
                "CUDA graphs also CUDA_GRAPHS_USE_NODE_PRIORITY=1",
            )
        case CopyEngine():
            return NotCarried(control=control, reason=f"Megatron's file has no CTA policy; {BY_ENV}")
        case CommThreads():
            return NotCarried(control=control, reason=NO_THREADS)
        case LaunchOrder():
            return NotCarried(
                control=control,
                reason="Megatron launches in its own order (--overlap-grad-reduce, --overlap-param-gather and "
                "--tp-comm-overlap turn its overlap on); with tensor parallelism it asks for "
                "CUDA_DEVICE_MAX_CONNECTIONS=1 before Blackwell",
            )
        case SmPartition():
            return NotCarried(
                control=control,
                reason="Megatron's file sets no SMs apart; for tensor parallelism try --to transformer-engine",
            )
        case SmemPad():
            return NotCarried(control=control, reason=AT_LAUNCH)
        case TileChoice():
            return NotCarried(control=control, reason=IN_KERNEL)
        case Chunks():
            return NotCarried(
                control=control,
                reason="buckets of gradients are not pieces of each collective; for tensor parallelism try --to "
                "transformer-engine",
            )
        case _:
            assert_never(control)
