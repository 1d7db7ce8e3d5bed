"""The fluid engine: operations with rates that are constant between events, for searches.

A run of the other engines follows every wave of blocks. This one follows operations: how far a kernel gets alone and
beside a collective, and at what rate the collective moves meanwhile, comes from runs of two operations (pairs.py)
that are measured once and kept. What pairs cannot describe goes to the full engine, and the result says why.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import lru_cache

from makeway.model.simulate.driver import Engine, OpTimes, RunResult, check_residency, run
from makeway.model.simulate.pairs import ENDLESS_NS, Curve, Pairs, comparable
from makeway.model.simulate.policies import CutAhead, Dispatch, HeldQueue, SharingPolicy
from makeway.model.simulate.program import EngineOp, Program
from makeway.model.simulate.sms import NEVER, SAME_NS, Layout


class _UnpairedError(Exception):
    """A program that pairs cannot describe; the message says why."""


def fluid_run(program: Program, *, full: Engine, dispatch: Dispatch, hbm: SharingPolicy) -> RunResult:
    """Run a program to its end from pair measurements; by the `full` engine where they cannot describe it."""
    try:
        return _FluidRun(program, dispatch, hbm).run()
    except _UnpairedError as error:
        result = run(program, engine=full, dispatch=dispatch, hbm=hbm)
        return replace(result, fallback=str(error))


@lru_cache(maxsize=256)
def _pairs(base: Program, dispatch: Dispatch, hbm: SharingPolicy) -> Pairs:
    # Without jitter both engines agree, and the class engine is faster.
    return Pairs(base, "block" if base.jitter else "class", dispatch, hbm)


@dataclass(slots=True)
class _Progress:
    arrived: float = NEVER
    started: float = NEVER
    moving: float = NEVER
    ended: float = NEVER
    waits_for: int = 0
    ready: tuple[float, bool] = (0.0, False)


@dataclass(slots=True)
class _Rank:
    """The kernel and the collective of one rank, running or waiting."""

    kernel: int | None = None
    curve: Curve = field(default_factory=lambda: Curve((0.0,), (1.0,)))
    origin: float = 0.0  # when the curve began
    base: float = 0.0  # what was done before
    comm: int | None = None  # on the device
    waiting: int | None = None  # a collective in the queue
    tail: bool = False  # the collective came when all blocks of the kernel were placed
    freed: bool = False  # a collective has just left its SMs

    def done(self, now: float) -> float:
        return min(self.base + self.curve.at(now - self.origin), 1.0)

    def when(self, done: float) -> float:
        return self.origin + self.curve.when(done - self.base)

    def follow(self, curve: Curve, now: float) -> None:
        """Go on along another curve from the same part done."""
        self.origin, self.base, self.curve = now - curve.when(self.done(now)), 0.0, curve

    def restart(self, curve: Curve, now: float) -> None:
        """Place the rest as if it were a kernel of its own."""
        self.origin, self.base, self.curve = now, self.done(now), curve


class _FluidRun:
    def __init__(self, program: Program, dispatch: Dispatch, hbm: SharingPolicy) -> None:
        self.program, self.ops = program, program.ops
        check_residency(program, Layout(program, dispatch))
        self.dispatch = dispatch
        self.pairs = _pairs(replace(program, ops=(), ranks=1), dispatch, hbm)
        self.plain = [comparable(op) for op in self.ops]
        self.ranks = [_Rank() for _ in range(program.ranks)]
        self.progress = [_Progress() for _ in self.ops]
        self.arrivals: list[tuple[float, bool, int]] = []
        self.groups: dict[str, list[int]] = defaultdict(list)
        self.left: dict[str, float] = {}  # work of the collectives that move data
        self.rates: dict[str, float] = {}
        self.now, self.events = 0.0, 0
        self._link_up()

    def _link_up(self) -> None:
        """Each operation waits for those it names and for the one before it in its stream."""
        last: dict[tuple[int, str], int] = {}
        self.followers: list[list[tuple[int, bool]]] = [[] for _ in self.ops]
        for index, op in enumerate(self.ops):
            before = last.get((op.rank, op.stream))
            waits = dict.fromkeys(op.after, True)
            if before is not None:
                waits[before] = False
            for earlier, by_event in waits.items():
                self.followers[earlier].append((index, by_event))
            self.progress[index].waits_for = len(waits)
            last[op.rank, op.stream] = index
            if op.kind != "kernel":
                self.groups[self._group(index)].append(index)
            if not waits:
                heapq.heappush(self.arrivals, (op.launch_ns, False, index))

    def _group(self, index: int) -> str:
        return self.ops[index].group or self.ops[index].name

    def run(self) -> RunResult:
        while self._step():
            self.events += 1
        if any(progress.ended == NEVER for progress in self.progress):
            raise _UnpairedError("operations wait for each other")
        times = tuple(
            OpTimes(arrived_ns=p.arrived, started_ns=p.started, moving_ns=p.moving, ended_ns=p.ended)
            for p in self.progress
        )
        return RunResult(times=times, samples=(), events=self.events)

    def _step(self) -> bool:
        at = min(
            self.arrivals[0][0] if self.arrivals else NEVER,
            *(self._next_on(rank) for rank in self.ranks),
            *(self.now + left / self.rates[group] for group, left in self.left.items() if self.rates[group]),
        )
        if at == NEVER:
            return False
        self._advance(max(at, self.now))
        for rank in self.ranks:
            rank.freed = False
            if rank.kernel is not None and rank.when(1.0) <= self.now + SAME_NS:
                kernel, rank.kernel = rank.kernel, None
                self._end(kernel)
        self._data_arrived()
        arrived = []
        while self.arrivals and self.arrivals[0][0] <= self.now + SAME_NS:
            arrived.append(heapq.heappop(self.arrivals)[2])
        for index in arrived:
            self._arrive(index)
        for number, rank in enumerate(self.ranks):
            self._dispatch(rank, [index for index in arrived if self.ops[index].rank == number])
        self._start_moving()
        self._set_rates()
        return True

    def _advance(self, at: float) -> None:
        for group in self.left:
            self.left[group] -= (at - self.now) * self.rates[group]
        self.now = at

    def _next_on(self, rank: _Rank) -> float:
        if rank.kernel is None:
            return NEVER
        ends = rank.when(1.0)
        return min(ends, self._opening(rank)) if rank.waiting is not None else ends

    # --- arrivals and ends ---------------------------------------------------------------------

    def _arrive(self, index: int) -> None:
        self.progress[index].arrived = self.now
        op = self.ops[index]
        rank = self.ranks[op.rank]
        if op.kind == "kernel":
            if rank.kernel is not None:
                raise _UnpairedError("kernels run at once")
            rank.kernel = index
        elif rank.waiting is not None or rank.comm is not None:
            raise _UnpairedError("collectives run at once")
        else:
            rank.waiting = index

    def _data_arrived(self) -> None:
        for group in [name for name, left in self.left.items() if left <= SAME_NS * max(self.rates[name], 1e-9)]:
            del self.left[group]
            for index in self.groups[group]:
                rank = self.ranks[self.ops[index].rank]
                rank.comm, rank.freed = None, True
                if rank.kernel is not None:
                    rank.follow(self.pairs.alone(self.plain[rank.kernel]), self.now)
                self._end(index)

    def _end(self, index: int) -> None:
        self.progress[index].ended = self.now
        latencies = self.program.latencies
        for follower, by_event in self.followers[index]:
            progress = self.progress[follower]
            progress.waits_for -= 1
            ready = self.now + (latencies.event_ns if by_event else latencies.stream_ns)
            progress.ready = max(progress.ready, (ready, by_event))
            if not progress.waits_for:
                time, last_by_event = progress.ready
                arrival = max(time, self.ops[follower].launch_ns)
                heapq.heappush(self.arrivals, (arrival, last_by_event, follower))

    # --- who runs beside whom ------------------------------------------------------------------

    def _dispatch(self, rank: _Rank, arrived: list[int]) -> None:
        """Start what can start: a kernel that has arrived, the collective that waits for room."""
        new = next((index for index in arrived if index == rank.kernel), None)
        comm = rank.waiting
        if comm is not None and rank.kernel is not None:
            self._check(rank.kernel, comm)
        if comm is not None and (
            rank.kernel is None or self._apart(rank.kernel, comm) or (new is not None and self._first(comm, new, arrived))
        ):
            self._start_comm(rank, tail=False)
            if rank.kernel is not None and new is None:
                self._beside(rank)
        if new is not None:
            self.progress[new].started = self.progress[new].moving = self.now
            if rank.comm is not None:
                self._check(new, rank.comm)
            rank.tail = False
            rank.origin, rank.base, rank.curve = self.now, 0.0, self.pairs.alone(self.plain[new])
            if rank.comm is not None:
                self._beside(rank)
        if rank.waiting is not None and self._opening(rank) <= self.now + SAME_NS:
            assert rank.kernel is not None
            tail = rank.done(self.now) >= self._tail(rank.kernel, rank.waiting) - 1e-9
            before = rank.curve
            self._start_comm(rank, tail=tail)
            if tail or rank.freed:
                self._beside(rank)
            else:
                rank.restart(self._curve(rank), self.now)
                del before

    def _check(self, kernel: int, comm: int) -> None:
        if self._apart(kernel, comm) or self.ops[comm].priority > self.ops[kernel].priority:
            return
        if isinstance(self.dispatch, HeldQueue):
            raise _UnpairedError("under the held-queue policy a start depends on the operations before")
        if isinstance(self.dispatch, CutAhead) and self.dispatch.turns:
            raise _UnpairedError("queues take turns")

    def _apart(self, kernel: int, comm: int) -> bool:
        """Whether the two can never want the same SM."""
        return self.ops[comm].kind == "copy" or self.ops[comm].part != self.ops[kernel].part

    def _first(self, comm: int, kernel: int, arrived: list[int]) -> bool:
        """Whether the collective places its blocks before a kernel that arrives now."""
        if self.ops[comm].priority != self.ops[kernel].priority:
            return self.ops[comm].priority > self.ops[kernel].priority
        return comm not in arrived or arrived.index(comm) < arrived.index(kernel)

    def _start_comm(self, rank: _Rank, *, tail: bool) -> None:
        assert rank.waiting is not None
        rank.comm, rank.waiting, rank.tail = rank.waiting, None, tail
        self.progress[rank.comm].started = self.now

    def _tail(self, kernel: int, comm: int) -> float:
        """The part of a kernel that is done when a collective behind it starts."""
        pair = (self.plain[kernel], self.plain[comm])
        return self.pairs.alone(pair[0]).at(self.pairs.before(*pair).comm_start_ns)

    def _opening(self, rank: _Rank) -> float:
        """When the collective that waits on this rank can place blocks beside its kernel."""
        assert rank.kernel is not None and rank.waiting is not None
        kernel, comm = rank.kernel, rank.waiting
        opening = rank.when(self._tail(kernel, comm))
        if self.ops[comm].priority > self.ops[kernel].priority:
            if rank.freed:
                return self.now
            opening = min(opening, rank.origin + rank.curve.next_event(self.progress[comm].arrived - rank.origin))
        return opening

    def _meeting_case(self, rank: _Rank) -> object:
        return None

    def _curve(self, rank: _Rank) -> Curve:
        """The curve of the rank's kernel beside its collective."""
        assert rank.kernel is not None and rank.comm is not None
        pair = (self.plain[rank.kernel], self.plain[rank.comm])
        moving = self._group(rank.comm) in self.left or self.program.ranks == 1
        meeting = self.pairs.before if rank.tail else self.pairs.after
        curve = meeting(*pair, moving=moving).kernel
        if curve.end_ns > ENDLESS_NS / 10:
            raise _UnpairedError("a collective leaves a kernel no room")
        return curve

    def _beside(self, rank: _Rank) -> None:
        curve = self._curve(rank)
        if curve is not rank.curve:
            rank.follow(curve, self.now)

    def _start_moving(self) -> None:
        """A collective moves data once it has started on every rank."""
        for group, indexes in self.groups.items():
            if self.progress[indexes[0]].moving == NEVER and all(
                self.progress[index].started != NEVER for index in indexes
            ):
                self.left[group] = self.ops[indexes[0]].work_ns
                for index in indexes:
                    self.progress[index].moving = self.now
                    if self.program.ranks > 1 and self.ranks[self.ops[index].rank].kernel is not None:
                        self._beside(self.ranks[self.ops[index].rank])

    def _set_rates(self) -> None:
        """A collective moves at the pace of its slowest rank."""
        self.rates = {group: min(map(self._rate, self.groups[group])) for group in self.left}

    def _rate(self, comm: int) -> float:
        rank = self.ranks[self.ops[comm].rank]
        if rank.kernel is None:
            return self.pairs.comm_rate(self.plain[comm])
        meeting = self.pairs.before if rank.tail else self.pairs.after
        return meeting(self.plain[rank.kernel], self.plain[comm]).comm_rate
