"""The driver: streams, dependencies, queues and shared bandwidth around either engine.

Deterministic: events are taken in the order of (time, operation). Nothing running is preempted.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from makeway.model.simulate.block_engine import BlockSms
from makeway.model.simulate.class_engine import ClassSms
from makeway.model.simulate.order import check_residency, linked
from makeway.model.simulate.policies import (
    BackFill,
    CutAhead,
    Dispatch,
    HeldQueue,
    Proportional,
    SharingPolicy,
    StrictHeadOfLine,
    latency_shares,
)
from makeway.model.simulate.program import Program
from makeway.model.simulate.run_result import OpTimes, Progress, RunResult, Sample
from makeway.model.simulate.sms import NEVER, SAME_NS, Layout, Sms
from makeway.values.errors import InputError

Engine = Literal["class", "block"]
MOST_COMM_POWER = 0.5  # of the power budget, whatever number of collectives runs


@dataclass(slots=True)
class _Progress:
    arrived: float = NEVER
    started: float = NEVER
    moving: float = NEVER
    ended: float = NEVER
    running_blocks: int = 0
    waits_for: int = 0
    ready: tuple[float, bool] = (0.0, False)  # when the last operation it waits for lets it go, by an event or not


def run(
    program: Program,
    *,
    engine: Engine,
    dispatch: Dispatch | None = None,
    hbm: SharingPolicy | None = None,
    sample_ns: float | None = None,
    progress: bool = False,
) -> RunResult:
    """Run a program to its end; an operation that can never become resident is an error.

    With `sample_ns`, what the SMs hold is recorded about so often, and where an operation starts or ends.
    """
    return _Run(program, engine, dispatch or StrictHeadOfLine(), hbm or Proportional(), sample_ns, progress).run()


@dataclass
class _Run:
    program: Program
    engine: Engine
    policy: Dispatch
    hbm: SharingPolicy
    sample_ns: float | None
    record_progress: bool
    now: float = 0.0
    events: int = 0
    samples: list[Sample] = field(default_factory=list)
    steps: list[Progress] = field(default_factory=list)

    def __post_init__(self) -> None:
        ops = self.program.ops
        layout = Layout(self.program, self.policy)
        check_residency(self.program, layout)
        self.clock, self.speed = [0.0] * len(layout.ops), [1.0] * len(layout.ops)
        self.unplaced = [op.blocks for op in ops]
        self.ranks: list[Sms] = [self._sms(layout, rank) for rank in range(self.program.ranks)]
        self.progress = [_Progress() for _ in ops]
        self.queues: list[list[int]] = [[] for _ in range(self.program.ranks)]
        self.arrivals: list[tuple[float, bool, int]] = []  # time, released by an event, operation
        self.groups: dict[str, list[int]] = defaultdict(list)
        self.moving: set[str] = set()
        self.startable: list[str] = []  # groups of which every rank has just become resident
        self.sms = sum(site.sms for site in self.program.sites)
        self.live = list(range(len(ops), len(layout.ops)))  # operations whose clock runs; kept rooms' always does
        self.tried: list[int] = []  # operations that the last dispatch let place blocks
        self.sampled: list[int] = []  # the running operations at the last sample
        self.shared: object = None  # what the speeds were last computed from
        self._link_up()
        self.not_started = {group: len(indexes) for group, indexes in self.groups.items()}

    def _sms(self, layout: Layout, rank: int) -> Sms:
        if self.engine == "class":
            return ClassSms(layout, self.clock, self.speed, self.unplaced)
        seed = self.program.seed * 1_000_003 + rank
        return BlockSms(layout, self.clock, self.speed, self.unplaced, seed)

    def _link_up(self) -> None:
        self.followers, waits = linked(self.program.ops)
        for index, op in enumerate(self.program.ops):
            self.progress[index].waits_for = waits[index]
            if op.kind != "kernel":
                self.groups[op.group or op.name].append(index)
            if not waits[index]:
                heapq.heappush(self.arrivals, (op.launch_ns, False, index))

    def run(self) -> RunResult:
        while self._step():
            self.events += 1
            if self.tried:
                self._refill()
        stuck = [
            op.name for op, progress in zip(self.program.ops, self.progress, strict=True) if progress.ended == NEVER
        ]
        if stuck:
            raise InputError(
                f"deadlock at {self.now / 1e6:.3f} ms: nothing runs, and {', '.join(stuck[:3])} still wait"
                f"{' and others' if len(stuck) > 3 else ''}; each holds or waits for SMs that another needs"
            )
        times = tuple(
            OpTimes(arrived_ns=p.arrived, started_ns=p.started, moving_ns=p.moving, ended_ns=p.ended)
            for p in self.progress
        )
        return RunResult(times=times, samples=tuple(self.samples), events=self.events, progress=tuple(self.steps))

    def _step(self) -> bool:
        """Advance to the next event and handle all that happens then; False at the end."""
        ahead = min([rank.next_end_ns() for rank in self.ranks] + [self._next_arrival(), self._next_data_end()])
        if ahead == NEVER:
            return False
        self._advance(ahead)
        for rank in self.ranks:
            for op, blocks in rank.ended():
                self._blocks_ended(op, blocks)
        self._data_arrived()
        while self.arrivals and self.arrivals[0][0] <= self.now + SAME_NS:
            self._arrive(heapq.heappop(self.arrivals)[2])
        for rank_index in range(self.program.ranks):
            self._dispatch(rank_index)
        self._start_moving()
        for rank in self.ranks:
            rank.settle()
        self._share()
        if self.sample_ns is not None:
            self._take_sample(self.sample_ns)
        if self.record_progress:
            self._take_progress()
        return True

    def _next_arrival(self) -> float:
        return max(self.arrivals[0][0] - self.now, 0.0) if self.arrivals else NEVER

    def _next_data_end(self) -> float:
        soonest = NEVER
        for group in self.moving:
            index = self.groups[group][0]
            if self.speed[index] > 0:
                soonest = min(soonest, (self._movable_ns(index) - self.clock[index]) / self.speed[index])
        return max(soonest, 0.0)

    def _advance(self, ahead: float) -> None:
        self.now += ahead
        if ahead:
            for index in self.live:
                self.clock[index] += ahead * self.speed[index]

    # --- arrivals and ends ---------------------------------------------------------------------

    def _arrive(self, index: int) -> None:
        op = self.program.ops[index]
        self.progress[index].arrived = self.now
        if op.kind == "copy":
            self.progress[index].started = self.now
            self._started(op.group or op.name)
            return
        queue, ops = self.queues[op.rank], self.program.ops
        queue.append(index)
        queue.sort(key=lambda item: -ops[item].priority)  # stable: arrival order within a priority

    def _blocks_ended(self, index: int, blocks: int) -> None:
        progress = self.progress[index]
        progress.running_blocks -= blocks
        if not progress.running_blocks and not self.unplaced[index]:
            self._end(index)

    def _data_arrived(self) -> None:
        for group in sorted(self.moving):
            indexes = self.groups[group]
            if self.clock[indexes[0]] >= self.program.ops[indexes[0]].work_ns - SAME_NS:
                self.moving.discard(group)
                for index in indexes:
                    op = self.program.ops[index]
                    if op.kind == "collective":
                        self.ranks[op.rank].release(index)
                    self._end(index)

    def _end(self, index: int) -> None:
        self.progress[index].ended = self.now
        self.live.remove(index)
        latencies = self.program.latencies
        for follower, by_event in self.followers[index]:
            progress = self.progress[follower]
            progress.waits_for -= 1
            ready = self.now + (latencies.event_ns if by_event else latencies.stream_ns)
            progress.ready = max(progress.ready, (ready, by_event))
            if not progress.waits_for:
                time, last_by_event = progress.ready
                arrival = max(time, self.program.ops[follower].launch_ns)
                heapq.heappush(self.arrivals, (arrival, last_by_event, follower))

    # --- many blocks of one kernel -------------------------------------------------------------

    def _refill(self) -> None:
        """Take the ends of a kernel's blocks, each followed by its next, in one go while nothing else can happen."""
        sms, queue, ops = self.ranks[0], self.queues[0], self.program.ops
        if len(self.ranks) > 1 or self.program.turnaround or not isinstance(sms, BlockSms) or not queue:
            return
        op, other_end = sms.soonest()
        if op is None or op not in queue or op not in self.tried or self.policy.gpcs > 1:
            return
        block = ops[op].block
        if ops[op].kind != "kernel" or block is None or block.cluster > 1:
            return
        order = self._order(op)
        if order is None:
            return
        others, least = order[: order.index(op)], 0
        match self.policy:
            case StrictHeadOfLine():
                least = 1  # with its last block the next operation has its turn
            case HeldQueue(hold) if self._left(op) > 1.0 - hold:
                least = math.ceil((1.0 - hold) * ops[op].blocks)  # then it lets others go first
            case BackFill() | CutAhead() | HeldQueue():
                pass
            case _:
                return
        within = min(other_end, self._next_arrival(), self._next_data_end()) - 2 * SAME_NS
        before, start, speed = self.unplaced[op], self.now, self.speed
        times = sms.refill(op, others, within_ns=within, least=least)
        if not times:
            return
        clocks = [(index, self.clock[index]) for index in self.live if index != op]
        for at, elapsed in enumerate(times, start=1) if self.record_progress else ():
            self.now, self.unplaced[op] = start + elapsed, before - at
            for index, clock in clocks:
                self.clock[index] = clock + elapsed * speed[index]
            self._take_progress()
        self.now, self.unplaced[op] = start + times[-1], before - len(times)
        for index, clock in clocks:
            self.clock[index] = clock + times[-1] * speed[index]
        self.events += len(times)

    def _order(self, op: int) -> list[int] | None:
        """The operations that may place blocks at the next event, in order; None where one of them was not asked yet.

        Those that were asked have found every SM full.
        """
        order: list[int] = []

        def ask(index: int, limit: int | None) -> int:
            order.append(index)
            return 0

        part = self.program.ops[op].part
        self.policy.dispatch(self._levels(self.queues[0], part), self._left, ask)
        return order if op in order and set(order) <= set(self.tried) else None

    # --- dispatch and bandwidth ----------------------------------------------------------------

    def _dispatch(self, rank: int) -> None:
        queue = self.queues[rank]
        self.tried.clear()
        if not queue:
            return
        ops = self.program.ops
        for part in dict.fromkeys(ops[index].part for index in queue):  # each part of a device has its own queue
            self.policy.dispatch(self._levels(queue, part), self._left, self._place)
        self.queues[rank] = [index for index in queue if self.unplaced[index]]

    def _levels(self, queue: list[int], part: str | None) -> list[list[int]]:
        """The operations that wait for one part of a device, by priority."""
        ops = self.program.ops
        line = [index for index in queue if ops[index].part == part]
        return [list(level) for _, level in groupby(line, key=lambda index: ops[index].priority)]

    def _left(self, index: int) -> float:
        return self.unplaced[index] / self.program.ops[index].blocks

    def _place(self, index: int, limit: int | None) -> int:
        op, progress = self.program.ops[index], self.progress[index]
        placed = self.ranks[op.rank].place(index, limit)
        self.tried.append(index)
        if placed:
            progress.running_blocks += placed
            if progress.started == NEVER:
                progress.started = self.now
                if op.kind == "kernel":
                    progress.moving = self.now
                    self.live.append(index)
                else:
                    self._started(op.group or op.name)
        return placed

    def _started(self, group: str) -> None:
        self.not_started[group] -= 1
        if not self.not_started[group]:
            self.startable.append(group)

    def _start_moving(self) -> None:
        """A collective moves data once a block of it is resident on every rank."""
        for group in self.startable:
            self.moving.add(group)
            for index in self.groups[group]:
                self.progress[index].moving = self.now
                self.live.append(index)
        self.startable.clear()

    def _resident_part(self, index: int) -> float:
        """The share of a collective's channels that are complete.

        A channel is one block on each rank and carries a fixed part of the data; blocks become resident in the order
        of their channels, so the rank with the fewest decides how many channels are complete.
        """
        op = self.program.ops[index]
        if op.kind == "copy":
            return 1.0
        return min(self.progress[other].running_blocks for other in self.groups[op.group or op.name]) / op.blocks

    def _movable_ns(self, index: int) -> float:
        """How far a collective gets with the channels it has; the data of the others waits for them."""
        return self.program.ops[index].work_ns * self._resident_part(index)

    def _moving_part(self, index: int) -> float:
        """The share of a collective's channels that move data now: none once the complete ones are done."""
        return self._resident_part(index) if self.clock[index] < self._movable_ns(index) - SAME_NS else 0.0

    def _share(self) -> None:
        """Set every operation's speed: interference first, then links, then HBM."""
        changes = [rank.changes for rank in self.ranks]
        moving = [(index, self._moving_part(index)) for group in sorted(self.moving) for index in self.groups[group]]
        if self.shared != (changes, moving):
            self.shared = (changes, moving)
            self._set_speeds([rank.running() for rank in self.ranks], dict(moving))

    def _set_speeds(self, running: list[dict[int, float]], moving: dict[int, float]) -> None:
        program, ops = self.program, self.program.ops
        speeds: dict[int, float] = {}
        for rank_index, kernels in enumerate(running):
            comms = {index: part for index, part in moving.items() if ops[index].rank == rank_index}
            base = self._interfered(kernels, comms)
            link = sum([ops[index].link_per_ns * base[index] for index in comms])
            if program.link_per_ns is not None and link > program.link_per_ns:
                for index in comms:
                    base[index] *= program.link_per_ns / link
            rates = {op: kernels.get(op, 1.0) * base[op] for op in base}
            hbm = self._hbm_shares(rates)
            l2 = self._shares({op: rate * ops[op].l2_per_ns for op, rate in rates.items()}, program.l2_per_ns)
            speeds |= {op: base[op] * min(hbm.get(op, 1.0), l2.get(op, 1.0)) for op in base}
        for group in self.moving:  # a collective goes at the pace of its slowest rank
            slowest = min(speeds[index] for index in self.groups[group])
            speeds |= dict.fromkeys(self.groups[group], slowest)
        for index, speed in speeds.items():
            self.speed[index] = speed

    def _hbm_shares(self, rates: dict[int, float]) -> dict[int, float]:
        """The part of its speed that HBM leaves each operation: by latency where the program has a knee."""
        program, ops = self.program, self.program.ops
        demands = self._hbm_demands(rates)
        if program.hbm_knee is None or program.hbm_per_ns is None:
            capacity = program.hbm_per_ns
            if capacity is not None and len({ops[op].kind == "kernel" for op, demand in demands.items() if demand}) > 1:
                capacity *= program.mixed_hbm
            return self._shares(demands, capacity)
        waiting = {op: ops[op].memory / self._crowding(op, rate) for op, rate in rates.items()}
        return latency_shares(demands, waiting, program.hbm_per_ns, program.hbm_knee)

    def _hbm_demands(self, rates: dict[int, float]) -> dict[int, float]:
        """Bytes per nanosecond that each operation asks of HBM.

        A collective's stream takes cache from a kernel that reuses data, in proportion to what each brings in (LRU);
        the kernel reads what it loses again.
        """
        ops = self.program.ops
        demands = {op: rate * ops[op].hbm_per_ns for op, rate in rates.items()}
        through = ("collective", "copy") if self.program.memory_side_cache else ("collective",)
        stream = sum([demand for op, demand in demands.items() if ops[op].kind in through])
        for op, rate in rates.items() if stream else ():
            if ops[op].reuse:
                lost = stream / (stream + demands[op])
                again = [reuse.missed_bytes(lost) - reuse.missed_bytes() for reuse in ops[op].reuse]
                demands[op] += rate * sum(again)
        return demands

    def _crowding(self, op: int, rate: float) -> float:
        """How much its SM neighbours slow an operation, over all its blocks."""
        operation = self.program.ops[op]
        if operation.kind != "kernel":
            return self.ranks[operation.rank].crowding(op) if operation.kind == "collective" else 1.0
        return max(self.progress[op].running_blocks * operation.share / rate, 1.0) if rate else 1.0

    def _shares(self, demands: dict[int, float], capacity: float | None) -> dict[int, float]:
        if capacity is None:
            return {}
        return self.hbm.shares(demands, capacity, {op: self.program.ops[op].slack for op in demands})

    def _interfered(self, kernels: dict[int, float], comms: dict[int, float]) -> dict[int, float]:
        ops = self.program.ops
        base = dict.fromkeys([*kernels, *comms], 1.0)
        if kernels and comms:
            for index in comms:
                if ops[index].kind == "collective":
                    base[index] = 1.0 - self.program.comm_loss
        for index, part in comms.items():
            base[index] *= part
            if ops[index].kind == "collective" and ops[index].share:
                base[index] /= max(1.0, self.ranks[ops[index].rank].crowding(index) / ops[index].slack)
        clock = self._clock(kernels, comms)
        for index in kernels if clock < 1.0 else ():
            base[index] *= clock if ops[index].power else 1.0
        return base

    def _clock(self, kernels: dict[int, float], comms: dict[int, float]) -> float:
        """The clock, as a part of what kernels alone have, that the power budget allows beside communication."""
        program, ops = self.program, self.program.ops
        if program.power_exponent is None or not comms:
            return 1.0
        drawn = sum([ops[index].power * rate for index, rate in kernels.items()]) / self.sms
        left = 1.0 - min(sum([ops[index].power * part for index, part in comms.items()]), MOST_COMM_POWER)
        return min(1.0, (left / drawn) ** (1.0 / program.power_exponent)) if drawn else 1.0

    def _take_progress(self) -> None:
        resident = tuple(progress.running_blocks for progress in self.progress)
        done = tuple(
            op.blocks - self.unplaced[index] - resident[index] if op.kind == "kernel" else self.clock[index]
            for index, op in enumerate(self.program.ops)
        )
        self.steps.append(Progress(time_ns=self.now, done=done, resident=resident))

    def _take_sample(self, least_ns: float) -> None:
        last = self.samples[-1].time_ns if self.samples else -NEVER
        if self.now < last + least_ns and self.live == self.sampled:
            return
        self.sampled = list(self.live)
        for rank_index, rank in enumerate(self.ranks):
            holdings = tuple(sorted(rank.holdings().items()))
            self.samples.append(Sample(time_ns=self.now, rank=rank_index, holdings=holdings))
