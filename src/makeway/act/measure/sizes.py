"""Sizes of a GEMM and its collective on CPU ranks, shared by the ranks and by predictions of them."""

from __future__ import annotations

from makeway.values.units import MIB, ceil_to

DEFAULT_BYTES = 8 * MIB  # of the collective of gemm-*
DEFAULT_SCALE = 1 / 16  # of a published pair
UNIT_DEPTH = 256  # K of gemm-* at scale 1
DEPTH_STEP = 16
ELEMENT_BYTES = 4  # fp32
CUTS = 16  # rows are a multiple of this many, times the ranks: so many pieces can be cut
_LEAST_DEPTH, _MOST_DEPTH = 16, 1 << 14


def scaled_rows(m: int, scale: float, ranks: int) -> int:
    """M of a published pair at a scale: at least one row for each piece that each rank may cut."""
    return ceil_to(max(round(m * scale), 1), CUTS * ranks)


def depth_at(scale: float) -> int:
    """K of a gemm-* pair at a scale."""
    return max(round(scale * UNIT_DEPTH), 1)


def rounded_depth(depth: float) -> int:
    """The K to use where `depth` would balance a pair: a multiple of the step, within bounds."""
    return ceil_to(min(max(round(depth), _LEAST_DEPTH), _MOST_DEPTH), DEPTH_STEP)
