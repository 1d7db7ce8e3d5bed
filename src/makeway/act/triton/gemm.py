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
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from makeway.act.triton.config import GemmConfig, GemmType, check_shape
from makeway.values.errors import InputError

if TYPE_CHECKING:
    import torch

_ALIGNED_BYTES = 16  # what Triton compiles apart: pointers and sizes that divide by it
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
    _kernel(config, arguments)[grid](*arguments)
    return result


_KERNELS: dict[tuple[Any, ...], Any] = {}  # compiled, by all that Triton compiles or loads for; keeps loaded binaries


def _kernel(config: GemmConfig, arguments: tuple[Any, ...]) -> Any:
    """The compiled kernel of a launch, compiled or looked up by Triton once and then kept, padded or not.

    All launches take this path: one that goes through Triton's own dispatch each time costs the host more, and a padded
    variant would be compared with others at another price.
    """
    *tensors, m, n, k = arguments[:6]
    aligned = tuple(tensor.data_ptr() % _ALIGNED_BYTES == 0 for tensor in tensors)
    key = (config, str(tensors[0].device), m, n, k, aligned)
    if key not in _KERNELS:
        plain = tiled_gemm.warmup(*arguments, grid=(1,), num_warps=config.warps, num_stages=config.stages)
        _KERNELS[key] = padded(plain, config.pad_bytes) if config.pad_bytes else plain
    return _KERNELS[key]


@functools.cache
def compiled_for(config: GemmConfig, arch: str) -> Any:
    """The kernel compiled for an architecture such as "sm_90" or "gfx90a", with sizes and pointers divisible by 16."""
    amd = arch.startswith("gfx")
    target = GPUTarget("hip", arch, 64) if amd else GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    names = ("TILE_M", "TILE_N", "TILE_K", "PRECISION")
    pointers = dict.fromkeys("abc", _POINTERS[config.dtype])
    signature = pointers | dict.fromkeys("mnk", "i32") | dict.fromkeys(names, "constexpr")
    constants = {(6 + at,): value for at, value in enumerate((*config.tile, _PRECISION[config.dtype]))}
    aligned = {(at,): [["tt.divisibility", _ALIGNED_BYTES]] for at in range(6)}
    source = ASTSource(tiled_gemm, signature, constants, aligned)
    return triton.compile(source, target=target, options={"num_warps": config.warps, "num_stages": config.stages})


def launch_bytes(config: GemmConfig, arch: str) -> int:
    """The dynamic shared memory that a block requests, pad included, as Triton compiled it: no rule gives it.

    Buffers per stage differ by architecture, and sm_100 and gfx950 add barriers and padding of their own.
    """
    return int(compiled_for(replace(config, pad_bytes=0, grid=None), arch).metadata.shared) + config.pad_bytes


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
