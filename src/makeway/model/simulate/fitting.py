"""Which blocks fit on an SM beside any mixture of others, cached: a simulation meets few mixtures."""

from __future__ import annotations

from functools import cache

from makeway.model.residency import Need, capacity, room_left
from makeway.values.device import SmLimits

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
            known = self._capacity[kind, held] = self._capacity_beside(kind, held)
        return known

    def _capacity_beside(self, kind: int, held: Held) -> int:
        return capacity(self._kinds[kind], room_left(self._sm, [(self._kinds[other], count) for other, count in held]))

    def steady(self, kind: int, held: Held) -> bool:
        """Whether each block of `kind` that is placed beside `held` takes exactly one from its capacity."""
        known = self._steady.get((kind, held))
        if known is None:
            room = self.capacity(kind, held)
            known = all(self.capacity(kind, plus(held, kind, more)) == room - more for more in range(1, room + 1))
            self._steady[kind, held] = known
        return known


@cache
def plus(held: Held, kind: int, blocks: int) -> Held:
    """What an SM holds with `blocks` more (below 0: fewer) blocks of a kind."""
    counts = dict(held)
    counts[kind] = counts.get(kind, 0) + blocks
    return tuple(sorted((kind, count) for kind, count in counts.items() if count))
