"""The class engine: SMs in the same state are one entry with their numbers.

Exact for equal block times, and fast: a kernel of thousands of blocks has a handful of states.
It has no jitter; with equal block times the blocks of an SM end together, which hides starvation
under back-fill (docs/model.md).
"""

from __future__ import annotations

from collections import Counter

from makeway.model.simulate.fitting import Held
from makeway.model.simulate.sms import NEVER, ROUND_DIGITS, SAME_NS, Layout

MOST_REMEMBERED = 10_000

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
        self._groups: dict[State, list[int]] = {}
        first = 0
        for index, site in enumerate(layout.program.sites):
            if site.sms:
                self._groups[index, ()] = list(range(first, first + site.sms))
            first += site.sms
        self._held: dict[tuple[Batch, ...], Held] = {}
        self.changes = 0

    def place(self, op: int, limit: int | None) -> int:
        wanted = self._unplaced[op] if limit is None else min(limit, self._unplaced[op])
        layout = self._layout
        if not wanted:
            return 0
        if layout.dealt:
            placed = self._deal(op, wanted)
        elif layout.cluster[op] > 1:
            placed = self._fill_clusters(op, wanted, layout.cluster[op])
        else:
            placed = self._fill(op, set(layout.sites[op]), wanted)
        self._unplaced[op] -= placed
        return placed

    def _deal(self, op: int, wanted: int) -> int:
        """One block to each shader engine in turn, until one has no room."""
        gpcs = self._layout.gpcs[op]
        for placed in range(wanted):
            turn = self._turn.get(op, 0)
            if not self._fill(op, self._sites(op, gpcs[turn % len(gpcs)]), 1):
                return placed
            self._turn[op] = turn + 1
        return wanted

    def _fill_clusters(self, op: int, wanted: int, cluster: int) -> int:
        """Whole clusters, each inside one GPC, the emptiest GPC first."""
        placed = 0
        while placed < wanted:
            rooms = {gpc: self._room(op, self._sites(op, gpc)) for gpc in self._layout.gpcs[op]}
            best = max(rooms, key=lambda gpc: (rooms[gpc], -gpc))
            size = min(cluster, wanted - placed)
            if rooms[best] < size:
                break
            placed += self._fill(op, self._sites(op, best), size)
        return placed

    def _sites(self, op: int, gpc: int) -> set[int]:
        sites = self._layout.program.sites
        return {index for index in self._layout.sites[op] if sites[index].gpc == gpc}

    def _room(self, op: int, sites: set[int]) -> int:
        layout = self._layout
        return sum(
            len(sms) * layout.fitting.capacity(layout.kind[op], self._holding(state[1]))
            for state, sms in self._groups.items()
            if state[0] in sites
        )

    def _fill(self, op: int, sites: set[int], wanted: int) -> int:
        """Most-room placement: the SMs with room for the most blocks of this kernel take one each, and so on down.

        Ties go by SM number, which matters only when fewer blocks are left than such SMs.
        """
        layout, groups = self._layout, self._groups
        levels: dict[int, dict[State, list[int]]] = {}
        for state in list(groups):
            if state[0] in sites:
                room = layout.fitting.capacity(layout.kind[op], self._holding(state[1]))
                if room:
                    levels.setdefault(room, {})[state] = groups.pop(state)
        left = wanted
        if self._fills_all(op, levels, left):
            for room, level in levels.items():
                for state, sms in level.items():
                    groups.setdefault((state[0], self._with(state[1], op, room)), []).extend(sms)
                    left -= room * len(sms)
            return wanted - left
        while left and levels:
            top = max(levels)
            level = levels.pop(top)
            for state, sms in (
                level if sum(map(len, level.values())) <= left else _lowest(level, left, groups)
            ).items():
                left -= len(sms)
                fuller = (state[0], self._with(state[1], op))
                room = min(layout.fitting.capacity(layout.kind[op], self._holding(fuller[1])), top - 1)
                where = levels.setdefault(room, {}) if room else groups
                where.setdefault(fuller, []).extend(sms)
        for states in levels.values():
            for state, sms in states.items():
                groups.setdefault(state, []).extend(sms)
        return wanted - left

    def _fills_all(self, op: int, levels: dict[int, dict[State, list[int]]], left: int) -> bool:
        """Whether every SM with room will be filled, so that the order of placement does not matter."""
        fitting, kind = self._layout.fitting, self._layout.kind[op]
        if sum([room * len(sms) for room, level in levels.items() for sms in level.values()]) > left:
            return False
        return all(fitting.steady(kind, self._holding(state[1])) for level in levels.values() for state in level)

    def _holding(self, batches: tuple[Batch, ...]) -> Held:
        held = self._held.get(batches)
        if held is None:
            counts: dict[int, int] = {}
            for op, _, blocks in batches:
                kind = self._layout.kind[op]
                counts[kind] = counts.get(kind, 0) + blocks
            held = self._held[batches] = tuple(sorted(counts.items()))
        return held

    def _wanted(self, batches: tuple[Batch, ...]) -> float:
        ops = self._layout.ops
        return sum([ops[op].share * blocks for op, _, blocks in batches])

    def _with(self, batches: tuple[Batch, ...], op: int, blocks: int = 1) -> tuple[Batch, ...]:
        operation = self._layout.ops[op]
        before = self._wanted(batches)
        after = before + operation.share * blocks
        rescaled = self._rescaled(batches, before, after)
        end = NEVER
        if operation.kind == "kernel":
            slow = self._layout.slowdown(after, op)
            end = round(self.clock[op] + operation.work_ns / operation.share * slow, ROUND_DIGITS)
        return _merged([*rescaled, (op, end, blocks)])

    def _rescaled(self, batches: tuple[Batch, ...], before: float, after: float) -> list[Batch]:
        layout, clock, rescaled = self._layout, self.clock, []
        for batch in batches:
            op, end, blocks = batch
            factor = layout.slowdown(after, op) / layout.slowdown(before, op)
            if factor == 1.0 or end == NEVER:
                rescaled.append(batch)
            else:
                rescaled.append((op, round(clock[op] + (end - clock[op]) * factor, ROUND_DIGITS), blocks))
        return rescaled

    def settle(self) -> None:
        self.changes += 1
        if len(self._held) > MOST_REMEMBERED:
            self._held.clear()

    def next_end_ns(self) -> float:
        clock, speed, soonest = self.clock, self.speed, NEVER
        for _, batches in self._groups:
            for op, end, _ in batches:
                if end != NEVER and speed[op] > 0:
                    soonest = min(soonest, (end - clock[op]) / speed[op])
        return max(soonest, 0.0)

    def ended(self) -> list[tuple[int, int]]:
        clock = self.clock
        done: dict[int, int] = {}
        for state in list(self._groups):
            count = len(self._groups[state])  # not a snapshot: an earlier round of this loop may have added to it
            due = [batch for batch in state[1] if batch[1] <= clock[batch[0]] + SAME_NS]
            if due:
                for op, _, blocks in due:
                    done[op] = done.get(op, 0) + blocks * count
                rest = [batch for batch in state[1] if batch not in due]
                self._replace(state, (*rest, *self._kept_rooms(state[1], due)))
        kept = self._layout.kept
        return sorted((op, blocks) for op, blocks in done.items() if not kept or op < kept)

    def _kept_rooms(self, batches: tuple[Batch, ...], due: list[Batch]) -> list[Batch]:
        """The rooms that ended blocks keep for the turnaround; the last to leave sees the fewest neighbours."""
        kept = self._layout.kept
        if not kept:
            return []
        resident = sum(blocks for _, _, blocks in batches)
        room_ns = self._layout.program.turnaround.ns(resident)
        return [
            (op + kept, round(self.clock[op + kept] + room_ns, ROUND_DIGITS), blocks)
            for op, _, blocks in due
            if op < kept
        ]

    def release(self, op: int) -> None:
        for state in list(self._groups):
            if any(batch[0] == op for batch in state[1]):
                self._replace(state, tuple(batch for batch in state[1] if batch[0] != op))

    def _replace(self, state: State, kept: tuple[Batch, ...]) -> None:
        sms = self._groups.pop(state)
        rescaled = self._rescaled(kept, self._wanted(state[1]), self._wanted(kept))
        self._groups.setdefault((state[0], _merged(rescaled)), []).extend(sms)

    def running(self) -> dict[int, float]:
        layout = self._layout
        rates: dict[int, float] = {}
        for (_, batches), sms in self._groups.items():
            wanted, count = self._wanted(batches), len(sms)
            for op, _, blocks in batches:
                share = layout.ops[op].share
                if share and layout.ops[op].kind == "kernel":
                    rates[op] = rates.get(op, 0.0) + count * blocks * share / layout.slowdown(wanted, op)
        return rates

    def crowding(self, op: int) -> float:
        return max(
            (
                self._layout.slowdown(self._wanted(batches), op)
                for _, batches in self._groups
                if any(batch[0] == op for batch in batches)
            ),
            default=1.0,
        )

    def holdings(self) -> Counter[tuple[tuple[int, int], ...]]:
        limit = len(self._layout.program.ops)  # rooms still kept by ended blocks are not shown
        mixtures: Counter[tuple[tuple[int, int], ...]] = Counter()
        for (_, batches), sms in self._groups.items():
            counts: Counter[int] = Counter()
            for op, _, blocks in batches:
                if op < limit:
                    counts[op] += blocks
            mixtures[tuple(sorted(counts.items()))] += len(sms)
        return mixtures


def _lowest(level: dict[State, list[int]], count: int, rest: dict[State, list[int]]) -> dict[State, list[int]]:
    """The `count` SMs of a level with the lowest numbers, by state; the others go to `rest`."""
    numbered = sorted((sm, state) for state, sms in level.items() for sm in sms)
    taken: dict[State, list[int]] = {}
    for index, (sm, state) in enumerate(numbered):
        (taken if index < count else rest).setdefault(state, []).append(sm)
    return taken


def _merged(batches: list[Batch]) -> tuple[Batch, ...]:
    """Batches in one order, those of one operation that end together as one."""
    counts: dict[tuple[int, float], int] = {}
    for op, end, blocks in batches:
        counts[op, end] = counts.get((op, end), 0) + blocks
    return tuple(sorted((op, end, blocks) for (op, end), blocks in counts.items()))
