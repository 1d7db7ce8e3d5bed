"""What `makeway analyze` costs for each byte of input, on ordinary traces and on shapes made to be slow.

    python benchmarks/bench_limits.py [--sizes 1,10,100] [--shapes steps,streams]

For each shape and size in MB of JSON: processor time and peak memory of the whole command, what the next larger input
costs relative to its size (1.0 is linear; start-up counts, so small inputs look better), and time and memory per byte.

Goals from 10 to 100 MB: growth of at most 1.2, 0.5 s for each MB, and 64 MB plus 8 bytes of memory for each byte.
Blanks are packed; they are refused after 64 MiB.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

MB = 1_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "ampere_sgemm_128x64_nn"
Event = dict[str, Any]
Shape = Callable[[], Iterator[Event]]


def kernel(
    name: str, start: float, length: float, *, stream: int, number: int, launched: float | None = None, gpu: int = 0
) -> Iterator[Event]:
    """A kernel and the host's launch of it; times in microseconds."""
    shape = {"grid": [108, 1, 1], "block": [256, 1, 1], "registers per thread": 32, "shared memory": 0}
    args = {"device": gpu, "stream": stream, "correlation": number, **shape}
    yield {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": length, "args": args}
    at = start if launched is None else launched
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": 1}
    yield {**call, "args": {"correlation": number}}


def steps() -> Iterator[Event]:
    """Compute and communication that overlap in part, on two streams."""
    for at in count():
        yield from kernel(GEMM, 1000 * at, 500, stream=7, number=2 * at + 1)
        yield from kernel(NCCL, 1000 * at + 300, 600, stream=20, number=2 * at + 2)


def one_time() -> Iterator[Event]:
    """All events start together and last as long, on nine streams."""
    for at in count():
        yield from kernel(NCCL if at % 2 else GEMM, 100, 50, stream=at % 9, number=at + 1)


def streams() -> Iterator[Event]:
    """Each stream holds one kernel, and each collective is exposed."""
    for at in count():
        name, length = (NCCL, 10) if at % 2 else (GEMM, 5)
        yield from kernel(name, 20 * at, length, stream=at, number=at + 1)


def late() -> Iterator[Event]:
    """Collectives on streams of their own, all launched at once, wait beside kernels that overlap."""
    for at in count():
        yield from kernel(GEMM, 100 * at, 1000, stream=at % 50, number=2 * at + 1, launched=0)
        yield from kernel(NCCL, 100 * at + 50, 20, stream=1000 + at, number=2 * at + 2, launched=0)


def waits() -> Iterator[Event]:
    """Every collective is recorded to wait for the compute before it."""
    for at in count():
        number = 10 * at + 1
        yield from kernel(GEMM, 1000 * at, 500, stream=7, number=number, launched=1)
        record = {"ph": "X", "cat": "cuda_runtime", "name": "cudaEventRecord", "ts": 2, "dur": 1}
        yield {**record, "args": {"correlation": number + 1}}
        args = {"stream": 20, "correlation": number + 2, "wait_on_stream": 7, "device": 0}
        sync = {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "ts": 3, "dur": 0}
        yield {**sync, "args": {**args, "wait_on_cuda_event_record_corr_id": number + 1}}
        yield from kernel(NCCL, 1000 * at + 550, 300, stream=20, number=number + 3, launched=4)


def gpus() -> Iterator[Event]:
    """A thousand GPUs in one file."""
    for at in count():
        yield from kernel(GEMM, at, 5, stream=7, number=2 * at + 1, gpu=at % 1000)
        yield from kernel(NCCL, at + 3, 5, stream=20, number=2 * at + 2, gpu=at % 1000)


def names() -> Iterator[Event]:
    """Every kernel has a name of its own."""
    for at in count():
        yield from kernel(f"void gemm<{at}, ({'x' * 200})>()", 1000 * at, 500, stream=7, number=2 * at + 1)
        yield from kernel(f"{NCCL}_{at}", 1000 * at + 300, 600, stream=20, number=2 * at + 2)


SHAPES: dict[str, Shape] = {
    shape.__name__: shape for shape in (steps, one_time, streams, late, waits, gpus, names)
}  # and "blanks"


def write_trace(path: Path, shape: Shape, size: int) -> None:
    gpu = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108, "computeMajor": 8, "computeMinor": 0}
    with path.open("w") as file:
        written = file.write(json.dumps({"deviceProperties": [gpu]})[:-1] + ', "traceEvents": [')
        for number, event in enumerate(shape()):
            written += file.write((",\n" if number else "") + json.dumps(event))
            if written >= size:
                break
        file.write("]}")


def write_blanks(path: Path, size: int) -> None:
    with gzip.open(path, "wb", compresslevel=6) as file:
        for _ in range(size // MB):
            file.write(b" " * MB)


def cost(path: Path) -> tuple[float, int, int]:
    """Processor seconds, peak memory in bytes and exit code of the command."""
    command = [sys.executable, "-m", "makeway", "analyze", str(path), "--json", "--jobs", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, process.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,10,100", help="MB of each input (default: 1,10,100)")
    parser.add_argument("--shapes", default=",".join([*SHAPES, "blanks"]), help="which shapes (default: all)")
    options = parser.parse_args()
    print(f"{'shape':<10} {'MB':>5} {'exit':>4} {'s':>8} {'MB held':>8} {'growth':>7} {'us/B':>8} {'held/B':>7}")
    with tempfile.TemporaryDirectory() as place:
        for shape in options.shapes.split(","):
            before: tuple[int, float] | None = None
            for size in (int(text) for text in options.sizes.split(",")):
                path = Path(place, "trace.json")
                if shape == "blanks":
                    write_blanks(path, size * MB)
                else:
                    write_trace(path, SHAPES[shape], size * MB)
                seconds, held, code = cost(path)
                growth = f"{seconds / before[1] / (size / before[0]):.2f}" if before else "–"
                per_byte = f"{seconds / size:8.3f} {held / size / MB:7.1f}"
                print(
                    f"{shape:<10} {size:>5} {code:>4} {seconds:8.2f} {held / MB:8.0f} {growth:>7} {per_byte}",
                    flush=True,
                )
                before = size, seconds


if __name__ == "__main__":
    main()
