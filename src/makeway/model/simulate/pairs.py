"""What one kernel and one collective do to each other: a run of the two alone, measured once and kept.

Two runs describe a pair: the kernel with the device to itself, and the kernel beside a collective that is resident
already and outlasts it. Each gives the kernel's progress, how long one of its blocks takes, and
the rate at which the collective moves. The fluid engine puts a program's timeline together from these.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise

from makeway.model.simulate.disk_cache import DiskCache
from makeway.model.simulate.driver import Engine, run
from makeway.model.simulate.policies import Dispatch, SharingPolicy, known_by_repr
from makeway.model.simulate.program import EngineOp, Program
from makeway.model.simulate.run_result import RunResult
from makeway.model.simulate.sms import SAME_NS

ENDLESS_NS = 1e12  # work of a collective that outlasts every kernel
MOST_KNOTS = 128  # of a curve: with jitter there is an event per block
_JUST_AFTER_NS = 10 * SAME_NS


@dataclass(frozen=True, slots=True)
class Curve:
    """How many blocks of a kernel have ended at each moment since its arrival, linear between events."""

    times_ns: tuple[float, ...]
    blocks: tuple[float, ...]  # rising

    def at(self, time_ns: float) -> float:
        """Blocks that have ended by a moment; parts of blocks are work in progress."""
        right = bisect_right(self.times_ns, time_ns)
        if right == len(self.times_ns):
            return self.blocks[-1]
        return _between(self.times_ns, self.blocks, right, time_ns) if right else 0.0

    def when(self, blocks: float) -> float:
        """The first moment by which so many blocks have ended."""
        right = bisect_left(self.blocks, blocks)
        if right >= len(self.blocks):
            return self.times_ns[-1]
        return _between(self.blocks, self.times_ns, right, blocks) if right else self.times_ns[0]

    def ended(self, time_ns: float) -> float:
        """Blocks that have ended by a moment, whole ones."""
        return self.blocks[max(bisect_right(self.times_ns, time_ns + SAME_NS) - 1, 0)]

    def counted(self, blocks: float) -> float:
        """The event by which so many blocks have ended."""
        return self.times_ns[min(bisect_left(self.blocks, blocks), len(self.blocks) - 1)]

    def next_event(self, time_ns: float) -> float:
        """The first event after a moment."""
        return self.times_ns[min(bisect_right(self.times_ns, time_ns + SAME_NS), len(self.times_ns) - 1)]

    @property
    def end_ns(self) -> float:
        return self.times_ns[-1]


def _between(keys: tuple[float, ...], values: tuple[float, ...], right: int, key: float) -> float:
    low, high = keys[right - 1], keys[right]
    return values[right - 1] + (values[right] - values[right - 1]) * (key - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Meeting:
    """A kernel from its arrival to its end, alone or beside a collective that outlasts it."""

    kernel: Curve
    block_ns: float  # mean time of a block
    comm_rate: float  # work of the collective per nanosecond

    def numbers(self) -> list[float]:
        """The measurement as a list, for the cache."""
        return [self.block_ns, self.comm_rate, *self.kernel.times_ns, *self.kernel.blocks]

    @classmethod
    def of(cls, numbers: list[float]) -> Meeting | None:
        """The measurement of such a list; None where it cannot be one."""
        if len(numbers) < 4 or len(numbers) % 2 or min(numbers) < 0:
            return None
        block_ns, comm_rate, *curve = numbers
        times, blocks = tuple(curve[: len(curve) // 2]), tuple(curve[len(curve) // 2 :])
        if any(later <= earlier for knots in (times, blocks) for earlier, later in pairwise(knots)):
            return None
        return cls(Curve(times, blocks), block_ns, comm_rate)


class Pairs:
    """Measurements of the kernels and collectives of programs on one device under one set of policies."""

    def __init__(self, base: Program, engine: Engine, dispatch: Dispatch, hbm: SharingPolicy) -> None:
        self._base = base
        self._engine: Engine = engine
        self._dispatch = dispatch
        self._hbm = hbm
        self._known: dict[tuple[str | EngineOp, ...], Meeting] = {}
        self._cache = DiskCache("pairs", (engine, base, dispatch, hbm)) if known_by_repr(dispatch, hbm) else None

    def alone(self, op: EngineOp) -> Meeting:
        """A kernel, or a collective, with the device to itself."""
        return self._measured("alone", op)

    def beside(self, kernel: EngineOp, comm: EngineOp, *, moving: bool) -> Meeting:
        """A kernel that arrives when the collective is resident; the collective moves data, or waits for a rank."""
        return self._measured("moving" if moving else "waiting", kernel, comm)

    def _measured(self, case: str, *ops: EngineOp) -> Meeting:
        key: tuple[str | EngineOp, ...] = (case, *ops)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._from_cache(key) or self._measured_now(case, *ops)
        return known

    def _from_cache(self, key: tuple[str | EngineOp, ...]) -> Meeting | None:
        numbers = self._cache.read(key) if self._cache else None
        return Meeting.of(numbers) if numbers else None

    def _measured_now(self, case: str, *ops: EngineOp) -> Meeting:
        meeting = self._measure(case, *ops)
        if self._cache:
            self._cache.write((case, *ops), meeting.numbers())
        return meeting

    def _measure(self, case: str, op: EngineOp, comm: EngineOp | None = None) -> Meeting:
        program = self._base
        ops: tuple[EngineOp, ...] = (op,)
        if comm is not None:
            if case == "waiting":
                comm = replace(comm, hbm_per_ns=0.0, l2_per_ns=0.0, link_per_ns=0.0, power=0.0)
            ops = (replace(op, launch_ns=_JUST_AFTER_NS), comm)
        result = run(
            replace(program, ops=ops), engine=self._engine, dispatch=self._dispatch, hbm=self._hbm, progress=True
        )
        if op.kind == "kernel":
            return _meeting(result, ops)
        return Meeting(Curve((0.0,), (0.0,)), 0.0, op.work_ns / result.end_ns)


def comparable(op: EngineOp) -> EngineOp:
    """An operation without what does not matter to a pair: its name, place and, for a collective, its length."""
    plain = replace(op, name=op.kind, rank=0, stream=op.kind, after=(), launch_ns=0.0, group=None)
    return plain if op.kind == "kernel" else replace(plain, work_ns=ENDLESS_NS)


def _meeting(result: RunResult, ops: tuple[EngineOp, ...]) -> Meeting:
    arrived, ended = ops[0].launch_ns, result.times[0].ended_ns
    steps = [step for step in result.progress if arrived - SAME_NS <= step.time_ns <= ended]
    knots = [(0.0, 0.0)]
    for step in steps:
        if step.done[0] > knots[-1][1]:
            knots.append((step.time_ns - arrived, step.done[0]))
    stride = -(-len(knots) // MOST_KNOTS)
    times, blocks = zip(*knots[:-1:stride], knots[-1], strict=True)
    held = sum(step.resident[0] * (later.time_ns - step.time_ns) for step, later in pairwise(steps))
    moved = steps[-1].done[1] - steps[0].done[1] if len(ops) > 1 else 0.0
    return Meeting(
        kernel=Curve(times, blocks),
        block_ns=held / ops[0].blocks,
        comm_rate=moved / (ended - arrived),
    )
