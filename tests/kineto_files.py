"""Small Kineto traces of our own making: a header, kernels, and what the host recorded about them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

DATE_US = 1_740_461_679_000_000  # a time of day: February 2025

H100_LIMITS = {
    "totalGlobalMem": 85_045_215_232, "computeMajor": 9, "computeMinor": 0, "maxThreadsPerBlock": 1024,
    "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65_536, "warpSize": 32, "sharedMemPerBlock": 49_152,
    "numSms": 132, "regsPerMultiprocessor": 65_536, "sharedMemPerBlockOptin": 232_448,
    "sharedMemPerMultiprocessor": 233_472,
}  # fmt: skip


def gpu(name: str = "NVIDIA H100 80GB HBM3", *, number: int = 0, **limits: int) -> dict[str, Any]:
    """One entry of deviceProperties."""
    return {"id": number, "name": name, **H100_LIMITS, **limits}


def kernel(
    name: str,
    start_us: float,
    duration_us: float,
    *,
    stream: int = 7,
    device: int = 0,
    threads: int = 256,
    blocks: int = 132,
    registers: int = 64,
    smem_bytes: int = 0,
    **args: Any,
) -> dict[str, Any]:
    """One kernel as CUPTI records it; further arguments by their Kineto names."""
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "ts": start_us,
        "dur": duration_us,
        "args": {
            "device": device,
            "stream": stream,
            "grid": [blocks, 1, 1],
            "block": [threads, 1, 1],
            "registers per thread": registers,
            "shared memory": smem_bytes,
            **args,
        },
    }


def collective_call(external: int, start_us: float, collective: str = "allreduce", **args: Any) -> dict[str, Any]:
    """PyTorch's record of a collective call on the host."""
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": "record_param_comms",
        "ts": start_us,
        "dur": 5,
        "args": {"External id": external, "Collective name": collective, **args},
    }


def write_kineto(
    path: Path,
    events: Iterable[Mapping[str, Any]],
    *,
    rank: int | None = 0,
    world: int | None = None,
    gpus: Iterable[Mapping[str, Any]] = (gpu(),),
    **header: Any,
) -> Path:
    """A trace file with these events."""
    document: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": list(gpus), **header}
    if rank is not None:
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world or 1}
    document["traceEvents"] = list(events)
    path.write_text(json.dumps(document))
    return path
