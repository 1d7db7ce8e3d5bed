"""The demo as a report: real ranks, published experiments, and one step with its analysis and plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from makeway.act.measure.demo import Demo, DeviceMap, Recording
from makeway.act.measure.job import Grid
from makeway.act.measure.outcome import Bench
from makeway.act.measure.variants import OVERLAP, PLANNED, SEQUENTIAL, TORCHRUN
from makeway.model.validate.rows import Row
from makeway.show.analysis import report as analysis_report
from makeway.show.bench import bench_bars, bench_data, bench_headline, bench_lines, planned_words
from makeway.show.blocks import (
    Block,
    Cell,
    Column,
    Facts,
    Headline,
    HeatMap,
    Notes,
    Paragraph,
    Report,
    Section,
    Table,
)
from makeway.show.data import plain
from makeway.show.experiment import grid_map
from makeway.show.numbers import number, percent, time_text
from makeway.show.provenance import provenance
from makeway.values.control import describe

_ORIGINS = "What was measured, imported or predicted is said beside every number."


def report(demo: Demo, *, arguments: str = "") -> Report:
    """The story in a few lines, then a section for each part."""
    recording = _recording_report(demo.recording)
    story = _story(demo, recording)
    notes = tuple(dict.fromkeys(note for bench in demo.benches for note in bench.notes))
    facts = (
        ("took", f"{demo.seconds:.0f} s"),
        ("measured", "real ranks of this machine, no GPU"),
        ("predicted", "everything on simulated devices; nothing here ran on a GPU"),
    )
    return Report(
        result="demo",
        over="makeway demo",
        headline=bench_headline(demo.best) if demo.best else _simulated_headline(demo),
        lead=tuple(Paragraph(text=line) for line in story),
        sections=(
            Section(name="ranks", title="Real ranks", blocks=_bench_blocks(demo), detail=True),
            Section(name="published", title="Published experiments", blocks=_published_blocks(demo), detail=True),
            *_recording_sections(recording),
            provenance(arguments, numbers=_ORIGINS, facts=facts, notes=notes),
        ),
        data={
            "story": story,
            "seconds": round(demo.seconds, 1),
            "benches": [bench_data(bench) | {"notes": list(bench.notes)} for bench in demo.benches],
            "no_bench": demo.no_bench,
            "maps": [_map_data(each) for each in demo.maps],
            "ladder": [
                {"step": row.case, "published": row.published, "predicted": row.predicted, "error": row.error}
                for row in demo.ladder
            ],
            "recording": {"verdict": recording.headline.sentence, **recording.data},
            "plan": plain(demo.recording.plan),
        },
        notes=notes,
        arguments=arguments,
    )


def _story(demo: Demo, recording: Report) -> list[str]:
    benches = [_bench_sentence(bench) for bench in demo.benches] or [f"Real ranks: not run, {demo.no_bench}."]
    plan = ", ".join(describe(control) for control in demo.recording.plan) or "leave as is"
    advice = demo.recording.analysis.advice
    return [
        *(f"{'1.' if place == 0 else '  '} {sentence}" for place, sentence in enumerate(benches)),
        "2. The published experiment of arXiv 2606.09200 on simulated GPUs:",
        *(f"   {_map_sentence(each)}" for each in demo.maps),
        f"   ConCCL's ladder on MI300X, share of ideal: {_ladder_text(demo.ladder)}.",
        f"3. A step of {demo.recording.name}: {recording.headline.sentence} ({recording.headline.origin}).",
        f"   Plan for it: {plan} (predicted)." + (f" First advice: {advice[0].text}." if advice else ""),
        _ORIGINS,
    ]


# --- real ranks ----------------------------------------------------------------------------------


def _bench_sentence(bench: Bench) -> str:
    link = (bench.link or "").partition(" for all")[0].partition(",")[0]
    labels = {
        SEQUENTIAL: "sequential",
        OVERLAP: "torch's default",
        TORCHRUN: "torchrun's default",
        PLANNED: "planned",
    }
    times = ", ".join(
        f"{labels[variant.name]} {time_text(variant.median_ns)}" for variant in bench.variants if variant.name in labels
    )
    share = bench.share_of_ideal(PLANNED) if bench.planned else None
    ideal = "" if share is None else f", {percent(100 * share)} of ideal"
    return f"Real ranks, {bench.workload} on {bench.ranks}, {link}: {times}{ideal} (measured)."


def _bench_blocks(demo: Demo) -> tuple[Block, ...]:
    if not demo.benches:
        return (Paragraph(text=f"Not run: {demo.no_bench}."),)
    blocks: list[Block] = []
    for place, bench in enumerate(demo.benches):
        blocks += [
            Paragraph(text=_bench_sentence(bench)),
            bench_bars(bench, f"bench-times-{place}"),
            *planned_words(bench),
        ]
        blocks += [bench_lines(bench, f"bench-spans-{place}")] if bench.timeline else []
    return tuple(blocks)


# --- published experiments -----------------------------------------------------------------------


def _map_sentence(device_map: DeviceMap) -> str:
    error = device_map.error
    published = "its published map is not in our data" if error is None else f"the map is off by {error:.3f} on average"
    return f"{device_map.name}: priority saves up to {percent(100 * (1 - device_map.best_priority))}; {published}"


def _simulated_headline(demo: Demo) -> Headline:
    """The verdict of a demo without real ranks."""
    best = min(demo.maps, key=lambda each: each.best_priority)
    saved = percent(100 * (1 - best.best_priority))
    sentence = f"Priority for communication saves up to {saved} of a published experiment's time on {best.name}"
    return Headline(sentence=sentence, origin="predicted")


def _map_data(device_map: DeviceMap) -> dict[str, Any]:
    return {
        "device": device_map.name,
        "mean_absolute_error": device_map.error,
        "best_normalised_time": device_map.best_priority,
        "cells": [
            {
                "grid_x": cell.grid[0],
                "grid_y": cell.grid[1],
                "predicted": cell.time_ratio,
                "published": device_map.published.get(cell.grid),
            }
            for cell in device_map.experiment.cells
        ],
    }


def _ladder_text(rows: Sequence[Row]) -> str:
    ours = "/".join(f"{row.predicted:.0f}" for row in rows)
    theirs = "/".join(f"{row.published:.0f}" for row in rows)
    return f"{ours} % predicted, {theirs} % published"


def _published_blocks(demo: Demo) -> tuple[Block, ...]:
    blocks: list[Block] = [
        Paragraph(
            text="arXiv 2606.09200, Fig. 2: time of plain overlap over sequential, by the GEMM's grid. Two numbers of "
            "each device with a published map are fitted to it (docs/model.md).",
            origin="predicted",
        )
    ]
    for each in demo.maps:
        blocks.append(_heat(each.name, "predicted", each.experiment.values("time_ratio")))
        if each.published:
            blocks.append(_heat(each.name, "published", each.published))
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


def _recording_report(recording: Recording) -> Report:
    return analysis_report(recording.analysis)


def _recording_sections(analysis: Report) -> tuple[Section, ...]:
    """The sections of the analysis under names of their own."""
    return tuple(
        Section(
            name=f"trace-{section.name}",
            title=f"Recording: {section.title.lower()}",
            blocks=tuple(_renamed(block) for block in section.blocks),
            detail=True,
        )
        for section in analysis.sections
        if section.name != "provenance"
    )


def _renamed(block: Block) -> Block:
    if isinstance(block, Table):
        rows = tuple(tuple(_moved(cell) for cell in row) for row in block.rows)
        return replace(block, name=f"trace-{block.name}", rows=rows)
    if isinstance(block, Paragraph | Notes | Facts):
        return block
    return replace(block, name=f"trace-{block.name}")


def _moved(cell: Cell) -> Cell:
    return cell if cell.go is None else replace(cell, go=replace(cell.go, lines=f"trace-{cell.go.lines}"))
