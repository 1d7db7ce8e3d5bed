"""Medians, spreads, outliers and paired comparisons of repeated times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from makeway.decide.analysis.difference import LEVEL, Difference, Verdict, verdict_of
from makeway.values.errors import InputError

OUTLIER_REACH = 3.0  # interquartile ranges beyond a quartile: Tukey's "far out" fence
SMALLEST_GAIN = 0.01  # of the time; less is not worth a change
LEAST_PAIRS = 6  # rounds of a paired difference that have an interval of LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Median and quartiles of repeated times, and how many lie far out."""

    median_ns: float
    low_ns: float  # first quartile
    high_ns: float  # third quartile
    n: int
    outliers: int = 0

    def __post_init__(self) -> None:
        if self.n < 1 or not 0 <= self.low_ns <= self.median_ns <= self.high_ns:
            raise InputError(
                f"not a summary of times: {self.low_ns}, {self.median_ns}, {self.high_ns} ns of {self.n} samples"
            )

    @property
    def spread_ns(self) -> float:
        """The interquartile range."""
        return self.high_ns - self.low_ns


def summary(times_ns: Sequence[float]) -> Summary:
    """Median, quartiles (both inclusive of the ends) and outliers of at least one time."""
    if not times_ns:
        raise InputError("no times to summarise; ask for at least one repetition")
    low, median, high = _quartiles(times_ns)
    reach = OUTLIER_REACH * (high - low)
    far = sum(not low - reach <= time <= high + reach for time in times_ns)
    return Summary(median_ns=median, low_ns=low, high_ns=high, n=len(times_ns), outliers=far)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One variant against another, round by round, so that slow rounds hit both alike."""

    relative: float  # median of (time - other) / other; below 0 is faster
    low: float | None = None  # interval of that median; None: too few rounds for one
    high: float | None = None
    faster: int  # rounds
    n: int

    @property
    def verdict(self) -> Verdict:
        """As `run --compare` and `compare` decide: only an interval without 0 shows a difference."""
        return verdict_of(Difference(estimate=self.relative, low=self.low, high=self.high))

    @property
    def clearly_faster(self) -> bool:
        """Shown to be faster, and by enough to be worth a change."""
        return self.verdict == "faster" and self.relative <= -SMALLEST_GAIN


def compared(times_ns: Sequence[float], other_ns: Sequence[float]) -> Comparison:
    """Paired differences of times taken in the same rounds."""
    if not times_ns or len(times_ns) != len(other_ns):
        raise InputError(f"cannot pair {len(times_ns)} times with {len(other_ns)}; measure both in the same rounds")
    relative = [(time - other) / other for time, other in zip(times_ns, other_ns, strict=True)]
    low, high = _interval(relative)
    return Comparison(
        relative=statistics.median(relative),
        low=low,
        high=high,
        faster=sum(value < 0 for value in relative),
        n=len(relative),
    )


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Two of the values between which the median lies with a chance of at least LEVEL, whatever their distribution.

    They are as many ranks from either end as the sign test allows: the chance that a value lies below the median is
    1/2. Fewer than LEAST_PAIRS values are too few.
    """
    count, tail, cut = len(values), 0.0, 0
    while (tail := tail + math.comb(count, cut) * math.ldexp(1.0, -count)) <= (1 - LEVEL) / 2:
        cut += 1
    ordered = sorted(values)
    return (ordered[cut - 1], ordered[count - cut]) if cut else (None, None)
