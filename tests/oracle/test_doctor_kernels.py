"""The self-test's kernel, compiled by Triton for GPUs that are not here; in a process of its own, as Triton warns."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from makeway.act.doctor.self_test import KERNEL
from makeway.model.residency import pad_range, resident_blocks
from makeway.read.binaries import inspect_file
from makeway.values.device import load_device

ARCHS = {
    80: "A100-SXM4-80GB", 86: "A40", 89: "L40S", 90: "H100-SXM5-80GB", 100: "B200", 103: "B300", 120: "RTX-5090",
}  # fmt: skip
AMD = {"gfx90a": "MI250X", "gfx942": "MI300X", "gfx950": "MI350X"}
TARGETS = (8, 4, 2, 1)  # as makeway.act.doctor.gpu_probe has


def compile_all(out: Path) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from makeway.act.doctor import gpu_probe
    from makeway.act.doctor.kernels import WARPS, XCC_ARCHS, makeway_hold, makeway_hold_amd

    assert gpu_probe.TARGETS == TARGETS
    source = ASTSource(makeway_hold, {"rows": "*i64", "hold_ns": "i32"}, {})
    for arch in ARCHS:
        kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": WARPS})
        assert kernel.metadata.shared == 0
        (out / f"{arch}.cubin").write_bytes(kernel.asm["cubin"])
        (out / f"{arch}.ptx").write_text(kernel.asm["ptx"])
    types = {"rows": "*i64", "hold_ns": "i32", "XCC": "constexpr"}
    for name in AMD:
        source = ASTSource(makeway_hold_amd, types, {(2,): name in XCC_ARCHS})
        kernel = triton.compile(source, target=GPUTarget("hip", name, 64), options={"num_warps": WARPS})
        assert kernel.metadata.shared == 0
        (out / f"{name}.hsaco").write_bytes(kernel.asm["hsaco"])
        (out / f"{name}.s").write_text(kernel.asm["amdgcn"])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("triton", "torch"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    out = tmp_path_factory.mktemp("hold")
    done = subprocess.run(
        [sys.executable, __file__, str(out)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out


@pytest.mark.parametrize("arch", ARCHS)
def test_the_kernel_reads_its_sm_and_reads_the_clock_inside_its_loop(compiled: Path, arch: int) -> None:
    code = (compiled / f"{arch}.ptx").read_text()
    assert f".entry {KERNEL}(" in code
    assert code.count("%smid;") == 1
    loop = re.search(r"^(\$L__BB\w+):(.*?)bra\s+\1;", code, re.M | re.S)
    assert loop is not None
    assert "%globaltimer;" in loop[2]
    assert code[: loop.start()].count("%globaltimer;") == 1  # the start


@pytest.mark.parametrize("arch", ARCHS)
def test_pads_bring_the_kernel_to_each_residency_that_is_tried(compiled: Path, arch: int) -> None:
    (kernel,) = inspect_file(compiled / f"{arch}.cubin", arch=f"sm_{arch}")
    assert kernel.name == KERNEL
    device, block = load_device(ARCHS[arch]), kernel.resources(smem_dynamic_bytes=0)
    assert resident_blocks(device, block) > max(TARGETS)
    for target in TARGETS:
        found = pad_range(device, block, target)
        assert found is not None
        assert resident_blocks(device, block.padded(found.smallest_bytes)) == target


@pytest.mark.parametrize("arch", AMD)
def test_the_amd_kernel_reads_its_unit_and_waits_for_the_clock_that_it_reads(compiled: Path, arch: str) -> None:
    code = [line.strip() for line in (compiled / f"{arch}.s").read_text().splitlines()]
    assert sum("hwreg(4, 8, 8)" in line for line in code) == 1
    assert sum("hwreg(20, 0, 4)" in line for line in code) == (arch != "gfx90a")  # chiplets number their CUs alike
    clocks = [at for at, line in enumerate(code) if line.startswith("s_memrealtime")]
    assert len(clocks) >= 2  # the start, and in the loop
    assert all(code[at + 1] == "s_waitcnt lgkmcnt(0)" for at in clocks)


@pytest.mark.parametrize("arch", AMD)
def test_pads_bring_the_amd_kernel_to_each_residency_that_is_tried(compiled: Path, arch: str) -> None:
    (kernel,) = inspect_file(compiled / f"{arch}.hsaco", arch=arch)
    device, block = load_device(AMD[arch]), kernel.resources(threads=256, smem_dynamic_bytes=0)
    for target in TARGETS:
        pads = pad_range(device, block, target)
        if target < resident_blocks(device, block):
            assert pads is not None
            assert resident_blocks(device, block.padded(pads.smallest_bytes)) == target


if __name__ == "__main__":
    compile_all(Path(sys.argv[1]))
