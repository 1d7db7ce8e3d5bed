"""Runs of the engines, kept by content: the same program under the same policies is run once.

In memory for this process and on disk for others. A kept run has the times of every operation to the last digit, so it
never changes an answer.
"""

from __future__ import annotations

from functools import lru_cache

from makeway.model.simulate.disk_cache import DiskCache
from makeway.model.simulate.driver import Engine, run
from makeway.model.simulate.policies import Dispatch, SharingPolicy, known_by_repr
from makeway.model.simulate.program import Program
from makeway.model.simulate.run_result import OpTimes, RunResult

LEAST_EVENTS = 100  # of a run of the class engine: shorter ones are as fast as a file


@lru_cache(maxsize=1024)
def kept_run(program: Program, engine: Engine, dispatch: Dispatch, hbm: SharingPolicy) -> RunResult:
    """The run of a program, from memory or disk where it is known."""
    if not known_by_repr(dispatch, hbm):
        return run(program, engine=engine, dispatch=dispatch, hbm=hbm)
    cache = DiskCache("runs", (engine, dispatch, hbm))
    known = _result(cache.read(program), len(program.ops))
    if known is None:
        known = run(program, engine=engine, dispatch=dispatch, hbm=hbm)
        if engine == "block" or known.events >= LEAST_EVENTS:
            cache.write(program, _numbers(known))
    return known


def _numbers(result: RunResult) -> list[float]:
    times = [(op.arrived_ns, op.started_ns, op.moving_ns, op.ended_ns) for op in result.times]
    return [float(result.events), *(time for each in times for time in each)]


def _result(numbers: list[float] | None, operations: int) -> RunResult | None:
    """The run of such numbers; None where they cannot be one of so many operations."""
    if numbers is None or len(numbers) != 1 + 4 * operations:
        return None
    times = []
    for at in range(1, len(numbers), 4):
        arrived, started, moving, ended = numbers[at : at + 4]
        if not 0 <= arrived <= started <= moving <= ended:
            return None
        times.append(OpTimes(arrived_ns=arrived, started_ns=started, moving_ns=moving, ended_ns=ended))
    return RunResult(times=tuple(times), samples=(), events=int(numbers[0]))
