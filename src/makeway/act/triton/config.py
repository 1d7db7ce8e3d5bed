"""The launch of our GEMM: tile, grid, stages, number type, pad; and the paper's formula for its shared memory.

Loads neither Triton nor torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal, get_args

from makeway.values.control import Control, SmemPad, TileChoice
from makeway.values.errors import InputError
from makeway.values.workload import ELEMENT_BYTES

GemmType = Literal["fp32", "tf32", "fp16"]
Tile = tuple[int, int, int]  # M, N, K

KERNEL_NAME = "tiled_gemm"
OPT1: Tile = (64, 64, 32)  # arXiv 2606.09200, section 4.1
SMALLEST_SIDE = 16  # of a tile: the smallest that tl.dot takes
MOST_ELEMENTS = 2**31  # of a matrix: offsets are 32 bits wide


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmConfig:
    """One configuration of C[m,n] = A[m,k] B[k,n]: row-major, sums in fp32."""

    tile: Tile = OPT1
    grid: tuple[int, int] | None = None  # X along n, Y along m; blocks loop over the tiles. None: one block per tile
    dtype: GemmType = "fp16"
    stages: int = 2  # of the loop over k: tiles of A and B in flight or in use
    warps: int = 4
    pad_bytes: int = 0  # dynamic shared memory per block beyond what the kernel uses

    def __post_init__(self) -> None:
        if self.dtype not in get_args(GemmType):
            raise InputError(f"our GEMM multiplies {', '.join(get_args(GemmType))}, not {self.dtype!r}")
        for side in self.tile:
            if side < SMALLEST_SIDE or side & (side - 1):
                raise InputError(
                    f"sides of a tile must be powers of 2 from {SMALLEST_SIDE} on, got {'x'.join(map(str, self.tile))}"
                )
        for what, value, least in (
            *(("grid", count, 1) for count in self.grid or ()),
            ("stages", self.stages, 1),
            ("pad_bytes", self.pad_bytes, 0),
        ):
            if type(value) is not int or value < least:
                raise InputError(f"{what} must be a whole number of {least} or more, got {value!r}")
        if self.warps not in (1, 2, 4, 8, 16, 32):
            raise InputError(f"warps must be a power of 2 up to 32, got {self.warps!r}")

    def blocks(self, m: int, n: int) -> tuple[int, int]:
        """The launched grid, X x Y: at most one block per tile along each side."""
        across, down = -(-n // self.tile[1]), -(-m // self.tile[0])
        if self.grid is None:
            return across, down
        return min(self.grid[0], across), min(self.grid[1], down)


def operand_bytes(tile: Tile, dtype: GemmType) -> int:
    """S_blk of arXiv 2606.09200, section 3.1: one tile of A and one of B, TILE_M*TILE_K + TILE_K*TILE_N elements.

    That is what a block of a plain tiled kernel holds in shared memory; a pipelined kernel holds it once per stage.
    """
    m, n, k = tile
    return (m * k + k * n) * ELEMENT_BYTES[dtype]


def controlled(config: GemmConfig, controls: Sequence[Control]) -> GemmConfig:
    """The configuration under the controls that act on our GEMM: tile and pad."""
    for control in controls:
        if isinstance(control, TileChoice) and fnmatchcase(KERNEL_NAME, control.kernel):
            config = replace(config, tile=(control.tile_m, control.tile_n, control.tile_k))
        elif isinstance(control, SmemPad) and fnmatchcase(KERNEL_NAME, control.kernel):
            config = replace(config, pad_bytes=control.pad_bytes)
    return config


def check_shape(m: int, n: int, k: int) -> None:
    """Refuse a product that our GEMM cannot address."""
    for what, rows, columns in (("A", m, k), ("B", k, n), ("C", m, n)):
        if rows < 1 or columns < 1 or rows * columns >= MOST_ELEMENTS:
            raise InputError(
                f"{what} is {rows} x {columns}; our GEMM takes matrices of 1 to {MOST_ELEMENTS - 1:,} elements"
            )
