"""Kernel resources read natively must equal what NVIDIA's cuobjdump prints, on real binaries."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from makeway.read.binaries import BinaryKernel, inspect_file
from makeway.values.collective import load_footprint, path_names

CUDA_ARCHS = ("sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
KERNELS = ("matmul", "matmul_small", "scale")


def facts(kernels: list[BinaryKernel]) -> Counter[tuple[str, str, int, int]]:
    return Counter((kernel.name, kernel.arch, kernel.registers, kernel.smem_static_bytes) for kernel in kernels)


@pytest.mark.parametrize("arch", CUDA_ARCHS)
@pytest.mark.parametrize("name", KERNELS)
def test_cubins_that_triton_compiles_read_as_cuobjdump_reads_them(triton_kernels: Path, arch: str, name: str) -> None:
    file = triton_kernels / f"{name}.{arch}.cubin"
    ours = inspect_file(file, reader="native")
    theirs = inspect_file(file, arch=arch, reader="cuobjdump")
    assert len(ours) == 1
    assert facts(ours) == facts(theirs)
    figures = json.loads((triton_kernels / "figures.json").read_text())[file.name]
    assert ours[0].threads == figures["threads"]
    assert ours[0].threads_required
    assert ours[0].smem_dynamic_bytes is None


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_every_kernel_of_nccl_reads_as_cuobjdump_reads_it(libnccl: Path, arch: str) -> None:
    ours = inspect_file(libnccl, arch=arch, reader="native")
    assert len(ours) > 200
    assert facts(ours) == facts(inspect_file(libnccl, arch=arch, reader="cuobjdump"))


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
@pytest.mark.parametrize("name", KERNELS)
def test_hsacos_that_triton_compiles_give_registers_and_workgroup_size(
    triton_kernels: Path, arch: str, name: str
) -> None:
    (kernel,) = inspect_file(triton_kernels / f"{name}.{arch}.hsaco", arch=arch)
    figures = json.loads((triton_kernels / "figures.json").read_text())[f"{name}.{arch}.hsaco"]
    assert kernel.threads == figures["threads"]
    assert kernel.name == name.removesuffix("_small")
    assert 0 < kernel.registers <= 512
    assert kernel.scalar_registers is not None
    assert 0 < kernel.scalar_registers <= 112
    assert kernel.smem_dynamic_bytes is None


def test_the_footprint_file_says_what_the_library_holds(libnccl: Path) -> None:
    """data/footprints/nccl-2.32.3.toml against the NCCL 2.32.3 library itself."""
    for arch in ("sm_80", "sm_90", "sm_100", "sm_120"):
        kernels = [kernel for kernel in inspect_file(libnccl, arch=arch) if "ncclDevKernel" in kernel.name]
        real = [kernel for kernel in kernels if kernel.registers > 4]  # the others are empty FP8 stubs of sm_80
        footprint = load_footprint("nccl-2.32.3/ring-simple", arch)
        assert footprint.block is not None
        assert {kernel.registers for kernel in real} == {footprint.block.registers_per_thread}
        static = {kernel.smem_static_bytes - kernel.smem_system_bytes for kernel in real}
        assert static == {footprint.facts["smem_static_bytes"].value}
        if arch != "sm_80":
            assert {kernel.barriers for kernel in real} == {footprint.block.barriers}
        symmetric = load_footprint("nccl-2.32.3/symmetric", arch)
        assert symmetric.block is not None
        most = max(kernel.registers for kernel in inspect_file(libnccl, arch=arch) if "ncclSymk" in kernel.name)
        assert most == symmetric.block.registers_per_thread


def test_all_footprint_paths_load_on_every_architecture_they_list() -> None:
    for library, archs in (("nccl-2.21.5", ("sm_70", "sm_80", "sm_90")), ("rccl-5.4.3", ("gfx90a", "gfx942"))):
        for path in path_names(library):
            for arch in archs:
                load_footprint(path, arch)
