"""What `makeway demo` has to say: real ranks, published experiments and a real recording, in one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from makeway.act.measure.experiment import Experiment, Grid
from makeway.act.measure.outcome import PLANNED, SEQUENTIAL, Bench
from makeway.model.validate.rows import Row
from makeway.show.bench_report import DEFAULTS, bench_bars, bench_headline, bench_lines, grid_map
from makeway.show.blocks import (
    Block,
    Cell,
    Column,
    Facts,
    Headline,
    HeatMap,
    Notes,
    Report,
    Section,
    Table,
    Words,
)
from makeway.show.numbers import number, percent

_Named = TypeVar("_Named", bound=Block)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMap:
    """The published experiment on one simulated device, beside the paper's own numbers where it has them."""

    name: str  # as the paper calls the device
    experiment: Experiment
    published: Mapping[Grid, float]  # TimeRatio

    @property
    def error(self) -> float | None:
        """Mean absolute error over the published grids."""
        found = [abs(self.experiment.cell(grid).time_ratio - ratio) for grid, ratio in self.published.items()]
        return sum(found) / len(found) if found else None

    @property
    def best_priority(self) -> float:
        """The lowest normalised time, with priority over without."""
        return min(cell.normalised_time or 1.0 for cell in self.experiment.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """All that was done; real ranks that could not be run are missing, with the reason."""

    benches: tuple[Bench, ...]  # of one workload, over several links
    no_bench: str | None
    maps: tuple[DeviceMap, ...]
    ladder: tuple[Row, ...]
    analysis: Report
    plan: str  # what planning says of the recorded step, in a sentence
    seconds: float


def demo_report(demo: Demo, *, arguments: str, version: str) -> Report:
    """One report with all parts."""
    return Report(
        result="demo",
        over="makeway demo",
        headline=_headline(demo),
        lead=tuple(Words(text=line) for line in demo_lines(demo)[:-1]),
        sections=(
            Section(name="ranks", title="Real ranks", blocks=_bench_blocks(demo)),
            Section(name="published", title="Published experiments", blocks=_published_blocks(demo)),
            *_analysis_sections(demo.analysis),
            Section(
                name="provenance",
                title="Provenance",
                blocks=(
                    Facts(
                        pairs=(
                            ("command", arguments),
                            ("makeway", version),
                            ("took", f"{demo.seconds:.0f} s"),
                            ("measured", "real ranks of this machine, no GPU"),
                            ("imported", "a public recording of eight A100s, bundled with makeway"),
                            ("predicted", "everything on simulated devices; nothing here ran on a GPU"),
                        ),
                        code=("command",),
                    ),
                    Notes(sentences=tuple(dict.fromkeys(note for bench in demo.benches for note in bench.notes))),
                ),
            ),
        ),
        arguments=arguments,
    )


def demo_lines(demo: Demo) -> list[str]:
    """The whole story in a few lines."""
    lines = ["1. " + words if place == 0 else f"   {words}" for place, words in enumerate(_bench_words(demo))]
    lines += ["2. The published experiment of arXiv 2606.09200 on simulated GPUs:"]
    lines += [f"   {words}" for words in _map_words(demo.maps)]
    lines += ["   ConCCL's ladder on MI300X, share of ideal: " + _ladder_words(demo.ladder) + "."]
    lines += [
        f"3. A real recording of eight A100s: {demo.analysis.headline.sentence} ({demo.analysis.headline.origin})."
    ]
    lines += [f"   {demo.plan}"]
    lines += ["What was measured, imported or predicted is said beside every number."]
    return lines


def _headline(demo: Demo) -> Headline:
    """The bench with the largest gain over what people have."""
    found = [bench for bench in demo.benches if bench.better_baseline and _planned(bench)]
    return bench_headline(min(found, key=_against_default)) if found else demo.analysis.headline


def _planned(bench: Bench) -> bool:
    return any(one.name == PLANNED for one in bench.variants)


def _against_default(bench: Bench) -> float:
    assert bench.better_baseline is not None
    return bench.variant(PLANNED).summary.median_ns / bench.better_baseline.summary.median_ns


# --- real ranks ----------------------------------------------------------------------------------


def _bench_words(demo: Demo) -> list[str]:
    if not demo.benches:
        return [f"Real ranks: not run, {demo.no_bench}."]
    return [
        f"Real ranks, {bench.workload} on {bench.ranks}, {_short_link(bench)}: {_times(bench)} (measured)."
        for bench in demo.benches
    ]


def _short_link(bench: Bench) -> str:
    return (bench.link or "").partition(" for all")[0].partition(",")[0]


def _times(bench: Bench) -> str:
    names = {SEQUENTIAL: "one after the other", **DEFAULTS, PLANNED: "planned"}
    times = [
        f"{words} {bench.variant(name).summary.median_ns / 1e6:.0f} ms"
        for name, words in names.items()
        if any(one.name == name for one in bench.variants)
    ]
    share = bench.share_of_ideal(PLANNED) if _planned(bench) else None
    return ", ".join(times) + ("" if share is None else f", {percent(100 * share)} of ideal")


def _bench_blocks(demo: Demo) -> tuple[Block, ...]:
    blocks: list[Block] = []
    for place, (bench, words) in enumerate(zip(demo.benches, _bench_words(demo), strict=False)):
        blocks += [Words(text=words), bench_bars(bench, f"bench-times-{place}")]
        blocks += [Words(text=f"Planned: {bench.choice}.", origin="measured")] if bench.choice else []
        blocks += [bench_lines(bench, f"bench-spans-{place}")] if bench.timeline else []
    return tuple(blocks) or tuple(Words(text=words) for words in _bench_words(demo))


# --- published experiments -----------------------------------------------------------------------


def _map_words(maps: Sequence[DeviceMap]) -> list[str]:
    return [
        f"{one.name}: priority saves up to {percent(100 * (1 - one.best_priority))}; "
        + (f"the map is off by {one.error:.3f} on average" if one.error is not None else "no published map")
        for one in maps
    ]


def _ladder_words(rows: Sequence[Row]) -> str:
    ours = "/".join(f"{row.predicted:.0f}" for row in rows)
    theirs = "/".join(f"{row.published:.0f}" for row in rows)
    return f"{ours} % predicted, {theirs} % published"


def _published_blocks(demo: Demo) -> tuple[Block, ...]:
    blocks: list[Block] = [
        Words(
            text="arXiv 2606.09200, Fig. 2: time of plain overlap over sequential, by the GEMM's grid. Two numbers of "
            "each device with a published map are fitted to it (docs/model.md).",
            origin="predicted",
        )
    ]
    for one in demo.maps:
        blocks.append(_heat(one.name, "predicted", {cell.grid: cell.time_ratio for cell in one.experiment.cells}))
        if one.published:
            blocks.append(_heat(one.name, "published", one.published))
    blocks.append(_ladder_table(demo.ladder))
    return tuple(blocks)


def _heat(device: str, whose: str, values: Mapping[Grid, float]) -> HeatMap:
    ours = whose == "predicted"
    caption = f"{device}, {'by the model' if ours else 'as published'}"
    origin = "predicted" if ours else "imported"
    return grid_map(f"map-{device.lower()}-{whose}", caption, values, origin=origin, reach=(0.0, 1.0))


def _ladder_table(rows: Sequence[Row]) -> Table:
    return Table(
        name="ladder",
        caption="ConCCL (arXiv 2412.14335) on MI300X: mean share of ideal of 30 scenarios. Three numbers are fitted.",
        columns=(
            Column("step", "name"),
            Column("published %", "number", "imported"),
            Column("ours %", "number", "predicted"),
            Column("error", "number"),
        ),
        rows=tuple(
            (Cell(row.case), number(row.published, 0), number(row.predicted, 0), number(row.error, 0)) for row in rows
        ),
    )


# --- the recording -------------------------------------------------------------------------------


def _analysis_sections(report: Report) -> tuple[Section, ...]:
    """The sections of the analysis under names of their own."""
    return tuple(
        Section(
            name=f"trace-{section.name}",
            title=f"Recording: {section.title.lower()}",
            blocks=tuple(_renamed(block) for block in section.blocks),
        )
        for section in report.sections
        if section.name != "provenance"
    )


def _renamed(block: Block) -> Block:
    if isinstance(block, Table):
        rows = tuple(tuple(_moved(cell) for cell in row) for row in block.rows)
        return replace(block, name=f"trace-{block.name}", rows=rows)
    if isinstance(block, Words | Notes | Facts):
        return block
    return replace(block, name=f"trace-{block.name}")


def _moved(cell: Cell) -> Cell:
    return cell if cell.go is None else replace(cell, go=replace(cell.go, lines=f"trace-{cell.go.lines}"))
