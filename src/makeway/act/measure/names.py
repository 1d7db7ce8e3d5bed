"""Workloads that run on real ranks, by name."""

from __future__ import annotations

from typing import Literal

from makeway.model.presets import load_preset, preset_names, preset_summary
from makeway.values.collective import Collective, CollectiveKind
from makeway.values.device import load_device
from makeway.values.errors import UnknownNameError, UnsupportedError, suggestion
from makeway.values.workload import Gemm

Family = Literal["pair", "published", "training", "parallel"]

_OWN: dict[str, tuple[Family, str]] = {
    "gemm-ar": ("pair", "GEMM beside the all-reduce of the one before, about equally long"),
    "gemm-ag": ("pair", "GEMM beside the all-gather of the one before, about equally long"),
    "gemm-a2a": ("pair", "GEMM beside the all-to-all of the one before, about equally long"),
    "gemm-rs": ("pair", "GEMM beside the reduce-scatter of the one before, about equally long"),
    "ddp": ("training", "a small transformer under DistributedDataParallel"),
    "fsdp2": ("training", "a small transformer under fully_shard"),
    "tp": ("parallel", "tensor-parallel layers, two micro-batches in turn, all-reduce"),
    "ep": ("parallel", "expert-parallel layers, two micro-batches in turn, all-to-all"),
}
_PAIR_COLLECTIVES: dict[str, CollectiveKind] = {
    "gemm-ar": "all-reduce",
    "gemm-ag": "all-gather",
    "gemm-a2a": "all-to-all",
    "gemm-rs": "reduce-scatter",
}
_ANY_DEVICE = "A100-SXM4-80GB"  # shapes and sizes of a preset are the same for every device
_PUBLISHED = tuple(name for name in preset_names() if name.startswith(("cb-", "mb-", "conccl-")))


def workload_names() -> tuple[str, ...]:
    return (*_OWN, *_PUBLISHED)


def workload_summary(name: str) -> str:
    """What a workload runs, in one line."""
    return _OWN[name][1] if name in _OWN else f"{preset_summary(name)}, scaled down"


def family(name: str) -> Family:
    """How a workload is built; an unknown name is an error that suggests one."""
    if name in _OWN:
        return _OWN[name][0]
    if name in _PUBLISHED:
        return "published"
    known = ", ".join((*_OWN, "cb-ar", "...", "conccl-30"))
    raise UnknownNameError(f"no workload {name!r} to run on ranks{suggestion(name, workload_names())}\nKnown: {known}")


def pair_collective(name: str) -> CollectiveKind:
    """The collective of a GEMM pair; other workloads, which run on CPU ranks only, are an error."""
    match family(name):
        case "pair":
            return _PAIR_COLLECTIVES[name]
        case "published":
            return published_pair(name)[1].kind
        case "training" | "parallel":
            raise UnsupportedError(
                f"{name} is not a pair of a GEMM and a collective: so far it runs on CPU ranks only; "
                "name gemm-*, cb-*, mb-* or conccl-* instead, or use --on cpu"
            )


def published_pair(name: str) -> tuple[Gemm, Collective]:
    """The GEMM and the collective of a published pair, at their published size."""
    workload = load_preset(name, load_device(_ANY_DEVICE))
    gemm = next(kernel.work for kernel in workload.kernels if isinstance(kernel.work, Gemm))
    return gemm, workload.collectives[0].collective
