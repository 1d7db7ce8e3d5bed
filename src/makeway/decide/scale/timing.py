"""How long the operations of a layer take on a device with a generation of software.

A matrix product takes whole waves of tiles over the SMs, at a rate that grows with its inner dimension, and at least
the time of its bytes. Everything else is arithmetic or bytes over a rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

from makeway.decide.scale.generation import Generation
from makeway.decide.scale.layer import ELEMENT, NARROW, Attention, Exchange, Op, Pass, Product
from makeway.values.device import Device
from makeway.values.errors import UnsupportedError
from makeway.values.layout import Precision

# Rows and columns of the tiles that libraries offer, and the rate of each relative to the largest.
TILES = ((256, 128, 1.0), (128, 128, 0.93), (64, 128, 0.75), (64, 64, 0.55))
HOST_TILES = ((1, 1, 1.0),)  # a core's register tile is a few rows: nothing is left over that would count
FP8_ARCHITECTURES = ("sm_89", "sm_90", "sm_100", "sm_103", "gfx942", "gfx950")
FP8_SPEEDUP = 2.0  # of the 16-bit peak: vendors' tables for all of these
# NVFP4 over the 16-bit peak: vendors' tables, dense. B300 and GB300 traded 64-bit units for it.
FP4_SPEEDUP = {"sm_100": 4.0, "sm_103": 6.0, "sm_120": 4.0}
# From one expert's product to the next, in gaps between kernels: 108 grouped products on B200 take 5 us more per expert
# than their arithmetic, other kernels 2.5 us (SimuMax, configs/system/b200_bf16_ceperm.json).
EXPERT_GAPS = 2
# Rows of queries that a block of fused attention holds, and the blocks of time that its ends cost each SM: under a
# causal mask the longest takes twice the mean. Of 88 measured kernels on A100 and B200, 70 are within 10 % of this with
# one share by head size; 8 others have less than one block per SM (SimuMax, configs/system/a100_pcie.json and
# b200_bf16_ceperm.json).
ATTENTION_ROWS = 128
ATTENTION_ROWS_FORWARD = {"sm_100": 256, "sm_103": 256}  # two tiles of 128 take turns
ATTENTION_ENDS, ATTENTION_ENDS_BACKWARD = 1.3, 0.7
# Adam on 32-bit state: reads master weight and two moments, writes them and the 16-bit weight. A gradient is read by it
# and by the norm, and written when it is cleared.
OPTIMIZER_BYTES = 26
OPTIMIZER_GRADIENT_PASSES = 3
# Adam on a CPU host, all in 32 bits, fused: reads gradient, weight and two moments, writes three.
HOST_OPTIMIZER_BYTES = 28  # gradients among them
HOST_ELEMENT = 4  # bytes: CPU hosts train in 32 bits
HOST_GRADIENT_BYTES = 12  # a gradient is added to its buffer in a pass of its own: two reads and a write


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device reaches with a generation of software."""

    sms: int
    flops_per_s: float  # 16-bit, peak
    narrow_flops_per_s: tuple[float, float]  # peak of 8-bit and of 4-bit products; 0: none
    gemm_share: float
    narrow_shares: tuple[float, float]
    half_k: float
    grouped_share: float
    attention_flops_per_s: float
    attention_backward_flops_per_s: float
    attention_ends: tuple[float, float]  # forward, backward: rows of queries whose time the ends of a kernel take
    hbm_bytes_per_s: float
    kernel_ns: float
    fused_experts: bool = False
    element_bytes: int = ELEMENT  # of an activation or a weight
    optimizer_bytes: int = OPTIMIZER_BYTES  # over memory, per parameter, besides its gradient
    optimizer_gradient_passes: int = OPTIMIZER_GRADIENT_PASSES
    tiles: tuple[tuple[int, int, float], ...] = TILES
    gradient_bytes: int = 0  # over memory, to add a gradient of a weight; 0: the product does it

    def optimizer_ns(self, parameters: float, gradient_bytes: int) -> float:
        """The time of a step of the optimizer on so many parameters."""
        moved = self.optimizer_bytes + self.optimizer_gradient_passes * gradient_bytes
        return parameters * moved / self.hbm_bytes_per_s * 1e9

    def moved_ns(self, op_bytes: float) -> float:
        """The time of bytes over memory; operations count elements of two bytes."""
        return op_bytes * self.element_bytes / ELEMENT / self.hbm_bytes_per_s * 1e9


@lru_cache(maxsize=1024)
def rates(device: Device, generation: Generation) -> Rates:
    """The rates of a device with these numbers; refuses a device without known peaks."""
    host = device.vendor == "cpu"
    peak = device.fp32_flops_per_s if host else device.fp16_flops_per_s
    if peak is None or device.hbm_bytes_per_s is None:
        known = "fp32_flops_per_s" if host else "fp16_flops_per_s"
        raise UnsupportedError(f"{device.name} has no known {known} and hbm_bytes_per_s.")
    return Rates(
        sms=device.sms,
        flops_per_s=peak,
        narrow_flops_per_s=narrow_peaks(device),
        gemm_share=generation.gemm_share,
        narrow_shares=(generation.gemm_share_fp8, generation.gemm_share_fp4),
        half_k=generation.gemm_half_k,
        grouped_share=generation.grouped_share,
        attention_flops_per_s=peak * generation.attention_share,
        attention_backward_flops_per_s=peak * generation.attention_backward_share,
        attention_ends=(0.0, 0.0) if host else _attention_ends(device),
        hbm_bytes_per_s=device.hbm_bytes_per_s * generation.hbm_share,
        kernel_ns=generation.kernel_ns,
        fused_experts=generation.fused_experts,
        element_bytes=HOST_ELEMENT if host else ELEMENT,
        optimizer_bytes=HOST_OPTIMIZER_BYTES if host else OPTIMIZER_BYTES,
        optimizer_gradient_passes=0 if host else OPTIMIZER_GRADIENT_PASSES,
        tiles=HOST_TILES if host else TILES,
        gradient_bytes=HOST_GRADIENT_BYTES if host else 0,
    )


def narrow_peaks(device: Device) -> tuple[float, float]:
    """Peaks of 8-bit and of 4-bit products; 0 where a device has none."""
    peak = device.fp16_flops_per_s or 0.0
    fp8 = FP8_SPEEDUP if device.arch in FP8_ARCHITECTURES else 0.0
    return peak * fp8, peak * FP4_SPEEDUP.get(device.arch, 0.0)


def _attention_ends(device: Device) -> tuple[float, float]:
    forward = ATTENTION_ROWS_FORWARD.get(device.arch, ATTENTION_ROWS) * ATTENTION_ENDS
    return forward * device.sms, ATTENTION_ROWS * ATTENTION_ENDS_BACKWARD * device.sms


def compute_ns(op: Op, speed: Rates, precision: Precision) -> float:
    """The time of an operation alone on the GPU; 0 for an exchange."""
    match op:
        case Product():
            return product_ns(op, speed, precision)
        case Attention():
            rate = speed.attention_backward_flops_per_s if op.backward else speed.attention_flops_per_s
            ends = speed.attention_ends[1 if op.backward else 0] / op.rows
            return max(op.flops / rate * 1e9 * (1 + ends), speed.moved_ns(op.bytes)) + speed.kernel_ns
        case Pass():
            return speed.moved_ns(op.bytes) / (speed.grouped_share if op.grouped else 1.0) + speed.kernel_ns
        case Exchange():
            return 0.0
        case _:
            assert_never(op)


def product_ns(product: Product, speed: Rates, precision: Precision) -> float:
    """The time of a matrix product with the tile that suits it best."""
    narrow = precision in NARROW and not product.wide
    peak, share = narrow_rate(speed, precision) if narrow else (speed.flops_per_s, speed.gemm_share)
    if product.grouped:
        share *= speed.grouped_share
    sm_rate = peak * share / speed.sms * product.k / (product.k + speed.half_k)
    arithmetic = min(
        [
            -(-(-(-product.m // rows) * -(-product.n // columns) * product.batch) // speed.sms)
            * (2.0 * rows * columns * product.k)
            / (sm_rate * relative)
            for rows, columns, relative in speed.tiles
        ]
    )
    element = (0.5 if precision == "fp4" else 1) if narrow else speed.element_bytes
    read = (product.m + product.n) * product.k * element
    moved = product.batch * (read + product.m * product.n * max(product.out_bytes, element))
    added = product.m * product.n * speed.gradient_bytes if product.out_bytes > ELEMENT else 0
    gaps = EXPERT_GAPS * product.batch if product.grouped and not speed.fused_experts else 1
    busy_s = max(arithmetic, moved / speed.hbm_bytes_per_s) + added / speed.hbm_bytes_per_s
    return busy_s * 1e9 + gaps * speed.kernel_ns


def narrow_rate(speed: Rates, precision: Precision) -> tuple[float, float]:
    """Peak of 8-bit or 4-bit products, and the share of it that is reached."""
    which, bits = (1, 4) if precision == "fp4" else (0, 8)
    peak, share = speed.narrow_flops_per_s[which], speed.narrow_shares[which]
    if not peak:
        raise UnsupportedError(f"this device has no {bits}-bit matrix products; use bf16.")
    if not share:
        raise UnsupportedError(f"no {bits}-bit steps of this device and software were seen; use bf16.")
    return peak, share
