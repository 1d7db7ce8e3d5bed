"""Plans for libraries and compilers with communication of their own: Transformer Engine, DeepEP, XLA.

Sources: NVIDIA/TransformerEngine, transformer_engine/pytorch/module/base.py, `initialize_ub`; deepseek-ai/DeepEP,
deep_ep/buffers/legacy.py and csrc/deep_ep.cpp; deepseek-ai/DeepGEMM, README; openxla/xla, debug_options_flags.cc;
NVIDIA JAX-Toolbox, "Tips for High-Performance LLMs with JAX and XLA".
"""

from __future__ import annotations

import json
import shlex
from typing import assert_never

from makeway.act.export.nccl import (
    AT_LAUNCH,
    BY_ENV,
    IN_KERNEL,
    IN_PROGRAM,
    no_zero_cta,
    own_copies,
    too_many_blocks,
)
from makeway.act.export.values import (
    Answer,
    Carried,
    Exported,
    Library,
    NotCarried,
    SettingValue,
    exported,
    spelled,
)
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
from makeway.values.plan import Plan

OWN_BLOCKS = "its communication kernels have a block size of their own"
OWN_ORDER = "it launches its communication in its own order"


def _blocks(plan: Plan) -> int | None:
    return next((control.blocks for control in plan.controls if isinstance(control, CommBlocks)), None)


# --- Transformer Engine's userbuffers ----------------------------------------------------------

# Layers by the method that initialize_ub gives them unless told otherwise.
PIPELINE = ("proj_fprop", "fc2_fprop")
BULK = ("qkv_dgrad", "qkv_wgrad", "fc1_dgrad", "fc1_wgrad")
RING = ("qkv_fprop", "fc1_fprop", "proj_dgrad", "fc2_dgrad")
_LAYERS_OF = {"num_sm": PIPELINE + BULK, "set_sm_margin": PIPELINE + BULK, "num_splits": PIPELINE, "use_ce": RING}
_METHOD_OF = dict.fromkeys(PIPELINE, "pipeline") | dict.fromkeys(BULK, "bulk") | dict.fromkeys(RING, "ring_exchange")
_TENSOR_PARALLEL = "for the tensor-parallel overlap of Transformer Engine's layers"


def transformer_engine(plan: Plan, _: Library) -> Exported:
    """A Python module with the dictionary that `initialize_ub(..., ub_cfgs=ub_cfgs)` takes."""
    answers = [_by_userbuffers(control, plan) for control in plan.controls]
    return exported(plan, "transformer-engine", answers, _ub_cfgs)


def _ub_cfgs(carried: tuple[Carried, ...]) -> str:
    layers: dict[str, dict[str, SettingValue]] = {}
    for key, value in (setting for answer in carried for setting in answer.settings):
        for layer in _LAYERS_OF[key]:
            layers.setdefault(layer, {"method": _METHOD_OF[layer]})[key] = value
    if not layers:
        return "ub_cfgs = {}"
    return "\n".join(
        [
            "# pass as ub_cfgs= of initialize_ub",
            "ub_cfgs = {",
            *(f'    "{layer}": {_dictionary(keys)},' for layer, keys in layers.items()),
            "}",
        ]
    )


def _dictionary(keys: dict[str, SettingValue]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {_literal(value)}" for key, value in keys.items()) + "}"


def _literal(value: SettingValue) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _by_userbuffers(control: Control, plan: Plan) -> Answer:
    match control:
        case CommBlocks(blocks):
            return Carried(control=control, settings=(("num_sm", blocks),), note=_TENSOR_PARALLEL)
        case SmPartition(0):
            return NotCarried(control=control, reason="num_sm must be at least 1; its copy engines need no partition")
        case SmPartition(comm_sms):
            if (wanted := _blocks(plan)) not in (None, comm_sms):
                return NotCarried(
                    control=control,
                    reason=f"num_sm is both the blocks and the SMs kept free, and the plan asks for {wanted} blocks",
                )
            return Carried(
                control=control, settings=(("num_sm", comm_sms), ("set_sm_margin", True)), note=_TENSOR_PARALLEL
            )
        case Chunks(pieces):
            return Carried(
                control=control,
                settings=(("num_splits", pieces),),
                note=f"{_TENSOR_PARALLEL}; only the layers that scatter after a GEMM are split",
            )
        case CommPriority():
            return Carried(control=control, note="comm_priority is the highest by default, gemm_priority the lowest")
        case CopyEngine():
            return Carried(
                control=control,
                settings=(("use_ce", True),),
                note=f"{_TENSOR_PARALLEL}; only ring-exchange layers copy that way, which is also their default"
                f"{own_copies(control)}",
            )
        case CommThreads():
            return NotCarried(control=control, reason=OWN_BLOCKS)
        case LaunchOrder():
            return NotCarried(control=control, reason=OWN_ORDER)
        case SmemPad():
            return NotCarried(control=control, reason=AT_LAUNCH)
        case TileChoice():
            return NotCarried(control=control, reason=IN_KERNEL)
        case _:
            assert_never(control)


# --- DeepEP ------------------------------------------------------------------------------------

_COMM_SMS = "deep_ep.Buffer.set_num_sms"
_COMPUTE_SMS = "deep_gemm.set_num_sms"
_EXPERTS = (
    "for dispatch and combine of DeepEP's Buffer; ElasticBuffer of version 2 takes num_sms with each dispatch instead"
)


def deepep(plan: Plan, _: Library) -> Exported:
    """Python statements for the start of a program that uses DeepEP, and DeepGEMM beside it."""
    return exported(plan, "deepep", (_by_deepep(control, plan) for control in plan.controls), _statements)


def _statements(carried: tuple[Carried, ...]) -> str:
    settings = dict(setting for answer in carried for setting in answer.settings)
    lines = []
    if _COMM_SMS in settings:
        lines += ["import deep_ep", "", f"{_COMM_SMS}({settings[_COMM_SMS]})"]
    if _COMPUTE_SMS in settings:
        lines += [
            "",
            "import deep_gemm",
            "import torch",
            "",
            "sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count",
            f"{_COMPUTE_SMS}({settings[_COMPUTE_SMS]})",
        ]
    return "\n".join(lines).strip()


def _by_deepep(control: Control, plan: Plan) -> Answer:
    match control:
        case CommBlocks(blocks) if blocks % 2:
            return NotCarried(control=control, reason=f"DeepEP takes an even number of SMs, not {blocks}")
        case CommBlocks(blocks):
            return Carried(control=control, settings=((_COMM_SMS, blocks),), note=_EXPERTS)
        case SmPartition(comm_sms):
            return _partition_by_deepep(control, comm_sms, _blocks(plan))
        case CommPriority():
            return Carried(control=control, note="DeepEP's stream is one of PyTorch's high-priority streams")
        case CommThreads():
            return NotCarried(control=control, reason=OWN_BLOCKS)
        case CopyEngine():
            return NotCarried(control=control, reason="its dispatch and combine are kernels")
        case LaunchOrder():
            return NotCarried(control=control, reason="the program calls dispatch and combine in its own order")
        case SmemPad():
            return NotCarried(control=control, reason=AT_LAUNCH)
        case TileChoice():
            return NotCarried(control=control, reason=IN_KERNEL)
        case Chunks():
            return NotCarried(control=control, reason=IN_PROGRAM)
        case _:
            assert_never(control)


def _partition_by_deepep(control: Control, comm_sms: int, blocks: int | None) -> Answer:
    """DeepGEMM leaves the SMs free; DeepEP fills them unless the plan gives it a number of blocks of its own."""
    if blocks is None and (comm_sms % 2 or not comm_sms):
        return NotCarried(control=control, reason=f"DeepEP takes an even number of SMs of 2 or more, not {comm_sms}")
    settings: tuple[tuple[str, SettingValue], ...] = ((_COMPUTE_SMS, f"sms - {comm_sms}"),)
    if blocks is None:
        settings = ((_COMM_SMS, comm_sms), *settings)
    return Carried(control=control, settings=settings, note=f"{_EXPERTS}; only DeepGEMM's kernels leave the SMs free")


# --- XLA ---------------------------------------------------------------------------------------

_SAME_FLAGS = "needs an XLA that knows the flag: it stops at one that it does not know"


def xla(plan: Plan, library: Library) -> Exported:
    """A file for `.` in a POSIX shell that adds to XLA_FLAGS."""
    return exported(plan, "xla", (_by_flag(control, library) for control in plan.controls), _flags)


def _flags(carried: tuple[Carried, ...]) -> str:
    flags = [spelled(*setting) for answer in carried for setting in answer.settings]
    if not flags:
        return ""
    return f'export XLA_FLAGS="${{XLA_FLAGS:+$XLA_FLAGS }}"{shlex.quote(" ".join(flags))}'


def _by_flag(control: Control, library: Library) -> Answer:
    match control:
        case CommBlocks(blocks):
            if reason := too_many_blocks(blocks, library):
                return NotCarried(control=control, reason=reason)
            return Carried(
                control=control,
                settings=(
                    ("--xla_gpu_nccl_collective_max_nchannels", blocks),
                    ("--xla_gpu_nccl_p2p_max_nchannels", blocks),
                ),
                note=f"{_SAME_FLAGS}; the flags are upper limits, NCCL may use fewer",
            )
        case CommPriority():
            return Carried(
                control=control,
                settings=(("--xla_gpu_enable_highest_priority_async_stream", True),),
                note=_SAME_FLAGS,
            )
        case LaunchOrder():
            return Carried(
                control=control,
                settings=(("--xla_gpu_enable_latency_hiding_scheduler", True),),
                note=f"{_SAME_FLAGS}; the scheduler starts collectives early by its own estimate of times",
            )
        case CopyEngine():
            if reason := no_zero_cta(library):
                return NotCarried(control=control, reason=reason)
            return Carried(
                control=control,
                settings=(("--xla_gpu_experimental_enable_nccl_symmetric_buffers", True),),
                note=f"{_SAME_FLAGS}; NCCL 2.28 or later, which then decides; NCCL_CTA_POLICY asks it for copy "
                f"engines: {BY_ENV} as well{own_copies(control)}",
            )
        case CommThreads():
            return NotCarried(control=control, reason=f"no flag sets the threads of a collective; {BY_ENV}")
        case SmPartition():
            return NotCarried(control=control, reason="no flag of XLA sets SMs apart")
        case SmemPad():
            return NotCarried(control=control, reason=AT_LAUNCH)
        case TileChoice():
            return NotCarried(control=control, reason="XLA's autotuner chooses the tiles of its kernels")
        case Chunks():
            return NotCarried(
                control=control,
                reason="the combine thresholds (--xla_gpu_all_reduce_combine_threshold_bytes and others) join "
                "collectives up to a size; they do not split one",
            )
        case _:
            assert_never(control)
