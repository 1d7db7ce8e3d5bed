"""A GEMM whose X x Y blocks loop over the output tiles, with the grid, tile and pad of arXiv 2606.09200.

Not yet run on hardware. tests/oracle/test_triton_gemm.py checks its results in Triton's interpreter and its resources
by compiling it for several GPUs.

The pad: Triton launches a kernel with `metadata.shared` bytes of dynamic shared memory, as its compiler computed, and
raises the function's limit to that when it loads the binary (triton, backends/nvidia/driver.c, `load_binary` and
`launch`; AMD's driver passes it to the launch only). A copy of the compiled kernel with a larger value is the same
code in a larger block.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from triton.compiler import make_backend

from makeway.act.triton.config import GemmConfig, GemmType, check_shape
from makeway.values.errors import InputError

if TYPE_CHECKING:
    import torch

_POINTERS: dict[GemmType, str] = {"fp32": "*fp32", "tf32": "*fp32", "fp16": "*fp16"}
_PRECISION: dict[GemmType, str] = {"fp32": "ieee", "tf32": "tf32", "fp16": "ieee"}


@triton.jit  # type: ignore[untyped-decorator]
def tiled_gemm(  # type: ignore[no-untyped-def]
    a, b, c, m, n, k,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, PRECISION: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """C = A B. Block (x, y) computes the tiles (x + i X, y + j Y)."""
    for down in range(tl.program_id(1), tl.cdiv(m, TILE_M), tl.num_programs(1)):
        rows = down * TILE_M + tl.arange(0, TILE_M)
        for across in range(tl.program_id(0), tl.cdiv(n, TILE_N), tl.num_programs(0)):
            columns = across * TILE_N + tl.arange(0, TILE_N)
            total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
            for start in range(0, k, TILE_K):
                inner = start + tl.arange(0, TILE_K)
                left_mask = (rows[:, None] < m) & (inner[None, :] < k)
                right_mask = (inner[:, None] < k) & (columns[None, :] < n)
                left = tl.load(a + rows[:, None] * k + inner[None, :], mask=left_mask, other=0.0)
                right = tl.load(b + inner[:, None] * n + columns[None, :], mask=right_mask, other=0.0)
                total = tl.dot(left, right, total, input_precision=PRECISION)
            mask = (rows[:, None] < m) & (columns[None, :] < n)
            tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty), mask=mask)


def matmul(a: torch.Tensor, b: torch.Tensor, config: GemmConfig, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """A B on the current stream of the tensors' device (or in the interpreter, with TRITON_INTERPRET=1)."""
    (m, k), (inner, n) = a.shape, b.shape
    check_shape(m, n, k)
    if inner != k or not (a.is_contiguous() and b.is_contiguous()):
        raise InputError(f"cannot multiply {m} x {k} by {inner} x {n} ; make both contiguous with the same k")
    wanted = _POINTERS[config.dtype].removeprefix("*")
    if a.dtype != b.dtype or str(a.dtype) != {"fp32": "torch.float32", "fp16": "torch.float16"}[wanted]:
        raise InputError(f"tensors of {a.dtype} and {b.dtype} were given to a GEMM of {config.dtype}")
    result = a.new_empty((m, n)) if out is None else out
    grid = (*config.blocks(m, n), 1)
    arguments = (a, b, result, m, n, k, *config.tile, _PRECISION[config.dtype])
    if not isinstance(tiled_gemm, triton.runtime.JITFunction):  # the interpreter has neither warps nor pads
        tiled_gemm[grid](*arguments)
        return result
    options = {"num_warps": config.warps, "num_stages": config.stages}
    if not config.pad_bytes:
        tiled_gemm[grid](*arguments, **options)
        return result
    _padded_kernel(config, arguments, options)[grid](*arguments)
    return result


_PADDED: dict[tuple[str, str, int], Any] = {}  # by compiled kernel, device and pad; keeps the loaded binaries


def _padded_kernel(config: GemmConfig, arguments: tuple[Any, ...], options: dict[str, int]) -> Any:
    plain = tiled_gemm.warmup(*arguments, grid=(1,), **options)
    key = (plain.hash, str(arguments[0].device), config.pad_bytes)
    if key not in _PADDED:
        _PADDED[key] = padded(plain, config.pad_bytes)
    return _PADDED[key]


def padded(kernel: Any, pad_bytes: int) -> Any:
    """A copy of a compiled kernel whose launches request `pad_bytes` more dynamic shared memory; not loaded yet.

    The kernel itself stays unchanged. A device that refuses the size does so when the copy is loaded.
    """
    larger = copy.copy(kernel)
    # Handles of its own: each object unloads its module when it is deleted.
    larger.module = larger.function = larger._module_pid = larger._run = None
    larger.metadata = kernel.metadata._replace(shared=kernel.metadata.shared + pad_bytes)
    larger.packed_metadata = make_backend(larger.metadata.target).pack_metadata(larger.metadata)
    return larger
