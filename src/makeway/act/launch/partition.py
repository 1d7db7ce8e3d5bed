"""Why `makeway run` sets no SMs apart in a program that it does not change, and what does instead.

docs/hardware.md has the analysis.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from makeway.act.doctor.gpus import mps_pipe
from makeway.values.support import Platform

_CUDA = (
    "a launcher cannot confine the compute of an unmodified program: torch computes on the default stream, which no "
    "green context holds. Put compute on makeway.torch's stream, or give libraries an SM count "
    "(makeway export --to transformer-engine)"
)
_ROCM = (
    "a launcher cannot confine the compute of an unmodified program: HSA_CU_MASK and ROC_GLOBAL_CU_MASK hold compute "
    "and RCCL's kernels of the process alike. Put compute on makeway.torch's stream, which has a CU mask of its own"
)
_MPS = (
    "The MPS daemon at {pipe} takes CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, which holds NCCL's kernels of the process too: "
    "it helps only where communication runs in another process"
)


def partition_refusal(platform: Platform, environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Why a partition is refused on a machine with such GPUs, and what would work there."""
    if platform == "rocm":
        return _ROCM
    pipe = mps_pipe(environ, root)
    return f"{_CUDA}. {_MPS.format(pipe=pipe)}" if pipe else _CUDA
