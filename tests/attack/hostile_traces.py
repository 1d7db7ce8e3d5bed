"""Small synthetic traces as an attacker or a broken profiler would write them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "ampere_sgemm_128x64_nn"
DEVICE = "NVIDIA A100-SXM4-80GB"

Event = dict[str, Any]


def kernel(
    name: str, start: float, length: float, *, stream: int | str = 7, number: int = 0, launched: bool = True
) -> list[Event]:
    """A kernel of a Kineto trace and, unless it was lost, the host's launch of it; times in microseconds."""
    shape = {"grid": [108, 1, 1], "block": [256, 1, 1], "registers per thread": 32, "shared memory": 0}
    args = {"device": 0, "context": 1, "stream": stream, "correlation": number, **shape}
    event: Event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length}
    if not launched:
        return [{**event, "args": args}]
    return [{**event, "args": args}, launch(start, number)]


def launch(at: float, number: int) -> Event:
    """The host's call that launched the kernel of that number."""
    event: Event = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at}
    return {**event, "dur": 1, "args": {"correlation": number}}


def document(events: Iterable[Event], *, device: str = DEVICE, **header: Any) -> bytes:
    """A whole Kineto trace."""
    gpu = {"id": 0, "name": device, "numSms": 108, "computeMajor": 8, "computeMinor": 0}
    whole = {"deviceProperties": [gpu], "distributedInfo": {"rank": 0}, "traceEvents": list(events), **header}
    return json.dumps(whole).encode()


def ordinary(compute: str = GEMM, comm: str = NCCL, *, device: str = DEVICE) -> bytes:
    """A step of compute and communication that overlap in part."""
    events: list[Event] = []
    for step in range(4):
        events += kernel(compute, 1000 * step, 500, stream=7, number=2 * step + 1)
        events += kernel(comm, 1000 * step + 300, 600, stream=20, number=2 * step + 2)
    return document(events, device=device)


def at_one_time(events: int, streams: int) -> bytes:
    """All events start at the same time and last as long."""
    made = (
        kernel(NCCL if number % 2 else GEMM, 100, 50, stream=number % streams, number=number + 1)
        for number in range(events)
    )
    return document(event for pair in made for event in pair)


def many_streams(streams: int) -> bytes:
    """Every stream holds one kernel; each collective is exposed."""
    events: list[Event] = []
    for number in range(streams):
        name, length = (NCCL, 10) if number % 2 else (GEMM, 5)
        events += kernel(name, 20 * number, length, stream=number, number=number + 1)
    return document(events)


def blanks(path: Path, size: int) -> Path:
    """A gzip of that many bytes of blanks."""
    with gzip.open(path, "wb", compresslevel=6) as file:
        piece = b" " * (1 << 20)
        for _ in range(size >> 20):
            file.write(piece)
    return path


def one_long_name(path: Path, size: int) -> Path:
    """A gzip of a trace with one kernel whose name has that many letters."""
    head, _, tail = ordinary(compute="NAME").partition(b"NAME")
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(size >> 20):
            file.write(b"k" * (1 << 20))
        file.write(tail)
    return path


def in_a_circle(rounds: int) -> bytes:
    """A trace cut short: the launch of the first kernel is lost, and operations seem to wait in a circle.

    Compute and collectives alternate on two streams, each right after the other. All were launched before the first
    kernel ran, so that by launch times it comes last on its stream.
    """
    events = kernel(f"{GEMM}_first", 100, 100, stream=7, number=1, launched=False)
    for at in range(rounds):
        start, number = 201 + 402 * at, 2 * at + 2
        events += kernel(NCCL, start, 200, stream=20, number=number, launched=False)
        events += kernel(f"{GEMM}_{at}", start + 201, 200, stream=7, number=number + 1, launched=False)
        events += [launch(number / 10, number), launch((number + 1) / 10, number + 1)]
    return document(events)
