"""Plans for libraries and compilers with communication of their own: Transformer Engine, DeepEP, XLA.

data/support/transformer-engine.toml, deepep.toml and xla.toml name the sources.
"""

from __future__ import annotations

import json
import shlex

from makeway.act.export.nccl import no_clusters, own_copies, too_many_blocks
from makeway.act.export.values import Entry, Request, SettingValue, Target, setting_word
from makeway.values.control import Chunks, CommBlocks, CommPriority, Control, CopyEngine, LaunchOrder, SmPartition

# --- Transformer Engine's userbuffers ----------------------------------------------------------

# Layers by the method that initialize_ub gives them by default.
PIPELINE = ("proj_fprop", "fc2_fprop")
BULK = ("qkv_dgrad", "qkv_wgrad", "fc1_dgrad", "fc1_wgrad")
RING = ("qkv_fprop", "fc1_fprop", "proj_dgrad", "fc2_dgrad")
_LAYERS_OF = {
    "num_sm": PIPELINE + BULK,
    "cga_size": PIPELINE + BULK,
    "set_sm_margin": PIPELINE + BULK,
    "num_splits": PIPELINE,
    "use_ce": RING,
}
MOST_SMS = 32  # NVTE_MAX_SMS of userbuffers.h: flags beyond it belong to something else, and nothing checks
_METHOD_OF = dict.fromkeys(PIPELINE, "pipeline") | dict.fromkeys(BULK, "bulk") | dict.fromkeys(RING, "ring_exchange")


def _userbuffers(control: Control, request: Request, limits: str) -> Entry:
    settings: tuple[tuple[str, SettingValue], ...] = ()
    match control:
        case CommBlocks(sms) | SmPartition(sms) if sms > MOST_SMS:
            reason = f"its buffers have flags for {MOST_SMS} SMs (NVTE_MAX_SMS), the plan asks for {sms}"
            return Entry(control=control, refusal=reason)
        case CommBlocks(blocks, cluster):
            settings = (("num_sm", blocks), *((("cga_size", cluster),) if cluster else ()))
            if not request.has(SmPartition):  # by default it would also keep these SMs free of GEMMs
                settings = (*settings, ("set_sm_margin", False))
        case SmPartition(0):
            return Entry(control=control, refusal="num_sm must be at least 1; its copy engines need no partition")
        case SmPartition(comm_sms):
            if request.blocks not in (None, comm_sms):
                reason = f"num_sm is both the blocks and the SMs kept free; the plan asks for {request.blocks} blocks"
                return Entry(control=control, refusal=reason)
            settings = (("num_sm", comm_sms), ("set_sm_margin", True))
        case Chunks(pieces):
            settings = (("num_splits", pieces),)
        case CopyEngine():
            settings = (("use_ce", True),)
            limits += own_copies(control)
        case CommPriority():
            pass  # its default
        case _:
            raise AssertionError(f"the support table refuses {control}")
    return Entry(control=control, settings=settings, note=limits)


def _ub_cfgs(carried: tuple[Entry, ...], _: Request) -> str:
    """A Python module with the dictionary that `initialize_ub(..., ub_cfgs=ub_cfgs)` takes."""
    layers: dict[str, dict[str, SettingValue]] = {}
    for key, value in (setting for entry in carried for setting in entry.settings):
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


TRANSFORMER_ENGINE = Target(carrier="Transformer Engine", entry=_userbuffers, body=_ub_cfgs)


# --- DeepEP ------------------------------------------------------------------------------------

_COMM_SMS = "deep_ep.Buffer.set_num_sms"
_COMPUTE_SMS = "deep_gemm.set_num_sms"


def _calls(control: Control, request: Request, limits: str) -> Entry:
    match control:
        case CommBlocks(blocks) if blocks % 2:
            return Entry(control=control, refusal=f"DeepEP takes an even number of SMs, not {blocks}")
        case CommBlocks(blocks):
            note = limits + no_clusters(control, "DeepEP has no setting for it")
            return Entry(control=control, settings=((_COMM_SMS, blocks),), note=note)
        case SmPartition(comm_sms):
            return _partition_calls(control, comm_sms, request.blocks, limits)
        case CommPriority():
            return Entry(control=control, note=limits)  # its default
        case _:
            raise AssertionError(f"the support table refuses {control}")


def _partition_calls(control: Control, comm_sms: int, blocks: int | None, limits: str) -> Entry:
    """DeepGEMM leaves the SMs free; DeepEP fills them unless the plan sets its blocks."""
    if blocks is None and (comm_sms % 2 or not comm_sms):
        return Entry(control=control, refusal=f"DeepEP takes an even number of SMs of 2 or more, not {comm_sms}")
    settings: tuple[tuple[str, SettingValue], ...] = ((_COMPUTE_SMS, f"sms - {comm_sms}"),)
    if blocks is None:
        settings = ((_COMM_SMS, comm_sms), *settings)
    return Entry(control=control, settings=settings, note=limits)


def _statements(carried: tuple[Entry, ...], _: Request) -> str:
    """Python statements for the start of a program that uses DeepEP, and DeepGEMM beside it."""
    settings = dict(setting for entry in carried for setting in entry.settings)
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


DEEPEP = Target(carrier="DeepEP", entry=_calls, body=_statements)


# --- XLA ---------------------------------------------------------------------------------------


def _flags(control: Control, request: Request, limits: str) -> Entry:
    match control:
        case CommBlocks(blocks):
            if reason := too_many_blocks(blocks, request.library):
                return Entry(control=control, refusal=reason)
            flags = ("--xla_gpu_nccl_collective_max_nchannels", "--xla_gpu_nccl_p2p_max_nchannels")
            note = limits + no_clusters(control, "XLA has no flag for it; try makeway export --to env")
            return Entry(control=control, settings=tuple((flag, blocks) for flag in flags), note=note)
        case CommPriority():
            flag = "--xla_gpu_enable_highest_priority_async_stream"
        case LaunchOrder():
            flag = "--xla_gpu_enable_latency_hiding_scheduler"
        case CopyEngine():
            flag = "--xla_gpu_experimental_enable_nccl_symmetric_buffers"
            limits += own_copies(control)
        case _:
            raise AssertionError(f"the support table refuses {control}")
    return Entry(control=control, settings=((flag, True),), note=limits)


def _xla_flags(carried: tuple[Entry, ...], _: Request) -> str:
    """A line for `.` in a POSIX shell that adds to XLA_FLAGS."""
    flags = [setting_word(*setting) for entry in carried for setting in entry.settings]
    if not flags:
        return ""
    return f'export XLA_FLAGS="${{XLA_FLAGS:+$XLA_FLAGS }}"{shlex.quote(" ".join(flags))}'


XLA = Target(carrier="XLA", entry=_flags, body=_xla_flags)
