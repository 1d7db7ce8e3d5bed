"""Orders of a zero-bubble pipeline made for the times of its stages and a limit of memory: ZB-2p.

The heuristic of arXiv 2401.10241, section 3.1. Forward passes fill the wait for the first backward pass, as far as
memory allows. Then one forward and one backward pass take turns, and gradients of weights fill the gaps: where one
fits, where a stage would otherwise become the one that has waited longest, and where memory is full. Three choices of
the heuristic are open; all combinations are tried, and the order with the shortest longest stage is taken.

The heuristic runs for a bounded number of micro batches. For more, rounds of one forward pass, one backward pass and
the gradient of one micro batch's weights are inserted, which take no more memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from makeway.decide.scale.schedules import Repeating, Task, TaskKind

KINDS: tuple[TaskKind, ...] = ("F", "B", "W")
TURNS_PER_STAGE = 8  # micro batches per stage for which the heuristic runs; above, rounds are inserted


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Times of one micro batch, by stage."""

    forward_ns: tuple[float, ...]
    input_ns: tuple[float, ...]
    weight_ns: tuple[float, ...]
    hop_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a stage may hold, counted in the activations of one micro batch."""

    limit: int
    kept_for_weights: float  # of a micro batch's activations, after the gradient of its input


@dataclass(frozen=True, slots=True)
class _Choices:
    """What the heuristic leaves open."""

    late_first: bool  # one more forward pass, though the first backward pass then starts later
    skip_forward: bool  # a stage may leave out a forward pass that the next stage cannot take soon
    fill_small_gaps: bool  # weights also where a gap is smaller than they are and does not matter


class _Line:
    """One stage as its order is written down."""

    __slots__ = ("after", "before", "clock", "costs", "counts", "ends", "hop", "lengths", "order", "started", "waited")

    def __init__(self, forward: float, back: float, weight: float, hop: float) -> None:
        self.costs: dict[TaskKind, float] = {"F": forward, "B": back, "W": weight}
        self.counts: dict[TaskKind, int] = {"F": 0, "B": 0, "W": 0}
        self.ends: dict[TaskKind, list[float]] = {"F": [], "B": []}
        self.hop = hop
        self.before: _Line | None = None
        self.after: _Line | None = None
        self.clock = self.started = self.waited = 0.0
        self.order: list[TaskKind] = []
        self.lengths: list[int] = []  # of the order after each turn

    def put(self, kind: TaskKind) -> None:
        start = self.clock
        if kind != "W":
            arrival = self.arrival(kind)
            if arrival > start:
                if self.order:
                    self.waited += arrival - start
                start = arrival
            if not self.order:
                self.started = start
        self.clock = end = start + self.costs[kind]
        if kind != "W":
            self.ends[kind].append(end)
        self.counts[kind] += 1
        self.order.append(kind)

    def arrival(self, kind: TaskKind) -> float:
        """When the next micro batch comes from the neighbour; at once where there is none."""
        neighbour = self.before if kind == "F" else self.after
        if neighbour is None:
            return 0.0
        return neighbour.ends[kind][self.counts[kind]] + self.hop

    @property
    def weights_left(self) -> bool:
        return self.counts["W"] < self.counts["B"]


class _Greedy:
    """Writes down the order of every stage, with the times at which tasks end."""

    def __init__(self, times: StageTimes, micro_batches: int, room: Room, choices: _Choices) -> None:
        self.micro_batches, self.room, self.choices = micro_batches, room, choices
        each = zip(times.forward_ns, times.input_ns, times.weight_ns, strict=True)
        self.lines = [_Line(*costs, times.hop_ns) for costs in each]
        for number, line in enumerate(self.lines[1:]):
            line.before, self.lines[number].after = self.lines[number], line

    def run(self) -> float:
        """From the first task of a stage to its last, at most."""
        self._warm_up()
        for _ in range(1, self.micro_batches):
            for line, wanted in zip(self.lines, self._wanted_forwards(), strict=True):
                if wanted:
                    self._forward(line)
            for line in reversed(self.lines):
                self._backward(line)
            self._end_turn()
        for line in self.lines:
            while line.weights_left:
                line.put("W")
        return max(line.clock - line.started for line in self.lines)

    def _end_turn(self) -> None:
        for line in self.lines:
            line.lengths.append(len(line.order))

    def _left(self, line: _Line) -> float:
        """Room for so many more forward passes."""
        forwards, backwards, weights = line.counts.values()
        return self.room.limit + 1e-9 - (forwards - backwards) - self.room.kept_for_weights * (backwards - weights)

    def _warm_up(self) -> None:
        """Forward passes until the first backward pass comes back."""
        for line in self.lines:
            line.put("F")
        most, back = min(self.micro_batches, self.room.limit), 0.0
        more: list[int] = []  # from the last stage to the first
        for line in reversed(self.lines):
            clock, count = line.clock, 1
            while line.after is not None and count < most:
                ends = clock + line.costs["F"]
                if clock >= back if self.choices.late_first else ends > back:
                    break
                clock, count = ends, count + 1
            back = max(clock, back if line.after is not None else 0.0) + line.costs["B"] + line.hop
            more.append(count - 1)
        more.reverse()
        for stage in range(1, len(more)):  # a stage is always ahead of the next, until there is nothing left
            ahead = more[stage - 1]
            while more[stage] > ahead or (0 < more[stage] == ahead and 1 + ahead < self.micro_batches):
                more[stage] -= 1
        for line, count in zip(self.lines, more, strict=True):
            for _ in range(count):
                line.put("F")
        for line in reversed(self.lines):
            line.put("B")
        self._end_turn()

    def _wanted_forwards(self) -> list[bool]:
        wanted: list[bool] = []
        for line in reversed(self.lines):
            more = line.counts["F"] < self.micro_batches and not self._skips(line)
            wanted.append(more and (not wanted or wanted[-1]))
        return wanted[::-1]

    def _skips(self, line: _Line) -> bool:
        """Whether a forward pass can wait: the next stage has several in hand and is busy for longer."""
        after = line.after
        if not self.choices.skip_forward or after is None or line.counts["F"] < after.counts["F"] + 2:
            return False
        needed = after.clock + after.costs["F"] + after.costs["B"] + line.hop
        if line.clock >= needed:
            return True
        cleared = max(0, math.ceil((1 - self._left(line)) / self.room.kept_for_weights))
        if line.clock + line.costs["F"] + cleared * line.costs["W"] <= needed:
            return False
        return needed - line.clock <= max(each.waited for each in self.lines) - line.waited

    def _forward(self, line: _Line) -> None:
        while self._left(line) < 1 and line.weights_left:
            line.put("W")
        self._fill_gap(line, line.arrival("F"))
        line.put("F")

    def _backward(self, line: _Line) -> None:
        self._fill_gap(line, line.arrival("B"))
        if line.before is None and line.counts["F"] == self.micro_batches:
            while line.weights_left:  # nobody waits for this backward pass
                line.put("W")
        line.put("B")

    def _fill_gap(self, line: _Line, until: float) -> None:
        weight = line.costs["W"]
        while line.clock + weight <= until and line.weights_left:
            line.put("W")
        gap = until - line.clock
        if gap > 0 and line.weights_left:
            harmless = gap <= max(each.waited for each in self.lines) - line.waited
            if self.choices.fill_small_gaps or not harmless:
                line.put("W")


@lru_cache(maxsize=256)
def greedy_orders(times: StageTimes, micro_batches: int, room: Room) -> tuple[tuple[Repeating, ...], int]:
    """The best order of each stage, and how many rounds to insert into it."""
    short = min(micro_batches, TURNS_PER_STAGE * len(times.forward_ns))
    runs = [_Greedy(times, short, room, _Choices(*values)) for values in product((True, False), repeat=3)]
    lengths = [run.run() for run in runs]
    best = runs[lengths.index(min(lengths))]
    return tuple(_repeating(line, short // 2) for line in best.lines), micro_batches - short


def _repeating(line: _Line, turns: int) -> Repeating:
    """The order of a stage with a round after so many turns: half way, where all stages take turns."""
    at = line.lengths[turns - 1] if turns else 0
    tasks, counts = list[Task](), dict.fromkeys(KINDS, 0)
    for kind in line.order:
        tasks.append(Task(kind, counts[kind]))
        counts[kind] += 1
    done = {kind: line.order[:at].count(kind) for kind in KINDS}
    # Weights of an earlier micro batch come first, so that the round needs no more memory than there is.
    kinds: tuple[TaskKind, ...] = ("W", "F", "B") if done["W"] < done["B"] else ("F", "B", "W")
    inserted = tuple(Task(kind, done[kind]) for kind in kinds)
    return Repeating(parts=(tuple(tasks[:at]), tuple(tasks[at:])), rounds=(inserted,), step=1)
