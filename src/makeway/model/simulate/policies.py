"""Policies that hardware does not document: which block is dispatched first, and how HBM is shared.

Each is an object, so that a result that depends on one can be shown for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar

_HALVINGS = 24  # of the interval of utilisation
Op = TypeVar("Op")
Levels = Sequence[Sequence[Op]]  # the highest priority first, each by arrival
Place = Callable[[Op, int | None], int]  # places up to a number of blocks (None: all) and returns how many


class Dispatch(Protocol):
    """A dispatch policy: which waiting operation places blocks when room may be free."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def gpcs(self) -> int:
        """GPCs (AMD: shader engines) that blocks are dealt to in turn; 1 when placement is free."""
        ...

    def dispatch(self, levels: Levels[Op], left: Callable[[Op], float], place: Place[Op]) -> None:
        """Place blocks of the waiting operations; `left` is the part of an operation not yet placed."""
        ...


@dataclass(frozen=True, slots=True)
class StrictHeadOfLine:
    """NVIDIA: only the first operation of the highest priority places blocks; the rest wait behind it.

    Amert et al., RTSS 2017 (rules X1, A2, measured on Pascal). Not confirmed on Hopper or later.
    """

    name: str = "strict"
    gpcs: int = 1

    def dispatch(self, levels: Levels[Op], left: Callable[[Op], float], place: Place[Op]) -> None:
        for op in chain.from_iterable(levels):
            place(op, None)
            if left(op):
                return


@dataclass(frozen=True, slots=True)
class BackFill:
    """The same order, but operations behind one whose next block does not fit may try."""

    name: str = "backfill"
    gpcs: int = 1

    def dispatch(self, levels: Levels[Op], left: Callable[[Op], float], place: Place[Op]) -> None:
        for op in chain.from_iterable(levels):
            place(op, None)


@dataclass(frozen=True, slots=True)
class CutAhead:
    """AMD: an operation whose next block does not fit is passed over, and smaller ones cut ahead.

    Otterness and Anderson, RTNS 2021 (Radeon VII): workgroups are dealt to shader engines strictly in
    order; inside one, queues take turns, and smaller workgroups of other queues cut ahead. Without
    turns the earlier operation places all it can first. Operations of a higher priority go first in
    both; whether hardware does that is not known.
    """

    gpcs: int = 1
    turns: bool = False
    name: str = "cut-ahead"

    def dispatch(self, levels: Levels[Op], left: Callable[[Op], float], place: Place[Op]) -> None:
        for level in levels:
            waiting = [op for op in level if left(op)]
            while self.turns and len(waiting) > 1:
                waiting = [op for op in waiting if place(op, 1) and left(op)]
            for op in waiting:
                place(op, None)


@dataclass(frozen=True, slots=True)
class HeldQueue:
    """An operation blocks those behind it until the share `hold` of its blocks is placed, then lets them go first.

    Among operations of one priority; those of a higher one come first. 0 is free for all, 1 is head of line. For
    hardware that serves its queues in time slices; the share is fitted.
    """

    hold: float
    gpcs: int = 1
    name: str = "held-queue"

    def dispatch(self, levels: Levels[Op], left: Callable[[Op], float], place: Place[Op]) -> None:
        for level in levels:
            holding = next((index for index, op in enumerate(level) if left(op) > 1.0 - self.hold), len(level))
            for op in (*level[holding : holding + 1], *reversed(level[:holding])):
                place(op, None)


class SharingPolicy(Protocol):
    """The share of its demand that each operation gets when all together demand more than there is."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str: ...

    def shares(
        self, demands: Mapping[int, float], capacity: float, slack: Mapping[int, float] | None = None
    ) -> dict[int, float]:
        """`slack` says how many times its demand an operation could have in flight; without it, once."""
        ...


@dataclass(frozen=True, slots=True)
class Proportional:
    """Every request waits in one queue: each gets bandwidth by what it has in flight, and no more than it asks for."""

    name: str = "proportional"

    def shares(
        self, demands: Mapping[int, float], capacity: float, slack: Mapping[int, float] | None = None
    ) -> dict[int, float]:
        shares = dict.fromkeys(demands, 1.0)
        if sum(demands.values()) <= capacity:
            return shares
        left, short = capacity, [op for op, demand in demands.items() if demand]
        while short:
            factor = left / sum([demands[op] * (slack[op] if slack else 1.0) for op in short])
            met = [op for op in short if slack and factor * slack[op] >= 1.0]
            if not met:
                return shares | {op: factor * (slack[op] if slack else 1.0) for op in short}
            left -= sum([demands[op] for op in met])
            short = [op for op in short if op not in met]
        return shares


@dataclass(frozen=True, slots=True)
class MaxMin:
    """Small demands are met in full; the large ones share the rest equally."""

    name: str = "max-min"

    def shares(
        self, demands: Mapping[int, float], capacity: float, slack: Mapping[int, float] | None = None
    ) -> dict[int, float]:
        shares = dict.fromkeys(demands, 1.0)
        if sum(demands.values()) <= capacity:
            return shares
        left, count = capacity, len(demands)
        for op, demand in sorted(demands.items(), key=lambda item: (item[1], item[0])):
            granted = min(demand, left / count)
            if demand:
                shares[op] = granted / demand
            left, count = left - granted, count - 1
        return shares


def latency_shares(
    demands: Mapping[int, float], waiting: Mapping[int, float], capacity: float, knee: float
) -> dict[int, float]:
    """The share of its speed that each operation keeps when memory latency rises with the load.

    A load of `u` of the capacity stretches latency by (1 - u ** knee) ** (-1 / knee): an operation that only waits for
    memory then moves demand / (1 + (demand / capacity) ** knee) ** (1 / knee). `waiting` is the part of each
    operation's time that latency stretches.
    """

    def moved(stretch: float) -> float:
        return sum([demand / (1.0 + waiting[op] * (stretch - 1.0)) for op, demand in demands.items()])

    low, high = 0.0, 1.0  # utilisation: more of it stretches latency, which lowers the demand
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if moved((1.0 - middle**knee) ** (-1.0 / knee)) > middle * capacity:
            low = middle
        else:
            high = middle
    stretch = (1.0 - low**knee) ** (-1.0 / knee)
    return {op: 1.0 / (1.0 + waiting[op] * (stretch - 1.0)) if demands[op] else 1.0 for op in demands}


def known_by_repr(dispatch: Dispatch, hbm: SharingPolicy) -> bool:
    """Whether both policies are of this module, so that their text says all about them."""
    return type(dispatch).__module__ == type(hbm).__module__ == __name__


DISPATCHES: dict[str, Dispatch] = {
    "strict": StrictHeadOfLine(),
    "backfill": BackFill(),
    "cut-ahead": CutAhead(),
    "shader-engines": CutAhead(gpcs=4, turns=True, name="shader-engines"),
}
HBM_POLICIES: dict[str, SharingPolicy] = {"proportional": Proportional(), "max-min": MaxMin()}
