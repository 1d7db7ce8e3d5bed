"""Compile the kernels of the example programs with Triton, without a GPU: kernels.py DIRECTORY ARCH...

Per architecture: `gemm`, a matrix product, and a kernel that only carries the name of an NCCL kernel; it is ours.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

COMM = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


@triton.jit  # type: ignore[untyped-decorator]
def gemm(a, b, c, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        left = tl.load(a + rows[:, None] * k + (start + inner)[None, :])
        right = tl.load(b + (start + inner)[:, None] * n + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))


@triton.jit  # type: ignore[untyped-decorator]
def ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x, y, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N802, N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mine = tl.load(x + at, mask=at < count)
    tl.store(y + at, mine + tl.load(y + at, mask=at < count), mask=at < count)


def sources() -> dict[str, tuple[ASTSource, int]]:
    """Each kernel with its number of warps."""
    gemm_types = (
        dict.fromkeys("abc", "*fp16") | dict.fromkeys("nk", "i32") | dict.fromkeys(("BM", "BN", "BK"), "constexpr")
    )
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(5)}
    comm_types = {"x": "*bf16", "y": "*bf16", "count": "i32", "BLOCK": "constexpr"}
    return {
        "gemm": (ASTSource(gemm, gemm_types, {(5,): 64, (6,): 64, (7,): 32}, aligned), 4),
        COMM: (ASTSource(ncclDevKernel_AllReduce_Sum_bf16_RING_LL, comm_types, {(3,): 1024}), 4),
    }


def target(arch: str) -> GPUTarget:
    """Triton's name for "sm_90" or "gfx90a"."""
    if arch.startswith("sm_"):
        return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    return GPUTarget("hip", arch, 64)


def main(out: Path, archs: list[str]) -> None:
    figures = {}
    for arch in archs:
        aim = target(arch)
        kind = "cubin" if aim.backend == "cuda" else "hsaco"
        for name, (source, warps) in sources().items():
            done = triton.compile(source, target=aim, options={"num_warps": warps, "num_stages": 3})
            (out / f"{name}.{arch}.{kind}").write_bytes(done.asm[kind])
            figures[f"{name}.{arch}"] = {"threads": warps * aim.warp_size, "smem_bytes": done.metadata.shared}
    (out / "kernels.json").write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
