"""Steps of a job with a plan against steps without it as a report: verdict, receipts, and the series of blocks."""

from __future__ import annotations

from typing import Any

from makeway.act.launch.compare_run import RunComparison, StepBlock
from makeway.show.blocks import Bar, Bars, Headline, Paragraph, Part, Report, Section
from makeway.show.data import milliseconds, record
from makeway.show.numbers import count, percent, time_text
from makeway.show.run import end_text, measured_in_job, outcome_data, outcome_table

_COLOURS = {"without": "memory", "with": "compute"}


def report(result: RunComparison, *, arguments: str = "") -> Report:
    """The verdict with its interval, what became of the controls, and every block."""
    return Report(
        result="run-comparison",
        over="makeway run --compare",
        headline=_headline(result),
        lead=(_lead(result),),
        sections=(
            Section(name="series", title="Steps", blocks=(_series(result),), detail=True),
            Section(name="controls", title="Controls", blocks=(outcome_table(result.controls),)),
            measured_in_job(result.program, result.notes, arguments),
        ),
        data=_data(result),
        notes=result.notes,
        arguments=arguments,
    )


def _headline(result: RunComparison) -> Headline:
    end = end_text(result.exit_code, result.killed_by)
    before, after = result.without_step_ns, result.with_step_ns
    times = f": {time_text(before)} without it, {time_text(after)} with it" if before and after else ""
    if result.verdict == "no difference shown" or result.difference_pct is None:
        sentence = f"no difference shown after {count(result.steps, 'step')}{times}"
    else:
        sentence = f"a step is {percent(abs(result.difference_pct), '.1f')} {result.verdict} with the plan{times}"
    return Headline(
        sentence=f"makeway run: {end}; {sentence}", origin="measured", value=result.difference_pct, unit="%"
    )


def _lead(result: RunComparison) -> Paragraph:
    parts = []
    if result.problem is not None:
        parts.append(f"{result.problem[:1].upper()}{result.problem[1:]}.")
    if result.interval_pct is not None and result.difference_pct is not None and result.level_pct is not None:
        low, high = result.interval_pct
        parts.append(
            f"With the plan the step time changes by {percent(result.difference_pct, '+.1f')}, with a "
            f"{percent(result.level_pct, '.5g')} interval of {percent(low, '+.1f')} to {percent(high, '+.1f')}, over "
            f"{count(result.pairs, 'pair')} of {result.by}."
        )
    if result.noise_pct is not None:
        parts.append(f"Without the plan {result.by} differ by {percent(result.noise_pct, '.1f')} among themselves.")
    if result.left is not None:
        parts.append(f"The rest of the job ran {result.left} the plan.")
    if result.limit is not None:
        kept = "was not checked" if result.unchecked else "is missed" if result.missed else "is kept"
        parts.append(f"The limit ({result.limit}) {kept}.")
    return Paragraph(text=" ".join(parts) or "Nothing was measured.", origin="measured")


def _series(result: RunComparison) -> Bars:
    def bar(block: StepBlock) -> Bar:
        part = Part(block.side, block.step_ns, _COLOURS[block.side])
        note = "check of noise" if block.noise else ""
        label = f"{block.number + 1} {block.side}"
        reach = (float(min(block.times_ns)), float(max(block.times_ns))) if block.spread_ns is not None else None
        return Bar(label=label, parts=(part,), reach_ns=reach, samples=len(block.times_ns), note=note)

    return Bars(
        name="step-times",
        caption=f"Median step time of the {result.by}, from the least to the longest, in the order in which they ran",
        bars=tuple(map(bar, result.blocks)),
        origin="measured",
        mark_ns=result.without_step_ns,
        mark="without the plan",
    )


def _data(result: RunComparison) -> dict[str, Any]:
    return record(result, without=("limit", "missed", "blocks", "controls", "notes")) | {
        "blocks": [
            record(block, without=("times_ns",)) | {"times_ms": [milliseconds(time) for time in block.times_ns]}
            for block in result.blocks
        ],
        "receipts": outcome_data(result.controls),
        "fail_if": None if result.limit is None else {"limit": str(result.limit), "missed": result.missed},
    }
