"""The least time of steps whose communication runs beside compute: what can start when, and what waits for it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of a rank; `cpu_ns` is the processor time that its threads have taken by then."""

    at_ns: int
    cpu_ns: int

    @classmethod
    def now(cls) -> Self:
        return cls(time.perf_counter_ns(), time.process_time_ns())


@dataclass(frozen=True, slots=True)
class Ready:
    """Data that compute hands over to communication."""

    when: Moment
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StepOrder:
    """One step of compute alone: what it hands over, in order; from `resume` on it needs all of that back."""

    start: Moment
    resume: Moment
    end: Moment
    ready: tuple[Ready, ...]


@dataclass(frozen=True, slots=True)
class CommAlone:
    """All communication of a round by itself; `cpu_ns` is the processor time of all ranks."""

    time_ns: float
    cpu_ns: float = 0.0


def ordered_ns(ranks: Sequence[Sequence[StepOrder]], comm: CommAlone, *, cores: int | None = None) -> float:
    """The least time of a round whose ranks start together and hand over data as in `ranks`.

    Data cannot leave before every rank has it, and the rest of a step waits until all of it is back. So a step's data
    are back no sooner than the largest of `ready_i + communication of i and all that follows`.

    With `cores`, which all ranks share, `ready_i` is no less than the processor time, over all cores, of what all ranks
    compute from the return of the step before up to i, and of the communication before i. Putting that communication
    off does not help: it takes no less time than its processor time over all cores.
    """
    per_byte = _per_byte(ranks, comm, cores)
    since, own_ns, back_ns = [steps[0].start for steps in ranks], [0.0] * len(ranks), 0.0
    for of_step in zip(*ranks, strict=True):  # the same step of every rank
        back_ns = _back_ns(of_step, _Passed(since, own_ns, back_ns, cores), per_byte)
        resume = [step.resume for step in of_step]
        own_ns = [max(back_ns, ns) for ns in _own_ns(resume, since, own_ns)]
        since = resume
    end = [steps[-1].end for steps in ranks]
    return max(_Passed(since, own_ns, back_ns, cores).at_least_ns(end), _processors_ns(ranks, comm, cores))


@dataclass(frozen=True, slots=True)
class _Passed:
    """How far a round has come at least: where each rank resumed, when, and when the data it waited for were back."""

    since: Sequence[Moment]
    own_ns: Sequence[float]
    back_ns: float
    cores: int | None

    def at_least_ns(self, until: Sequence[Moment], comm_cpu_ns: float = 0.0) -> float:
        """When all ranks have computed up to there, and communication has taken so much processor time meanwhile."""
        by_order = max(_own_ns(until, self.since, self.own_ns))
        if self.cores is None:
            return by_order
        cpu_ns = sum(moment.cpu_ns - since.cpu_ns for moment, since in zip(until, self.since, strict=True))
        return max(by_order, self.back_ns + (cpu_ns + comm_cpu_ns) / self.cores)


def _own_ns(until: Sequence[Moment], since: Sequence[Moment], own_ns: Sequence[float]) -> Iterator[float]:
    for moment, before, ns in zip(until, since, own_ns, strict=True):
        yield ns + moment.at_ns - before.at_ns


def _back_ns(of_step: Sequence[StepOrder], passed: _Passed, per_byte: CommAlone) -> float:
    """When all data of a step are back at the earliest."""
    left, sent, least = sum(ready.size_bytes for ready in of_step[0].ready), 0, passed.back_ns
    for readies in zip(*(step.ready for step in of_step), strict=True):  # the same data on every rank
        ready_ns = passed.at_least_ns([ready.when for ready in readies], sent * per_byte.cpu_ns)
        least = max(least, ready_ns + left * per_byte.time_ns)
        left, sent = left - readies[0].size_bytes, sent + readies[0].size_bytes
    return least


def _per_byte(ranks: Sequence[Sequence[StepOrder]], comm: CommAlone, cores: int | None) -> CommAlone:
    total = sum(ready.size_bytes for step in ranks[0] for ready in step.ready)
    if not total:
        return CommAlone(0.0)
    return CommAlone(comm.time_ns / total, min(comm.cpu_ns, comm.time_ns * (cores or 0)) / total)


def _processors_ns(ranks: Sequence[Sequence[StepOrder]], comm: CommAlone, cores: int | None) -> float:
    """All processor time over all cores."""
    if cores is None:
        return 0.0
    return (sum(steps[-1].end.cpu_ns - steps[0].start.cpu_ns for steps in ranks) + comm.cpu_ns) / cores
