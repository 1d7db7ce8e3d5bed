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
from itertools import groupby

from makeway.model.simulate.driver import Engine
from makeway.model.simulate.fitting import Held
from makeway.model.simulate.kept_runs import kept_run
from makeway.model.simulate.order import check_residency, linked
from makeway.model.simulate.pairs import ENDLESS_NS, Meeting, Pairs, comparable
from makeway.model.simulate.policies import CutAhead, Dispatch, HeldQueue, SharingPolicy
from makeway.model.simulate.program import Latencies, Program
from makeway.model.simulate.run_result import OpTimes, RunResult
from makeway.model.simulate.sms import NEVER, SAME_NS, Layout
from makeway.model.simulate.waves import Waves


class _UnpairedError(Exception):
    """A program that pairs cannot describe; the message says why."""


def fluid_run(program: Program, *, full: Engine, dispatch: Dispatch, hbm: SharingPolicy) -> RunResult:
    """Run a program to its end from pair measurements; by the `full` engine where they cannot describe it."""
    try:
        return _FluidRun(program, dispatch, hbm).run()
    except _UnpairedError as error:
        result = kept_run(program, full, dispatch, hbm)
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
    """The kernel and the collective of one rank."""

    queue: list[int] = field(default_factory=list)  # operations with blocks to place, by priority and arrival
    kernel: int | None = None  # running
    waves: Waves | None = None  # of the kernel
    comm: int | None = None  # arrived
    resident: int = 0  # blocks of the collective
    held_sms: int = 0  # by the collective
    left_at: float = NEVER  # when the last collective ended
    left_sms: int = 0  # that it held
    refilled: bool = False  # whether the kernel has had its turn at this moment


class _FluidRun:
    def __init__(self, program: Program, dispatch: Dispatch, hbm: SharingPolicy) -> None:
        self.program, self.ops = program, program.ops
        self.layout = Layout(program, dispatch)
        check_residency(program, self.layout)
        self.dispatch = dispatch
        seed = program.seed if program.jitter else 0
        self.pairs = _pairs(replace(program, ops=(), ranks=1, latencies=Latencies(), seed=seed), dispatch, hbm)
        self.plain = [comparable(op) for op in self.ops]
        self.ranks = [_Rank() for _ in range(program.ranks)]
        self.progress = [_Progress() for _ in self.ops]
        self.arrivals: list[tuple[float, bool, int]] = []
        self.groups: dict[str, list[int]] = defaultdict(list)
        self.left: dict[str, float] = {}  # work of the collectives that move data
        self.rates: dict[str, float] = {}
        self.stops: dict[str, float] = {}  # the work that is left when the channels that are complete are done
        self.now, self.events = 0.0, 0
        self._link_up()

    def _link_up(self) -> None:
        self.followers, waits = linked(self.ops)
        for index, op in enumerate(self.ops):
            self.progress[index].waits_for = waits[index]
            if op.kind != "kernel":
                self.groups[self._group(index)].append(index)
            if not waits[index]:
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
            *(self.now + (self.left[group] - self.stops[group]) / rate for group, rate in self.rates.items() if rate),
        )
        if at == NEVER:
            return False
        self._advance(max(at, self.now))
        for rank in self.ranks:
            if rank.waves is not None:
                rank.waves.advance(self.now)
                if rank.waves.ends_at() <= self.now + SAME_NS or rank.waves.empty:
                    self._kernel_ended(rank)
        self._data_arrived()
        while self.arrivals and self.arrivals[0][0] <= self.now + SAME_NS:
            self._arrive(heapq.heappop(self.arrivals)[2])
        for rank in self.ranks:
            self._dispatch(rank)
        self._start_moving()
        self._set_rates()
        return True

    def _advance(self, at: float) -> None:
        for group in self.left:
            self.left[group] -= (at - self.now) * self.rates[group]
        self.now = at

    def _next_on(self, rank: _Rank) -> float:
        """The next moment at which the rank's kernel ends or its collective may place blocks beside it."""
        waves = rank.waves
        if waves is None:
            return NEVER
        ends = waves.ends_at()
        if rank.comm is None or rank.comm not in rank.queue:
            return ends
        assert rank.kernel is not None
        if isinstance(self.dispatch, HeldQueue) or rank.queue[0] == rank.comm or not waves.left(self.now):
            return min(ends, waves.next_end(self.now))
        taken = self._slots_per_sm(rank.kernel, rank.comm)
        idle = (taken - 1) * (waves.slots // self._room(rank.kernel, ())) + 1 if taken else 0
        return min(ends, waves.idle_at(idle))

    # --- arrivals and ends ---------------------------------------------------------------------

    def _arrive(self, index: int) -> None:
        self.progress[index].arrived = self.now
        op = self.ops[index]
        rank = self.ranks[op.rank]
        if op.kind == "kernel":
            if rank.kernel is not None:
                raise _UnpairedError("kernels run at once")
            rank.kernel = index
        else:
            if rank.comm is not None:
                raise _UnpairedError("collectives run at once")
            rank.comm, rank.resident, rank.held_sms = index, 0, 0
        if op.kind == "copy":
            self.progress[index].started = self.now
            self._pace(rank)
        else:
            rank.queue.append(index)
            rank.queue.sort(key=lambda item: -self.ops[item].priority)  # stable: by arrival within a priority

    def _kernel_ended(self, rank: _Rank) -> None:
        assert rank.kernel is not None
        kernel, rank.kernel, rank.waves = rank.kernel, None, None
        rank.queue = [index for index in rank.queue if index != kernel]
        self._end(kernel)

    def _data_arrived(self) -> None:
        for group in [name for name, left in self.left.items() if left <= SAME_NS]:
            del self.left[group]
            for index in self.groups[group]:
                rank = self.ranks[self.ops[index].rank]
                if rank.waves is not None and rank.kernel is not None and rank.held_sms:
                    rank.waves = rank.waves.split(self.now)
                    rank.waves.free += rank.held_sms * self._slots_per_sm(rank.kernel, index)
                rank.left_at, rank.left_sms = self.now, rank.held_sms
                rank.comm = None
                self._pace(rank)
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

    def _dispatch(self, rank: _Rank) -> None:
        """Offer free slots to the operations that wait, as the dispatch policy orders them."""
        if not rank.queue:
            return
        if len(rank.queue) == 2:
            self._check(*rank.queue)
        rank.refilled = False
        for part in dict.fromkeys(self.ops[index].part for index in rank.queue):
            line = [index for index in rank.queue if self.ops[index].part == part]
            levels = [list(level) for _, level in groupby(line, key=lambda index: self.ops[index].priority)]
            self.dispatch.dispatch(levels, self._left, self._place)
        rank.refilled = True
        rank.queue = [index for index in rank.queue if self._left(index)]

    def _check(self, one: int, other: int) -> None:
        """Refuse policies whose choice between two operations depends on more than the two."""
        if self.ops[one].part != self.ops[other].part or self.ops[one].priority != self.ops[other].priority:
            return
        if isinstance(self.dispatch, CutAhead) and self.dispatch.turns:
            raise _UnpairedError("queues take turns")
        if isinstance(self.dispatch, HeldQueue) and self.program.ranks > 1:
            raise _UnpairedError("under held-queue, what happens on one rank lets queues of another go on")

    def _left(self, index: int) -> float:
        rank, op = self.ranks[self.ops[index].rank], self.ops[index]
        if op.kind == "kernel":
            return (
                rank.waves.left(self.now if rank.refilled else self.now - 2 * SAME_NS)
                if rank.waves is not None
                else 1.0
            )
        return 1.0 - rank.resident / op.blocks

    def _place(self, index: int, limit: int | None) -> int:
        rank = self.ranks[self.ops[index].rank]
        return self._place_kernel(rank, index) if self.ops[index].kind == "kernel" else self._place_comm(rank, index)

    def _place_kernel(self, rank: _Rank, index: int) -> int:
        rank.refilled = True
        if rank.waves is not None:
            return rank.waves.place(self.now)
        blocks, meeting = self.ops[index].blocks, self._meeting(rank)
        if meeting.kernel.end_ns > ENDLESS_NS / 10:
            raise _UnpairedError("a collective leaves a kernel no room")
        usual = self._share_held(rank) in (0.0, 1.0)
        rank.waves = Waves(
            meeting.kernel if usual else None,
            block_ns=self._block_ns(rank),
            blocks=blocks,
            slots=self._slots(rank, rank.held_sms if rank.comm is not None else 0),
            now=self.now,
        )
        rank.waves.place(self.now)
        self.progress[index].started = self.progress[index].moving = self.now
        return blocks - round(rank.waves.left(self.now) * blocks)

    def _place_comm(self, rank: _Rank, index: int) -> int:
        op = self.ops[index]
        wanted = op.blocks - rank.resident
        sms, placed = wanted, wanted
        taken = self._slots_per_sm(rank.kernel, index) if rank.kernel is not None and rank.waves is not None else 0
        if rank.waves is not None and taken:
            waves = rank.waves.split(self.now)
            if rank.refilled:
                waves.place(self.now)
            free, room = self._open_sms(rank, waves, index)
            if rank.left_at == self.now and not rank.refilled and self._fits_again(rank.kernel, index):
                free, room = max(free, rank.left_sms), max(room, 1)  # the SMs that another collective has just left
            sms = min(free, wanted)
            placed = min(sms * room, wanted)
            if placed:
                waves.free -= sms * taken
                rank.waves = waves
        if placed:
            rank.resident += placed
            rank.held_sms += sms
            self.progress[index].started = min(self.progress[index].started, self.now)
            self._pace(rank)
        return placed

    def _apart(self, rank: _Rank) -> bool:
        """Whether kernel and collective can never want the same SM."""
        assert rank.kernel is not None
        assert rank.comm is not None
        kernel, comm = self.ops[rank.kernel], self.ops[rank.comm]
        return comm.kind == "copy" or comm.part != kernel.part

    def _slots_per_sm(self, kernel: int, comm: int) -> int:
        """Blocks of a kernel that an SM with a block of the collective lacks."""
        if self.ops[comm].kind == "copy" or self.ops[comm].part != self.ops[kernel].part:
            return 0
        return self._room(kernel, ()) - self._room(kernel, self._held(comm, 1))

    def _open_sms(self, rank: _Rank, waves: Waves, comm: int) -> tuple[int, int]:
        """SMs with room for the collective, and for how many of its blocks; the kernel's are spread evenly."""
        assert rank.kernel is not None
        full = self._room(rank.kernel, ())
        sms = waves.slots // full
        most = max(held for held in range(full + 1) if self._room(comm, self._held(rank.kernel, held)))
        each, more = divmod(waves.in_flight, sms) if sms else (full, 0)
        if each > most:
            return 0, 0
        room = self._room(comm, self._held(rank.kernel, each))
        return (sms - more if each == most else sms), room

    def _fits_again(self, kernel: int | None, comm: int) -> bool:
        """Whether an SM that a collective has left has room for one: blocks are packed in the order they come."""
        assert kernel is not None
        beside = self._room(kernel, ()) - self._slots_per_sm(kernel, comm)
        return self._room(comm, self._held(kernel, beside)) > 0

    def _held(self, index: int, blocks: int) -> Held:
        return ((self.layout.kind[index], blocks),) if blocks else ()

    def _sms(self, index: int) -> int:
        """SMs that an operation may use."""
        return sum([self.program.sites[site].sms for site in self.layout.sites[index]])

    def _room(self, index: int, held: Held) -> int:
        return self.layout.fitting.capacity(self.layout.kind[index], held)

    def _meeting(self, rank: _Rank) -> Meeting:
        """The measured run of the rank's kernel beside what else is on the device."""
        assert rank.kernel is not None
        kernel, comm = self.plain[rank.kernel], rank.comm
        if comm is None or self.progress[comm].started == NEVER:
            return self.pairs.alone(kernel)
        moving = self.program.ranks == 1 or self.progress[comm].moving != NEVER
        return self.pairs.beside(kernel, self.plain[comm], moving=moving)

    def _pace(self, rank: _Rank) -> None:
        """Adapt the kernel to what is beside it now."""
        if rank.waves is not None:
            rank.waves.follow(self._meeting(rank).kernel, self.now)
            rank.waves.pace(self._block_ns(rank), self.now)

    def _share_held(self, rank: _Rank) -> float:
        """The SMs that the collective holds, over those it holds with one block on each."""
        assert rank.kernel is not None
        if rank.comm is None or not self._slots_per_sm(rank.kernel, rank.comm):
            return 0.0
        return rank.held_sms / min(self.ops[rank.comm].blocks, self._sms(rank.kernel))

    def _slots(self, rank: _Rank, held_sms: int) -> int:
        assert rank.kernel is not None
        taken = self._slots_per_sm(rank.kernel, rank.comm) if rank.comm is not None else 0
        return self._sms(rank.kernel) * self._room(rank.kernel, ()) - held_sms * taken

    def _block_ns(self, rank: _Rank) -> float:
        """The time of a block: between the measured runs, the kernel's throughput is linear in the SMs it lacks."""
        assert rank.kernel is not None
        share, meeting = self._share_held(rank), self._meeting(rank)
        if share in (0.0, 1.0) or rank.comm is None:
            return meeting.block_ns
        alone = self.pairs.alone(self.plain[rank.kernel])
        full = min(self.ops[rank.comm].blocks, self._sms(rank.kernel))
        rates = self._slots(rank, 0) / alone.block_ns, self._slots(rank, full) / meeting.block_ns
        return self._slots(rank, rank.held_sms) / (rates[0] + (rates[1] - rates[0]) * share)

    def _start_moving(self) -> None:
        """A collective moves data once it has started on every rank."""
        for group, indexes in self.groups.items():
            if self.progress[indexes[0]].moving == NEVER and all(
                self.progress[index].started != NEVER for index in indexes
            ):
                self.left[group] = self.ops[indexes[0]].work_ns
                for index in indexes:
                    self.progress[index].moving = self.now
                    if self.program.ranks > 1:
                        self._pace(self.ranks[self.ops[index].rank])

    def _set_rates(self) -> None:
        """A collective moves at the pace of its slowest rank; each channel carries a fixed part of the data."""
        self.rates, self.stops = {}, {}
        for group, left in self.left.items():
            indexes = self.groups[group]
            part = min(map(self._resident_part, indexes))
            self.stops[group] = (1.0 - part) * self.ops[indexes[0]].work_ns
            self.rates[group] = part * min(map(self._rate, indexes)) if left > self.stops[group] + SAME_NS else 0.0

    def _resident_part(self, comm: int) -> float:
        op = self.ops[comm]
        return 1.0 if op.kind == "copy" else self.ranks[op.rank].resident / op.blocks

    def _rate(self, comm: int) -> float:
        """Work per nanosecond of a collective with all its channels, as far as one rank decides."""
        rank = self.ranks[self.ops[comm].rank]
        if rank.kernel is None or rank.waves is None:
            return self.pairs.alone(self.plain[comm]).comm_rate
        return self.pairs.beside(self.plain[rank.kernel], self.plain[comm], moving=True).comm_rate
