"""Compile a few Triton kernels for several GPUs, without a GPU: compile_kernels.py DIRECTORY."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_86": GPUTarget("cuda", 86, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx90a": GPUTarget("hip", "gfx90a", 64),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


@triton.jit
def matmul(a, b, c, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        left = tl.load(a + rows[:, None] * k + (start + inner)[None, :])
        right = tl.load(b + (start + inner)[:, None] * n + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))


@triton.jit
def scale(x, y, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * factor)


def sources() -> dict[str, tuple[ASTSource, int]]:
    """Each kernel with its number of warps."""
    matmul_types = (
        dict.fromkeys("abc", "*fp16") | dict.fromkeys("nk", "i32") | dict.fromkeys(("BM", "BN", "BK"), "constexpr")
    )
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(5)}
    scale_types = {"x": "*fp32", "y": "*fp32", "factor": "fp32", "BLOCK": "constexpr"}
    return {
        "matmul": (ASTSource(matmul, matmul_types, {(5,): 128, (6,): 128, (7,): 32}, aligned), 8),
        "matmul_small": (ASTSource(matmul, matmul_types, {(5,): 64, (6,): 64, (7,): 32}, aligned), 4),
        "scale": (ASTSource(scale, scale_types, {(3,): 1024}), 4),
    }


def main(out: Path) -> None:
    figures = {}
    for arch, target in TARGETS.items():
        for name, (source, warps) in sources().items():
            done = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": 3})
            kind = "cubin" if target.backend == "cuda" else "hsaco"
            file = f"{name}.{arch}.{kind}"
            (out / file).write_bytes(done.asm[kind])
            figures[file] = {"arch": arch, "threads": warps * target.warp_size, "shared": done.metadata.shared}
    (out / "figures.json").write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
