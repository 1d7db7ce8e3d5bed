"""Kineto's own "est. achieved occupancy %" in every bundled NVIDIA trace, and how often its 48 KiB cap misleads it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.recordings import RECORDINGS, needs_recordings

from makeway.decide.analysis.occupancy import WRONG_BY_POINTS, kineto_percent, occupancy_percent
from makeway.values.device import Device, load_device
from makeway.values.kernel import KernelResources, Launch

pytestmark = needs_recordings
TRACES = RECORDINGS
# Traces that hold NVIDIA kernels, and the percent of them that Kineto gets wrong.
WRONG_PERCENT = {
    "astra-megatron-tp8": 41,
    "hta/a100_w2_rank0_collective_args.json.gz": 15,
    "hta/a100_w8_rank3.json.gz": 14,
    "hta/v100_w1_ns_resolution_no_nccl.json.gz": 0,
    "hta/v100_w2_rank1.json.gz": 0,
    "param-dlrm8": 0,
    "torchrec/a2a_opt4_w4": 0,
    "torchrec/a2a_opt5_w4": 0,
    "torchrec/straggler_sleep_w4": 0,
    "torchrec/tiny_w2": 0,
    "tracelens/b200_w8_rank0_vllm.json.gz": 24,
    "tracelens/h100_w1_owlv2_no_nccl.json.gz": 20,
}


class Properties(msgspec.Struct):
    id: int
    name: str


class Args(msgspec.Struct):
    device: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int = msgspec.field(name="registers per thread")
    smem_bytes: int = msgspec.field(name="shared memory")
    percent: float = msgspec.field(name="est. achieved occupancy %")


class Event(msgspec.Struct, gc=False):
    cat: str = ""
    args: msgspec.Raw = msgspec.Raw(b"{}")


class Trace(msgspec.Struct):
    traceEvents: list[Event]  # noqa: N815
    deviceProperties: list[Properties]  # noqa: N815


def kernels(path: Path) -> Iterator[tuple[Device, Launch, float]]:
    """Device, launch and Kineto's percent of every kernel, read from the JSON itself."""
    trace = msgspec.json.decode(gzip.decompress(path.read_bytes()), type=Trace)
    devices = {one.id: load_device(one.name) for one in trace.deviceProperties}
    for event in trace.traceEvents:
        if event.cat != "kernel":
            continue
        args = msgspec.json.decode(event.args, type=Args)
        threads = args.block[0] * args.block[1] * args.block[2]
        yield (
            devices[args.device],
            Launch(
                blocks=args.grid[0] * args.grid[1] * args.grid[2],
                threads=threads,
                resources=KernelResources(
                    threads=threads, registers_per_thread=args.registers, smem_bytes=args.smem_bytes
                ),
            ),
            args.percent,
        )


@pytest.mark.parametrize("name", WRONG_PERCENT)
def test_kinetos_formula_is_reproduced_for_every_kernel_and_so_are_its_errors(name: str) -> None:
    path = TRACES / name
    count = wrong = 0
    for file in sorted(path.glob("*.json.gz")) if path.is_dir() else [path]:
        for device, launch, percent in kernels(file):
            assert kineto_percent(device, launch) == pytest.approx(percent, abs=1.0), launch
            count += 1
            wrong += abs(occupancy_percent(device, launch) - percent) > WRONG_BY_POINTS
    print(f"{name}: Kineto is wrong for {wrong:,} of {count:,} kernels ({100 * wrong / count:.1f} %)")
    assert round(100 * wrong / count) == WRONG_PERCENT[name]
