"""One kernel alone must equal NVIDIA's own occupancy calculator, compiled here with gcc."""

from __future__ import annotations

import ctypes
import itertools
import random
import subprocess
from pathlib import Path

import nvidia.cu13
import pytest

from makeway.model.residency import resident_blocks
from makeway.values.device import Device, load_device
from makeway.values.kernel import KernelResources

DEVICES = {
    "sm_70": "V100-SXM2-32GB",
    "sm_80": "A100-SXM4-80GB",
    "sm_86": "A40",
    "sm_89": "L40S",
    "sm_90": "H100-SXM5-80GB",
    "sm_100": "B200",
    "sm_103": "B300",
    "sm_120": "RTX-5090",
}
GRID_POINTS = 200_000
RANDOM_POINTS = 20_000
SAMPLED_POINTS = 30_000  # of the grid, others in each run

Block = tuple[int, int, int, int, int]  # threads, registers, static bytes, dynamic bytes, barriers


@pytest.fixture(scope="module")
def calculator(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    include = Path(next(iter(nvidia.cu13.__path__))) / "include"
    library = tmp_path_factory.mktemp("occupancy") / "occupancy.so"
    source = Path(__file__).with_name("occupancy.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def vendor_answers(calculator: ctypes.CDLL, device: Device, blocks: list[Block]) -> list[int]:
    sm, number = device.sm, int(device.arch.removeprefix("sm_"))
    properties = (
        number // 10,
        number % 10,
        sm.max_warps * 32,
        sm.smem_bytes,
        sm.smem_block_bytes,
        sm.smem_reserved_bytes,
    )
    rows = (ctypes.c_int * (5 * len(blocks)))(*itertools.chain.from_iterable(blocks))
    answers = (ctypes.c_int * len(blocks))()
    error = calculator.occupancy((ctypes.c_int * 7)(*properties, device.sms), len(blocks), rows, answers)
    assert error == 0, f"cuda_occupancy.h answered error {error}"
    return list(answers)


def grid(device: Device) -> list[Block]:
    """Every warp boundary, all register counts from 1 to 255 in steps, and shared memory up to the opt-in limit."""
    threads = sorted({1, 31, 33, 63, 65, 1023, *range(32, 1025, 32)})
    registers = sorted({*range(1, 256, 3), *range(8, 256, 8)})
    most = device.sm.smem_block_bytes
    edges = [device.sm.smem_bytes // blocks - device.sm.smem_reserved_bytes for blocks in (2, 3, 4, 5, 8)]
    dynamic = sorted({0, 1, 1024, 16384, most // 2, most - 1, most, *edges, *(edge + 1 for edge in edges)})
    static = [0, 1, 100, 1024, 6176, 8192, 49152]
    return [
        (count, regs, fixed, extra, 1)
        for count, regs, fixed, extra in itertools.product(threads, registers, static, dynamic)
        if fixed + extra <= most
    ]


def random_blocks(device: Device, draw: random.Random) -> list[Block]:
    blocks = []
    for _ in range(RANDOM_POINTS):
        fixed = draw.choice((0, 0, draw.randint(0, 49152)))
        extra = draw.randint(0, device.sm.smem_block_bytes - fixed)
        blocks.append((draw.randint(1, 1024), draw.randint(1, 255), fixed, extra, draw.randint(0, 16)))
    return blocks


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.long)], ids=["sample", "whole grid"])
def test_residency_equals_the_vendors_calculator(
    arch: str, whole: bool, calculator: ctypes.CDLL, draw: random.Random
) -> None:
    device = load_device(DEVICES[arch])
    assert device.arch == arch
    points = grid(device)
    assert len(points) >= GRID_POINTS
    points = (points if whole else draw.sample(points, SAMPLED_POINTS)) + random_blocks(device, draw)
    expected = vendor_answers(calculator, device, points)
    wrong = [
        (block, answer, ours)
        for block, answer in zip(points, expected, strict=True)
        if (ours := blocks_of(device, block)) != answer
    ]
    assert not wrong, f"{len(wrong)} of {len(points)} differ (block, NVIDIA, makeway); first: {wrong[:3]}"


def blocks_of(device: Device, block: Block) -> int:
    threads, registers, fixed, extra, barriers = block
    kernel = KernelResources(
        threads=threads, registers_per_thread=registers, smem_bytes=fixed + extra, barriers=barriers
    )
    return resident_blocks(device, kernel)


def test_the_vendors_calculator_can_disagree(calculator: ctypes.CDLL) -> None:
    """The comparison has teeth: with one wrong fact the same sweep finds differences."""
    ampere, ada = load_device(DEVICES["sm_86"]), load_device(DEVICES["sm_89"])
    points = [*random_blocks(ampere, random.Random(1)), (32, 16, 0, 0, 1)]
    expected = vendor_answers(calculator, ampere, points)
    assert any(blocks_of(ada, block) != answer for block, answer in zip(points, expected, strict=True))
