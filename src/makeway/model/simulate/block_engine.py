"""The per-block engine: every SM and every block on its own.

It checks the class engine, and it has jitter: the times of a kernel's blocks are spread (spread.py). Blocks of
an operation wait in a heap ordered by their end in the operation's virtual time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapreplace

from makeway.model.simulate.fitting import Held, plus
from makeway.model.simulate.sms import NEVER, SAME_NS, Layout
from makeway.model.simulate.spread import block_factors

ANY_GPC = -1
EQUAL = (1.0,)  # the times of all blocks over their mean
NO_RATE = 1e-9  # what rounding leaves of a rate once all blocks have ended


@dataclass(slots=True)
class _Block:
    op: int
    sm: int
    work_ns: float  # alone on its SM, share counted
    end: float = NEVER  # in the operation's virtual time
    drawn: int = 0  # which heap entry is the valid one; 0: not yet timed


@dataclass(slots=True)
class _Sm:
    site: int
    blocks: list[_Block] = field(default_factory=list)
    held: Held = ()
    wanted: float = 0.0  # SMs that its blocks could use, as their ends assume
    rates: dict[int, float] = field(default_factory=dict)  # of its blocks, by operation


class BlockSms:
    """The SMs of one rank, one by one."""

    def __init__(self, layout: Layout, clock: list[float], speed: list[float], unplaced: list[int], seed: int) -> None:
        self._layout = layout
        self.clock = clock
        self.speed = speed
        self._unplaced = unplaced
        spreads = [layout.program.jitter if op.jitter is None else op.jitter for op in layout.ops]
        self._factors = [block_factors(seed, spread) if spread else EQUAL for spread in spreads]
        self._drawn = [0] * len(layout.ops)  # blocks of each operation that were timed
        self._sms = [_Sm(index) for index, site in enumerate(layout.program.sites) for _ in range(site.sms)]
        self._gpc = [layout.program.sites[sm.site].gpc for sm in self._sms]
        self._ends: dict[int, list[tuple[float, int, _Block]]] = {}
        self._rooms: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (operation, gpc) -> heap of (-room, SM)
        self._capacities: dict[tuple[int, int], int] = {}  # (operation, SM) -> room, where it counts by GPC
        self._open: dict[tuple[int, int], int] = {}  # (operation, GPC) -> the sum of these
        self._seen: dict[int, int] = {}  # operation -> how far it has read the log of changes
        self._changes: list[int] = []
        self._dirty: set[int] = set()
        self._homes: dict[int, dict[int, int]] = {}  # collective -> its blocks by SM
        self._turn: dict[int, int] = {}
        self._entries = 0
        self._rates: dict[int, float] = {}
        self.changes = 0

    # --- placing -------------------------------------------------------------------------------

    def place(self, op: int, limit: int | None) -> int:
        wanted = self._unplaced[op] if limit is None else min(limit, self._unplaced[op])
        if not wanted:
            return 0
        self._read_changes(op)
        layout, placed = self._layout, 0
        gpcs, cluster = layout.gpcs[op], layout.cluster[op]
        while placed < wanted:
            if layout.dealt:
                turn = self._turn.get(op, 0)
                if not self._place_one(op, gpcs[turn % len(gpcs)]):
                    break
                self._turn[op] = turn + 1
                placed += 1
            elif cluster > 1:
                size = min(cluster, wanted - placed)
                gpc = self._roomiest(op, gpcs)
                if self._open.get((op, gpc), 0) < size:
                    break
                placed += sum([self._place_one(op, gpc) for _ in range(size)])
            else:
                if not self._place_one(op, ANY_GPC):
                    break
                placed += 1
        self._unplaced[op] -= placed
        return placed

    def _read_changes(self, op: int) -> None:
        """Offer the operation every SM that changed since it last looked; all of them the first time."""
        start = self._seen.get(op)
        allowed = set(self._layout.sites[op])
        changed = range(len(self._sms)) if start is None else set(self._changes[start:])
        for index in changed:
            if self._sms[index].site in allowed:
                self._offer(op, index)
        self._seen[op] = len(self._changes)

    def _offer(self, op: int, index: int) -> None:
        layout = self._layout
        room = layout.fitting.capacity(layout.kind[op], self._sms[index].held)
        by_gpc = layout.dealt or layout.cluster[op] > 1
        if by_gpc:
            self._count(op, index, room)
        if room:
            key = (op, self._gpc[index] if by_gpc else ANY_GPC)
            heapq.heappush(self._rooms.setdefault(key, []), (-room, index))

    def _place_one(self, op: int, gpc: int) -> bool:
        """One block on the SM with the most room for this kernel; ties by number."""
        layout, heap = self._layout, self._rooms.get((op, gpc), [])
        while heap:
            room, index = heapq.heappop(heap)
            sm = self._sms[index]
            if layout.fitting.capacity(layout.kind[op], sm.held) >= -room:
                self._add(op, index, sm)
                after = layout.fitting.capacity(layout.kind[op], sm.held)
                if gpc != ANY_GPC:
                    self._count(op, index, after)
                left = min(after, -room - 1)
                if left:
                    heapq.heappush(heap, (-left, index))
                return True
        return False

    def _count(self, op: int, index: int, room: int) -> None:
        """Note the room for an operation on one SM, for the sum over its GPC."""
        key = (op, self._gpc[index])
        self._open[key] = self._open.get(key, 0) + room - self._capacities.get((op, index), 0)
        self._capacities[op, index] = room

    def _roomiest(self, op: int, gpcs: tuple[int, ...]) -> int:
        return max(gpcs, key=lambda gpc: (self._open.get((op, gpc), 0), -gpc))

    def _add(self, op: int, index: int, sm: _Sm) -> None:
        operation = self._layout.ops[op]
        kernel = operation.kind == "kernel"
        work = operation.work_ns / operation.share if kernel else NEVER
        if kernel:
            factors = self._factors[op]
            work *= factors[self._drawn[op] % len(factors)]
            self._drawn[op] += 1
        sm.blocks.append(_Block(op, index, work))
        self._changed(op, 1, index, sm)

    def _changed(self, op: int, blocks: int, index: int, sm: _Sm) -> None:
        """Note that an SM has `blocks` more (below 0: fewer) blocks of an operation."""
        sm.held = plus(sm.held, self._layout.kind[op], blocks)
        if self._layout.ops[op].kind == "collective":
            homes = self._homes.setdefault(op, {})
            homes[index] = homes.get(index, 0) + blocks
            if not homes[index]:
                del homes[index]
        self._changes.append(index)
        self._dirty.add(index)

    # --- running -------------------------------------------------------------------------------

    def settle(self) -> None:
        for index in sorted(self._dirty):
            self._settle(self._sms[index])
        self._dirty.clear()

    def _settle(self, sm: _Sm) -> None:
        layout, clock = self._layout, self.clock
        ops, before = layout.ops, sm.wanted
        wanted = 0.0
        for block in sm.blocks:
            wanted += ops[block.op].share
        slowdowns: dict[int, float] = {}
        rates: dict[int, float] = {}
        for block in sm.blocks:
            if block.work_ns == NEVER:
                continue
            op = block.op
            slow = slowdowns.get(op)
            if slow is None:
                slow = slowdowns[op] = layout.slowdown(wanted, op)
            share = ops[op].share
            rates[op] = rates.get(op, 0.0) + share / slow
            if not block.drawn:
                block.end = clock[op] + block.work_ns * slow
            elif wanted == before or (earlier := layout.slowdown(before, op)) == slow:
                continue
            else:
                block.end = clock[op] + (block.end - clock[op]) * slow / earlier
            self._entries += 1
            block.drawn = self._entries
            heap = self._ends.get(op)
            if heap is None:
                heap = self._ends[op] = []
            heapq.heappush(heap, (block.end, self._entries, block))
        sm.wanted = wanted
        if rates != sm.rates:
            self._recount(sm, rates)

    def _recount(self, sm: _Sm, new: dict[int, float]) -> None:
        rates = self._rates
        for op, rate in sm.rates.items():
            rates[op] -= rate
        for op, rate in new.items():
            rates[op] = rates.get(op, 0.0) + rate
        sm.rates = new
        self.changes += 1

    def next_end_ns(self) -> float:
        soonest = NEVER
        for op, heap in self._ends.items():
            while heap and heap[0][2].drawn != heap[0][1]:
                heapq.heappop(heap)
            if heap and self.speed[op] > 0:
                soonest = min(soonest, (heap[0][0] - self.clock[op]) / self.speed[op])
        return max(soonest, 0.0)

    def soonest(self) -> tuple[int | None, float]:
        """The operation whose block ends next, and the time until one of another operation does."""
        first, at, other = None, NEVER, NEVER
        for op, heap in self._ends.items():
            while heap and heap[0][2].drawn != heap[0][1]:
                heapq.heappop(heap)
            if heap and self.speed[op] > 0:
                end = (heap[0][0] - self.clock[op]) / self.speed[op]
                if end < at:
                    first, at, other = op, end, at
                elif end < other:
                    other = end
        return first, other

    def refill(self, op: int, others: Sequence[int], *, within_ns: float, least: int) -> list[float]:
        """End blocks of a kernel, each followed by its next in the same room; the times of this, from now on.

        An SM's mixture of blocks stays the same, and with it every rate. Stops before anything else happens: after
        `within_ns`, when two blocks end at once, where one of `others`, which are asked first, would fit, and
        when only `least` blocks are left to place. The caller moves the clocks of the other operations.
        """
        layout, sms, heap = self._layout, self._sms, self._ends[op]
        operation, clock, speed = layout.ops[op], self.clock[op], self.speed[op]
        mean, drawn, left, entries = (
            operation.work_ns / operation.share,
            self._drawn[op],
            self._unplaced[op],
            self._entries,
        )
        factors, period, slowdowns, elapsed = self._factors[op], len(self._factors[op]), dict[int, float](), 0.0
        times: list[float] = []
        while left > least and len(heap) > 2:
            end, entry, block = heap[0]
            if block.drawn != entry:
                heapq.heappop(heap)
                continue
            ahead = (end - clock) / speed
            same = end + SAME_NS
            if elapsed + ahead >= within_ns or heap[1][0] <= same or heap[2][0] <= same:
                break
            slow = slowdowns.get(block.sm)
            if slow is None:
                sm = sms[block.sm]
                slow = layout.slowdown(sm.wanted, op) if self._takes_back(op, sm, others) else 0.0
                slowdowns[block.sm] = slow
            if not slow:
                break
            elapsed += ahead
            clock += ahead * speed
            entries += 1
            block.end = end = clock + mean * factors[drawn % period] * slow
            block.drawn = entries
            heapreplace(heap, (end, entries, block))
            drawn, left = drawn + 1, left - 1
            times.append(elapsed)
        if times:
            self.clock[op], self._drawn[op], self._unplaced[op], self._entries = clock, drawn, left, entries
        return times

    def _takes_back(self, op: int, sm: _Sm, others: Sequence[int]) -> bool:
        """Whether the room of an ended block goes to the next of its own kind, and to nothing else."""
        layout = self._layout
        without = plus(sm.held, layout.kind[op], -1)
        return layout.fitting.capacity(layout.kind[op], without) == 1 and not any(
            sm.site in layout.sites[other] and layout.fitting.capacity(layout.kind[other], without) for other in others
        )

    def ended(self) -> list[tuple[int, int]]:
        done: dict[int, int] = {}
        ended: list[_Block] = []
        kept = self._layout.kept
        for op, heap in list(self._ends.items()):
            if not heap:
                del self._ends[op]
            limit = self.clock[op] + SAME_NS
            while heap and heap[0][0] <= limit:
                _, entry, block = heapq.heappop(heap)
                if block.drawn == entry:
                    block.drawn = -1
                    ended.append(block)
        for block in ended:
            done[block.op] = done.get(block.op, 0) + 1
        for block in ended:
            self._leave(block)
        return sorted((op, blocks) for op, blocks in done.items() if not kept or op < kept)

    def _leave(self, block: _Block) -> None:
        """Take a block off its SM; with a turnaround its room stays taken for a while."""
        kept, sm = self._layout.kept, self._sms[block.sm]
        room_ns = self._layout.program.turnaround.ns(len(sm.blocks)) if kept and block.op < kept else 0.0
        sm.blocks.remove(block)
        if room_ns > 0:
            self._entries += 1
            room = _Block(block.op + kept, block.sm, NEVER, self.clock[block.op + kept] + room_ns, self._entries)
            sm.blocks.append(room)
            heapq.heappush(self._ends.setdefault(room.op, []), (room.end, self._entries, room))
            self._dirty.add(block.sm)
        else:
            self._changed(block.op, -1, block.sm, sm)

    def release(self, op: int) -> None:
        for index, sm in enumerate(self._sms):
            kept = [block for block in sm.blocks if block.op != op]
            if gone := len(sm.blocks) - len(kept):
                sm.blocks = kept
                self._changed(op, -gone, index, sm)

    def running(self) -> dict[int, float]:
        return {op: round(rate, 9) for op, rate in self._rates.items() if rate > NO_RATE}

    def crowding(self, op: int) -> float:
        wanted = {self._sms[index].wanted for index in self._homes.get(op, ())}
        return max((self._layout.slowdown(each, op) for each in wanted), default=1.0)

    def holdings(self) -> Counter[tuple[tuple[int, int], ...]]:
        limit = len(self._layout.program.ops)  # rooms still kept by ended blocks are not shown
        return Counter(
            tuple(sorted(Counter(block.op for block in sm.blocks if block.op < limit).items())) for sm in self._sms
        )
