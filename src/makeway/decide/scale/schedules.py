"""Pipeline schedules: the tasks of each stage, in order.

Task kinds: "F" is a forward pass, "B" the gradient of its input, "W" the gradient of its weights, "BW" both at once.
Micro batches pass through the chunks of the model along routes. Interleaved schedules place consecutive chunks on
consecutive stages, round after round; V schedules go down the stages and back; DualPipe sends the even micro batches
down and the odd ones up, through a copy of the model each.

Every order repeats: it has a round of tasks that is inserted once per further micro batch (`Repeating`). So the cost of
a step follows from a short order (pipeline.py).

Sources: GPipe arXiv 1811.06965; 1F1B and interleaved arXiv 2104.04473; ZB-H1, ZB-H2 arXiv 2401.10241; ZBV arXiv
2405.15362; DualPipe and DualPipeV https://github.com/deepseek-ai/DualPipe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from makeway.values.errors import InputError
from makeway.values.layout import TWO_CHUNK_SCHEDULES, Schedule

TaskKind = Literal["F", "B", "W", "BW"]
Place = tuple[int, int]  # stage, chunk
Order = tuple["Task", ...]

SPLIT_SCHEDULES: tuple[Schedule, ...] = (
    "zb-h1",
    "zb-h2",
    "zb-2p",
    "zbv",
    "dualpipe",
    "dualpipev",
)  # with "B" and "W" tasks


class Task(NamedTuple):
    """One pass of one micro batch through one chunk of a stage."""

    kind: TaskKind
    micro_batch: int
    chunk: int = 0
    paired: bool = False  # this forward pass runs together with the backward pass that follows it

    def later(self, micro_batches: int) -> Task:
        return self._replace(micro_batch=self.micro_batch + micro_batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeating:
    """The order of a stage for any number of micro batches.

    Parts and rounds alternate: part, rounds, part (GPipe: part, rounds, part, rounds, part). Each round moves on by
    `step` micro batches; so do all parts but the first.
    """

    parts: tuple[Order, ...]
    rounds: tuple[Order, ...]
    step: int

    def unrolled(self, repeats: int) -> Order:
        tasks = list(self.parts[0])
        for turn, part in zip(self.rounds, self.parts[1:], strict=True):
            for number in range(repeats):
                tasks += [task.later(number * self.step) for task in turn]
            tasks += [task.later(repeats * self.step) for task in part]
        return tuple(tasks)


def schedule(name: Schedule, stages: int, chunks: int, micro_batches: int) -> tuple[Order, ...]:
    """The tasks of each stage, in order."""
    short, repeats = shortened(name, stages, chunks, micro_batches)
    return tuple(stage.unrolled(repeats) for stage in repeating_schedule(name, stages, chunks, short))


def routes(name: Schedule, stages: int, chunks: int) -> tuple[tuple[Place, ...], ...]:
    """The places that a forward pass visits, first to last; two routes where micro batches enter at both ends."""
    down = tuple((stage, 0) for stage in range(stages))
    up = tuple((stage, 1) for stage in reversed(range(stages)))
    match name:
        case "zbv" | "dualpipev":
            return (down + up,)
        case "dualpipe":
            return (down, up)
        case _:
            return (tuple((stage, chunk) for chunk in range(chunks) for stage in range(stages)),)


def check_schedule(name: Schedule, stages: int, chunks: int, micro_batches: int) -> None:
    """Refuse a number of stages, chunks or micro batches that a schedule cannot run."""
    if name in TWO_CHUNK_SCHEDULES and chunks != 2:
        raise InputError(f"{name} has 2 chunks per stage, not {chunks}")
    if chunks > 1 and name not in ("interleaved", *TWO_CHUNK_SCHEDULES):
        raise InputError(f"{chunks} chunks per stage need the interleaved schedule, not {name}")
    if name == "interleaved" and micro_batches % stages:
        raise InputError(
            f"the interleaved schedule needs micro batches in multiples of its {stages} stages, got {micro_batches:,}; "
            f"{max(1, micro_batches // stages) * stages:,} would work"
        )
    if name == "dualpipe" and (stages % 2 or micro_batches % 2):
        raise InputError(
            f"dualpipe needs an even number of stages and of micro batches, got {stages} and {micro_batches:,}"
        )
    if name in ("dualpipe", "dualpipev") and micro_batches < 2 * stages:
        raise InputError(
            f"{name} needs at least two micro batches per stage: {2 * stages} for {stages} stages, got {micro_batches}"
        )


def shortened(name: Schedule, stages: int, chunks: int, micro_batches: int) -> tuple[int, int]:
    """Micro batches of a short order, and how many rounds to insert into it; none where there are few to begin with."""
    check_schedule(name, stages, chunks, micro_batches)
    step = round_step(name, stages)
    least = {"gpipe": 1, "interleaved": 2 * stages, "dualpipe": 2 * stages + 2}.get(name, 2 * stages + 1)
    repeats = max(0, micro_batches - least) // step
    return micro_batches - repeats * step, repeats


@lru_cache(maxsize=256)
def repeating_schedule(name: Schedule, stages: int, chunks: int, micro_batches: int) -> tuple[Repeating, ...]:
    """The order of each stage for a short number of micro batches, ready for rounds to be inserted."""
    generate, step = _GENERATORS[name], round_step(name, stages)
    return tuple(generate(stages, stage, chunks, micro_batches, step) for stage in range(stages))


def round_step(name: Schedule, stages: int) -> int:
    """Micro batches of one round."""
    return {"interleaved": stages, "dualpipe": 2}.get(name, 1)


def _cut(tasks: Iterable[Task], at: int, length: int, step: int) -> Repeating:
    """An order with a round before the task of number `at`; the round is the `length` tasks that follow it."""
    order = tuple(tasks)
    at = min(at, len(order))
    return Repeating(parts=(order[:at], order[at:]), rounds=(order[at : at + length],), step=step)


def _gpipe(stages: int, stage: int, chunks: int, micro_batches: int, step: int) -> Repeating:
    assert micro_batches == 1
    return Repeating(
        parts=((Task("F", 0),), (), (Task("BW", 0),)), rounds=((Task("F", 1),), (Task("BW", 0),)), step=step
    )


def _one_forward_one_backward(stages: int, stage: int, chunks: int, micro_batches: int, step: int) -> Repeating:
    ahead = min(micro_batches, stages - stage - 1)
    order = [Task("F", number) for number in range(ahead)]
    for number in range(micro_batches - ahead):
        order += [Task("F", ahead + number), Task("BW", number)]
    order += [Task("BW", number) for number in range(micro_batches - ahead, micro_batches)]
    return _cut(order, ahead + 2 * stage, 2, step)


def _interleaved(stages: int, stage: int, chunks: int, micro_batches: int, step: int) -> Repeating:
    total = micro_batches * chunks

    def forward(number: int) -> Task:
        turn, place = divmod(number, stages * chunks)
        return Task("F", turn * stages + place % stages, place // stages)

    def backward(number: int) -> Task:
        mirrored = forward(number)
        return Task("BW", mirrored.micro_batch, chunks - 1 - mirrored.chunk)

    ahead = min(total, 2 * (stages - stage - 1) + (chunks - 1) * stages)
    order = [forward(number) for number in range(ahead)]
    for number in range(total - ahead):
        order += [forward(ahead + number), backward(number)]
    order += [backward(number) for number in range(total - ahead, total)]
    at = ahead + 2 * stage
    turn = [
        task for number in range(stage, stage + stages * chunks) for task in (forward(ahead + number), backward(number))
    ]
    return Repeating(parts=(tuple(order[:at]), tuple(order[at:])), rounds=(tuple(turn),), step=step)


def _lagging_weights(stages: int, stage: int, micro_batches: int, step: int, *, ahead: int, lag: int) -> Repeating:
    """`ahead` forward passes, then one forward and one backward pass in turn, weights `lag` micro batches later."""
    ahead = min(ahead, micro_batches)
    order = [Task("F", number) for number in range(ahead)]
    for number in range(micro_batches):
        if ahead + number < micro_batches:
            order.append(Task("F", ahead + number))
        order.append(Task("B", number))
        if number >= lag:
            order.append(Task("W", number - lag))
    order += [Task("W", number) for number in range(max(0, micro_batches - lag), micro_batches)]
    return _cut(order, ahead + 2 * lag, 3, step)


def _zb_h1(stages: int, stage: int, chunks: int, micro_batches: int, step: int) -> Repeating:
    return _lagging_weights(stages, stage, micro_batches, step, ahead=stages - stage - 1, lag=stage)


def _zb_h2(stages: int, stage: int, chunks: int, micro_batches: int, step: int) -> Repeating:
    return _lagging_weights(stages, stage, micro_batches, step, ahead=2 * (stages - stage - 1), lag=2 * stage)


class _Stage:
    """The order of a stage with two chunks, as it is written down; micro batches of a chunk follow each other."""

    def __init__(self, number: Callable[[int, int], int] = lambda chunk, index: index) -> None:
        self.order: list[Task] = []
        self._number = number  # micro batch of a chunk's task of that index
        self._counts: dict[tuple[str, int], int] = {}
        self._waiting: list[tuple[int, int]] = []  # weights

    def _next(self, kind: str, chunk: int) -> int:
        index = self._counts.get((kind, chunk), 0)
        self._counts[kind, chunk] = index + 1
        return self._number(chunk, index)

    def forward(self, chunk: int, *, paired: bool = False) -> None:
        self.order.append(Task("F", self._next("F", chunk), chunk, paired))

    def backward(self, chunk: int, *, split: bool = False) -> None:
        micro_batch = self._next("B", chunk)
        self.order.append(Task("B" if split else "BW", micro_batch, chunk))
        if split:
            self._waiting.append((micro_batch, chunk))

    def weights(self, *, chunk: int | None = None) -> bool:
        """The oldest weights that wait, of any chunk or of one; False where there are none."""
        waiting = (item for item in self._waiting if chunk is None or item[1] == chunk)
        oldest = next(waiting, None)
        if oldest is not None:
            self._waiting.remove(oldest)
            self.order.append(Task("W", *oldest))
        return oldest is not None

    def both(self, forward: int, backward: int) -> None:
        self.forward(forward, paired=True)
        self.backward(backward)


def _dual_pipe_half(
    half: int, stage: int, micro_batches: int, step: int, number: Callable[[int, int], int], *, flipped: bool = False
) -> Repeating:
    """The eight steps of DualPipe on one of `half` stages; `micro_batches` are those of one direction."""
    first, second = (1, 0) if flipped else (0, 1)
    line = _Stage(number)
    below = half - stage - 1
    for _ in range(2 * below):
        line.forward(first)
    for _ in range(stage + 1):
        line.forward(first)
        line.forward(second)
    for _ in range(below):
        line.backward(second, split=True)
        line.weights()
        line.forward(second)
    main = len(line.order)
    for turn in range(micro_batches - 2 * half + stage + 1):
        if turn == 0 and below == 0:  # the middle overlaps less, to start the way back earlier
            line.forward(first)
            line.backward(second)
        else:
            line.both(first, second)
        line.both(second, first)
    for _ in range(below):
        line.backward(second)
        line.both(second, first)
    for turn in range(stage + 1):
        line.backward(second, split=turn > (stage + 1) // 2 or (turn == (stage + 1) // 2 and stage % 2 == 1))
        line.backward(first, split=turn >= (stage + 1) // 2)
    for _ in range(below):
        line.weights()
        line.backward(first, split=True)
    for _ in range(stage + 1):
        line.weights()
    return _cut(line.order, main + 4 * (stage + 1), 4, step)


def _dual_pipe(stages: int, stage: int, chunks: int, micro_batches: int, step: int) -> Repeating:
    half_stage = min(stage, stages - 1 - stage)
    return _dual_pipe_half(
        stages // 2, half_stage, micro_batches // 2, step, lambda chunk, index: 2 * index + chunk,
        flipped=half_stage != stage,
    )  # fmt: skip


def _dual_pipe_v(stages: int, stage: int, chunks: int, micro_batches: int, step: int) -> Repeating:
    return _dual_pipe_half(stages, stage, micro_batches, step, lambda chunk, index: index)


def _zbv(stages: int, stage: int, chunks: int, micro_batches: int, step: int) -> Repeating:
    line = _Stage()
    wanted = max(micro_batches, 2 * stages - 1)
    below = stages - stage
    for _ in range(2 * below - 1):
        line.forward(0)
    for _ in range(stage):
        line.forward(1)
        line.forward(0)
    for _ in range(below):
        line.forward(1)
        line.backward(1, split=True)
        line.weights()
    main = len(line.order)
    started = 2 * below - 1 + stage  # forward passes of chunk 0; those of chunk 1 are `stages`
    for turn in range(wanted - stages):
        if started + turn < wanted:
            line.forward(0)
        line.backward(0, split=True)
        line.weights()
        line.forward(1)
        line.backward(1, split=True)
        line.weights()
    for _ in range(stage):
        line.backward(0, split=True)
        line.backward(1, split=True)
    for _ in range(below):
        line.backward(0, split=True)
        line.weights(chunk=0)
    for chunk in (1, 0):
        while line.weights(chunk=chunk):
            pass
    order = [task for task in line.order if task.micro_batch < micro_batches]
    return _cut(order, main + 6 * stage, 6, step)


_GENERATORS: dict[Schedule, Callable[[int, int, int, int, int], Repeating]] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zb-h1": _zb_h1,
    "zb-h2": _zb_h2,
    "zb-2p": _zb_h2,  # where no times of stages are known; greedy.py makes the order for them
    "zbv": _zbv,
    "dualpipe": _dual_pipe,
    "dualpipev": _dual_pipe_v,
}
