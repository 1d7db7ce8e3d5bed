"""A limit that a run must keep, as in `--fail-if 'exposed>20%'`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from makeway.decide.analysis.findings import RankFindings
from makeway.values.errors import InputError, suggestion

if TYPE_CHECKING:
    from makeway.decide.analysis.many.job import JobRank

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
# Percentages of these are of communication time; the others are of the whole span.
_OF_COMM = ("overlap", "waiting")
_METRICS = ("exposed", "overlap", "waiting", "comm", "compute", "idle", "span")
_FORM = "write for example 'exposed>20%' or 'idle>=5ms'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A metric, a comparison and a limit; a run fails if the comparison holds on any rank."""

    metric: str
    comparison: str
    limit: float
    unit: str  # "%" or "ms"

    def __str__(self) -> str:
        return f"{self.metric}{self.comparison}{self.limit:g}{self.unit}"


def parse_threshold(text: str) -> Threshold:
    """The threshold that `text` describes."""
    match = re.fullmatch(r"\s*([a-z]+)\s*(>=|<=|>|<)\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|ms)\s*", text)
    if not match:
        raise InputError(f"cannot read threshold {text!r}; {_FORM}")
    metric, comparison, limit, unit = match.groups()
    if metric not in _METRICS:
        raise InputError(f"unknown metric {metric!r}{suggestion(metric, _METRICS)}\nKnown: {', '.join(_METRICS)}")
    if metric == "span" and unit == "%":
        raise InputError("span has no percentage: the others are percentages of it; give milliseconds")
    return Threshold(metric=metric, comparison=comparison, limit=float(limit), unit=unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A threshold, and the ranks that miss it with their values."""

    threshold: Threshold
    missed: tuple[tuple[int, float], ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """One for each rank that misses it."""
        limit = self.threshold
        return tuple(f"rank {rank} has {limit.metric} {value:.4g}{limit.unit}: {limit}" for rank, value in self.missed)


def gate(threshold: Threshold, ranks: Sequence[RankFindings | JobRank]) -> Gate:
    """Which ranks miss the threshold; ranks without the metric do not."""
    holds = _COMPARISONS[threshold.comparison]
    values = ((rank.rank, _value(threshold, rank)) for rank in ranks)
    missed = tuple((rank, value) for rank, value in values if value is not None and holds(value, threshold.limit))
    return Gate(threshold=threshold, missed=missed)


def _value(threshold: Threshold, rank: RankFindings | JobRank) -> float | None:
    figures, metric = rank.figures, threshold.metric
    time_ns = rank.waiting_ns if metric == "waiting" else getattr(figures, f"{metric}_ns")
    if time_ns is None:
        return None
    if threshold.unit == "ms":
        return float(time_ns) / 1e6
    whole = figures.comm_ns if metric in _OF_COMM else figures.span_ns
    return 100.0 * time_ns / whole if whole else None
