"""Two settings that alternate in blocks of steps inside one job: pairs of blocks, looks at them, a verdict.

A pair is two neighbouring blocks, one under each setting, in random order. Its difference is that of the trimmed means
of the logarithms of their step times. Slow changes of the machine cancel within a pair, and what the steps of a block
share is noise of one value, not of many. The estimate is the trimmed mean over pairs with its interval (Yuen 1974):
bursts of load on the host hit few pairs. The interval is looked at several times. Early looks are strict and the last
one is nearly that of a single look (Wang and Tsiatis 1987), so that all together are wrong in at most ERROR of the
cases; equal parts for all looks would make the last interval 15 % wider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

from makeway.decide.analysis.difference import (
    TRIMMED,
    Difference,
    Verdict,
    percent,
    student,
    trimmed_mean,
    untrimmed,
    verdict_of,
)

Times = Sequence[int]
ERROR = 0.01  # the chance that settings which do not differ get a verdict; at 0.02 two of 20 would, in one case of 17
FIRST_LOOK = 8  # pairs: of 6, the trimmed mean keeps 4, and 4 of 9 false verdicts in 650 simulated jobs came there
LOOK_GROWTH = 1.4
# After a part t of the pairs, a difference shows beyond LAST_REACH t^-STRICTER standard errors. Of 400,000 random walks
# looked at 1 to 13 times, ERROR crosses 2.57 to 2.784.
LAST_REACH, STRICTER = 2.775, 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternation:
    """What pairs of blocks show so far."""

    pairs: tuple[float, ...]  # logarithms of second over first setting
    noise: tuple[float, ...]  # the same of pairs under one setting
    difference: Difference
    step_ns: tuple[float, float] | None  # of both settings, over the pairs that the estimate is made of; None: no pair
    level: float
    verdict: Verdict
    over: bool  # decided, or as many pairs as there may be

    @property
    def noise_pct(self) -> float | None:
        """By how much blocks under one setting differ: the median."""
        return percent(median(map(abs, self.noise))) if self.noise else None


def log_time(times_ns: Times) -> float:
    """The logarithm of a block's step time."""
    return trimmed_mean([math.log(max(1, time)) for time in times_ns])


def alternation(
    pairs: Sequence[tuple[Times, Times]],
    noise: Sequence[tuple[Times, Times]],
    *,
    most_pairs: int,
    ended: bool = False,
) -> Alternation:
    """What pairs of blocks (without, with) show; `noise`: pairs of blocks without.

    `ended`: no pair follows, since the job is over. That is one more look, at a moment that no difference chose.
    """
    logs = [(log_time(without), log_time(under)) for without, under in pairs]
    differences = [under - without for without, under in logs]
    level = look_level(len(differences), most_pairs)
    shown = paired_difference(differences, level=level)
    count = len(differences)
    decided = shown.shown and (count in looks(most_pairs) or (ended and count >= FIRST_LOOK))
    return Alternation(
        pairs=tuple(differences),
        noise=tuple(log_time(second) - log_time(first) for first, second in noise),
        difference=shown,
        step_ns=_typical_ns(logs) if logs else None,
        level=level,
        verdict=verdict_of(shown) if decided else "no difference shown",
        over=decided or ended or count >= most_pairs,
    )


def _typical_ns(logs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The step under both settings, whose ratio is the estimate: without the pairs that the trimmed mean leaves out."""
    kept = untrimmed(logs, key=lambda pair: pair[1] - pair[0])
    return math.exp(fmean(without for without, _ in kept)), math.exp(fmean(under for _, under in kept))


def looks(most_pairs: int) -> tuple[int, ...]:
    """Numbers of pairs after which the interval is looked at; the last is `most_pairs`."""
    counts: list[int] = []
    count = float(FIRST_LOOK)
    while round(count) < most_pairs:
        counts.append(round(count))
        count *= LOOK_GROWTH
    return (*counts, most_pairs) if most_pairs >= FIRST_LOOK else ()


def look_level(pairs: int, most_pairs: int) -> float:
    """The level of the interval after so many pairs."""
    part = min(1.0, max(1, pairs) / max(1, most_pairs))
    return math.erf(LAST_REACH * part**-STRICTER / math.sqrt(2))


def paired_difference(pairs: Sequence[float], *, level: float) -> Difference:
    """The trimmed mean of the pairs' differences, and its interval; none for fewer than three."""
    estimate = trimmed_mean(pairs) if pairs else 0.0
    count, cut = len(pairs), int(TRIMMED * len(pairs))
    kept = count - 2 * cut
    if kept < 3:
        return Difference(estimate=estimate)
    ordered = sorted(pairs)
    winsorised = [min(max(value, ordered[cut]), ordered[count - 1 - cut]) for value in pairs]
    error = math.sqrt((count - 1) * variance(winsorised) / (kept * (kept - 1)))
    reach = student(level, kept - 1) * error
    return Difference(estimate=estimate, low=estimate - reach, high=estimate + reach)
