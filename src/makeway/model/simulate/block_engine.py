"""The per-block engine: every SM and every block on its own.

It checks the class engine, and it has jitter: each block's work is drawn around the
kernel's. Blocks of an operation wait in a heap ordered by their end in the operation's virtual time.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field

from makeway.model.simulate.fitting import Held, plus
from makeway.model.simulate.sms import NEVER, SAME_NS, Layout

SHORTEST_DRAW = 0.05  # of a block's mean time
ANY_GPC = -1
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

    def __init__(
        self, layout: Layout, clock: list[float], speed: list[float], unplaced: list[int], draw: random.Random
    ) -> None:
        self._layout = layout
        self.clock = clock
        self.speed = speed
        self._unplaced = unplaced
        self._draw = draw
        self._sms = [_Sm(index) for index, site in enumerate(layout.program.sites) for _ in range(site.sms)]
        self._gpc = [layout.program.sites[sm.site].gpc for sm in self._sms]
        self._ends: dict[int, list[tuple[float, int, _Block]]] = {}
        self._rooms: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (operation, gpc) -> heap of (-room, SM)
        self._seen: dict[int, int] = {}  # operation -> how far it has read the log of changes
        self._changes: list[int] = []
        self._dirty: set[int] = set()
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
                if self._room(op, gpc) < size:
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
        if room:
            by_gpc = layout.dealt or layout.cluster[op] > 1
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
                left = min(layout.fitting.capacity(layout.kind[op], sm.held), -room - 1)
                if left:
                    heapq.heappush(heap, (-left, index))
                return True
        return False

    def _roomiest(self, op: int, gpcs: tuple[int, ...]) -> int:
        return max(gpcs, key=lambda gpc: (self._room(op, gpc), -gpc))

    def _room(self, op: int, gpc: int) -> int:
        layout, kind = self._layout, self._layout.kind[op]
        return sum(
            layout.fitting.capacity(kind, sm.held)
            for sm, where in zip(self._sms, self._gpc, strict=True)
            if where == gpc and sm.site in layout.sites[op]
        )

    def _add(self, op: int, index: int, sm: _Sm) -> None:
        operation = self._layout.ops[op]
        kernel = operation.kind == "kernel"
        work = operation.work_ns / operation.share if kernel else NEVER
        jitter = self._layout.program.jitter if operation.jitter is None else operation.jitter
        if jitter and kernel:
            work *= max(self._draw.gauss(1.0, jitter), SHORTEST_DRAW)
        sm.blocks.append(_Block(op, index, work))
        self._changed(op, 1, index, sm)

    def _changed(self, op: int, blocks: int, index: int, sm: _Sm) -> None:
        """Note that an SM has `blocks` more (below 0: fewer) blocks of an operation."""
        sm.held = plus(sm.held, self._layout.kind[op], blocks)
        self._changes.append(index)
        self._dirty.add(index)

    # --- running -------------------------------------------------------------------------------

    def settle(self) -> None:
        for index in sorted(self._dirty):
            self._settle(self._sms[index])
        self._dirty.clear()

    def _settle(self, sm: _Sm) -> None:
        layout, clock = self._layout, self.clock
        wanted = sum([layout.ops[block.op].share for block in sm.blocks])
        for block in sm.blocks:
            if block.work_ns == NEVER:
                continue
            slow = layout.slowdown(wanted, block.op)
            if not block.drawn:
                block.end = clock[block.op] + block.work_ns * slow
            else:
                before = layout.slowdown(sm.wanted, block.op)
                if slow == before:
                    continue
                block.end = clock[block.op] + (block.end - clock[block.op]) * slow / before
            self._entries += 1
            block.drawn = self._entries
            heapq.heappush(self._ends.setdefault(block.op, []), (block.end, self._entries, block))
        sm.wanted = wanted
        self._recount(sm)

    def _recount(self, sm: _Sm) -> None:
        layout, rates = self._layout, self._rates
        new: dict[int, float] = {}
        for block in sm.blocks:
            share = layout.ops[block.op].share
            if share and block.work_ns != NEVER:
                new[block.op] = new.get(block.op, 0.0) + share / layout.slowdown(sm.wanted, block.op)
        if new == sm.rates:
            return
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

    def ended(self) -> list[tuple[int, int]]:
        done: dict[int, int] = {}
        ended: list[_Block] = []
        kept = self._layout.kept
        for op, heap in self._ends.items():
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
        return max(
            (self._layout.slowdown(sm.wanted, op) for sm in self._sms if any(block.op == op for block in sm.blocks)),
            default=1.0,
        )

    def holdings(self) -> Counter[tuple[tuple[int, int], ...]]:
        limit = len(self._layout.program.ops)  # rooms still kept by ended blocks are not shown
        return Counter(
            tuple(sorted(Counter(block.op for block in sm.blocks if block.op < limit).items())) for sm in self._sms
        )
