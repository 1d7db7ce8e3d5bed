"""What one kernel and one collective do to each other: a run of the two alone, measured once and kept.

Three runs describe a pair. The kernel alone: how far it is at each moment. The kernel beside a collective that is
resident already and outlasts it. The collective that arrives just after the kernel's first blocks: when it starts,
and how both go on from there. The fluid engine puts a program's timeline together from these.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace

from makeway.model.simulate.driver import Engine, RunResult, run
from makeway.model.simulate.policies import Dispatch, SharingPolicy
from makeway.model.simulate.program import EngineOp, Interference, Program
from makeway.model.simulate.sms import SAME_NS

ENDLESS_NS = 1e12  # work of a collective that outlasts every kernel
MOST_KNOTS = 512  # of a curve: with jitter there is an event per block
_JUST_AFTER_NS = 10 * SAME_NS


@dataclass(frozen=True, slots=True)
class Curve:
    """How much of a kernel is done at each moment since its arrival, linear between events."""

    times_ns: tuple[float, ...]
    done: tuple[float, ...]  # part of its blocks, 0 to 1, rising

    def at(self, time_ns: float) -> float:
        """The part that is done at a moment."""
        right = bisect_right(self.times_ns, time_ns)
        if right == len(self.times_ns):
            return 1.0
        return _between(self.times_ns, self.done, right, time_ns) if right else 0.0

    def when(self, done: float) -> float:
        """The first moment at which this part is done."""
        right = bisect_left(self.done, done)
        if right >= len(self.done):
            return self.times_ns[-1]
        return _between(self.done, self.times_ns, right, done) if right else self.times_ns[0]

    def next_event(self, time_ns: float) -> float:
        """The first moment after this one at which blocks end."""
        at = bisect_right(self.times_ns, time_ns + SAME_NS)
        return self.times_ns[min(at, len(self.times_ns) - 1)]

    @property
    def end_ns(self) -> float:
        return self.times_ns[-1]


def _between(keys: tuple[float, ...], values: tuple[float, ...], right: int, key: float) -> float:
    low, high = keys[right - 1], keys[right]
    return values[right - 1] + (values[right] - values[right - 1]) * (key - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Meeting:
    """A kernel and a collective that outlasts it, until the kernel ends."""

    kernel: Curve
    comm_start_ns: float  # since the kernel's arrival
    comm_rate: float  # work per nanosecond, from its start to the kernel's end


class Pairs:
    """Measurements of the kernels and collectives of programs on one device under one set of policies."""

    def __init__(self, base: Program, engine: Engine, dispatch: Dispatch, hbm: SharingPolicy) -> None:
        self._base = base
        self._engine: Engine = engine
        self._dispatch = dispatch
        self._hbm = hbm
        self._known: dict[tuple[str | EngineOp, ...], Meeting] = {}

    def alone(self, kernel: EngineOp) -> Curve:
        """A kernel with the device to itself."""
        return self._measured("alone", kernel).kernel

    def comm_rate(self, comm: EngineOp) -> float:
        """Work per nanosecond of a collective alone."""
        return self._measured("alone", comm).comm_rate

    def after(self, kernel: EngineOp, comm: EngineOp, *, moving: bool = True) -> Meeting:
        """The kernel arrives when the collective is resident; it moves data or waits for another rank."""
        return self._measured("after" if moving else "after waiting", kernel, comm)

    def before(self, kernel: EngineOp, comm: EngineOp, *, moving: bool = True) -> Meeting:
        """The collective arrives, with no higher priority, just after the kernel's first blocks are placed."""
        return self._measured("before" if moving else "before waiting", kernel, comm)

    def _measured(self, case: str, *ops: EngineOp) -> Meeting:
        key = (case, *ops)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._measure(case, *ops)
        return known

    def _measure(self, case: str, op: EngineOp, comm: EngineOp | None = None) -> Meeting:
        program = self._base
        if comm is not None and case.endswith("waiting"):
            comm = replace(comm, hbm_per_ns=0.0, l2_per_ns=0.0, link_per_ns=0.0)
            program = replace(program, interference=Interference())
        if comm is None:
            ops: tuple[EngineOp, ...] = (op,)
        elif case.startswith("after"):
            ops = (replace(op, launch_ns=_JUST_AFTER_NS), replace(comm, launch_ns=0.0))
        else:
            ops = (op, replace(comm, launch_ns=_JUST_AFTER_NS, priority=min(op.priority, comm.priority)))
        result = run(
            replace(program, ops=ops), engine=self._engine, dispatch=self._dispatch, hbm=self._hbm, progress=True
        )
        if op.kind != "kernel":
            return Meeting(Curve((0.0,), (1.0,)), 0.0, op.work_ns / result.end_ns)
        return _meeting(result, ops)


def comparable(op: EngineOp) -> EngineOp:
    """An operation without what does not matter to a pair: its name, place and, for a collective, its length."""
    plain = replace(op, name=op.kind, rank=0, stream=op.kind, after=(), launch_ns=0.0, group=None)
    return plain if op.kind == "kernel" else replace(plain, work_ns=ENDLESS_NS)


def _meeting(result: RunResult, ops: tuple[EngineOp, ...]) -> Meeting:
    arrived, ended = ops[0].launch_ns, result.times[0].ended_ns
    knots = {arrived: 0.0} | {time: done[0] / ops[0].blocks for time, done in result.progress if done[0]}
    rising = [(arrived, 0.0)]
    for time, done in sorted(knots.items()):
        if done > rising[-1][1]:
            rising.append((time, done))
    if result.times[0].started_ns > arrived + SAME_NS:
        rising.insert(1, (result.times[0].started_ns, 1e-12))
    step = -(-len(rising) // MOST_KNOTS)
    kept = [*rising[:-1:step], rising[-1]]
    curve = Curve(tuple(time - arrived for time, _ in kept), tuple(done for _, done in kept))
    if len(ops) == 1:
        return Meeting(curve, curve.end_ns, 0.0)
    started = max(result.times[1].started_ns, arrived)
    moved = {time: done[1] for time, done in result.progress if time in (arrived, ended)}
    rate = (moved[ended] - moved.get(arrived, 0.0)) / (ended - started) if ended > started else 0.0
    return Meeting(curve, started - arrived, rate)
