"""The time of a pipelined step: the longest path through the tasks of all stages.

A stage runs its tasks in order; a task also waits for its micro batch from the neighbour. Messages between two places
arrive in the order in which they are sent, so the state of a running pipeline is a clock per stage and the messages
under way. Rounds of a schedule repeat (schedules.py). Once the state moves on evenly, and until another task begins to
bind, further rounds add the same time each: they are added at once, exactly. The cost depends on stages x chunks, not
on micro batches.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice, pairwise
from typing import Literal, NamedTuple

from makeway.decide.scale.greedy import Room, StageTimes, greedy_orders
from makeway.decide.scale.schedules import (
    Order,
    Place,
    Repeating,
    Task,
    TaskKind,
    repeating_schedule,
    round_step,
    routes,
    schedule,
    shortened,
)
from makeway.values.errors import InputError
from makeway.values.layout import Layout, Schedule

CostKind = Literal["none", "pair"] | TaskKind
ByStage = tuple[tuple[float, ...], ...]  # [stage][chunk]

_SAME = 1e-11  # of the time so far: rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCosts:
    """Times of one micro batch, by stage and chunk."""

    forward_ns: ByStage
    input_ns: ByStage  # backward: the gradient of the input, with recomputation
    weight_ns: ByStage  # backward: the gradient of the weights
    hop_ns: float = 0.0  # from a stage to its neighbour
    hop_overlapped: bool = True  # False: the sender waits until a message has arrived
    kept_for_weights: float = 1.0  # of a micro batch's activations, after the gradient of its input; for zb-2p
    pair_ns: ByStage | None = None  # forward of a chunk beside the backward pass of the other; None: their sum

    def of(self, kind: TaskKind, stage: int, chunk: int) -> float:
        if kind == "F":
            return self.forward_ns[stage][chunk]
        return (self.input_ns[stage][chunk] if kind != "W" else 0.0) + (
            self.weight_ns[stage][chunk] if kind != "B" else 0.0
        )

    def faster(self, times: float) -> PipelineCosts:
        """Every stage computes so many times faster; messages take as long."""

        def divided(values: ByStage) -> ByStage:
            return tuple(tuple(ns / times for ns in chunks) for chunks in values)

        return replace(
            self,
            forward_ns=divided(self.forward_ns),
            input_ns=divided(self.input_ns),
            weight_ns=divided(self.weight_ns),
            pair_ns=None if self.pair_ns is None else divided(self.pair_ns),
        )

    def pair(self, stage: int, chunk: int) -> float:
        """Of a forward pass of `chunk` together with a backward pass of the other chunk."""
        if self.pair_ns is not None:
            return self.pair_ns[stage][chunk]
        return self.of("F", stage, chunk) + self.of("BW", stage, 1 - chunk)


class TaskSpan(NamedTuple):
    """When a stage ran a task."""

    stage: int
    task: Task
    start_ns: float
    end_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """One step of a pipeline."""

    start_ns: tuple[float, ...]  # of each stage's first task
    end_ns: tuple[float, ...]  # of each stage's last task
    busy_ns: tuple[float, ...]
    spans: tuple[TaskSpan, ...] = ()

    @property
    def makespan_ns(self) -> float:
        return max(self.end_ns)

    @property
    def longest_stage_ns(self) -> float:
        """From the first task of a stage to its last, at most.

        The time between two steps where stages do not wait for each other at the end of a step, as zero-bubble
        schedules with a validated-later optimizer do.
        """
        return max(end - start for start, end in zip(self.start_ns, self.end_ns, strict=True))

    @property
    def bubble_share(self) -> float:
        """Of the makespan, on the busiest stage."""
        return 1 - max(self.busy_ns) / self.makespan_ns if self.makespan_ns else 0.0


class _Event(NamedTuple):
    """One task as the engine runs it: what it waits for, what it sends, what it costs. Queues are numbered from 0."""

    stage: int
    receives: int | None
    sends: int | None
    cost: int  # into the list of costs
    tasks: tuple[Task, ...]  # that end with it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """The events of a schedule in an order that never waits for a later one: parts, with rounds between them."""

    parts: tuple[tuple[_Event, ...], ...]
    rounds: tuple[tuple[_Event, ...], ...]
    queues: int
    costs: tuple[tuple[CostKind, int, int], ...]  # kind, stage, chunk


class _Compiler:
    """Turns the orders of all stages into events."""

    def __init__(self, paths: Sequence[Sequence[Place]]) -> None:
        self._queues: dict[tuple[str, Place], tuple[int | None, int | None]] = {}  # receives, sends
        self.queues = 0
        self._costs: dict[tuple[CostKind, int, int], int] = {}
        for path in paths:
            links = [self._link(here, there) for here, there in pairwise(path)]
            for number, place in enumerate(path):
                before = links[number - 1] if number else (None, None)
                after = links[number] if number < len(links) else (None, None)
                self._queues["F", place] = before[0], after[0]
                self._queues["B", place] = after[1], before[1]
        self._waiting = [0] * self.queues

    def _link(self, here: Place, there: Place) -> tuple[int | None, int | None]:
        """Queues down and up; none within a stage, whose order sees to it."""
        if here[0] == there[0]:
            return None, None
        self.queues += 2
        return self.queues - 2, self.queues - 1

    @property
    def costs(self) -> tuple[tuple[CostKind, int, int], ...]:
        return tuple(self._costs)

    def _cost(self, kind: CostKind, stage: int, chunk: int) -> int:
        return self._costs.setdefault((kind, stage, chunk), len(self._costs))

    def _events(self, stage: int, order: Order) -> list[_Event]:
        events: list[_Event] = []
        forward: Task | None = None  # of a pair
        for task in order:
            kind, _, chunk, paired = task
            if kind == "W":
                events.append(_Event(stage, None, None, self._cost(kind, stage, chunk), (task,)))
                continue
            receives, sends = self._queues["F" if kind == "F" else "B", (stage, chunk)]
            if paired:
                forward = task
                events.append(_Event(stage, receives, None, self._cost("none", stage, chunk), ()))
            elif forward is not None:
                together = self._cost("pair", stage, forward.chunk)
                events.append(
                    _Event(stage, receives, self._queues["F", (stage, forward.chunk)][1], together, (forward, task))
                )
                events.append(_Event(stage, None, sends, self._cost("none", stage, chunk), ()))
                forward = None
            else:
                events.append(_Event(stage, receives, sends, self._cost(kind, stage, chunk), (task,)))
        return events

    def sequence(self, orders: Sequence[Order]) -> tuple[_Event, ...]:
        """All events of these orders, each after those it waits for."""
        waiting = self._waiting
        left = [deque(self._events(stage, order)) for stage, order in enumerate(orders)]
        ready: list[_Event] = []
        total = sum(map(len, left))
        while len(ready) < total:
            before = len(ready)
            for events in chain(left, reversed(left)):
                while events:
                    receives, sends = events[0][1:3]
                    if receives is not None:
                        if not waiting[receives]:
                            break
                        waiting[receives] -= 1
                    if sends is not None:
                        waiting[sends] += 1
                    ready.append(events.popleft())
            if len(ready) == before:
                raise InputError("these orders never end: stages wait for each other")
        return tuple(ready)


@lru_cache(maxsize=256)
def _program(name: Schedule, stages: int, chunks: int, micro_batches: int, repeating: bool) -> _Program:
    """The events of a short schedule, cut where rounds are inserted if it is repeating."""
    orders = repeating_schedule(name, stages, chunks, micro_batches)
    return _compiled(orders, routes(name, stages, chunks), repeating)


def _compiled(orders: Sequence[Repeating], paths: Sequence[Sequence[Place]], repeating: bool) -> _Program:
    compiler = _Compiler(paths)
    parts, rounds = [], []
    if repeating:
        parts.append(compiler.sequence([order.parts[0] for order in orders]))
        for number in range(len(orders[0].rounds)):
            rounds.append(compiler.sequence([order.rounds[number] for order in orders]))
            parts.append(compiler.sequence([order.parts[number + 1] for order in orders]))
    else:
        parts.append(compiler.sequence([order.unrolled(0) for order in orders]))
    return _Program(parts=tuple(parts), rounds=tuple(rounds), queues=compiler.queues, costs=compiler.costs)


class _Engine:
    """A pipeline under way: a clock per stage and the messages between stages."""

    def __init__(self, program: _Program, stages: int, costs: PipelineCosts) -> None:
        self.clocks = [0.0] * stages
        self.queues: list[deque[float]] = [deque() for _ in range(program.queues)]
        self.costs = [_cost_ns(costs, *key) for key in program.costs]
        self.hop = costs.hop_ns
        self.send = 0.0 if costs.hop_overlapped else costs.hop_ns

    def run(self, events: Iterable[_Event]) -> tuple[list[float], list[float]]:
        """Run events; the end of each, and by how much each that received was late for its message."""
        clocks, queues, costs, hop, send = self.clocks, self.queues, self.costs, self.hop, self.send
        ends: list[float] = []
        late: list[float] = []
        for stage, receives, sends, cost, _ in events:
            time = clocks[stage]
            if receives is not None:
                arrival = queues[receives].popleft()
                late.append(time - arrival)
                if arrival > time:
                    time = arrival
            time += costs[cost]
            ends.append(time)
            if sends is not None:
                queues[sends].append(time + hop)
                time += send
            clocks[stage] = time
        return ends, late

    def repeat(self, turn: Sequence[_Event], tail: Sequence[_Event], repeats: int, *, window: int) -> None:
        """Run a round `repeats` times, then the tail; in one leap wherever the pipeline moves on evenly.

        Two proofs of that. The state moves on alike in two periods, until another task begins to bind (`_period`,
        `_even_leaps`). Or nothing in the state gains more than the slowest stage takes, so nothing ever will, and all
        ends have gained just that for `window` rounds, as long as any circuit between stages: they go on to.
        """
        slowest = max(self.busy(turn))
        states: list[list[float]] = []
        totals: list[float] = []
        lates: list[list[float]] = []
        check, before = 1, None  # ends of the stages, had round `check` been the last
        done = 0
        while done < repeats:
            lates.append(self.run(turn)[1])
            states.append([*self.clocks, *chain.from_iterable(self.queues)])
            totals.append(sum(states[-1]))
            done += 1
            period = _period(states, totals, lates) if done < repeats else None
            leaps = min((repeats - done) // period, _even_leaps(lates, period, states[-1][0])) if period else 0
            if period and leaps:
                self._leap(states[-1], states[-1 - period], leaps)
                done += leaps * period
                states, totals, lates, check, before = [], [], [], done + 1, None
            elif done == check:
                before = self._ends(tail)
            elif done == check + window and before is not None:
                ends = self._ends(tail)
                most = slowest + _SAME * max(ends)
                if all(now - then <= most for now, then in zip(states[-1], states[-2], strict=True)) and all(
                    abs(end - early - window * slowest) <= _SAME * end for end, early in zip(ends, before, strict=True)
                ):
                    self.clocks[:] = [end + (repeats - done) * slowest for end in ends]
                    return
                check, before = 2 * done, None
        self.run(tail)

    def busy(self, events: Iterable[_Event]) -> list[float]:
        """Time of the tasks of each stage."""
        busy = [0.0] * len(self.clocks)
        for event in events:
            busy[event.stage] += self.costs[event.cost]
        return busy

    def _ends(self, tail: Sequence[_Event]) -> list[float]:
        """The clocks after the tail, without running it."""
        clocks, queues = self.clocks, self.queues
        self.clocks, self.queues = list(clocks), [deque(queue) for queue in queues]
        self.run(tail)
        ends, self.clocks, self.queues = self.clocks, clocks, queues
        return ends

    def _leap(self, now: list[float], before: list[float], leaps: int) -> None:
        moved = iter([time + leaps * (time - earlier) for time, earlier in zip(now, before, strict=True)])
        self.clocks[:] = islice(moved, len(self.clocks))
        for queue in self.queues:
            held = len(queue)
            queue.clear()
            queue.extend(islice(moved, held))


def _period(states: list[list[float]], totals: list[float], lates: list[list[float]]) -> int | None:
    """Rounds after which the state has moved on as it did in as many rounds before; None while it has not.

    The same tasks must bind in both, and every clock and message must advance by the same time.
    """
    rounds = len(states)
    last = states[-1]
    same = _SAME * max(last)
    for period in range(1, (rounds - 1) // 2 + 1):
        if abs(totals[-1] - 2 * totals[-1 - period] + totals[-1 - 2 * period]) > same * len(last):
            continue
        middle, first = states[-1 - period], states[-1 - 2 * period]
        if any(abs(now - 2 * mid + then) > same for now, mid, then in zip(last, middle, first, strict=True)):
            continue
        recent = chain.from_iterable(lates[-period:])
        earlier = chain.from_iterable(lates[-2 * period : -period])
        if all(
            (now >= -same and then >= -same) or (now <= same and then <= same)
            for now, then in zip(recent, earlier, strict=True)
        ):
            return period
    return None


def _even_leaps(lates: list[list[float]], period: int, time: float) -> int:
    """Periods until another task begins to bind: a message that comes ever later, or a stage that does."""
    same = _SAME * time
    leaps = sys.maxsize
    recent = chain.from_iterable(lates[-period:])
    earlier = chain.from_iterable(lates[-2 * period : -period])
    for now, then in zip(recent, earlier, strict=True):
        change = now - then
        if abs(change) > same and now * change < 0:
            leaps = min(leaps, int(-now / change))
    return leaps


def _cost_ns(costs: PipelineCosts, kind: CostKind, stage: int, chunk: int) -> float:
    match kind:
        case "none":
            return 0.0
        case "pair":
            return costs.pair(stage, chunk)
        case _:
            return costs.of(kind, stage, chunk)


def step_pipeline(layout: Layout, costs: PipelineCosts) -> PipelineRun:
    """One step of a layout's schedule, without spans; exact for any number of micro batches."""
    name, stages, chunks, micro_batches = layout.schedule, layout.pp, layout.chunks, layout.micro_batches
    short, repeats = shortened(name, stages, chunks, micro_batches)
    run = _stepped(_program(name, stages, chunks, short, repeats > 0), repeats, stages, costs, round_step(name, stages))
    if name != "zb-2p":
        return run
    made = _stepped(*_made_program(_greedy(layout, costs)), stages, costs, 1)
    return _shorter(made, run)


def _shorter(made: PipelineRun, by_hand: PipelineRun) -> PipelineRun:
    """The run by hand only where it is truly shorter: a difference by rounding decides nothing."""
    return by_hand if by_hand.longest_stage_ns < made.longest_stage_ns * (1 - 1e-9) else made


def _greedy(layout: Layout, costs: PipelineCosts) -> tuple[tuple[Repeating, ...], int]:
    """Orders made for the times of the stages, within twice the memory of 1F1B."""
    forward, back, weight = (
        tuple(chunks[0] for chunks in times) for times in (costs.forward_ns, costs.input_ns, costs.weight_ns)
    )
    times = StageTimes(forward_ns=forward, input_ns=back, weight_ns=weight, hop_ns=costs.hop_ns)
    room = Room(limit=2 * layout.pp, kept_for_weights=costs.kept_for_weights)
    return greedy_orders(times, layout.micro_batches, room)


@lru_cache(maxsize=64)
def _made_program(made: tuple[tuple[Repeating, ...], int]) -> tuple[_Program, int]:
    orders, repeats = made
    return _compiled(orders, routes("zb-2p", len(orders), 1), repeats > 0), repeats


def _stepped(program: _Program, repeats: int, stages: int, costs: PipelineCosts, step: int) -> PipelineRun:
    engine = _Engine(program, stages, costs)
    window = -(-2 * stages // step)
    first = program.parts[0]
    start = _starts(first, engine.run(first)[0], engine.costs, stages)
    for turn, part in zip(program.rounds, program.parts[1:], strict=True):
        engine.repeat(turn, part, repeats, window=window)
    once = engine.busy(chain.from_iterable(program.parts))
    again = engine.busy(chain.from_iterable(program.rounds))
    busy = [one_time + repeats * each for one_time, each in zip(once, again, strict=True)]
    return PipelineRun(start_ns=start, end_ns=tuple(engine.clocks), busy_ns=tuple(busy))


def run_pipeline(layout: Layout, costs: PipelineCosts, order: Sequence[Order] | None = None) -> PipelineRun:
    """One step task by task, with the span of each: of the layout's schedule, or of a given order along its routes."""
    if order is None and layout.schedule == "zb-2p":
        orders, repeats = _greedy(layout, costs)
        made = run_pipeline(layout, costs, tuple(each.unrolled(repeats) for each in orders))
        by_hand = run_pipeline(replace(layout, schedule="zb-h2"), costs)
        return _shorter(made, by_hand)
    if order is None:
        order = schedule(layout.schedule, layout.pp, layout.chunks, layout.micro_batches)
    compiler = _Compiler(routes(layout.schedule, layout.pp, layout.chunks))
    events = compiler.sequence(order)
    engine = _Engine(_Program(parts=(), rounds=(), queues=compiler.queues, costs=compiler.costs), layout.pp, costs)
    ends = engine.run(events)[0]
    busy = [0.0] * layout.pp
    spans = []
    for event, end in zip(events, ends, strict=True):
        cost = engine.costs[event.cost]
        busy[event.stage] += cost
        spans += [TaskSpan(event.stage, task, end - cost, end) for task in event.tasks]
    start = _starts(events, ends, engine.costs, layout.pp)
    return PipelineRun(start_ns=start, end_ns=tuple(engine.clocks), busy_ns=tuple(busy), spans=tuple(spans))


def _starts(events: Sequence[_Event], ends: Sequence[float], costs: Sequence[float], stages: int) -> tuple[float, ...]:
    """When each stage began its first task."""
    first: dict[int, float] = {}
    for event, end in zip(events, ends, strict=True):
        first.setdefault(event.stage, end - costs[event.cost])
        if len(first) == stages:
            break
    return tuple(first.get(stage, 0.0) for stage in range(stages))
