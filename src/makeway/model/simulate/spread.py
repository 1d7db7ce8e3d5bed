"""How much the blocks of one kernel differ in time, and the factor that each block takes.

Block `k` of every kernel takes the same factor in every run of one seed, wherever it is placed and whatever runs
beside it. So a kernel that nobody disturbs takes the same time inside a program as alone, and two runs under
different controls differ by the controls, not by the draw. The factors fill the normal distribution evenly:
among any 64 in sequence there is one of each 64th of it.
"""

from __future__ import annotations

import random
from functools import lru_cache
from statistics import NormalDist

# Standard deviation over mean of the times of one kernel's blocks. The cycle-level referee
# (docs/model.md, section 4) shows 6 to 14 % over all blocks of a good matrix product, of which about 0.6 lies between
# blocks of one wave; the rest is the slow first wave.
BLOCK_SPREAD = 0.06
# The spread does not grow with a block's length. Blocks of the referee's product that start together differ by 240
# cycles with K = 32 (1.8 %) and by 150 with K = 128 (0.35 %), and later waves by up to 1,000 with K = 32.
SPREAD_CYCLES = 1_000.0
# Blocks that differ by less end in the order in which they started: their rooms are given away together. No source;
# Fig. 2 of arXiv 2606.09200 contradicts random ends (docs/model.md, section 7).
ORDERED_SPREAD = 0.01
SHORTEST_BLOCK = 0.05  # of a block's mean time
_STRATA = 64
MOST_FACTORS = 1 << 12  # then they repeat
_QUANTILE = NormalDist().inv_cdf


@lru_cache(maxsize=16)
def block_factors(seed: int, spread: float) -> tuple[float, ...]:
    """The times of a kernel's blocks over their mean: block `k` takes number `k % MOST_FACTORS`."""
    return tuple([max(1.0 + spread * deviation, SHORTEST_BLOCK) for deviation in deviations(seed)])


@lru_cache(maxsize=16)
def deviations(seed: int) -> tuple[float, ...]:
    """Deviations of blocks from their mean time, in standard deviations."""
    draw = random.Random(seed)
    values: list[float] = []
    for batch in range(MOST_FACTORS // _STRATA):
        offset = _halved(batch)
        strata = [_QUANTILE((stratum + offset) / _STRATA) for stratum in range(_STRATA)]
        mean = sum(strata) / _STRATA  # 0 but for the offset, so every batch keeps the kernel's mean time
        draw.shuffle(strata)
        values += [value - mean for value in strata]
    return tuple(values)


def _halved(number: int) -> float:
    """A place between 0 and 1 far from those of smaller numbers: 1/2, 5/8, 5/16, 13/16 ..."""
    value, step = 0.0, 0.5
    while number:
        value += step * (number & 1)
        number, step = number >> 1, step / 2
    return value + step / 2 if value else 0.5


def looping_spread(most: float, block_cycles: float) -> float:
    """The relative spread of blocks that loop over tiles and last so many cycles: as many cycles however long."""
    spread = SPREAD_CYCLES / block_cycles
    return 0.0 if spread < ORDERED_SPREAD else min(spread, most)
