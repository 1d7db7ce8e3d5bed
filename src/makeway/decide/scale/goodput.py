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
class Goodput:
    """How a long run divides its time. The shares add up to 1."""

    gpus: int
    between_failures_s: float
    interval_s: float  # of work between checkpoints, the best one
    useful: float
    checkpoints: float
    lost: float  # work that is done again, and restarts


def goodput(
    gpus: int,
    *,
    gpu_hours_per_failure: float = PUBLISHED_GPU_HOURS_PER_FAILURE,
    checkpoint_s: float = CHECKPOINT_S,
    restart_s: float = RESTART_S,
) -> Goodput:
    """The goodput of a run at its best checkpoint interval."""
    check_whole("GPUs", gpus, 1)
    if not (gpu_hours_per_failure > 0 and checkpoint_s > 0 and restart_s >= 0):
        raise InputError("goodput needs a time between failures and a checkpoint cost above 0, and no negative restart")
    between = gpu_hours_per_failure * 3600 / gpus
    interval = _best_interval(between, checkpoint_s, restart_s)
    useful = _useful(interval, between, checkpoint_s, restart_s)
    checkpoints = useful * checkpoint_s / interval
    return Goodput(
        gpus=gpus,
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
