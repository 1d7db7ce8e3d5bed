"""The experiment of arXiv 2606.09200 as data: its three metrics over a grid of block counts, whatever ran it.

TimeRatio is plain overlap over sequential; normalised time is with priority over without (its Fig. 3), or one tile
over another (Figs. 5 and 6); the overlap rate is the share of communication time during which compute runs too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from makeway.control import CommPriority, control_word
from makeway.errors import InputError
from makeway.measure.outcome import OVERLAP, SEQUENTIAL, Bench
from makeway.timeline import Origin

Grid = tuple[int, int]  # X x Y blocks of the GEMM
Metric = Literal["time_ratio", "normalised_time", "overlap_rate", "overlap_rate_priority"]

PAPER_SIDES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
WARM_UP_SHARE = 3  # the first third of the runs is dropped (section 4.1)
TITLES: dict[Metric, str] = {
    "time_ratio": "TimeRatio: plain overlap / sequential",
    "normalised_time": "normalised time: with priority / without",
    "overlap_rate": "overlap rate, plain overlap",
    "overlap_rate_priority": "overlap rate, with priority",
}
_SHADES = " ░▒▓█"  # from the lowest value of a map to the highest


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One grid: medians of sequential, plainly overlapped and prioritised runs of the same workload."""

    grid: Grid
    t_sequential_ns: float
    t_overlap_ns: float
    t_priority_ns: float | None = None  # None: not run
    overlap_rate: float | None = None
    overlap_rate_priority: float | None = None

    def __post_init__(self) -> None:
        times = (self.t_sequential_ns, self.t_overlap_ns, self.t_priority_ns)
        if not all(time is None or time > 0 for time in times):
            raise InputError(f"grid {_by(self.grid)}: times must be above 0, got {times}")

    @property
    def time_ratio(self) -> float:
        return self.t_overlap_ns / self.t_sequential_ns

    @property
    def normalised_time(self) -> float | None:
        return None if self.t_priority_ns is None else self.t_priority_ns / self.t_overlap_ns

    def metric(self, name: Metric) -> float | None:
        match name:
            case "time_ratio":
                return self.time_ratio
            case "normalised_time":
                return self.normalised_time
            case "overlap_rate":
                return self.overlap_rate
            case "overlap_rate_priority":
                return self.overlap_rate_priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One workload with one tile on one machine, over several grids."""

    workload: str
    on: str
    origin: Origin
    tile: tuple[int, int, int]
    n: int  # times behind each median
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        grids = [cell.grid for cell in self.cells]
        if not grids or len(set(grids)) < len(grids):
            raise InputError("an experiment needs at least one grid and none twice")

    def cell(self, grid: Grid) -> Cell:
        found = next((cell for cell in self.cells if cell.grid == grid), None)
        if found is None:
            raise InputError(f"grid {_by(grid)} was not run; run: {', '.join(_by(cell.grid) for cell in self.cells)}")
        return found


def bench_cell(bench: Bench, grid: Grid) -> Cell:
    """The cell that a bench of one grid gives; a "priority" variant is the paper's optimised overlap."""
    optimised = next((one for one in bench.variants if one.name == control_word(CommPriority())), None)
    plain = bench.variant(OVERLAP)
    return Cell(
        grid=grid,
        t_sequential_ns=bench.variant(SEQUENTIAL).summary.median_ns,
        t_overlap_ns=plain.summary.median_ns,
        t_priority_ns=optimised.summary.median_ns if optimised else None,
        overlap_rate=plain.overlap_rate,
        overlap_rate_priority=optimised.overlap_rate if optimised else None,
    )


def bench_experiment(benches: Mapping[Grid, Bench], tile: tuple[int, int, int]) -> Experiment:
    """The experiment that benches of one workload on one machine make up, by their grids."""
    kinds = {(bench.workload, bench.on, bench.origin) for bench in benches.values()}
    if len(kinds) != 1:
        raise InputError(f"benches of one experiment must share workload, machine and origin; got {sorted(kinds)}")
    ((workload, on, origin),) = kinds
    return Experiment(
        workload=workload,
        on=on,
        origin=origin,
        tile=tile,
        n=min(bench.variant(OVERLAP).summary.n for bench in benches.values()),
        cells=tuple(bench_cell(bench, grid) for grid, bench in benches.items()),
        notes=tuple(dict.fromkeys(note for bench in benches.values() for note in bench.notes)),
    )


def after_warm_up(times_ns: Sequence[float]) -> tuple[float, ...]:
    """The times that the paper keeps: all but the first third. It then takes their mean; we take the median."""
    if not times_ns:
        raise InputError("no times to keep; ask for at least one repetition")
    return tuple(times_ns[len(times_ns) // WARM_UP_SHARE :])


def tile_ratios(other: Experiment, first: Experiment) -> dict[Grid, float]:
    """Normalised time of one tile over another, both with priority where both ran it: opt2 / opt1 in Figs. 5 and 6."""
    if (other.workload, other.on, other.origin) != (first.workload, first.on, first.origin):
        raise InputError(
            f"tiles can be compared on one workload and machine only, got {other.workload} on {other.on} and "
            f"{first.workload} on {first.on}"
        )
    shared = [cell for cell in other.cells if any(cell.grid == base.grid for base in first.cells)]
    return {cell.grid: _tile_ratio(cell, first.cell(cell.grid)) for cell in shared}


def _tile_ratio(other: Cell, first: Cell) -> float:
    if other.t_priority_ns is not None and first.t_priority_ns is not None:
        return other.t_priority_ns / first.t_priority_ns
    return other.t_overlap_ns / first.t_overlap_ns


# --- told --------------------------------------------------------------------------------------


def heat_map(experiment: Experiment, metric: Metric) -> str:
    """A text map of one metric, rows Y and columns X as in the paper's Fig. 2; darker is larger, "-" was not run."""
    return grid_text(
        {cell.grid: value for cell in experiment.cells if (value := cell.metric(metric)) is not None},
        title=f"{TITLES[metric]}; {experiment.workload} on {experiment.on}, tile {_by(experiment.tile)}, "
        f"{experiment.origin}, n = {experiment.n}",
    )


def grid_text(values: Mapping[Grid, float], *, title: str) -> str:
    """Values by grid under a title, each with a shade of its place between the least and the most."""
    if not values:
        return f"{title}\n(nothing to show)"
    columns, rows = sorted({x for x, _ in values}), sorted({y for _, y in values})
    low, high = min(values.values()), max(values.values())
    lines = [title, "  Y\\X " + "".join(f"{x:>6} " for x in columns)]
    for y in rows:
        texts = (_shaded(values.get((x, y)), low, high) for x in columns)
        lines.append(f"{y:>5} " + "".join(texts))
    return "\n".join(line.rstrip() for line in lines)


def _shaded(value: float | None, low: float, high: float) -> str:
    if value is None:
        return f"{'-':>6} "
    step = 0 if high - low < 1e-12 else round((value - low) / (high - low) * (len(_SHADES) - 1))
    return f"{value:6.2f}{_SHADES[step]}"


def table(experiment: Experiment) -> list[dict[str, Any]]:
    """One row per grid, times in milliseconds; absent values are None."""
    return [
        {
            "grid_x": cell.grid[0],
            "grid_y": cell.grid[1],
            "sequential_ms": _ms(cell.t_sequential_ns),
            "overlap_ms": _ms(cell.t_overlap_ns),
            "priority_ms": None if cell.t_priority_ns is None else _ms(cell.t_priority_ns),
            "time_ratio": round(cell.time_ratio, 4),
            "normalised_time": _rounded(cell.normalised_time),
            "overlap_rate": _rounded(cell.overlap_rate),
            "overlap_rate_priority": _rounded(cell.overlap_rate_priority),
        }
        for cell in experiment.cells
    ]


def experiment_document(experiment: Experiment) -> dict[str, Any]:
    """An experiment as data."""
    return {
        "origin": experiment.origin,
        "on": experiment.on,
        "workload": experiment.workload,
        "tile": list(experiment.tile),
        "n": experiment.n,
        "cells": table(experiment),
        "notes": list(experiment.notes),
    }


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _ms(time_ns: float) -> float:
    return round(time_ns / 1e6, 6)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
