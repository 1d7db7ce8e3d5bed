"""The stand-in refuses what CUDA documents as refused, with the documented error, and nothing else."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.standin.build import (
    HERE,
    FunctionAttribute,
    Launch,
    Unknown,
    environment,
    launches,
    read_record,
    symbol_versions,
    typedef_check,
)
from tests.standin.running import CHECKS, PROGRAMS, answers, driver_for, kernels, run, storm

from makeway.model.residency import pad_range, resident_blocks
from makeway.read.binaries import inspect_file
from makeway.values.device import load_device

DEVICES = {"sm_80": "A100-SXM4-80GB", "sm_86": "A40", "sm_90": "H100-SXM5-80GB"}

EVERYWHERE = {
    "plain": "SUCCESS",
    "48 KiB": "SUCCESS",
    "above 48 KiB": "INVALID_VALUE",
    "opt in above the limit": "INVALID_VALUE",
    "opt in": "SUCCESS",
    "all of it": "SUCCESS",
    "more than all of it": "INVALID_VALUE",
    "no blocks": "INVALID_VALUE",
    "widest grid": "SUCCESS",
    "too wide a grid": "INVALID_VALUE",
    "too high a grid": "INVALID_VALUE",
    "other than the required threads": "INVALID_VALUE",
    "required threads in another shape": "INVALID_VALUE",
    "too many threads": "INVALID_VALUE",
    "too many registers": "LAUNCH_OUT_OF_RESOURCES",
    "cooperative": "SUCCESS",
    "cooperative too large": "COOPERATIVE_LAUNCH_TOO_LARGE",
    "no arguments": "INVALID_VALUE",
    "another architecture": "NO_BINARY_FOR_GPU",
    "fatbin": "SUCCESS",
    "no image": "INVALID_IMAGE",
    "no such kernel": "NOT_FOUND",
    "wild copy": "INVALID_VALUE",
    "freed": "SUCCESS",
    "freed twice": "INVALID_VALUE",
    "stream of another context": "INVALID_HANDLE",
    "back in its own": "SUCCESS",
    "unloaded": "INVALID_HANDLE",
    "priorities": [0, 0, -2, -5, -5],
}
WITH_CLUSTERS = {
    "cluster of 4": "SUCCESS",
    "cluster that does not divide": "INVALID_VALUE",
    "cluster of 16": "INVALID_CLUSTER_SIZE",
    "allow 16": "SUCCESS",
    "cluster of 16 allowed": "SUCCESS",
}
WITHOUT_CLUSTERS = dict.fromkeys(WITH_CLUSTERS, "INVALID_CLUSTER_SIZE") | {"allow 16": "INVALID_VALUE"}


@pytest.mark.parametrize("arch", DEVICES)
def test_launches_at_the_limits(arch: str) -> None:
    clusters = WITH_CLUSTERS if arch == "sm_90" else WITHOUT_CLUSTERS
    assert answers(DEVICES[arch], "limits", kernels()) == EVERYWHERE | clusters


@pytest.mark.parametrize("arch", DEVICES)
def test_cubins_read_as_makeway_and_cuobjdump_read_them(triton_kernels: Path, arch: str) -> None:
    """Four readers: the driver's in C, makeway's, NVIDIA's tool, and NVIDIA's occupancy calculator."""
    device = load_device(DEVICES[arch])
    found = answers(DEVICES[arch], "calls", "cubins", str(triton_kernels), arch)
    assert set(found) == {f"{name}.{arch}.cubin" for name in ("matmul", "matmul_small", "scale")}
    for file, facts in found.items():
        (ours,) = inspect_file(triton_kernels / file, reader="native")
        (theirs,) = inspect_file(triton_kernels / file, arch=arch, reader="cuobjdump")
        assert facts["name"] == ours.name == theirs.name
        assert facts["registers"] == ours.registers == theirs.registers
        assert facts["static"] == ours.smem_static_bytes - ours.smem_system_bytes
        assert facts["threads"] == ours.threads
        offsets = [offset for offset, _ in facts["parameters"]]
        assert len(offsets) >= 5
        assert offsets == sorted(offsets)
        expected = [
            resident_blocks(device, ours.resources(smem_dynamic_bytes=smem_bytes))
            for smem_bytes in range(0, 49153, 4096)
        ]
        assert facts["occupancy"] == expected
        bare = ours.resources(smem_dynamic_bytes=0)
        for blocks, most in enumerate(facts["room"], start=1):
            pads = pad_range(device, bare, blocks)
            assert pads is None or pads.largest_bytes == most


# --- calls that are not there ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "call"), [("unknown", "cuMemAllocManaged"), ("unknown_attribute", "cuDeviceGetAttribute(11)")]
)
def test_a_call_that_is_not_implemented_fails_loudly(what: str, call: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    done = run("A40", CHECKS / "calls.py", what, record=record)
    assert done.returncode == -6
    assert f"{call} is not implemented here" in done.stderr
    assert Unknown(call) in read_record(record)
    assert answers("A40", "calls", what, MAKEWAY_STANDIN_UNKNOWN="error") == "NOT_SUPPORTED"


def test_calls_before_initialisation_say_so() -> None:
    assert answers("A40", "calls", "before_init") == ["NOT_INITIALIZED"] * 2


def test_without_a_device_file_there_is_no_device() -> None:
    done = run("A40", PROGRAMS / "bindings_program.py", kernels(), record=None, MAKEWAY_STANDIN_DEVICE="/absent")
    assert done.returncode == 9
    assert "CUDA_ERROR_NO_DEVICE" in done.stdout


# --- versions -------------------------------------------------------------------------------------


def test_addresses_honour_the_version_that_was_asked_for() -> None:
    found, missing, too_old, absent = 0, None, 2, 1
    assert answers("A40", "calls", "addresses") == {
        "cuMemAlloc 2000 0": [0, found, "cuMemAlloc"],
        "cuMemAlloc 3020 0": [0, found, "cuMemAlloc_v2"],
        "cuCtxGetDevice 12080 0": [0, found, "cuCtxGetDevice"],
        "cuCtxGetDevice 13000 0": [0, found, "cuCtxGetDevice_v2"],
        "cuCtxCreate 11030 0": [0, found, "cuCtxCreate_v2"],
        "cuCtxCreate 11040 0": [0, found, "cuCtxCreate_v3"],
        "cuLaunchKernel 12000 0": [0, found, "cuLaunchKernel"],
        "cuLaunchKernel 12000 2": [0, found, "cuLaunchKernel_ptsz"],
        "cuLaunchKernel 6000 2": [0, found, "cuLaunchKernel"],  # the per-thread form came with 7.0
        "cuMemcpyHtoD 12000 2": [0, found, "cuMemcpyHtoD_v2_ptds"],
        "cuInit 12000 2": [0, found, "cuInit"],
        "cuLaunchKernelEx 11050 0": [0, too_old, missing],  # came with 11.6
        "cuAbsent 12000 0": [0, absent, missing],
        "cuMemAlloc_v2 12000 0": [0, absent, missing],  # the base name is asked for
        "cuInit 99000 0": [1, -1, missing],  # newer than the driver: invalid value
    }


def test_an_older_driver_has_no_newer_functions() -> None:
    driver = driver_for("A40")
    old = environment(driver, device="A40", record=None, driver_version=11080)["MAKEWAY_STANDIN_DEVICE"]
    found = answers("A40", "calls", "addresses", MAKEWAY_STANDIN_DEVICE=old)
    assert found["cuCtxCreate 11040 0"][2] == "cuCtxCreate_v3"
    assert found["cuLaunchKernel 12000 0"] == [1, -1, None]  # newer than the driver: invalid value


def test_every_version_has_the_signature_that_nvidia_declares_for_it(tmp_path: Path) -> None:
    """The compiler compares each exported symbol with the pointer type of the version it is given out as."""
    source, flags = typedef_check()
    assert source.count("PFN_") > 600
    file = tmp_path / "check.c"
    file.write_text(source)
    subprocess.run(["gcc", "-fsyntax-only", "-Werror", *flags, str(file)], check=True)
    wrong = source.replace("PFN_cuMemAlloc_v3020", "PFN_cuMemAlloc_v2000", 1)
    file.write_text(wrong)
    done = subprocess.run(["gcc", "-fsyntax-only", "-Werror", *flags, str(file)], capture_output=True, check=False)
    assert done.returncode != 0


def test_versions_and_symbols_are_paired_oldest_first() -> None:
    typedefs = "(*PFN_cuX_v3000)(int); (*PFN_cuX_v12000)(int); (*PFN_cuX_v7000_ptsz)(int);"
    assert symbol_versions({"cuX", "cuX_v2", "cuX_v2_ptsz"}, typedefs) == [
        ("cuX", 3000, False, "cuX"),
        ("cuX", 12000, False, "cuX_v2"),
        ("cuX", 7000, True, "cuX_v2_ptsz"),
    ]


# --- graphs ---------------------------------------------------------------------------------------


def test_graphs_are_captured_changed_and_launched_as_documented(tmp_path: Path) -> None:
    record = tmp_path / "record"
    found = answers("H100-SXM5-80GB", "graphs", kernels(), record=record)
    assert found["captured"] == {
        "edges": [[0, 1], [0, 2], [1, 3], [2, 3]],
        "priorities": [0, -5, 0, 0],
        "smem": [0, 100, 200, 300],
    }
    assert found["errors"] == {
        "begin twice": "ILLEGAL_STATE",
        "synchronise": "STREAM_CAPTURE_UNSUPPORTED",
        "launch into a broken capture": "STREAM_CAPTURE_INVALIDATED",
        "end a broken capture": "STREAM_CAPTURE_INVALIDATED",
        "end none": "ILLEGAL_STATE",
        "end in another stream": "STREAM_CAPTURE_UNMATCHED",
        "fork without join": "STREAM_CAPTURE_UNJOINED",
        "wait for an event outside": "STREAM_CAPTURE_ISOLATION",
        "merge": "STREAM_CAPTURE_MERGE",
        "default stream beside it": "STREAM_CAPTURE_IMPLICIT",
        "capture the default stream": "STREAM_CAPTURE_UNSUPPORTED",
        "afterwards": "SUCCESS",
    }
    assert found["built"] == {
        "the child is a copy": True,
        "set too much": "INVALID_VALUE",
        "set after the opt-in": "SUCCESS",
        "set priority": "SUCCESS",
        "change the executable": "SUCCESS",
        "the graph keeps its own": 0,
        "set with arguments read before a change": "INVALID_VALUE",
        "set with arguments read anew": "SUCCESS",
        "update": "SUCCESS",
        "update of another shape": "GRAPH_EXEC_UPDATE_FAILURE",
    }
    assert found["by kernel"] == {"func": 0, "kern": True, "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"}
    run_from_graphs = [launch for launch in launches(record) if launch.via == "graph"]
    assert [(launch.smem_bytes, launch.priority) for launch in run_from_graphs] == [
        *((60000, 0), (0, -3)),  # as instantiated
        *((60000, 0), (50000, -3)),  # the executable's inner node changed
        *((65000, 0), (0, -3)),  # updated from the graph, which kept its own inner node
    ]


# --- refusals -------------------------------------------------------------------------------------


def refused(rule: str, record: Path, *, steps: int = 6) -> tuple[int, list[Launch]]:
    done = run("A40", PROGRAMS / "bindings_program.py", kernels(), str(steps), record=record, refuse=rule)
    return done.returncode, launches(record)


def test_the_nth_launch_is_refused(tmp_path: Path) -> None:
    status, found = refused("launch:3", tmp_path / "record")
    assert status == 9
    assert [launch.refused for launch in found] == [False, False, True]
    assert found[-1].error == 701  # CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES


def test_launches_above_a_size_are_refused_each_nth_time(tmp_path: Path) -> None:
    status, found = refused("smem-above:1000,every:2", tmp_path / "record")
    assert status == 9
    assert [(launch.smem_bytes > 1000, launch.refused) for launch in found] == [
        (True, False),
        (False, False),
        (True, True),
    ]


def test_what_no_rule_names_goes_through(tmp_path: Path) -> None:
    status, found = refused("launch-every:100;smem-above:60000;func-attribute", tmp_path / "record")
    assert status == 0
    assert len(found) == 12


def test_a_rule_that_is_none_stops_the_program(tmp_path: Path) -> None:
    done = run("A40", PROGRAMS / "bindings_program.py", kernels(), record=None, refuse="lunch:1")
    assert done.returncode == -6
    assert "'lunch:1' is no rule" in done.stderr


def test_setting_a_function_attribute_is_refused(tmp_path: Path) -> None:
    record = tmp_path / "record"
    found = answers("A40", "limits", kernels(), record=record, MAKEWAY_STANDIN_REFUSE="func-attribute")
    assert found["opt in"] == "INVALID_VALUE"
    assert found["all of it"] == "INVALID_VALUE"
    set_ = [item for item in read_record(record) if isinstance(item, FunctionAttribute)]
    assert set_
    assert all(item.refused for item in set_)


# --- many threads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 16])
def test_no_launch_of_many_threads_is_lost_or_mixed_up(threads: int, tmp_path: Path) -> None:
    record = tmp_path / "record"
    done = storm("H100-SXM5-80GB", threads=threads, launches=1000, record=record)
    assert json.loads(done)["launches"] == threads * 1000
    assert len(launches(record)) == threads * 1000
    assert len({launch.thread for launch in launches(record)}) == threads


def test_the_sources_stay_small() -> None:
    for file in HERE.rglob("*.[chp]*"):
        if file.suffix in (".c", ".h", ".py"):
            assert len(file.read_text().splitlines()) < 400, file
