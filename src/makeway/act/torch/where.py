"""Which hardware a process group runs on; light, since every rank of a program under a plan asks.

Nothing here starts CUDA: a program may make its group before it chooses its device, and may fork after that.
"""

from __future__ import annotations

from typing import Any, Literal

from makeway.act.cuda.machine import load_torch

Where = Literal["cpu", "cuda", "rocm"]


def where_runs(group: Any | None = None, *, torch: Any | None = None) -> Where:
    """The hardware of a group's collectives; without a process group, that of the process."""
    torch = torch or load_torch()
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        names = str(distributed.get_backend_config(group))
        if "nccl" not in names and "undefined" not in names:
            return "cpu"
    if not _has_gpu(torch):
        return "cpu"
    return "rocm" if getattr(torch.version, "hip", None) else "cuda"


def _has_gpu(torch: Any) -> bool:
    """Whether torch sees a GPU. The count asks NVML first; `is_available` calls cuInit, which breaks later forks."""
    return bool(torch.cuda.device_count())


def may_be_nccl(backend: str | None, torch: Any) -> bool:
    """True when a group with this backend will use NCCL (or RCCL)."""
    if backend is not None and "nccl" not in backend:
        return False
    return getattr(torch.distributed, "ProcessGroupNCCL", None) is not None and _has_gpu(torch)
