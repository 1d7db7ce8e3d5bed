"""A recording as a report: the files of the ranks, what the profiler cost, and what to type next."""

from __future__ import annotations

import shlex

from makeway.act.launch.record import Recording
from makeway.show.blocks import Cell, Column, Headline, Paragraph, Report, Section, Table
from makeway.show.data import record
from makeway.show.numbers import count, number, percent, time_text
from makeway.show.provenance import provenance
from makeway.show.run import end_text

_MS = 1e6


def report(result: Recording, *, arguments: str = "") -> Report:
    """What was recorded, or why nothing was."""
    return Report(
        result="recording",
        over="makeway record",
        headline=_headline(result),
        lead=tuple(_lead(result)),
        sections=(
            Section(name="files", title="Recordings", blocks=(_files(result),)),
            provenance(
                arguments, numbers="measured", facts=(("program", shlex.join(result.program)),), notes=result.notes
            ),
        ),
        data=record(result, without=("notes",)),
        notes=result.notes,
        arguments=arguments,
    )


def _headline(result: Recording) -> Headline:
    end = end_text(result.exit_code, result.killed_by)
    if result.problem is not None:
        return Headline(sentence=f"makeway record: {end}; nothing recorded: {result.problem}", origin="measured")
    steps = min(rank.steps for rank in result.recorded)
    return Headline(
        sentence=f"makeway record: {end}; {count(steps, 'step')} of {count(len(result.recorded), 'rank')} recorded",
        origin="measured",
        value=float(steps),
        unit="steps",
    )


def _lead(result: Recording) -> list[Paragraph]:
    if result.problem is not None:
        return []
    overhead = "No step was timed without the profiler."
    plain, profiled = result.plain_step_ns, result.profiled_step_ns
    if result.overhead_pct is not None and plain is not None and profiled is not None:
        of_ranks = " (medians over the ranks)" if len(result.recorded) > 1 else ""
        overhead = (
            f"Under the profiler the step time changes by {percent(result.overhead_pct, '+.1f')}: from "
            f"{time_text(plain)} to {time_text(profiled)}{of_ranks}."
        )
    return [Paragraph(text=overhead, origin="measured", command=f"makeway analyze {shlex.quote(result.directory)}")]


def _files(result: Recording) -> Table:
    return Table(
        name="ranks",
        caption="One file per rank; step times are medians",
        origin="measured",
        columns=(
            Column("rank", "number"),
            Column("steps", "number"),
            Column("step ms", "number", hint="without the profiler, just before"),
            Column("profiled ms", "number"),
            Column("file", "name"),
            Column("problem", "wide", brief=any(rank.problem for rank in result.ranks)),
        ),
        rows=tuple(
            (
                number(rank.rank, 0),
                number(rank.steps, 0),
                number(rank.plain_step_ns, scale=_MS),
                number(rank.profiled_step_ns, scale=_MS),
                Cell(rank.file or "–"),
                Cell(rank.problem or ""),
            )
            for rank in result.ranks
        ),
        nothing="No rank was seen.",
        brief_rows=8,
    )
