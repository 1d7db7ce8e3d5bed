"""The demo as a report: four acts, each with a picture, its lesson and what stands behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from makeway.act.measure.demo import Demo, DeviceMap, GpuStory
from makeway.act.measure.demo_job import JobStory
from makeway.act.measure.job import Grid
from makeway.model.room import sentences
from makeway.show.analysis import report as analysis_report
from makeway.show.analysis import time_bars
from makeway.show.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Column,
    Facts,
    Headline,
    HeatMap,
    Lines,
    Notes,
    Paragraph,
    Part,
    Report,
    Section,
    Table,
)
from makeway.show.data import plain
from makeway.show.experiment import grid_map
from makeway.show.numbers import count, number, percent, time_text
from makeway.show.prediction import ideal_bars, prediction_data, room_of, share_text, time_bar
from makeway.show.provenance import provenance
from makeway.show.recording import report as recording_report
from makeway.show.run_comparison import report as comparison_report
from makeway.show.run_tuning import control_set, decisions
from makeway.show.run_tuning import report as tuning_report
from makeway.show.scale_curve import gains, throughput
from makeway.show.scale_data import curve_data, gain_percent
from makeway.show.tracks import compared_tracks, rank_tracks

WHAT = "makeway makes room for communication on a busy GPU"
_WHAT_IT_DOES = (
    "It finds why collectives and compute do not overlap in a multi-GPU job, chooses run-time controls, applies them "
    "to the unmodified program, and measures what they gain. Here it does so in four acts: a job on this machine, one "
    "GPU, the papers, a cluster."
)
_COMMANDS = (
    ("record it", "makeway record -- torchrun --nproc-per-node 8 train.py"),
    ("plan for it", "makeway plan makeway-recording --for run --out plan.toml"),
    ("measure the plan", "makeway run --plan plan.toml --compare -- torchrun --nproc-per-node 8 train.py"),
)
_MISS = 5.0  # points of share of ideal, or % of the sequential time
_MS = 1e6


def report(demo: Demo, *, arguments: str = "") -> Report:
    """The verdict on the job, then an act in each section, then what to type next."""
    acts = (_job_act(demo.job), _gpu_act(demo.gpu), _papers_act(demo), _cluster_act(demo))
    facts = (
        ("took", f"{demo.seconds:.0f} s"),
        ("measured", "act 1: real ranks of this machine, without a GPU"),
        ("predicted", "acts 2 to 4: simulated devices and clusters; nothing here ran on a GPU"),
    )
    return Report(
        result="demo",
        over="makeway demo",
        headline=_headline(demo.job),
        lead=(Paragraph(text=_WHAT_IT_DOES),),
        sections=(
            *acts,
            Section(name="yours", title="Now yours", blocks=(Facts(pairs=_COMMANDS, code=tuple(dict(_COMMANDS))),)),
            provenance(arguments, numbers="measured in act 1, imported or predicted in the others", facts=facts),
        ),
        data={
            "story": [act.lesson.text for act in acts if act.lesson is not None],
            "seconds": round(demo.seconds, 1),
            "job": _job_data(demo.job),
            "gpu": _gpu_data(demo.gpu),
            "maps": [_map_data(each) for each in demo.maps],
            "ladder": [
                {"step": row.case, "published": row.published, "predicted": row.predicted, "error": row.error}
                for row in demo.ladder
            ],
            "cluster": curve_data(demo.cluster),
        },
        arguments=arguments,
    )


def _headline(job: JobStory) -> Headline:
    compared = job.comparison
    if compared is None or compared.difference_pct is None or compared.interval_pct is None:
        return Headline(sentence=f"{WHAT}, and shows what that is worth", origin="predicted")
    low, high = compared.interval_pct
    interval = f"{percent(low, '+.1f')} to {percent(high, '+.1f')}"
    if compared.verdict == "no difference shown":
        verdict = f"for the small job on this machine no control was shown to pay ({interval})"
    else:
        change = percent(abs(compared.difference_pct), ".1f")
        verdict = f"the small job on this machine runs {change} {compared.verdict} per step ({interval})"
    return Headline(sentence=f"{WHAT}: {verdict}", origin="measured", value=compared.difference_pct, unit="%")


# --- act 1: the job ------------------------------------------------------------------------------


def _job_act(job: JobStory) -> Section:
    blocks: list[Block] = []
    if job.comparison is not None:
        blocks.append(_step_bars(job))
    if job.analysis is not None:
        blocks.append(time_bars(job.analysis, "job-parts"))
        ranks = rank_tracks(job.analysis.timelines, job.analysis.causes)
        blocks.append(Lines(name="job-spans", ranks=ranks[:1]))  # the other looks alike
    if job.tuning is not None:
        blocks.append(decisions(job.tuning))
    if not blocks:
        blocks.append(Paragraph(text=f"Not run: {job.why_not}."))
    origin = "measured" if job.analysis is not None else None
    return _act("job", "1. Your job", blocks, Paragraph(text=_job_lesson(job), origin=origin))


def _job_lesson(job: JobStory) -> str:
    if job.analysis is None:
        return f"not run: {job.why_not}."
    recorded = f"makeway recorded five steps of an unmodified DDP program: {_exposed(job)}."
    if job.tuning is None:
        return f"{recorded} It tried no controls: {job.why_not}."
    sets, steps = len(job.tuning.candidates), job.tuning.steps
    if job.comparison is None:
        return f"{recorded} Over {steps:,} steps it tried {sets} sets of controls, and kept none: {job.why_not}."
    tried = f"It tried {sets} sets of controls inside the job, over {steps:,} steps"
    kept = (
        f"{tried}, and kept {control_set(job.compared)}."
        if job.adopted
        else f"{tried}, and kept none; {control_set(job.compared)} looked best and was measured once more."
    )
    return f"{recorded} {kept} {_compared(job)}"


def _exposed(job: JobStory) -> str:
    assert job.analysis is not None
    worst = job.analysis.worst
    exposed_ns, comm_ns = worst.figures.exposed_ns, worst.figures.comm_ns
    return f"of {time_text(comm_ns)} of communication, {time_text(exposed_ns)} had no compute beside it"


def _compared(job: JobStory) -> str:
    compared = job.comparison
    assert compared is not None
    if compared.difference_pct is None or compared.interval_pct is None or compared.level_pct is None:
        return f"With against without it: {compared.problem}."
    low, high = compared.interval_pct
    figures = (
        f"{percent(compared.difference_pct, '+.1f')} per step ({percent(compared.level_pct, '.5g')} interval "
        f"{percent(low, '+.1f')} to {percent(high, '+.1f')}, {count(compared.pairs, 'pair')} of blocks)"
    )
    doubt = ": no difference shown" if compared.verdict == "no difference shown" else ""
    return f"With against without it, in turns: {figures}{doubt}."


def _step_bars(job: JobStory) -> Bars:
    compared = job.comparison
    assert compared is not None
    sides = (
        ("as it is", "without", compared.without_step_ns, "memory"),
        (f"with {control_set(job.compared)}", "with", compared.with_step_ns, "overlapped"),
    )
    return Bars(
        name="job-steps",
        caption="Typical step of the job in blocks that take turns; the whisker is the IQR of all steps",
        origin="measured",
        bars=tuple(
            Bar(
                label=label,
                parts=(Part("step", time_ns, colour),),
                spread_ns=job.spread_ns("with" if side == "with" else "without"),
                samples=job.samples("with" if side == "with" else "without"),
            )
            for label, side, time_ns, colour in sides
            if time_ns is not None
        ),
    )


def _job_data(job: JobStory) -> dict[str, Any]:
    return {
        "program": list(job.program),
        "why_not": job.why_not,
        "recording": None if job.recording is None else recording_report(job.recording).data,
        "analysis": None if job.analysis is None else analysis_report(job.analysis).data,
        "tuning": None if job.tuning is None else tuning_report(job.tuning).data,
        "compared": plain(job.compared),
        "comparison": None
        if job.comparison is None
        else {
            **comparison_report(job.comparison).data,
            "without_spread_ms": _milliseconds(job.spread_ns("without")),
            "with_spread_ms": _milliseconds(job.spread_ns("with")),
        },
    }


def _milliseconds(time_ns: float | None) -> float | None:
    return None if time_ns is None else round(time_ns / _MS, 6)


# --- act 2: the GPU ------------------------------------------------------------------------------


def _gpu_act(gpu: GpuStory) -> Section:
    room = room_of(gpu.workload, gpu.device, gpu.plan.controls)
    timelines = [("as it is", gpu.plain.timeline)]
    if gpu.planned is not None:
        timelines.append((f"with {control_set(gpu.plan.controls)}", gpu.planned.timeline))
    refused = Notes(sentences=tuple(f"{control_set((control,))}: {reason}" for control, reason in gpu.refused))
    blocks: list[Block] = [*([room] if room is not None else []), _control_bars(gpu)]
    blocks += [Lines(name="gpu-spans", ranks=compared_tracks(timelines)), refused]
    best = gpu.planned or gpu.plain
    fit = sentences(gpu.room)[0].partition(": ")[2]
    lesson = (
        f"{fit[:1].upper()}{fit[1:]} So the all-reduce waits: overlapped as it is, the layer takes "
        f"{time_text(gpu.plain.t_ns)}, and {time_text(gpu.plain.t_sequential_ns)} in sequence. "
        + (
            f"makeway would set {control_set(gpu.plan.controls)}: {time_text(best.t_ns)}, "
            f"{share_text(best.share_of_ideal)}."
            if gpu.planned is not None
            else "makeway would leave it as it is."
        )
    )
    return _act("gpu", "2. The GPU", blocks, Paragraph(text=lesson, origin="predicted"))


def _control_bars(gpu: GpuStory) -> Bars:
    chosen = gpu.plan.controls
    bars = [time_bar("sequential", gpu.plain.t_sequential_ns, "memory")]
    bars.append(time_bar("overlapped as it is", gpu.plain.t_ns, "compute", share_text(gpu.plain.share_of_ideal)))
    bars += [
        time_bar(
            control_set(controls),
            made.t_ns,
            "overlapped" if controls == chosen else "comm",
            share_text(made.share_of_ideal) + (", the plan" if controls == chosen else ""),
        )
        for controls, made in gpu.controlled
    ]
    return ideal_bars(tuple(bars), gpu.plain.ideal_ns)


def _gpu_data(gpu: GpuStory) -> dict[str, Any]:
    return {
        "device": gpu.device.name,
        "workload": gpu.workload.name,
        "room": list(sentences(gpu.room)),
        "predictions": [prediction_data(made) for made in (gpu.plain, *(made for _, made in gpu.controlled))],
        "refused": [{"control": control_set((control,)), "reason": reason} for control, reason in gpu.refused],
        "plan": plain(gpu.plan.controls),
    }


# --- act 3: the papers ---------------------------------------------------------------------------


def _papers_act(demo: Demo) -> Section:
    blocks: list[Block] = [*map(_error_map, demo.maps)]
    blocks += [_time_map(each, "published") for each in demo.maps]
    blocks += [_time_map(each, "predicted") for each in demo.maps]
    blocks += [_misses(demo), _ladder_table(demo), Paragraph(text=_IN_SIGHT)]
    errors = ", ".join(f"{percent(100 * each.error, '.1f')} on {each.name}" for each in demo.maps)
    worst = max((abs(row.error) for row in demo.ladder), default=0.0)
    lesson = (
        f"makeway's model ran the experiments that others published. Its mean error is {errors} of the sequential "
        f"time (arXiv 2606.09200), and up to {worst:.0f} points of share of ideal (ConCCL). The misses are listed."
    )
    act = _act("papers", "3. The papers", blocks, Paragraph(text=lesson, origin="predicted"))
    return replace(act, lesson_after=len(demo.maps))


_IN_SIGHT = (
    "The model has no number that belongs to one of these devices. But its choices were made with the maps in sight, "
    "and three numbers were fitted to the ladder (docs/model.md): this is calibration, not a blind test."
)


def _error_map(each: DeviceMap) -> HeatMap:
    caption = f"{each.name}: error in % of sequential"
    name, reach = f"map-{each.name.lower()}-error", (-15.0, 15.0)
    return grid_map(name, caption, each.errors, origin="predicted", reach=reach, centre=0.0, digits=0)


def _time_map(each: DeviceMap, whose: Literal["published", "predicted"]) -> HeatMap:
    ours = whose == "predicted"
    values: Mapping[Grid, float] = each.experiment.values("time_ratio") if ours else each.published
    caption = f"{each.name}: overlap / sequential, {'by the model' if ours else 'published'}"
    origin = "predicted" if ours else "imported"
    return grid_map(f"map-{each.name.lower()}-{whose}", caption, values, origin=origin, reach=(0.2, 1.0))


def _misses(demo: Demo) -> Table:
    return Table(
        name="misses",
        caption="How far the maps are off, in % of the sequential time",
        origin="predicted",
        columns=(
            Column("device", "name"),
            Column("mean error", "number"),
            Column("largest", "number"),
            Column("at X x Y"),
            Column(f"cells beyond {_MISS:.0f}", "number"),
        ),
        rows=tuple(_miss_row(each) for each in demo.maps),
    )


def _miss_row(each: DeviceMap) -> tuple[Cell, ...]:
    (x, y), largest = each.largest
    beyond = sum(abs(error) > _MISS for error in each.errors.values())
    return (
        Cell(each.name),
        number(100 * each.error, 1),
        Cell(f"{largest:+.1f}", largest),
        Cell(f"{x} x {y}"),
        Cell(f"{beyond} of {len(each.errors)}", beyond),
    )


def _ladder_table(demo: Demo) -> Table:
    return Table(
        name="ladder",
        caption="ConCCL (arXiv 2412.14335) on MI300X: mean share of ideal of 30 scenarios, in %",
        columns=(
            Column("step", "name"),
            Column("published", "number", "imported"),
            Column("ours", "number", "predicted"),
            Column("error", "number"),
        ),
        rows=tuple(
            (
                Cell(row.case),
                number(row.published, 0),
                number(row.predicted, 0),
                Cell(f"{row.error:+.0f}" + (", a miss" if abs(row.error) > _MISS else ""), row.error),
            )
            for row in demo.ladder
        ),
    )


def _map_data(each: DeviceMap) -> dict[str, Any]:
    (x, y), largest = each.largest
    return {
        "device": each.name,
        "mean_absolute_error": each.error,
        "mean_error_percent": 100 * each.error,
        "largest_error_percent": largest,
        "largest_at": [x, y],
        "beyond": sum(abs(error) > _MISS for error in each.errors.values()),
        "cells": [
            {
                "grid_x": cell.grid[0],
                "grid_y": cell.grid[1],
                "predicted": cell.time_ratio,
                "published": each.published[cell.grid],
                "error_percent": each.errors[cell.grid],
            }
            for cell in each.experiment.cells
        ],
    }


# --- act 4: the cluster --------------------------------------------------------------------------


def _cluster_act(demo: Demo) -> Section:
    curve = demo.cluster
    points = [point for point in curve.points if point.best is not None and point.best.gain is not None]
    shares = [gain_percent(point.best.gain) or 0.0 for point in points if point.best is not None]
    lesson = f"No number of GPUs has a layout of {curve.model} that fits."
    if points:
        exposed = [100 * (point.exposed_share or 0.0) for point in points]
        lesson = (
            f"{curve.model} on {curve.cluster}, from {points[0].gpus:,} to {points[-1].gpus:,} GPUs with the fastest "
            f"layout at each: {min(exposed):.0f} to {max(exposed):.0f} % of the step is exposed communication, and the "
            f"best controls take off {min(shares):.1f} to {max(shares):.1f} % of the step."
        )
    return _act(
        "cluster", "4. The cluster", [throughput(curve), gains(curve)], Paragraph(text=lesson, origin="predicted")
    )


def _act(name: str, title: str, blocks: list[Block], lesson: Paragraph) -> Section:
    return Section(name=name, title=title, blocks=tuple(blocks), lesson=lesson, detail=True)
