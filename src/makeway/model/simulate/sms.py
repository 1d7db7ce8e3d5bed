"""The interface of both engines: SMs that take blocks, run them, and say when the next one ends.

An engine holds the SMs of one rank. It measures progress in each operation's own virtual time, which
slows down while HBM or links are short; the driver moves that clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Protocol

from makeway.model.simulate.fitting import Fitting
from makeway.model.simulate.policies import Dispatch
from makeway.model.simulate.program import EngineOp, Program

NEVER = float("inf")
ROUND_DIGITS = 4  # of a nanosecond: states that differ by less are one
SAME_NS = 0.01  # events this close are simultaneous: a hundred times what rounding can pull apart


class Sms(Protocol):
    """The SMs of one rank."""

    clock: list[float]  # virtual time of each operation
    speed: list[float]  # at which it runs
    changes: int  # counts up whenever `running` may have changed

    def place(self, op: int, limit: int | None) -> int:
        """Place up to `limit` blocks of an operation (None: all that wait) and return how many."""
        ...

    def settle(self) -> None:
        """Update the rates to what is resident, after all placements of a moment."""
        ...

    def next_end_ns(self) -> float:
        """Time until the next block ends."""
        ...

    def ended(self) -> list[tuple[int, int]]:
        """Remove the blocks that end now: (operation, blocks)."""
        ...

    def release(self, op: int) -> None:
        """Remove all blocks of a collective that has ended."""
        ...

    def running(self) -> dict[int, float]:
        """Work per nanosecond of each operation's resident blocks, before HBM."""
        ...

    def crowding(self, op: int) -> float:
        """How much its SM neighbours slow the most crowded block of a collective."""
        ...

    def holdings(self) -> Counter[tuple[tuple[int, int], ...]]:
        """How many SMs hold which mixture of ((operation, blocks), ...)."""
        ...


class Layout:
    """What both engines know about a program: kinds of blocks, and the sites each operation may use."""

    def __init__(self, program: Program, dispatch: Dispatch) -> None:
        needs = list(dict.fromkeys(op.block for op in program.ops if op.block is not None))
        self.program = program
        # behind each operation's number, that of the rooms its ended blocks still keep
        self.kept = len(program.ops) if program.turnaround else 0
        rooms = [replace(op, kind="collective", share=0.0, exposure=0.0) for op in program.ops[: self.kept]]
        self.ops: tuple[EngineOp, ...] = (*program.ops, *rooms)
        self.fitting = Fitting(program.sm, needs)
        self.kind = [needs.index(op.block) if op.block is not None else -1 for op in self.ops]
        self.dealt = dispatch.gpcs > 1
        self.soft = program.saturation == "soft"
        self.sites = [
            tuple(index for index, site in enumerate(program.sites) if op.part is None or site.part == op.part)
            for op in program.ops
        ]
        # the GPCs that an operation may use: one without any of its SMs is skipped
        self.gpcs = [tuple(sorted({program.sites[index].gpc for index in sites})) for sites in self.sites]
        # blocks of a cluster at once, inside one GPC; 1: each block by itself
        self.cluster = [op.block.cluster if op.block else 1 for op in program.ops]

    def slowdown(self, wanted: float, op: int) -> float:
        """How much slower than alone a block runs on an SM whose blocks want `wanted` SMs in all."""
        operation = self.ops[op]
        slow = 1.0 + wanted - operation.share if self.soft else max(1.0, wanted)
        return slow if operation.exposure == 1.0 else 1.0 + operation.exposure * (slow - 1.0)
