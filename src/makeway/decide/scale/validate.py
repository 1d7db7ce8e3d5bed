"""Published training steps beside predicted ones: every row of a table, covered or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from makeway.decide.scale.rows import Described
from makeway.values.errors import UnsupportedError

# Metrics of a step's time, as the step's nanoseconds from the published figure and what the row describes.
_STEP_NS: dict[str, Callable[[float, Described], float]] = {
    "iteration_ms": lambda value, _: value * 1e6,
    "iteration_s": lambda value, _: value * 1e9,
    "tokens_per_s_per_gpu": lambda value, row: (
        row.layout.global_batch * row.model.seq / row.layout.gpus / value * 1e9
    ),
    "samples_per_gpu_per_s": lambda value, row: row.layout.global_batch / row.layout.gpus / value * 1e9,
}


def metric_of(row: Mapping[str, str]) -> str | None:
    """The metric of a row, if it is the time of a step."""
    metric = (row.get("metric") or "").strip()
    return metric if metric in _STEP_NS else None


def published(row: Mapping[str, str], described: Described) -> float:
    """The published step in nanoseconds."""
    metric = metric_of(row)
    if metric is None:
        raise UnsupportedError(f"metric {row.get('metric')!r} is not the time of a step")
    try:
        value = float(row["value"])
    except ValueError:
        raise UnsupportedError(f"value {row['value']!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise UnsupportedError(f"value {row['value']!r} is not above 0")
    return _STEP_NS[metric](value, described)
