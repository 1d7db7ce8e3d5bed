"""Timing for benchmarks: interleaved rounds, median and spread. A benchmark prints; it never asserts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(cases: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Seconds of each case in each round; the cases take turns, so that noise hits all alike."""
    for run in cases.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, run in cases.items():
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def line(name: str, seconds: list[float], *, per: int = 1, unit: float = 1e-3, sign: str = "ms") -> str:
    """One row: median, quartiles and count, per item."""
    scaled = sorted(value / per / unit for value in seconds)
    low, _, high = statistics.quantiles(scaled, n=4)
    return f"{name:<44} {statistics.median(scaled):9.2f} {sign}  (quartiles {low:.2f} to {high:.2f}, n={len(scaled)})"
