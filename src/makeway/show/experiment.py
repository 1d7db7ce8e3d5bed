"""The published experiment as a report: its metrics over grids of blocks, for one tile or several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from makeway.act.measure.experiment import TITLES, Cell, Experiment, Experiments, Metric, by_sides
from makeway.act.measure.job import Grid
from makeway.show.blocks import Block, Column, Headline, HeatMap, Paragraph, Report, Section, Table
from makeway.show.blocks import Cell as TableCell
from makeway.show.data import milliseconds
from makeway.show.numbers import count, number
from makeway.show.provenance import provenance

_MS = 1e6
_DIGITS = 4  # of ratios


def report(result: Experiments, *, arguments: str = "") -> Report:
    """A table and heat maps for each tile, then the tiles against the first."""
    first = result.experiments[0]
    time_ratios = [cell.time_ratio for experiment in result.experiments for cell in experiment.cells]
    least, most = f"{min(time_ratios):.2f}", f"{max(time_ratios):.2f}"
    sections = [_section(experiment) for experiment in result.experiments]
    if result.tile_ratios:
        maps = tuple(
            grid_map(
                f"tile-ratio-{by_sides(tile)}",
                f"normalised time of tile {by_sides(tile)} over {by_sides(first.tile)}, with priority if both ran it",
                {grid: round(ratio, _DIGITS) for grid, ratio in ratios.items()},
                origin=first.origin,
                centre=1.0,
            )
            for tile, ratios in result.tile_ratios.items()
        )
        sections.append(Section(name="tiles", title="Tiles compared", blocks=maps))
    facts = [("rounds of each grid", str(first.n))]
    return Report(
        result="experiment",
        over=f"makeway bench, {first.workload} on {first.on}",
        headline=Headline(
            sentence=f"{first.workload} on {first.on}: plain overlap takes "
            f"{least if least == most else f'{least} to {most}'} of the sequential time over "
            f"{count(len(time_ratios), 'grid')}, n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{first.n} each",
            origin=first.origin,
        ),
        sections=(*sections, provenance(arguments, numbers=first.origin, facts=facts, notes=result.notes)),
        data=experiments_data(result),
        notes=result.notes,
        arguments=arguments,
    )


def _section(experiment: Experiment) -> Section:
    tile = by_sides(experiment.tile)
    blocks: list[Block] = [*(_metric_map(experiment, metric) for metric in experiment.metrics), _cell_table(experiment)]
    if experiment.verified is not None:
        blocks.append(
            Paragraph(text="Every result is verified." if experiment.verified else "RESULTS DIFFER: see notes.")
        )
    return Section(name=f"tile-{tile}", title=f"Tile {tile}", blocks=tuple(blocks))


def _cell_table(experiment: Experiment) -> Table:
    tile = by_sides(experiment.tile)
    return Table(
        name=f"cells-{tile}",
        caption=f"Every grid with tile {tile}, times in ms",
        origin=experiment.origin,
        columns=(
            Column("grid"),
            *(Column(title, "number") for title in ("t_seq", "t_overlap", "t_priority", "TimeRatio", "normalised")),
            Column("overlap rate", "number", brief=False),
            Column("with priority", "number", hint="overlap rate with priority", brief=False),
        ),
        rows=tuple(
            (
                TableCell(by_sides(cell.grid)),
                *(number(time, scale=_MS) for time in (cell.t_sequential_ns, cell.t_overlap_ns, cell.t_priority_ns)),
                *(number(_rounded(cell.metric(metric))) for metric in TITLES),
            )
            for cell in experiment.cells
        ),
    )


def _metric_map(experiment: Experiment, metric: Metric) -> HeatMap:
    name = f"{metric.replace('_', '-')}-{by_sides(experiment.tile)}"
    values = {grid: round(value, _DIGITS) for grid, value in experiment.values(metric).items()}
    centre = 1.0 if metric == "normalised_time" else None  # faster in one colour, slower in the other
    return grid_map(name, TITLES[metric], values, origin=experiment.origin, centre=centre)


def grid_map(
    name: str,
    caption: str,
    values: Mapping[Grid, float],
    *,
    origin: str | None,
    reach: tuple[float, float] | None = None,
    centre: float | None = None,
    digits: int = 2,
) -> HeatMap:
    """Values by the GEMM's grid, as the paper draws them."""
    across, down = sorted({x for x, _ in values}), sorted({y for _, y in values})
    return HeatMap(
        name=name,
        caption=caption,
        columns=tuple(map(str, across)),
        rows=tuple(map(str, down)),
        values=tuple(tuple(values.get((x, y)) for x in across) for y in down),
        column_title="X blocks",
        row_title="Y blocks",
        origin=origin,
        reach=reach,
        centre=centre,
        digits=digits,
    )


# --- data ----------------------------------------------------------------------------------------


def experiments_data(result: Experiments) -> dict[str, Any]:
    """Of one tile its experiment; of several all of them and their ratios."""
    first = result.experiments[0]
    if len(result.experiments) == 1:
        return _experiment_data(first)
    return {
        "experiments": [
            _experiment_data(experiment) | {"notes": list(experiment.notes)} for experiment in result.experiments
        ],
        "tile_ratios": [
            {
                "tile": list(tile),
                "against": list(first.tile),
                "cells": [
                    {"grid_x": x, "grid_y": y, "ratio": round(ratio, _DIGITS)} for (x, y), ratio in ratios.items()
                ],
            }
            for tile, ratios in result.tile_ratios.items()
        ],
    }


def _experiment_data(experiment: Experiment) -> dict[str, Any]:
    return {
        "origin": experiment.origin,
        "on": experiment.on,
        "workload": experiment.workload,
        "tile": list(experiment.tile),
        "n": experiment.n,
        "cells": [_cell_data(cell) for cell in experiment.cells],
        "verified": experiment.verified,
    }


def _cell_data(cell: Cell) -> dict[str, Any]:
    """Times in milliseconds; absent values are None."""
    return {
        "grid_x": cell.grid[0],
        "grid_y": cell.grid[1],
        "sequential_ms": milliseconds(cell.t_sequential_ns),
        "overlap_ms": milliseconds(cell.t_overlap_ns),
        "priority_ms": milliseconds(cell.t_priority_ns),
        **{metric: _rounded(cell.metric(metric)) for metric in TITLES},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
