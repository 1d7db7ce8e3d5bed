"""`makeway run` around clients that nobody here wrote, on every stand-in device: padded as planned, all else kept."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.standin.build import cuda_driver, environment, hip_runtime, program_kernels, shared_place
from tests.standin.kernels import COMM
from tests.standin.records import Launch, launches

from makeway.model.residency import pad_range, resident_blocks
from makeway.read.binaries.inspect import inspect_file
from makeway.read.plan_file import dump_plan
from makeway.values.control import CommPriority, SmemPad
from makeway.values.device import Device, load_device
from makeway.values.kernel import KernelResources
from makeway.values.plan import Plan

PROGRAMS = Path(__file__).parents[1] / "standin" / "programs"
CUDA = ("A40", "A100-SXM4-80GB", "H100-SXM5-80GB")
CLIENTS = {
    "cuda-bindings": ("bindings_program.py", True, ""),
    "cuda-bindings graph": ("bindings_program.py", True, "graph"),
    "cuda-core": ("core_program.py", True, ""),
    "triton": ("triton_program.py", False, ""),
    "hip": ("hip_program.py", True, ""),
    "triton hip": ("hip_program.py", True, "triton"),
}
ALWAYS = {("A40", "cuda-bindings"), ("H100-SXM5-80GB", "cuda-bindings graph")}  # and every client on an A100
CASES = [
    *(
        pytest.param(device, client, marks=() if "A100" in device or (device, client) in ALWAYS else pytest.mark.long)
        for device in CUDA
        for client in list(CLIENTS)[:4]
    ),
    *(
        pytest.param("MI250X", client, marks=pytest.mark.long if "triton" in client else ())
        for client in list(CLIENTS)[4:]
    ),
]
LAUNCHES = 3
RAN_WITHIN_S = 240
pytestmark = pytest.mark.timeout(2 * RAN_WITHIN_S)


def started(client: str, device: str, record: Path, plan: Path | None) -> tuple[str, dict[str, Any] | None]:
    """What the program printed, and what `makeway run` said of the plan."""
    script, takes_kernels, mode = CLIENTS[client]
    kernels = [str(program_kernels(shared_place()))] if takes_kernels else []
    program = [sys.executable, str(PROGRAMS / script), *kernels, str(LAUNCHES), "0", *([mode] if mode else [])]
    driver = hip_runtime(shared_place()) if device == "MI250X" else cuda_driver(shared_place())
    under = [sys.executable, "-m", "makeway", "run", "--plan", str(plan), "--json", "--"] if plan else []
    done = subprocess.run(
        [*under, *program], env=environment(driver, device=device, record=record), capture_output=True, text=True,
        timeout=RAN_WITHIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = next(line for line in (done.stderr if plan else done.stdout).splitlines() if line.startswith("launched"))
    return printed, json.loads(done.stdout) if plan else None


def gemm_resources(device: Device, launch: Launch) -> KernelResources:
    """A block of the program's GEMM: registers from its code, the rest as launched."""
    suffix = "hsaco" if device.vendor == "amd" else "cubin"
    code = program_kernels(shared_place()) / f"gemm.{device.arch}.{suffix}"
    [found] = [one for one in inspect_file(code) if one.name == "gemm"]
    return found.resources(threads=launch.block[0], smem_dynamic_bytes=launch.smem_bytes)


def as_without(launch: Launch) -> Launch:
    """A launch without what a plan may change, and without what differs from run to run."""
    same = replace(launch, call="", smem_bytes=0, priority=0, attributes={}, resident_blocks=0, carve_out=-1)
    return replace(same, parameters="", pid=0, thread=0)


@pytest.mark.parametrize(("name", "client"), CASES)
def test_compute_is_padded_to_the_planned_residency_and_comm_never(name: str, client: str, tmp_path: Path) -> None:
    device = load_device(name)
    said, _ = started(client, name, tmp_path / "plain", None)
    plain = launches(tmp_path / "plain")
    gemm = next(one for one in plain if one.kernel == "gemm")
    block = gemm_resources(device, gemm)
    assert resident_blocks(device, block) == gemm.resident_blocks  # makeway's model and the driver's own count agree
    wanted = max(gemm.resident_blocks // 2, 1)
    pad = pad_range(device, block, wanted)
    assert pad is not None
    # ROCm's own count does not round LDS up to the unit it is granted in: the largest pad suits both counts.
    pad_bytes = pad.largest_bytes if name == "MI250X" else pad.smallest_bytes
    plan = Plan(controls=(SmemPad(pad_bytes, "gemm*"), CommPriority()))
    (tmp_path / "plan.toml").write_text(dump_plan(plan))
    said_under, document = started(client, name, tmp_path / "shaped", tmp_path / "plan.toml")
    shaped = launches(tmp_path / "shaped")
    assert said_under == said
    assert [as_without(one) for one in shaped] == [as_without(one) for one in plain]
    for before, after in zip(plain, shaped, strict=True):
        if after.kernel == "gemm":
            assert after.smem_bytes == before.smem_bytes + pad_bytes
            assert after.resident_blocks == wanted
        else:
            assert after.kernel == COMM
            assert after.smem_bytes == before.smem_bytes
            assert after.priority < before.priority or name == "MI250X"
    assert document is not None
    statuses = {control["control"].partition("=")[0]: control["status"] for control in document["controls"]}
    assert statuses["pad"] == "applied"
    if name != "MI250X":
        assert statuses["priority"] == "applied"
