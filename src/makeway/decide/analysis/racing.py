"""Settings that race inside one job: rounds of blocks, and where each candidate stands against the setting in force.

In a round every setting that is still in the race has one block of steps, in random order. A difference is taken within
a round, so that slow changes of the machine cancel, and all candidates share the blocks of the setting in force. The
spread of a round's differences is pooled over the candidates: a few rounds of several candidates tell it well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from makeway.decide.analysis.difference import Difference, student

Round = Mapping[int, float]  # the logarithm of the step time, by setting
MOST_ROUNDS = 40
FIRST_ROUNDS = 4  # before a candidate may be adopted
# After a part t of the rounds a candidate is adopted beyond LAST_REACH t^-STRICTER standard errors (Wang and Tsiatis
# 1987). In simulated jobs on recorded noise a race of five candidates that gain nothing then ends with one of them in
# some 1 % of the jobs (docs/run.md): looks after every round, and the choice of the best, are allowed for.
LAST_REACH, STRICTER = 2.4, 0.3
HOPE = 1.3  # standard errors that a candidate may lie behind LEAST_GAIN and still be hoped for
LEAST_GAIN = 0.01  # smaller gains are not looked for
FAR_OUT = 0.5  # of the logarithm of a step time
APART = 2.0  # standard errors behind the best candidate that end a candidate's race


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A candidate against another setting, over the rounds that had both."""

    setting: int
    rounds: int
    difference: float  # mean of the logarithm of its step time over the other's
    error: float | None  # standard error; None: too few rounds
    freedom: int  # degrees of it

    def shown(self, most_rounds: int) -> Difference:
        """With the interval by which it is adopted, in a race of at most so many rounds; none after few rounds."""
        if self.error is None or self.rounds < FIRST_ROUNDS:  # an interval of two rounds says nothing
            return Difference(estimate=self.difference)
        part = min(1.0, self.rounds / most_rounds)
        level = math.erf(LAST_REACH * part**-STRICTER / math.sqrt(2))
        reach = student(level, self.freedom) * self.error
        return Difference(estimate=self.difference, low=self.difference - reach, high=self.difference + reach)

    def faster(self, most_rounds: int) -> bool:
        """Whether it is shown to be faster, in a race of at most so many rounds."""
        high = self.shown(most_rounds).high
        return high is not None and high < 0

    @property
    def hopeless(self) -> bool:
        """Whether a gain worth having has become unlikely."""
        return self.error is not None and self.difference - HOPE * self.error > -LEAST_GAIN


def clipped_logs(times_ns: Sequence[int]) -> list[float]:
    """Logarithms of a block's step times; a step that stalled counts as FAR_OUT beyond their median."""
    logs = [math.log(max(1, time)) for time in times_ns]
    middle = median(logs)
    return [min(max(value, middle - FAR_OUT), middle + FAR_OUT) for value in logs]


def standings(rounds: Sequence[Round], against: int, settings: Sequence[int]) -> dict[int, Standing]:
    """Where each of the settings stands against one of them all; none for a setting that never met it."""
    differences = {
        setting: [entry[setting] - entry[against] for entry in rounds if setting in entry and against in entry]
        for setting in settings
    }
    met = {setting: values for setting, values in differences.items() if values}
    squares = sum((value - fmean(values)) ** 2 for values in met.values() for value in values)
    freedom = sum(len(values) - 1 for values in met.values())
    spread = math.sqrt(squares / freedom) if freedom else None
    return {
        setting: Standing(
            setting=setting,
            rounds=len(values),
            difference=fmean(values),
            error=None if spread is None else spread / math.sqrt(len(values)),
            freedom=freedom,
        )
        for setting, values in met.items()
    }


def still_racing(rounds: Sequence[Round], against: int, settings: Sequence[int]) -> list[int]:
    """The candidates that may still turn out best, the most promising first."""
    stand = standings(rounds, against, settings)
    ordered = sorted(stand, key=lambda setting: stand[setting].difference)
    if not ordered:
        return []
    behind = standings(rounds, ordered[0], ordered[1:])
    return [
        setting
        for setting in ordered
        if not stand[setting].hopeless and not (setting in behind and _behind(behind[setting]))
    ]


def _behind(standing: Standing) -> bool:
    return standing.error is not None and standing.difference > APART * standing.error
