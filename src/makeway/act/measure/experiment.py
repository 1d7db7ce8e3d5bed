"""The experiment of arXiv 2606.09200 as data: its three metrics over a grid of block counts, whatever ran it.

TimeRatio is plain overlap over sequential; normalised time is with priority over without (its Fig. 3), or one tile
over another (Figs. 5 and 6); the overlap rate is the share of communication time during which compute runs too.
A sweep is the experiment for each of several tiles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from makeway.act.measure.outcome import OVERLAP, SEQUENTIAL, Bench
from makeway.values.control import CommPriority, control_word
from makeway.values.errors import InputError, suggestion
from makeway.values.timeline import Origin

Grid = tuple[int, int]  # X x Y blocks of the GEMM
Tile = tuple[int, int, int]  # M, N, K
Metric = Literal["time_ratio", "normalised_time", "overlap_rate", "overlap_rate_priority"]

PAPER_SIDES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CPU_SIDES = PAPER_SIDES[:3]  # a GEMM scaled for CPU ranks has few tiles
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
    tile: Tile
    n: int  # times behind each median
    cells: tuple[Cell, ...]
    verified: bool | None = None  # every result of every grid right; None: a prediction computes none
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        grids = [cell.grid for cell in self.cells]
        if not grids or len(set(grids)) < len(grids):
            raise InputError("an experiment needs at least one grid and none twice")

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Those that some cell has."""
        return tuple(name for name in TITLES if any(cell.metric(name) is not None for cell in self.cells))

    def cell(self, grid: Grid) -> Cell:
        found = next((cell for cell in self.cells if cell.grid == grid), None)
        if found is None:
            raise InputError(f"grid {_by(grid)} was not run; run: {', '.join(_by(cell.grid) for cell in self.cells)}")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The same experiment for each of several tiles; the first is the one that others are compared with."""

    experiments: tuple[Experiment, ...]

    def __post_init__(self) -> None:
        tiles = [one.tile for one in self.experiments]
        if not tiles or len(set(tiles)) < len(tiles):
            raise InputError("a sweep needs at least one tile and none twice")

    @property
    def tile_ratios(self) -> dict[Tile, dict[Grid, float]]:
        """Normalised times of every tile but the first over the first."""
        first, *others = self.experiments
        return {other.tile: tile_ratios(other, first) for other in others}


def parse_grids(text: str, sides: Sequence[int] = PAPER_SIDES) -> tuple[Grid, ...]:
    """The grids of "2x2,4x8", or of a word: "paper" is every pair of `sides`, "squares" those with X = Y."""
    match text:
        case "paper":
            return tuple((x, y) for y in sides for x in sides)
        case "squares":
            return tuple((side, side) for side in sides)
    if text.isalpha():
        hint = suggestion(text, ("paper", "squares"))
        raise InputError(f"--grid takes XxY, several with commas, paper or squares; not {text!r}{hint}")
    return tuple((x, y) for x, y in _sides(text, "--grid", "4x4 or 2x2,4x4"))


def parse_tiles(text: str) -> tuple[Tile, ...]:
    """The tiles of "64x64x32" or "64x64x32,64x64x64"."""
    return tuple((m, n, k) for m, n, k in _sides(text, "--tile", "64x64x32 or 64x64x32,64x64x64"))


def _sides(text: str, option: str, example: str) -> list[tuple[int, ...]]:
    count = example.partition(" ")[0].count("x") + 1
    found = []
    for part in text.split(","):
        sides = tuple(map(int, part.split("x"))) if re.fullmatch(r"\d+(x\d+)+", part) else ()
        if len(sides) != count or min(sides) < 1:
            raise InputError(f"{option}: cannot use {part!r}; write sides of 1 or more, for example {example}")
        found.append(sides)
    if len(set(found)) < len(found):
        raise InputError(f"{option}: {text!r} names one twice")
    return found


def sweep(
    grids: Sequence[Grid],
    tiles: Sequence[Tile],
    run: Callable[[Grid, Tile], Bench],
    progress: Callable[[str], None] = lambda stage: None,
) -> Sweep:
    """Runs a bench for every grid and tile, one after the other, and collects them."""
    experiments = []
    for tile in tiles:
        benches = {}
        for number, grid in enumerate(grids, 1):
            progress(f"tile {_by(tile)}, grid {_by(grid)} ({number} of {len(grids)})")
            benches[grid] = run(grid, tile)
        experiments.append(bench_experiment(benches, tile))
    return Sweep(experiments=tuple(experiments))


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


def bench_experiment(benches: Mapping[Grid, Bench], tile: Tile) -> Experiment:
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
        verified=all(bench.verified for bench in benches.values()) if origin == "measured" else None,
        notes=tuple(dict.fromkeys(note for grid, bench in benches.items() for note in _notes(bench, grid))),
    )


def _notes(bench: Bench, grid: Grid) -> Iterator[str]:
    yield from bench.notes
    for variant in bench.variants:
        if variant.wrong is not None:
            yield f"grid {_by(grid)}, {variant.name}: {variant.wrong}"


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
        "verified": experiment.verified,
        "notes": list(experiment.notes),
    }


def sweep_document(found: Sweep) -> dict[str, Any]:
    """A sweep as data: of one tile its experiment, of several all of them and their ratios."""
    if len(found.experiments) == 1:
        return experiment_document(found.experiments[0])
    return {
        "experiments": [experiment_document(one) for one in found.experiments],
        "tile_ratios": [
            {
                "tile": list(tile),
                "against": list(found.experiments[0].tile),
                "cells": [{"grid_x": x, "grid_y": y, "ratio": round(ratio, 4)} for (x, y), ratio in ratios.items()],
            }
            for tile, ratios in found.tile_ratios.items()
        ],
    }


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _ms(time_ns: float) -> float:
    return round(time_ns / 1e6, 6)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
