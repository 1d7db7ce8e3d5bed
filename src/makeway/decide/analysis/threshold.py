"""A limit that a trace has to keep, written as in `--fail-if 'exposed>20%'`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from makeway.decide.analysis.findings import Findings, RankFindings
from makeway.values.errors import InputError, suggestion

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
# In per cent of what: communication for what is a part of it, the whole span for the rest.
_OF_COMM = ("overlap", "waiting")
_METRICS = ("exposed", "overlap", "waiting", "comm", "compute", "idle", "span")
_FORM = "write for example 'exposed>20%' or 'idle>=5ms'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A metric, a comparison and a limit; the run fails where the comparison holds on any rank."""

    metric: str
    comparison: str
    limit: float
    unit: str  # "%" or "ms"

    def __str__(self) -> str:
        return f"{self.metric}{self.comparison}{self.limit:g}{self.unit}"


def parse_threshold(text: str) -> Threshold:
    """The threshold that the words of the command line describe."""
    found = re.fullmatch(r"\s*([a-z]+)\s*(>=|<=|>|<)\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|ms)\s*", text)
    if not found:
        raise InputError(f"cannot read threshold {text!r}; {_FORM}")
    metric = found[1]
    if metric not in _METRICS:
        raise InputError(f"unknown metric {metric!r}{suggestion(metric, _METRICS)}\nKnown: {', '.join(_METRICS)}")
    if metric == "span" and found[4] == "%":
        raise InputError("span has no per cent: it is what the others are a part of; give milliseconds")
    return Threshold(metric=metric, comparison=found[2], limit=float(found[3]), unit=found[4])


def missed(threshold: Threshold, findings: Findings) -> list[tuple[int, float]]:
    """The ranks on which the threshold is missed, with their values; ranks without the metric are left out."""
    waiting = dict(findings.matching.waiting_ns)
    holds = _COMPARISONS[threshold.comparison]
    values = [(rank.rank, _value(threshold, rank, waiting.get(rank.rank))) for rank in findings.ranks]
    return [(rank, value) for rank, value in values if value is not None and holds(value, threshold.limit)]


def _value(threshold: Threshold, rank: RankFindings, waiting_ns: int | None) -> float | None:
    figures = rank.figures
    metric = threshold.metric
    time_ns = waiting_ns if metric == "waiting" else getattr(figures, f"{metric}_ns")
    if time_ns is None:
        return None
    if threshold.unit == "ms":
        return float(time_ns) / 1e6
    whole = figures.comm_ns if metric in _OF_COMM else figures.span_ns
    return 100.0 * time_ns / whole if whole else None
