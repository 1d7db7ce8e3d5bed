"""Which of the settings tried to use: only what is clearly faster than what people have already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from makeway.act.measure.outcome import BASELINES
from makeway.act.measure.statistics import Comparison, compared, summary

Times = Mapping[str, Sequence[float]]  # by setting, one per round

HOPELESS = 0.10  # slower than the best by this share in every round: not tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The setting to use, and why."""

    name: str
    reason: str
    changes: bool  # False: leave things as they are


def better_baseline(trials: Times) -> str:
    """The one of torch's defaults that is faster in most rounds; by median where that is a tie.

    Rounds are paired: a slow one hits both, and moves a median of few rounds more than it moves their order.
    """
    names = [name for name in BASELINES if name in trials]

    def standing(name: str) -> tuple[int, float]:
        beaten = sum(_rounds_won(trials[name], trials[other]) for other in names)
        return -beaten, summary(trials[name]).median_ns

    return min(names, key=standing)


def _rounds_won(times: Sequence[float], others: Sequence[float]) -> int:
    return sum(time < other for time, other in zip(times, others, strict=True))


def promising(trials: Times) -> tuple[str, ...]:
    """Candidates worth another round: all but those that every round showed far behind the best setting."""
    best = min(trials, key=lambda name: summary(trials[name]).median_ns)
    found = []
    for name in trials:
        pairs = zip(trials[name], trials[best], strict=True)
        if name not in BASELINES and any(time < other * (1 + HOPELESS) for time, other in pairs):
            found.append(name)
    return tuple(found)


def finalist(trials: Times) -> str | None:
    """The fastest candidate by median, if it is faster than the better baseline at all."""
    base = better_baseline(trials)
    candidates = [name for name in trials if name not in BASELINES]
    best = min(candidates, key=lambda name: summary(trials[name]).median_ns, default=None)
    return best if best is not None and compared(trials[best], trials[base]).relative < 0 else None


def choice(confirmation: Times, candidate: str | None, *, trials: Times | None = None) -> Choice:
    """The candidate where rounds of its own, taken after it was picked, show it clearly faster than every baseline.

    Otherwise the better baseline. The rounds that picked the candidate do not count for it: the best of many looks
    better than it is. Between the baselines they do count: `trials` are such rounds, and nothing was picked by them.
    """
    earlier = trials or {}
    base = better_baseline(
        {name: [*earlier.get(name, ()), *confirmation[name]] for name in BASELINES if name in confirmation}
    )
    if candidate is None:
        return Choice(name=base, reason=f"leave as is ({base}): nothing that was tried is faster", changes=False)
    against = {
        name: compared(confirmation[candidate], confirmation[name]) for name in BASELINES if name in confirmation
    }
    words = ", ".join(_words(name, found) for name, found in against.items())
    if all(found.clearly_faster for found in against.values()):
        return Choice(name=candidate, reason=f"{candidate}: {words}; medians of pairs", changes=True)
    reason = f"leave as is ({base}): the best candidate, {candidate}, is not clearly faster: {words}; medians of pairs"
    return Choice(name=base, reason=reason, changes=False)


def _words(name: str, found: Comparison) -> str:
    less = "less" if found.relative < 0 else "more"
    return f"{abs(found.relative):.1%} {less} time than {name} (faster in {found.faster} of {found.n} rounds)"
