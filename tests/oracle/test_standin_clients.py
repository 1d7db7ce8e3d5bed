"""Real clients run on the stand-in drivers, and what the drivers record is what the programs asked for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.standin.build import Launch, Stream, launches, read_record
from tests.standin.running import PROGRAMS, kernels, run

from makeway.model.residency import resident_blocks
from makeway.read.binaries import inspect_file
from makeway.values.device import load_device

COMM = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
DEVICES = ("A40", "A100-SXM4-80GB", "H100-SXM5-80GB")


def without_process(launch: Launch) -> tuple[object, ...]:
    values = {name: getattr(launch, name) for name in Launch.__dataclass_fields__ if name not in ("pid", "thread")}
    return tuple(map(repr, values.values()))


@pytest.mark.parametrize("mode", ["", "graph"])
@pytest.mark.parametrize("program", ["bindings_program.py", "core_program.py"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_program_of_nvidias_python_packages_runs(device: str, program: str, mode: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    done = run(device, PROGRAMS / program, kernels(), "5", "3", mode, record=record)
    arch = load_device(device).arch
    assert done.returncode == 3, done.stderr
    assert f"launched 5 gemm and 5 comm on {arch}" in done.stdout
    found = launches(record)
    assert Counter(launch.kernel for launch in found) == {"gemm": 5, COMM: 5}
    assert all(launch.error == 0 and not launch.refused for launch in found)
    assert {launch.via for launch in found} == {"graph" if mode else "stream"}
    made = {item.id for item in read_record(record) if isinstance(item, Stream)}
    assert {launch.stream for launch in found} <= made
    assert len({(launch.kernel, launch.stream) for launch in found}) == 2


@pytest.mark.parametrize("device", DEVICES)
def test_residency_that_nvidias_calculator_gives_a_launch_is_makeways(device: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    run(device, PROGRAMS / "bindings_program.py", kernels(), "1", record=record)
    arch = load_device(device).arch
    for launch in launches(record):
        (kernel,) = inspect_file(Path(kernels(), f"{launch.kernel}.{arch}.cubin"))
        resources = kernel.resources(threads=launch.block[0], smem_dynamic_bytes=launch.smem_bytes)
        assert launch.resident_blocks == resident_blocks(load_device(device), resources) > 0


def test_two_runs_of_a_program_leave_the_same_record(tmp_path: Path) -> None:
    """Arguments included: what differs after a control was applied is then the control's doing."""
    records = []
    for name in ("one", "two"):
        run("A40", PROGRAMS / "bindings_program.py", kernels(), "2", record=tmp_path / name)
        records.append([without_process(launch) for launch in launches(tmp_path / name)])
    assert records[0] == records[1]
    assert len(records[0]) == 4


@pytest.mark.parametrize("device", ["A100-SXM4-80GB", "H100-SXM5-80GB"])
def test_triton_compiles_for_the_device_it_finds_and_launches(device: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    done = run(device, PROGRAMS / "triton_program.py", "2", "5", record=record)
    assert done.returncode == 5, done.stderr
    found = launches(record)
    assert [launch.kernel for launch in found] == ["gemm", COMM] * 2
    assert {launch.call for launch in found} == {"cuLaunchKernelEx"}
    assert len({launch.stream for launch in found}) == 2


@pytest.mark.parametrize("launcher", ["", "triton"])
def test_programs_for_amd_run(launcher: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    done = run("MI250X", PROGRAMS / "hip_program.py", kernels(), "2", "4", launcher, record=record)
    assert done.returncode == 4, done.stderr
    found = launches(record)
    assert [launch.kernel for launch in found] == ["gemm", COMM] * 2
    assert {launch.call for launch in found} == {"hipModuleLaunchKernel"}
    assert {launch.block[0] for launch in found} == {256}
    assert len({launch.stream for launch in found}) == 2
