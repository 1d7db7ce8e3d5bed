"""A tuned job as a report: the plan it ended with, what was tried, and what exploration cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from makeway.act.launch.tuned import RunTuning, Tried
from makeway.show.blocks import Cell, Column, Headline, Paragraph, Report, Section, Table
from makeway.show.data import plain, record
from makeway.show.numbers import count, number, percent
from makeway.show.run import end_text, measured_in_job, outcome_data, outcome_table
from makeway.values.control import Control, control_word

AS_IS = "as it is"
GIVES_MORE = "A longer job, its length (--job-steps) or a larger share (--tune-share) gives them more."
UNFINISHED = (
    "No candidate ran long enough to be compared: the job ended first, or trials had used up what they may cost. "
    f"{GIVES_MORE}"
)
TOO_SHORT = (
    "Nothing was tried: the job ended first, or the start and the trials together would have cost more than they may. "
    f"{GIVES_MORE}"
)


def report(result: RunTuning, *, arguments: str = "") -> Report:
    """The plan with its gain, its receipts, and every decision."""
    return Report(
        result="run-tuning",
        over="makeway run --tune",
        headline=_headline(result),
        lead=(_lead(result),),
        sections=(
            Section(name="controls", title="Controls", blocks=(outcome_table(result.controls),)),
            Section(name="tried", title="Tried", blocks=(decisions(result), *not_tried(result))),
            *_losses(result),
            measured_in_job(result.program, result.notes, arguments),
        ),
        data=_data(result),
        notes=result.notes,
        arguments=arguments,
    )


def log_lines(result: RunTuning) -> str:
    """What was tried as JSON lines, in the order of the job."""
    return "".join(f"{json.dumps(_tried_data(item))}\n" for item in result.tried)


def _headline(result: RunTuning) -> Headline:
    end = end_text(result.exit_code, result.killed_by)
    if result.plan and result.difference_pct is not None:
        sentence = (
            f"ended with {control_set(result.plan)}, {percent(abs(result.difference_pct), '.1f')} faster per step when "
            "adopted"
        )
    elif result.explored_steps:
        sentence = "left as it is: no difference shown by any candidate"
    else:
        sentence = "left as it is: nothing was tried"
    return Headline(
        sentence=f"makeway run: {end}; {sentence}", origin="measured", value=result.difference_pct, unit="%"
    )


def _lead(result: RunTuning) -> Paragraph:
    parts = []
    if result.problem is not None:
        parts.append(f"{result.problem[:1].upper()}{result.problem[1:]}.")
    if result.interval_pct is not None:
        low, high = result.interval_pct
        parts.append(f"The interval of that difference is {percent(low, '+.1f')} to {percent(high, '+.1f')}.")
    if result.explored_share is not None:
        parts.append(
            f"Candidates got {count(result.explored_steps, 'step')} of {result.steps:,}, "
            f"{percent(100 * result.explored_share, '.1f')} (limit {percent(100 * result.share_limit, '.1f')})"
            f"{_cost(result)}."
        )
    if result.start_s is not None:
        parts.append(f"Before the first step, {result.start_s:.2f} s went to tuning.")
    return Paragraph(text=" ".join(parts) or "Nothing was measured.", origin="measured")


def _cost(result: RunTuning) -> str:
    """What trials took beyond the controls in force; candidates that are faster make up for it."""
    if result.lost_share is None or result.lost_limit is None:
        return ""
    if result.lost_share < 0:
        return f", and saved {percent(-100 * result.lost_share, '.1f')} of the time"
    limit = percent(100 * result.lost_limit, ".1f")
    return f", and cost {percent(100 * result.lost_share, '.1f')} of the time (trials end beyond {limit})"


def decisions(result: RunTuning) -> Table:
    """Every decision, in the order of the job."""
    columns = ("step", "number"), ("controls", "name"), ("result", ""), ("rounds", "number"), ("change %", "number")
    return Table(
        name="decisions",
        caption="What was tried, against the controls in force at that step",
        origin="measured",
        columns=(
            *(Column(title, style) for title, style in columns),  # type: ignore[arg-type]
            Column("from", "number", hint="of the interval", brief=False),
            Column("to", "number", brief=False),
        ),
        rows=tuple(_row(item) for item in result.tried),
        nothing=_nothing_shown(result),
        brief_rows=20,
    )


def _nothing_shown(result: RunTuning) -> str:
    """Why there is no decision."""
    if result.explored_steps:
        return UNFINISHED
    could_try = result.problem is None and len(result.refused) < len(result.candidates)
    return TOO_SHORT if could_try else "Nothing was tried."


def not_tried(result: RunTuning) -> tuple[Table, ...]:
    """The candidates that this job could not have."""
    if not result.refused:
        return ()
    table = Table(
        name="not-tried",
        caption="Not tried in this job",
        columns=(Column("controls", "name"), Column("reason", "wide")),
        rows=tuple((Cell(control_set(item.controls)), Cell(item.reason)) for item in result.refused),
    )
    return (table,)


def _row(item: Tried) -> tuple[Cell, ...]:
    low, high = item.interval_pct or (None, None)
    return (
        number(item.step, 0),
        Cell(control_set(item.controls)),
        Cell(item.what),
        number(item.rounds, 0),
        *(Cell("–") if part is None else Cell(f"{part:+.1f}", part) for part in (item.difference_pct, low, high)),
    )


def _losses(result: RunTuning) -> tuple[Section, ...]:
    """What lossy candidates did to the loss; nothing where none were allowed."""
    if not result.allow_lossy:
        return ()
    titles = ("pairs", "without", "with", "difference", "least", "largest")
    table = Table(
        name="losses",
        caption="The loss beside lossy controls, in pairs of blocks of steps on different batches",
        origin="measured",
        columns=(Column("controls", "name"), *(Column(title, "number", brief=title != "pairs") for title in titles)),
        rows=tuple(
            (
                Cell(control_set(item.controls)),
                number(item.pairs, 0),
                *(Cell(f"{value:.6g}", value) for value in (item.loss_without, item.loss_with)),
                *(Cell(f"{value:+.3g}", value) for value in (item.difference, *item.spread)),
            )
            for item in result.losses
        ),
        nothing="No lossy control was tried beside a lossless one, or the program has no loss that makeway sees.",
    )
    text = Paragraph(text="Blocks are short: they do not show what compression does to the loss in the long run.")
    return (Section(name="loss", title="Loss", blocks=(table, text)),)


def control_set(controls: Sequence[Control]) -> str:
    """A set of controls in one word."""
    return "+".join(map(control_word, controls)) or AS_IS


def _tried_data(item: Tried) -> dict[str, Any]:
    return record(item)


def _data(result: RunTuning) -> dict[str, Any]:
    return record(result, without=("controls", "tried", "notes", "plan", "platform")) | {
        "verdict": result.verdict,
        "plan": plain(result.plan),
        "tried": [_tried_data(item) for item in result.tried],
        "receipts": outcome_data(result.controls),
    }
