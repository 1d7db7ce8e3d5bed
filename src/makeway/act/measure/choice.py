"""Which variant to use: one that is clearly faster than what people have already, or no change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from makeway.act.measure.statistics import Comparison, compared, summary
from makeway.act.measure.variants import BASELINES

Times = Mapping[str, Sequence[float]]  # by variant, one per round

HOPELESS = 0.10  # slower than the best by this share in every round: not tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The variant to use, and why; `against` holds the comparisons that decided."""

    name: str
    reason: str
    changes: bool  # False: leave things as they are
    against: Mapping[str, Comparison] = field(default_factory=dict)


def better_baseline(times: Times) -> str:
    """The one of torch's defaults that is faster in most rounds; by median where that is a tie.

    Rounds are paired: a slow one hits both, and moves a median of few rounds more than it moves their order.
    """
    names = [name for name in BASELINES if name in times]

    def standing(name: str) -> tuple[int, float]:
        rounds_won = sum(_rounds_won(times[name], times[other]) for other in names)
        return -rounds_won, summary(times[name]).median_ns

    return min(names, key=standing)


def _rounds_won(times: Sequence[float], others: Sequence[float]) -> int:
    return sum(time < other for time, other in zip(times, others, strict=True))


def promising(trials: Times) -> tuple[str, ...]:
    """Candidates worth another round: all but those that were far behind the best variant in every round."""
    best = min(trials, key=lambda name: summary(trials[name]).median_ns)

    def near(name: str) -> bool:
        return any(time < fastest * (1 + HOPELESS) for time, fastest in zip(trials[name], trials[best], strict=True))

    return tuple(name for name in trials if name not in BASELINES and near(name))


def finalist(trials: Times) -> str | None:
    """The fastest candidate by median, if it is faster than the better baseline at all."""
    base = better_baseline(trials)
    candidates = [name for name in trials if name not in BASELINES]
    best = min(candidates, key=lambda name: summary(trials[name]).median_ns, default=None)
    return best if best is not None and compared(trials[best], trials[base]).relative < 0 else None


def choice(confirmation: Times, candidate: str | None, *, trials: Times | None = None) -> Choice:
    """The candidate where rounds taken after it was picked show it clearly faster than every baseline.

    Otherwise the better baseline. The rounds that picked the candidate do not count for it: the best of many looks
    better than it is. Between the baselines they do count: `trials` are such rounds, and nothing was picked by them.

    The reason gives no figures: those of a bench come from the rounds that follow.
    """
    earlier = trials or {}
    baselines = [name for name in BASELINES if name in confirmation]
    base = better_baseline({name: [*earlier.get(name, ()), *confirmation[name]] for name in baselines})
    if candidate is None:
        return Choice(name=base, reason=f"leave as is ({base}): no candidate is faster", changes=False)
    against = {name: compared(confirmation[candidate], confirmation[name]) for name in baselines}
    if all(comparison.clearly_faster for comparison in against.values()):
        reason = f"{candidate}: clearly faster than {' and '.join(baselines)}"
        return Choice(name=candidate, reason=reason, changes=True, against=against)
    close = " and ".join(name for name, comparison in against.items() if not comparison.clearly_faster)
    reason = f"leave as is ({base}): the best candidate, {candidate}, is not clearly faster than {close}"
    return Choice(name=base, reason=reason, changes=False, against=against)
