"""Many ranks wait for the slowest: the expected slow-down from order statistics.

Two numbers, standard deviations over the mean. The transient spread is what a step of one GPU varies from step to step.
The persistent spread is how much GPUs differ for good: the slowest sets the pace of all, until it is replaced.
"""

from __future__ import annotations

from statistics import NormalDist

from makeway.values.cluster import Jitter
from makeway.values.units import check_whole

_NORMAL = NormalDist()


# A weak-scaling series cannot tell the two apart. The transient one is the difference between repeated steps of vTrain;
# the persistent one takes all of the growth in the eight BF16 rows, network effects included: an upper bound.
# Least squares of a (1 + spread x expected maximum); the eight FP8 rows are left out as a test.
PUBLISHED_JITTER = Jitter(
    transient=0.0005,
    persistent=0.0266,
    source="Nemotron4-15B BF16, 16 to 2,048 H100 (NVIDIA/dgxc-benchmarking v25.04); repeated steps of vTrain",
)


def expected_order(rank: int, ranks: int) -> float:
    """The expected `rank`-th smallest of `ranks` standard normal values, by Blom's approximation."""
    check_whole("ranks", ranks, 1)
    check_whole("rank", rank, 1, ranks)
    return _NORMAL.inv_cdf((rank - 0.375) / (ranks + 0.25))


def slow_down(jitter: Jitter, gpus: int, *, reference_gpus: int = 1) -> float:
    """Time of a step on `gpus` over its time on `reference_gpus`, where each waits for the slowest."""
    return _waiting(jitter, gpus) / _waiting(jitter, reference_gpus)


def gain_without_slowest(jitter: Jitter, gpus: int, removed: int) -> float:
    """The share of a step that replacing the slowest GPUs by average ones saves. Only persistent spread counts."""
    check_whole("removed", removed, 0, gpus - 1)
    slowest = 1 + jitter.persistent * expected_order(gpus, gpus)
    next_slowest = 1 + jitter.persistent * expected_order(gpus - removed, gpus)
    return 1 - next_slowest / slowest


def _waiting(jitter: Jitter, gpus: int) -> float:
    return 1 + jitter.spread * expected_order(gpus, gpus)
