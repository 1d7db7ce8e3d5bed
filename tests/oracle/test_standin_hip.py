"""The stand-in HIP runtime refuses what ROCm's runtime refuses, with its errors, and reads code objects truly."""

from __future__ import annotations

from pathlib import Path

from tests.standin.build import FunctionAttribute, launches, read_record
from tests.standin.running import PROGRAMS, answers, kernels, run

from makeway.model.residency import resident_blocks
from makeway.read.binaries import inspect_file
from makeway.values.device import load_device

FILES = ("matmul.gfx90a.hsaco", "matmul_small.gfx90a.hsaco", "scale.gfx90a.hsaco")


def test_launches_at_the_limits(tmp_path: Path) -> None:
    record = tmp_path / "record"
    found = answers("MI250X", "amd", kernels(), record=record)["launches"]
    assert found == {
        "plain": "hipSuccess",
        "all local memory": "hipSuccess",
        "more local memory than there is": "hipErrorInvalidValue",
        "no blocks": "hipErrorInvalidValue",
        "more threads than compiled for": "hipErrorLaunchFailure",
        "more threads than a block has": "hipErrorInvalidValue",
        "no arguments": "hipErrorInvalidValue",
        "last error": "hipErrorInvalidValue",
        "last error again": "hipSuccess",
        "extended": "hipSuccess",
        "extended, uneven": "hipErrorInvalidValue",
        "cooperative": "hipSuccess",
        "cooperative too large": "hipErrorCooperativeLaunchTooLarge",
        "by host stub": "hipSuccess",
        "by host stub, too much": "hipErrorInvalidValue",
        "by an unknown stub": "hipErrorInvalidDeviceFunction",
        "attribute": "hipSuccess",
        "attribute too large": "hipErrorInvalidValue",
        "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "blocks with 20000 bytes": 65536 // 20000,
        "priorities": [1, 1, 0, -1, -1],
        "another architecture": "hipErrorNoBinaryForGpu",
    }
    went_through = [launch for launch in launches(record) if not launch.error]
    assert [(launch.call, launch.grid[0], launch.smem_bytes) for launch in went_through] == [
        ("hipModuleLaunchKernel", 1, 0),
        ("hipModuleLaunchKernel", 1, 65536),
        ("hipExtModuleLaunchKernel", 2, 0),  # asked for by threads
        ("hipModuleLaunchCooperativeKernel", 110, 0),
        ("hipLaunchKernel", 1, 0),
    ]
    assert len({launch.parameters for launch in went_through}) == 1
    assert [item.error for item in read_record(record) if isinstance(item, FunctionAttribute)] == [0, 1]


def test_code_objects_read_as_makeway_reads_them(triton_kernels: Path) -> None:
    paths = [str(triton_kernels / file) for file in FILES]
    found = answers("MI250X", "amd", kernels(), *paths)["metadata"]
    for file in FILES:
        (ours,) = inspect_file(triton_kernels / file)
        assert found[file] == [ours.registers, ours.smem_static_bytes, ours.threads]


def test_residency_as_rocm_counts_it_is_makeways(tmp_path: Path) -> None:
    record = tmp_path / "record"
    run("MI250X", PROGRAMS / "hip_program.py", kernels(), "1", record=record)
    for launch in launches(record):
        (kernel,) = inspect_file(Path(kernels(), f"{launch.kernel}.gfx90a.hsaco"))
        resources = kernel.resources(threads=launch.block[0], smem_dynamic_bytes=launch.smem_bytes)
        assert launch.resident_blocks == resident_blocks(load_device("MI250X"), resources) > 0


def test_refusals_reach_hip_too(tmp_path: Path) -> None:
    record = tmp_path / "record"
    done = run("MI250X", PROGRAMS / "hip_program.py", kernels(), "3", record=record, refuse="smem-above:8000,every:2")
    assert done.returncode == 9
    assert [launch.refused for launch in launches(record)] == [False, False, True]
