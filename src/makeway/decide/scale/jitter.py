"""Many ranks wait for the slowest: the expected slow-down from order statistics.

Two numbers. The transient spread is what a step of one GPU varies from step to step. The persistent spread is how much
GPUs differ for good: the slowest sets the pace of all. Both are standard deviations over the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from makeway.values.errors import InputError
from makeway.values.units import check_whole

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """How much the step time of GPUs varies, as shares of it."""

    transient: float
    persistent: float
    source: str = ""

    def __post_init__(self) -> None:
        if not (0 <= self.transient < 1 and 0 <= self.persistent < 1):
            raise InputError(
                f"jitter is two shares of a step from 0 to 1, got {self.transient:g} and {self.persistent:g}"
            )

    @property
    def spread(self) -> float:
        """Of one step among all GPUs."""
        return float((self.transient**2 + self.persistent**2) ** 0.5)
