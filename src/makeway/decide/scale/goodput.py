"""Goodput: the share of time that training moves forward, with failures, checkpoints and restarts.

Failures are Poisson. Between checkpoints of cost `checkpoint_s` the job works for an interval; a failure loses the work
since the last checkpoint and costs a restart. The expected time is Daly's (Future Generation Computer Systems 22,
2006), exact for exponential gaps; Young's interval, sqrt(2 x checkpoint x time between failures), starts the search
for the best interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from makeway.values.errors import InputError
from makeway.values.units import check_whole

# 419 unexpected interruptions in 54 days on 16,384 H100: arXiv 2407.21783, as reported
# by datacenterdynamics.com (meta-report-details-hundreds-of-gpu-and-hbm3-related-interruptions).
PUBLISHED_GPU_HOURS_PER_FAILURE = 16_384 * 54 * 24 / 419
CHECKPOINT_S = 30.0  # that training stands still; assumed
RESTART_S = 300.0  # from a failure to the first new step; assumed
_GOLDEN = (5**0.5 - 1) / 2
_SEARCH_STEPS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """How often GPUs fail, and what saving and starting again cost."""

    gpu_hours_per_failure: float = PUBLISHED_GPU_HOURS_PER_FAILURE
    checkpoint_s: float = CHECKPOINT_S
    restart_s: float = RESTART_S

    def __post_init__(self) -> None:
        given = (self.gpu_hours_per_failure, self.checkpoint_s, self.restart_s)
        if not (all(map(math.isfinite, given)) and min(given[:2]) > 0 and self.restart_s >= 0):
            raise InputError(
                "goodput needs GPU hours per failure and a checkpoint cost above 0, and a restart of 0 s or more; got "
                f"{self.gpu_hours_per_failure:g} hours, {self.checkpoint_s:g} s and {self.restart_s:g} s"
            )

    @property
    def source(self) -> str:
        """Where the numbers come from."""
        rate = "as published for Llama 3 on 16,384 H100 (arXiv 2407.21783)"
        failures = rate if self.gpu_hours_per_failure == PUBLISHED_GPU_HOURS_PER_FAILURE else "as given"
        costs = (self.checkpoint_s, self.restart_s) == (CHECKPOINT_S, RESTART_S)
        return f"failures {failures}; checkpoint and restart {'assumed' if costs else 'as given'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """How a long run divides its time. The shares add up to 1."""

    gpus: int
    reliability: Reliability
    between_failures_s: float
    interval_s: float  # of work between checkpoints, the best one
    useful: float
    checkpoints: float
    lost: float  # work that is done again, and restarts


def goodput(gpus: int, reliability: Reliability | None = None) -> Goodput:
    """The goodput of a run at its best checkpoint interval."""
    check_whole("GPUs", gpus, 1)
    reliability = reliability or Reliability()
    checkpoint_s, restart_s = reliability.checkpoint_s, reliability.restart_s
    between = reliability.gpu_hours_per_failure * 3600 / gpus
    interval = _best_interval(between, checkpoint_s, restart_s)
    useful = _useful(interval, between, checkpoint_s, restart_s)
    checkpoints = useful * checkpoint_s / interval
    return Goodput(
        gpus=gpus,
        reliability=reliability,
        between_failures_s=between,
        interval_s=interval,
        useful=useful,
        checkpoints=checkpoints,
        lost=1 - useful - checkpoints,
    )


def _useful(interval: float, between: float, checkpoint: float, restart: float) -> float:
    """Work over expected time."""
    exponent = (interval + checkpoint) / between
    if exponent > 700 or restart / between > 700:  # failures come before anything is saved
        return 0.0
    return interval / (between * math.exp(restart / between) * math.expm1(exponent))


def _best_interval(between: float, checkpoint: float, restart: float) -> float:
    """The interval with the most useful time, by golden section around Young's."""
    young = math.sqrt(2 * checkpoint * between)
    low, high = min(young, between) / 20, young * 2
    for _ in range(_SEARCH_STEPS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if _useful(left, between, checkpoint, restart) < _useful(right, between, checkpoint, restart):
            low = left
        else:
            high = right
    return (low + high) / 2
