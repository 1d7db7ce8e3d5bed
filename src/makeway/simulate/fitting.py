"""Which blocks fit on an SM beside any mixture of others, remembered by mixture.

The same rules as makeway.residency, for more than two kernels: the warps of each spread evenly over the
partitions, and those that do not divide go where the most registers are free.
"""

from __future__ import annotations

from functools import cache

from makeway.device import SmLimits
from makeway.residency import Need, Room, capacity

Held = tuple[tuple[int, int], ...]  # (kind of block, how many), sorted by kind


class Fitting:
    """Capacity of an SM for one kind of block, given what it holds."""

    def __init__(self, sm: SmLimits, kinds: list[Need]) -> None:
        self._sm = sm
        self._kinds = kinds
        self._capacity: dict[tuple[int, Held], int] = {}
        self._steady: dict[tuple[int, Held], bool] = {}

    def capacity(self, kind: int, held: Held) -> int:
        """Blocks of `kind` that fit beside `held`."""
        known = self._capacity.get((kind, held))
        if known is None:
            known = self._capacity[kind, held] = capacity(self._kinds[kind], self._room(held))
        return known

    def steady(self, kind: int, held: Held) -> bool:
        """Whether each block of `kind` that is placed beside `held` takes exactly one from its capacity."""
        known = self._steady.get((kind, held))
        if known is None:
            room = self.capacity(kind, held)
            known = all(self.capacity(kind, plus(held, kind, more)) == room - more for more in range(1, room + 1))
            self._steady[kind, held] = known
        return known

    def _room(self, held: Held) -> Room:
        sm = self._sm
        registers = [sm.registers // sm.partitions] * sm.partitions
        scalars = [sm.scalar_registers or 0] * sm.partitions
        smem, warps, slots, barriers = sm.smem_bytes, sm.max_warps, sm.max_blocks, sm.barriers
        for kind, count in held:
            block = self._kinds[kind]
            each, more = divmod(count * block.warps, sm.partitions)
            emptiest = sorted(range(sm.partitions), key=lambda index: -registers[index])
            for rank, index in enumerate(emptiest):
                warps_here = each + (rank < more)
                registers[index] -= warps_here * block.registers_per_warp
                scalars[index] -= warps_here * block.scalar_registers_per_warp
            smem -= count * block.smem_bytes
            warps -= count * block.warps
            slots -= count
            barriers = None if barriers is None else barriers - count * block.barriers
        return Room(
            registers=tuple(registers),
            scalar_registers=tuple(scalars) if sm.scalar_registers else None,
            smem_bytes=smem,
            warps=warps,
            slots=slots,
            barriers=barriers,
        )


@cache
def plus(held: Held, kind: int, blocks: int) -> Held:
    """What an SM holds with so many more (or, below 0, fewer) blocks of a kind."""
    counts = dict(held)
    counts[kind] = counts.get(kind, 0) + blocks
    return tuple(sorted((kind, count) for kind, count in counts.items() if count))
