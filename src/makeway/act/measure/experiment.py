"""The experiment of arXiv 2606.09200, measured or predicted: its three metrics over a grid of block counts.

TimeRatio is plain overlap over sequential; normalised time is with priority over without (its Fig. 3), or one tile
over another (Figs. 5 and 6); the overlap rate is the share of communication time during which compute runs too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from makeway.act.measure.job import Grid, Tile
from makeway.act.measure.outcome import Bench
from makeway.act.measure.variants import OVERLAP, SEQUENTIAL
from makeway.values.control import CommPriority, control_word
from makeway.values.errors import InputError, suggestion
from makeway.values.timeline import Origin

Metric = Literal["time_ratio", "normalised_time", "overlap_rate", "overlap_rate_priority"]

PAPER_SIDES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CPU_SIDES = PAPER_SIDES[:3]  # a GEMM scaled for CPU ranks has few tiles
TITLES: dict[Metric, str] = {
    "time_ratio": "TimeRatio: plain overlap / sequential",
    "normalised_time": "normalised time: with priority / without",
    "overlap_rate": "overlap rate, plain overlap",
    "overlap_rate_priority": "overlap rate, with priority",
}


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
            raise InputError(f"grid {by_sides(self.grid)}: times must be above 0, got {times}")

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
    verified: bool | None = None  # every result of every grid is right; None: a prediction computes none
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
        for cell in self.cells:
            if cell.grid == grid:
                return cell
        grids = ", ".join(by_sides(cell.grid) for cell in self.cells)
        raise InputError(f"grid {by_sides(grid)} was not run; run: {grids}")

    def values(self, metric: Metric) -> dict[Grid, float]:
        """A metric by grid, where it is known."""
        return {cell.grid: value for cell in self.cells if (value := cell.metric(metric)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiments:
    """The same experiment for each of several tiles; the first is what the others are compared with."""

    experiments: tuple[Experiment, ...]

    def __post_init__(self) -> None:
        tiles = [experiment.tile for experiment in self.experiments]
        if not tiles or len(set(tiles)) < len(tiles):
            raise InputError("experiments need at least one tile and none twice")

    @property
    def tile_ratios(self) -> dict[Tile, dict[Grid, float]]:
        """Normalised times of every tile but the first over the first."""
        first, *others = self.experiments
        return {other.tile: tile_ratios(other, first) for other in others}

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for experiment in self.experiments for note in experiment.notes))


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
    parsed = []
    for part in text.split(","):
        sides = tuple(map(int, part.split("x"))) if re.fullmatch(r"\d+(x\d+)+", part) else ()
        if len(sides) != count or min(sides) < 1:
            raise InputError(f"{option}: cannot use {part!r}; write sides of 1 or more, for example {example}")
        parsed.append(sides)
    if len(set(parsed)) < len(parsed):
        raise InputError(f"{option}: {text!r} names one twice")
    return parsed


def experiments(
    grids: Sequence[Grid],
    tiles: Sequence[Tile],
    run: Callable[[Grid, Tile], Bench],
    progress: Callable[[str], None] = lambda stage: None,
) -> Experiments:
    """Run a bench for every grid and tile in turn, and collect them."""
    collected = []
    for tile in tiles:
        benches = {}
        for number, grid in enumerate(grids, 1):
            progress(f"tile {by_sides(tile)}, grid {by_sides(grid)} ({number} of {len(grids)})")
            benches[grid] = run(grid, tile)
        collected.append(bench_experiment(benches, tile))
    return Experiments(experiments=tuple(collected))


def bench_cell(bench: Bench, grid: Grid) -> Cell:
    """The cell that a bench of one grid gives; a "priority" variant is the paper's optimised overlap."""
    optimised = next((variant for variant in bench.variants if variant.name == control_word(CommPriority())), None)
    plain = bench.variant(OVERLAP)
    return Cell(
        grid=grid,
        t_sequential_ns=bench.variant(SEQUENTIAL).median_ns,
        t_overlap_ns=plain.median_ns,
        t_priority_ns=optimised.median_ns if optimised else None,
        overlap_rate=plain.overlap_rate,
        overlap_rate_priority=optimised.overlap_rate if optimised else None,
    )


def bench_experiment(benches: Mapping[Grid, Bench], tile: Tile) -> Experiment:
    """Benches of one workload on one machine, by their grids, as one experiment."""
    kinds = {(bench.workload, bench.on, bench.origin) for bench in benches.values()}
    if len(kinds) != 1:
        raise InputError(f"benches of one experiment must share workload, machine and origin; got {sorted(kinds)}")
    ((workload, on, origin),) = kinds
    return Experiment(
        workload=workload,
        on=on,
        origin=origin,
        tile=tile,
        n=min(bench.variant(OVERLAP).n for bench in benches.values()),
        cells=tuple(bench_cell(bench, grid) for grid, bench in benches.items()),
        verified=all(bench.verified for bench in benches.values()) if origin == "measured" else None,
        notes=tuple(dict.fromkeys(note for grid, bench in benches.items() for note in _notes(bench, grid))),
    )


def _notes(bench: Bench, grid: Grid) -> Iterator[str]:
    yield from bench.notes
    for variant in bench.variants:
        if variant.wrong is not None:
            yield f"grid {by_sides(grid)}, {variant.name}: {variant.wrong}"


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


def by_sides(sides: tuple[int, ...]) -> str:
    """64x64x32."""
    return "x".join(map(str, sides))
