"""The difference of two sets of repeated times, with a confidence interval that autocorrelation does not shrink.

Each run of a program is a series. Its location is the 20 % trimmed mean, whose variance comes from the winsorised
values (Yuen 1974). Neighbouring steps resemble each other, so a series of n steps counts as n (1 - r) / (1 + r) values,
with r the correlation of neighbours. Two runs of the same program differ by more than their steps tell, and more so on
a noisy host: RUN_SPREAD and RUN_SHARE stand for that, and several runs of a side replace them by what they show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import fmean, variance
from typing import Literal, TypeVar

T = TypeVar("T")
Verdict = Literal["faster", "slower", "no difference shown"]

TRIMMED = 0.2  # of the values, at each end
WINSORISED = 0.642  # standard deviation of normal values after winsorising, over the one before
MOST_CORRELATION = 0.8
LEAST_FREEDOM = 3.0
# Standard deviation from run to run: on a busy host of two cores as large as from step to step (1.04 times in 52 pairs
# of recordings, benchmarks/bench_compare.py), and at least this share of the time.
RUN_SPREAD = 0.02
RUN_SHARE = 1.0
RUN_FREEDOM = 8.0  # degrees of it: a guess from other runs is worth no more
LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """After minus before, in the unit of the values."""

    estimate: float
    low: float | None = None  # None: too few values for an interval
    high: float | None = None

    @property
    def shown(self) -> bool:
        """Whether the interval leaves no doubt about the sign."""
        return self.low is not None and self.high is not None and not self.low <= 0.0 <= self.high


def verdict_of(difference: Difference) -> Verdict:
    """Whether the difference of two times shows, and which way."""
    if not difference.shown:
        return "no difference shown"
    return "slower" if difference.estimate > 0 else "faster"


def percent(log_ratio: float) -> float:
    """A ratio, given as its logarithm, as its difference from 1 in percent."""
    return round(100 * math.expm1(log_ratio), 3)


@dataclass(frozen=True, slots=True)
class _Location:
    value: float
    variance: float
    freedom: float  # degrees of it
    spread: float = 0.0  # standard deviation of the values, without their tails


def difference(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], *, run_spread: float, level: float = LEVEL
) -> Difference:
    """The difference of two sides, each with one series of values per run.

    `run_spread` is the least standard deviation from run to run in the unit of the values, where no side has several.
    """
    sides = [[_location(series) for series in side] for side in (before, after)]
    centres = [fmean(run.value for run in side) for side in sides]
    estimate = centres[1] - centres[0]
    if any(run.freedom <= 0 for side in sides for run in side):
        return Difference(estimate=estimate)
    parts = [(run.variance / len(side) ** 2, run.freedom) for side in sides for run in side]
    between = sum((run.value - centre) ** 2 for side, centre in zip(sides, centres, strict=True) for run in side)
    freedom = sum(len(side) - 1 for side in sides)
    shares = sum(1 / len(side) for side in sides)
    if freedom:
        parts.append((shares * between / freedom, freedom))
    else:
        assumed = max(run_spread, RUN_SHARE * fmean(run.spread for side in sides for run in side))
        parts.append((shares * assumed**2, RUN_FREEDOM))
    total = sum(part for part, _ in parts)
    if total <= 0:
        return Difference(estimate=estimate, low=estimate, high=estimate)
    welch = total**2 / max(sum(part**2 / own for part, own in parts), total**2 / 1e6)
    reach = student(level, round(max(1.0, welch), 1)) * math.sqrt(total)
    return Difference(estimate=estimate, low=estimate - reach, high=estimate + reach)


def untrimmed(values: Iterable[T], key: Callable[[T], float]) -> list[T]:
    """The values that a trimmed mean is made of: without the least and the largest fifth by `key`."""
    ordered = sorted(values, key=key)
    cut = int(TRIMMED * len(ordered))
    return ordered[cut : len(ordered) - cut]


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the least and the largest fifth."""
    return fmean(untrimmed(values, key=float))


def _location(series: Sequence[float]) -> _Location:
    count, cut = len(series), int(TRIMMED * len(series))
    if count < 2:
        return _Location(trimmed_mean(series), 0.0, 0.0)
    ordered = sorted(series)
    low, high = ordered[cut], ordered[count - 1 - cut]
    winsorised = [min(max(value, low), high) for value in series]
    kept = count - 2 * cut
    shrink = _correlation(winsorised)
    independent = (1 - shrink) / (1 + shrink)
    power = variance(winsorised)
    spread = (count - 1) * power / (kept * max(1, kept - 1))
    freedom = max(min(LEAST_FREEDOM, kept - 1), kept * independent - 1)
    return _Location(trimmed_mean(series), spread / independent, freedom, math.sqrt(power) / (WINSORISED if cut else 1))


def _correlation(series: Sequence[float]) -> float:
    """The correlation of neighbours, corrected for the bias of short series (Kendall 1954); at least 0."""
    centre, count = fmean(series), len(series)
    power = sum((value - centre) ** 2 for value in series)
    if count < 4 or power <= 0:
        return 0.0
    own = sum((left - centre) * (right - centre) for left, right in pairwise(series)) / power
    return min(MOST_CORRELATION, max(0.0, own + (1 + 3 * own) / count))


# --- Student's t -----------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def student(level: float, freedom: float) -> float:
    """How many standard errors a two-sided interval of this level reaches."""
    low, high = 0.0, 1.0
    while _outside(high, freedom) > 1 - level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _outside(middle, freedom) > 1 - level else (low, middle)
    return high


def _outside(t: float, freedom: float) -> float:
    """The chance that |T| exceeds t."""
    return _beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz's method)."""
    if x <= 0.0 or x >= 1.0:
        return min(1.0, max(0.0, x))
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta(1.0 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    value, c, d = 1.0, 1.0, 0.0
    for step in range(400):
        half = step // 2
        if step == 0:
            term = 1.0
        elif step % 2 == 0:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        else:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        d = 1.0 / (1.0 + term * d) if 1.0 + term * d else 1e30
        c = 1.0 + term / c if 1.0 + term / c else 1e-30
        value *= c * d
        if abs(1.0 - c * d) < 1e-12 and step:
            break
    return front * (value - 1.0)
