"""Our Triton GEMM: its numbers by Triton's interpreter, its resources by Triton's compiler for GPUs that are not here.

Triton runs in processes of its own (this file as a script): it warns on import, and warnings are errors here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from makeway.act.triton.config import (
    OPT1,
    GemmConfig,
    GemmType,
    Tile,
    check_shape,
    controlled,
    operand_bytes,
)
from makeway.model.residency import pad_range, resident_blocks
from makeway.read.binaries import inspect_file
from makeway.values.control import SmemPad, TileChoice
from makeway.values.device import load_device
from makeway.values.errors import InputError
from makeway.values.kernel import KernelResources

OPT2: Tile = (64, 64, 64)  # arXiv 2606.09200, section 4.1
ARCHS = {"sm_80": "A100-SXM4-40GB", "sm_86": "A40", "sm_90": "H100-SXM5-80GB", "gfx90a": "MI250X"}
KINDS: tuple[tuple[GemmType, Tile, int], ...] = (
    ("fp32", OPT1, 2),
    ("fp32", OPT2, 2),
    ("fp16", OPT1, 2),
    ("fp16", OPT2, 2),
)
MORE_KINDS: tuple[tuple[GemmType, Tile, int], ...] = (("tf32", OPT1, 2), ("fp16", OPT1, 1), ("fp16", OPT1, 3))
PAD_BYTES = 50_000  # past the 48 KiB that a launch may have without asking
# m, n, k, tile, grid, type. Sizes that no tile divides, fewer and more blocks than tiles, single rows.
PRODUCTS: tuple[tuple[int, int, int, Tile, tuple[int, int] | None, GemmType], ...] = (
    (128, 128, 64, OPT1, None, "fp32"),
    (100, 130, 70, OPT1, None, "fp32"),
    (200, 150, 33, OPT1, (1, 1), "fp32"),
    (200, 150, 96, OPT2, (2, 3), "fp32"),
    (130, 257, 65, OPT2, (1024, 1024), "fp32"),
    (1, 1, 1, OPT1, (4, 2), "fp32"),
    (1, 300, 31, OPT1, (3, 1), "fp32"),
    (300, 1, 64, OPT1, (1, 2), "tf32"),
    (97, 101, 103, OPT1, (2, 1), "tf32"),
    (100, 130, 70, OPT1, (1, 2), "fp16"),
    (129, 65, 128, OPT2, None, "fp16"),
)


# --- in a process of its own -------------------------------------------------------------------


def multiply() -> None:
    """Every product by the interpreter against torch in double precision; prints the worst errors."""
    import torch

    from makeway.act.triton.gemm import matmul

    torch.manual_seed(7)
    found = []
    for m, n, k, tile, grid, dtype in PRODUCTS:
        number = torch.float16 if dtype == "fp16" else torch.float32
        a, b = torch.randn(m, k).to(number), torch.randn(k, n).to(number)
        out = torch.full((m, n), float("nan"), dtype=number)  # what is left out stays no number
        matmul(a, b, GemmConfig(tile=tile, grid=grid, dtype=dtype), out=out)
        exact = a.double() @ b.double()
        scale = a.double().abs() @ b.double().abs()
        found.append(((out.double() - exact).abs() / scale.clamp(min=1e-30)).max().item())
    refused = 0
    for left, right, dtype in (
        (torch.ones(4, 3), torch.ones(4, 3), "fp32"),
        (torch.ones(3, 3), torch.ones(3, 3), "fp16"),
    ):
        try:
            matmul(left, right, GemmConfig(dtype=dtype))
        except InputError:
            refused += 1
    print(json.dumps({"errors": found, "refused": refused}))


def compile_all(out: Path, kinds: tuple[tuple[GemmType, Tile, int], ...]) -> None:
    """Binaries of these kinds for every architecture, with the figures that no binary holds."""
    from makeway.act.triton.gemm import compiled_for, launch_bytes, padded

    figures: dict[str, Any] = {}
    for arch in ARCHS:
        for dtype, tile, stages in kinds:
            if arch.startswith("gfx") and dtype == "tf32":
                figures[_name(arch, dtype, tile, stages)] = {"unsupported": f"Triton offers no tf32 on {arch}"}
                continue
            config = GemmConfig(tile=tile, dtype=dtype, stages=stages)
            kernel = compiled_for(config, arch)
            larger = padded(kernel, PAD_BYTES)
            suffix = "hsaco" if arch.startswith("gfx") else "cubin"
            file = f"{_name(arch, dtype, tile, stages)}.{suffix}"
            (out / file).write_bytes(kernel.asm[suffix])
            figures[_name(arch, dtype, tile, stages)] = {
                "file": file,
                "threads": config.warps * kernel.metadata.target.warp_size,
                "smem": kernel.metadata.shared,
                "asked": launch_bytes(replace(config, pad_bytes=PAD_BYTES, grid=(2, 2)), arch),
                "launched": list(kernel.packed_metadata),
                "launched_padded": list(larger.packed_metadata),
                "same_code": larger.asm[suffix] == kernel.asm[suffix],
                "shares_handles": larger.module is not None or larger.function is not None,
            }
    (out / "figures.json").write_text(json.dumps(figures))


def _name(arch: str, dtype: GemmType, tile: Tile, stages: int) -> str:
    return f"{arch}-{dtype}-{'x'.join(map(str, tile))}-{stages}"


def _run(*arguments: str, **environment: str) -> str:
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# --- numbers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def products() -> dict[str, Any]:
    if importlib.util.find_spec("numpy") is None or importlib.util.find_spec("torch") is None:
        pytest.skip("Triton's interpreter needs numpy, and the comparison torch")
    found: dict[str, Any] = json.loads(_run("multiply", TRITON_INTERPRET="1").splitlines()[-1])
    return found


@pytest.mark.parametrize("at", range(len(PRODUCTS)), ids=lambda at: "-".join(map(str, PRODUCTS[at])))
def test_every_product_is_right_whatever_its_sizes_and_its_grid(products: dict[str, Any], at: int) -> None:
    *_, k, _, _, dtype = PRODUCTS[at]
    # Rounding of sums in fp32 (the interpreter does not round operands to tf32), and of the fp16 result.
    unit = 2.0**-11 if dtype == "fp16" else 0.0
    assert products["errors"][at] <= unit + (k + 1) * 2.0**-24


def test_matrices_that_do_not_match_are_refused(products: dict[str, Any]) -> None:
    assert products["refused"] == 2


# --- resources ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    out = tmp_path_factory.mktemp("gemm")
    asked = [
        item.callspec.params.get("kind")
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    ]
    _run("compile-more" if set(MORE_KINDS).intersection(asked) else "compile", str(out))
    return out, json.loads((out / "figures.json").read_text())


def _figures(compiled: tuple[Path, dict[str, Any]], arch: str, kind: tuple[GemmType, Tile, int]) -> dict[str, Any]:
    found: dict[str, Any] = compiled[1][_name(arch, *kind)]
    if "unsupported" in found:
        assert (arch, kind[0]) == ("gfx90a", "tf32"), found  # the only gap
        pytest.skip(found["unsupported"])
    return found


def _block(compiled: tuple[Path, dict[str, Any]], arch: str, kind: tuple[GemmType, Tile, int]) -> KernelResources:
    found = _figures(compiled, arch, kind)
    (kernel,) = inspect_file(compiled[0] / found["file"], arch=arch)
    assert kernel.threads == found["threads"]
    return kernel.resources(smem_dynamic_bytes=found["smem"])


def _words(kind: object) -> str:
    return "-".join(map(str, kind)) if isinstance(kind, tuple) else str(kind)


ALL_KINDS = pytest.mark.parametrize(
    "kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.long) for kind in MORE_KINDS)], ids=_words
)


@pytest.mark.parametrize("arch", ARCHS)
@ALL_KINDS
def test_shared_memory_is_what_triton_compiled_and_holds_the_papers_tiles(
    compiled: tuple[Path, dict[str, Any]], arch: str, kind: tuple[GemmType, Tile, int]
) -> None:
    dtype, tile, _ = kind
    rule, found = operand_bytes(tile, dtype), _block(compiled, arch, kind).smem_bytes
    print(f"{arch} {_words(kind)}: S_blk {rule:,} B, Triton {found:,} B")
    assert _figures(compiled, arch, kind)["asked"] == found + PAD_BYTES
    assert found >= rule / 2  # AMD passes A and B through the same bytes where nothing is pipelined


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_the_larger_tile_takes_twice_the_shared_memory_as_the_simulator_has_it(
    compiled: tuple[Path, dict[str, Any]], arch: str, dtype: GemmType
) -> None:
    small, large = _block(compiled, arch, (dtype, OPT1, 2)), _block(compiled, arch, (dtype, OPT2, 2))
    assert large.smem_bytes == 2 * small.smem_bytes


@pytest.mark.parametrize("arch", ARCHS)
@ALL_KINDS
def test_a_padded_launch_asks_for_the_pad_and_runs_the_same_code(
    compiled: tuple[Path, dict[str, Any]], arch: str, kind: tuple[GemmType, Tile, int]
) -> None:
    found = _figures(compiled, arch, kind)
    warps, clusters, smem = found["launched"]
    assert smem == found["smem"]
    assert found["launched_padded"] == [warps, clusters, smem + PAD_BYTES]
    assert found["same_code"]
    assert not found["shares_handles"]


@pytest.mark.parametrize("arch", ARCHS)
@ALL_KINDS
def test_a_pad_can_bring_the_real_kernel_to_one_block_per_sm_and_not_a_byte_less_does(
    compiled: tuple[Path, dict[str, Any]], arch: str, kind: tuple[GemmType, Tile, int]
) -> None:
    device, block = load_device(ARCHS[arch]), _block(compiled, arch, kind)
    alone = resident_blocks(device, block)
    found = pad_range(device, block, 1)
    assert alone > 1
    assert found is not None
    assert resident_blocks(device, block.padded(found.smallest_bytes)) == 1
    assert resident_blocks(device, block.padded(found.smallest_bytes - 1)) == 2


# --- the configuration by itself ----------------------------------------------------------------


def test_the_papers_tiles_take_16_and_32_kib_in_fp32_and_half_of_it_in_fp16() -> None:
    assert [operand_bytes(tile, "fp32") for tile in (OPT1, OPT2)] == [16_384, 32_768]
    assert [operand_bytes(tile, "fp16") for tile in (OPT1, OPT2)] == [8_192, 16_384]


def test_a_grid_never_has_more_blocks_along_a_side_than_tiles() -> None:
    assert GemmConfig(grid=(1024, 2)).blocks(m=8192, n=8192) == (128, 2)
    assert GemmConfig().blocks(m=100, n=8192) == (128, 2)


def test_controls_set_tile_and_pad_of_our_gemm_and_leave_other_kernels_to_others() -> None:
    config = GemmConfig()
    assert controlled(config, (TileChoice(64, 64, 64), SmemPad(4096))) == GemmConfig(tile=OPT2, pad_bytes=4096)
    assert controlled(config, (TileChoice(64, 64, 64, "flash*"), SmemPad(4096, "flash*"))) == config


@pytest.mark.parametrize(
    "wrong",
    [{"tile": (64, 48, 32)}, {"tile": (8, 64, 32)}, {"grid": (0, 4)}, {"stages": 0}, {"warps": 3}, {"dtype": "fp8"}],
    ids=str,
)
def test_a_configuration_that_triton_could_not_compile_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        GemmConfig(**wrong)


def test_a_matrix_beyond_32_bit_offsets_is_refused() -> None:
    check_shape(8192, 57344, 8192)
    with pytest.raises(InputError, match="C is 65536 x 65536"):
        check_shape(65536, 65536, 64)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["multiply"]:
            multiply()
        case ["compile", out]:
            compile_all(Path(out), KINDS)
        case ["compile-more", out]:
            compile_all(Path(out), KINDS + MORE_KINDS)
