"""Interference by mechanism: what a kernel and a collective take from each other beside SMs and links.

Each mechanism has a switch. With all of them off a program is what it was without them (tested). Their constants
are calibrated on one source and tested on others: docs/model.md, section 10.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from makeway.values.device import Device
from makeway.values.workload import ELEMENT_BYTES, Gemm

# All SMs together can demand this much more than HBM delivers: what makes a kernel memory-bound. Assumed.
MEMORY_OVERDRIVE = 1.5
# How often a tiled product moves each matrix where its traffic is not counted. Assumed.
FLAT_TRAFFIC = 2.0
# From a load to its data, in SM cycles without load: 400 (PMC10448217, table 3) to 600; it rises with load.
LATENCY_CYCLES = 600.0
DEFAULT_CLOCK_HZ = 1.5e9
# What a warp of a streaming kernel has in flight: one 16-byte load per lane. Assumed.
BYTES_IN_FLIGHT_PER_LANE = 16.0
# Issue and load/store slots that 256 threads of communication take from a block beside them, and the part of their own
# time that neighbours stretch: 0.85 x 0.31 and 0.31, from the cycle-level referee's runs alone (docs/model.md, 11).
NEIGHBOUR_SHARE, NEIGHBOUR_EXPOSURE, NEIGHBOUR_THREADS = 0.26, 0.31, 256
# What HBM delivers while kernels and communication mix reads and writes, over what a kernel gets alone: 0.78 of its
# peak in the referee's runs, over 0.93 for a streaming kernel alone (assumed).
MIXED_HBM = 0.84
# Power that moving data takes, as a part of the budget per part of HBM bandwidth: overlap adds a quarter to the peak
# (arXiv 2507.03114, second-hand) where a collective moves a third of what HBM can, as on A100 and H100. Two bytes of
# HBM per wire byte instead of three are a third less, as copy engines draw 32 % less than RCCL (arXiv 2511.06605).
MOVING_POWER = 0.75
# Power grows with this power of the clock: 2.07 times the time at a 100 W cap of 400 W with 55 W idle (2507.03114).
POWER_EXPONENT = 2.8
# Products on these types run at the power limit; FP32 without tensor cores is taken to stay below it.
TENSOR_TYPES = ("fp16", "bf16", "tf32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanisms:
    """Which mechanisms a prediction includes."""

    traffic: bool = True  # a product's HBM bytes from its waves and L2; else each matrix twice
    in_flight: bool = True  # a memory-bound kernel needs warps enough to cover latency; else as a product does
    mixed_hbm: bool = True  # HBM delivers less to mixed streams, and a collective's spare blocks hold their share
    l2_capacity: bool = False  # a stream beside a product pushes what it would reuse out of L2; changes no figure yet
    neighbours: bool = True  # a collective's warps take issue slots from the blocks on their SM
    clocks: bool = True  # communication takes power from products that run at the power limit

    def flipped(self, name: str) -> Mechanisms:
        """The same with one of them switched off, or on if it is off."""
        return replace(self, **{name: not getattr(self, name)})

    @classmethod
    def none(cls) -> Mechanisms:
        return cls(**dict.fromkeys(mechanism_names(), False))


DEFAULT = Mechanisms()


def mechanism_names() -> tuple[str, ...]:
    """Names of all mechanisms."""
    return tuple(field.name for field in fields(Mechanisms))


def switch(name: str) -> str:
    """What flipping a mechanism does, in words."""
    return f"{'without' if getattr(DEFAULT, name) else 'with'} {name.replace('_', ' ')}"


@dataclass(frozen=True, slots=True)
class Reuse:
    """Bytes that a kernel would read again, and how often what lies between two reads fits into the cache."""

    repeated_bytes: float
    fit: float

    def missed_bytes(self, lost: float = 0.0) -> float:
        """Read again from HBM when a part of the cache is lost to others."""
        return self.repeated_bytes * (1.0 - min(1.0, self.fit * (1.0 - lost)))


@dataclass(frozen=True, slots=True)
class GemmTraffic:
    """What a tiled product moves between HBM and its caches."""

    once_bytes: float  # each matrix once
    reuse: tuple[Reuse, ...] = ()

    @property
    def hbm_bytes(self) -> float:
        return self.once_bytes + sum(reuse.missed_bytes() for reuse in self.reuse)


def gemm_traffic(gemm: Gemm, *, at_once: int, cache_bytes: int) -> GemmTraffic:
    """The traffic of a product of which `at_once` tiles run together, behind a cache of that size.

    A wave is a rectangle of tiles, as square in elements as the matrices allow: its tiles share rows of A and columns
    of B. Waves go along the columns, so a panel of A is read again by the next wave and B by the next row of waves.
    A repeated read hits if all that was read since fits into the cache (LRU), in proportion if only a part does.
    """
    element = ELEMENT_BYTES[gemm.dtype]
    (tile_m, tile_n, _), down, across = gemm.tile, _tiles(gemm.m, gemm.tile[0]), _tiles(gemm.n, gemm.tile[1])
    wave = max(1, min(at_once, down * across))
    rows = min(down, max(math.sqrt(wave * tile_n / tile_m), wave / across))
    columns = min(across, wave / rows)
    a_panel, b_panel = rows * tile_m * gemm.k * element, columns * tile_n * gemm.k * element
    a_bytes, b_bytes = float(gemm.m * gemm.k * element), float(gemm.k * gemm.n * element)
    return GemmTraffic(
        once_bytes=gemm.min_bytes,
        reuse=(
            Reuse(a_bytes * (across / columns - 1.0), cache_bytes / (a_panel + b_panel)),
            Reuse(b_bytes * (down / rows - 1.0), cache_bytes / (a_panel + b_bytes)),
        ),
    )


def _tiles(size: int, tile: int) -> int:
    return -(-size // tile)


def cache_bytes(device: Device) -> int:
    """The last cache before HBM."""
    return device.memory_side_cache_bytes or device.l2_bytes or 0


def streaming_warps(device: Device) -> float | None:
    """Warps per SM that keep enough bytes in flight for a memory-bound kernel (Little's law); None: rates unknown."""
    if not device.hbm_bytes_per_s:
        return None
    latency_s = LATENCY_CYCLES / (device.clock_hz or DEFAULT_CLOCK_HZ)
    wanted = MEMORY_OVERDRIVE * device.hbm_bytes_per_s / device.sms * latency_s
    return max(1.0, wanted / (BYTES_IN_FLIGHT_PER_LANE * device.sm.warp_threads))


def assumptions(mechanisms: Mechanisms) -> Iterator[str]:
    """What the mechanisms that are on assume about hardware nobody measured here."""
    if mechanisms.neighbours:
        yield "what a collective's warps take from their SM is a cycle-level simulator's figure"
    if mechanisms.clocks:
        yield "tensor-core products run at the power limit; communication takes a part of it (second-hand figures)"
