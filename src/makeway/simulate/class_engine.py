"""The class-aggregated engine: SMs in the same state are one entry with a count.

Exact for equal block times, and fast: a kernel of thousands of blocks has a handful of states.
It knows no jitter; with equal block times the blocks of an SM end together, which hides starvation
under back-fill (docs/model.md).
"""

from __future__ import annotations

from collections import Counter

from makeway.simulate.fitting import Held
from makeway.simulate.sms import NEVER, ROUND_DIGITS, SAME_NS, Layout

Batch = tuple[int, float, int]  # operation, end in its virtual time, blocks
State = tuple[int, tuple[Batch, ...]]  # site, what an SM of it holds


class ClassSms:
    """The SMs of one rank, by state."""

    def __init__(self, layout: Layout, clock: list[float], speed: list[float], unplaced: list[int]) -> None:
        self._layout = layout
        self.clock = clock
        self.speed = speed
        self._unplaced = unplaced
        self._turn: dict[int, int] = {}
        self._groups: dict[State, int] = {
            (index, ()): site.sms for index, site in enumerate(layout.program.sites) if site.sms
        }
        self._held: dict[tuple[Batch, ...], Held] = {}

    def place(self, op: int, limit: int | None) -> int:
        wanted = self._unplaced[op] if limit is None else min(limit, self._unplaced[op])
        layout, block = self._layout, self._layout.ops[op].block
        if not wanted:
            return 0
        if layout.dealt:
            placed = self._deal(op, wanted)
        elif block is not None and block.cluster > 1:
            placed = self._fill_clusters(op, wanted, block.cluster)
        else:
            placed = self._fill(op, set(layout.sites[op]), wanted)
        self._unplaced[op] -= placed
        return placed

    def _deal(self, op: int, wanted: int) -> int:
        """One block to each shader engine in turn, until one has no room."""
        engines = self._layout.engines_of(op)
        for placed in range(wanted):
            turn = self._turn.get(op, 0)
            if not self._fill(op, self._sites(op, engines[turn % len(engines)]), 1):
                return placed
            self._turn[op] = turn + 1
        return wanted

    def _fill_clusters(self, op: int, wanted: int, cluster: int) -> int:
        """Whole clusters, each inside one GPC, the emptiest GPC first."""
        placed = 0
        while placed < wanted:
            rooms = {engine: self._room(op, self._sites(op, engine)) for engine in self._layout.engines_of(op)}
            best = max(rooms, key=lambda engine: (rooms[engine], -engine))
            size = min(cluster, wanted - placed)
            if rooms[best] < size:
                break
            placed += self._fill(op, self._sites(op, best), size)
        return placed

    def _sites(self, op: int, engine: int) -> set[int]:
        sites = self._layout.program.sites
        return {index for index in self._layout.sites[op] if sites[index].engine == engine}

    def _room(self, op: int, sites: set[int]) -> int:
        layout = self._layout
        return sum(
            count * layout.fitting.capacity(layout.kind[op], self._holding(state[1]))
            for state, count in self._groups.items()
            if state[0] in sites
        )

    def _fill(self, op: int, sites: set[int], wanted: int) -> int:
        """Most-room placement: the SMs with room for the most blocks of this kernel take one each, and so on down."""
        layout, groups = self._layout, self._groups
        levels: dict[int, dict[State, int]] = {}
        for state in list(groups):
            if state[0] in sites:
                room = layout.fitting.capacity(layout.kind[op], self._holding(state[1]))
                if room:
                    levels.setdefault(room, {})[state] = groups.pop(state)
        left = wanted
        while left and levels:
            top = max(levels)
            for state, count in levels.pop(top).items():
                taken = min(count, left)
                left -= taken
                if count > taken:
                    groups[state] = groups.get(state, 0) + count - taken
                if taken:
                    fuller = (state[0], self._with(state[1], op))
                    where = levels.setdefault(top - 1, {}) if top > 1 else groups
                    where[fuller] = where.get(fuller, 0) + taken
        for states in levels.values():
            for state, count in states.items():
                groups[state] = groups.get(state, 0) + count
        return wanted - left

    def _holding(self, batches: tuple[Batch, ...]) -> Held:
        held = self._held.get(batches)
        if held is None:
            counts: Counter[int] = Counter()
            for op, _, blocks in batches:
                counts[self._layout.kind[op]] += blocks
            held = self._held[batches] = tuple(sorted(counts.items()))
        return held

    def _wanted(self, batches: tuple[Batch, ...]) -> float:
        ops = self._layout.ops
        return sum([ops[op].share * blocks for op, _, blocks in batches])

    def _with(self, batches: tuple[Batch, ...], op: int) -> tuple[Batch, ...]:
        one = self._layout.ops[op]
        before = self._wanted(batches)
        after = before + one.share
        rescaled = self._rescaled(batches, before, after)
        end = NEVER
        if one.kind == "kernel":
            slow = self._layout.slowdown(after, one.share)
            end = round(self.clock[op] + one.work_ns / one.share * slow, ROUND_DIGITS)
        return _merged([*rescaled, (op, end, 1)])

    def _rescaled(self, batches: tuple[Batch, ...], before: float, after: float) -> list[Batch]:
        layout, clock, rescaled = self._layout, self.clock, []
        for batch in batches:
            op, end, blocks = batch
            share = layout.ops[op].share
            factor = layout.slowdown(after, share) / layout.slowdown(before, share)
            if factor == 1.0 or end == NEVER:
                rescaled.append(batch)
            else:
                rescaled.append((op, round(clock[op] + (end - clock[op]) * factor, ROUND_DIGITS), blocks))
        return rescaled

    def settle(self) -> None:
        self._held.clear()

    def next_end_ns(self) -> float:
        clock, speed, soonest = self.clock, self.speed, NEVER
        for _, batches in self._groups:
            for op, end, _ in batches:
                if end != NEVER and speed[op] > 0:
                    soonest = min(soonest, (end - clock[op]) / speed[op])
        return max(soonest, 0.0)

    def ended(self) -> list[tuple[int, int]]:
        clock, done = self.clock, Counter[int]()
        for state in list(self._groups):
            count = self._groups[state]  # not a snapshot: an earlier round of this loop may have added to it
            due = [batch for batch in state[1] if batch[1] <= clock[batch[0]] + SAME_NS]
            if due:
                for op, _, blocks in due:
                    done[op] += blocks * count
                self._replace(state, tuple(batch for batch in state[1] if batch not in due))
        return sorted(done.items())

    def release(self, op: int) -> None:
        for state in list(self._groups):
            if any(batch[0] == op for batch in state[1]):
                self._replace(state, tuple(batch for batch in state[1] if batch[0] != op))

    def _replace(self, state: State, kept: tuple[Batch, ...]) -> None:
        count = self._groups.pop(state)
        rescaled = self._rescaled(kept, self._wanted(state[1]), self._wanted(kept))
        emptier = (state[0], _merged(rescaled))
        self._groups[emptier] = self._groups.get(emptier, 0) + count

    def running(self) -> dict[int, float]:
        layout = self._layout
        rates: dict[int, float] = {}
        for (_, batches), count in self._groups.items():
            wanted = self._wanted(batches)
            for op, _, blocks in batches:
                share = layout.ops[op].share
                if share:
                    rates[op] = rates.get(op, 0.0) + count * blocks * share / layout.slowdown(wanted, share)
        return rates

    def holdings(self) -> Counter[tuple[tuple[int, int], ...]]:
        found: Counter[tuple[tuple[int, int], ...]] = Counter()
        for (_, batches), count in self._groups.items():
            counts: Counter[int] = Counter()
            for op, _, blocks in batches:
                counts[op] += blocks
            found[tuple(sorted(counts.items()))] += count
        return found


def _merged(batches: list[Batch]) -> tuple[Batch, ...]:
    """Batches in one order, those of one operation that end together as one."""
    counts: dict[tuple[int, float], int] = {}
    for op, end, blocks in batches:
        counts[op, end] = counts.get((op, end), 0) + blocks
    return tuple(sorted((op, end, blocks) for (op, end), blocks in counts.items()))
