"""The order within a step: what communication can start, when, and what must wait for the last of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ready:
    """Data that compute hands over to communication; `at_ns` since the start of the round."""

    at_ns: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StepOrder:
    """One step of compute alone: what it hands over, in order; from `resume_ns` on it needs all of that back."""

    start_ns: int
    resume_ns: int
    end_ns: int
    ready: tuple[Ready, ...]


def ordered_ns(steps: Sequence[StepOrder], comm_ns: float) -> float:
    """The least time of a round whose steps hand over data as in `steps` and whose communication takes `comm_ns` alone.

    Data cannot leave before it exists, and the rest of a step waits until all of it is back. So a step takes at least
    the largest of `ready_i + communication of i and all that follows`, or its compute up to there, and then the rest.
    """
    total = sum(ready.size_bytes for step in steps for ready in step.ready)
    return sum(_step_ns(step, comm_ns / total if total else 0.0) for step in steps)


def _step_ns(step: StepOrder, ns_per_byte: float) -> float:
    before = max([step.resume_ns - step.start_ns, *_chains(step, ns_per_byte)])
    return before + step.end_ns - step.resume_ns


def _chains(step: StepOrder, ns_per_byte: float) -> Iterator[float]:
    left = sum(ready.size_bytes for ready in step.ready)
    for ready in step.ready:
        yield ready.at_ns - step.start_ns + left * ns_per_byte
        left -= ready.size_bytes
