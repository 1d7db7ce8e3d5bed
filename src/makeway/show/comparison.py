"""A comparison of two recordings as a report: the verdict, where the step changed, and which kernels did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from makeway.decide.analysis.compare import Change, Comparison, Side
from makeway.decide.analysis.names import short_name
from makeway.show.blocks import Cell, Column, Headline, Paragraph, Report, Section, Table
from makeway.show.data import milliseconds, record
from makeway.show.numbers import number, percent, time_text
from makeway.show.provenance import provenance

_MS = 1e6


def report(result: Comparison, *, arguments: str = "") -> Report:
    """The verdict, the sides, the step's ledger, and what changed."""
    return Report(
        result="comparison",
        over="makeway compare",
        headline=_headline(result),
        lead=(_lead(result),),
        sections=(
            Section(name="sides", title="Recordings", blocks=(_sides(result),)),
            Section(name="ledger", title="Where the step changed", blocks=(_lines(result),)),
            Section(
                name="changed-kernels",
                title=result.wording.kernels.capitalize(),
                blocks=(_changes("kernels", result.kernels, result),),
            ),
            Section(
                name="changed-collectives",
                title="Collectives",
                blocks=(_changes("collectives", result.collectives, result),),
            ),
            provenance(
                arguments,
                numbers=_origin(result),
                facts=(("before", result.before.path), ("after", result.after.path)),
                notes=(*result.notes, "What each number means: makeway's docs/numbers.md."),
            ),
        ),
        data=_data(result),
        notes=result.notes,
        arguments=arguments,
    )


def _origin(result: Comparison) -> str:
    return " and ".join(sorted({result.before.origin, result.after.origin}))


def _headline(result: Comparison) -> Headline:
    times = f"{time_text(result.before.step_ns)} before, {time_text(result.after.step_ns)} after"
    match result.verdict:
        case "no difference shown":
            sentence = f"No difference shown: a step takes {times}"
        case verdict:
            size = percent(abs(result.difference_pct), ".1f")
            sentence = f"A step is {size} {verdict}: {times}"
    return Headline(sentence=sentence, origin=_origin(result), value=result.difference_pct, unit="%")


def _lead(result: Comparison) -> Paragraph:
    if result.interval_pct is None:
        text = f"There is no interval: {result.no_interval}."
    else:
        low, high = result.interval_pct
        text = (
            f"The step time changes by {percent(result.difference_pct, '+.1f')}, with a "
            f"{percent(result.level_pct)} interval of {percent(low, '+.1f')} to {percent(high, '+.1f')}."
        )
    if result.limit is not None:
        text += f" The limit ({result.limit}) {'is missed' if result.missed else 'is kept'}."
    return Paragraph(text=text, origin=_origin(result))


def _sides(result: Comparison) -> Table:
    def row(name: str, side: Side) -> tuple[Cell, ...]:
        return (
            Cell(name),
            number(side.step_ns, scale=_MS),
            number(side.spread_ns, scale=_MS),
            number(side.steps, 0),
            number(side.ranks, 0),
            number(side.runs, 0),
            Cell(", ".join(side.devices) or "not recorded"),
        )

    return Table(
        name="recordings",
        caption="The two sides; a step's time is the median over its ranks",
        origin=_origin(result),
        columns=(
            Column("side"),
            Column("step ms", "number", hint="median over the steps"),
            Column("spread ms", "number", hint="interquartile range over the steps"),
            Column("steps", "number"),
            Column("ranks", "number"),
            Column("runs", "number"),
            Column("device", "name"),
        ),
        rows=(row("before", result.before), row("after", result.after)),
    )


_CHANGE_COLUMNS = (
    Column("before ms", "number", hint="median over the steps, mean over the ranks"),
    Column("after ms", "number"),
    Column("change ms", "number"),
    Column("from ms", "number", hint="the interval of the change"),
    Column("to ms", "number"),
)


def _change_cells(change: Change) -> tuple[Cell, ...]:
    low, high = change.interval_ns or (None, None)
    return tuple(
        number(value, scale=_MS) for value in (change.before_ns, change.after_ns, change.difference_ns, low, high)
    )


def _spread_cells(change: Change) -> tuple[Cell, ...]:
    return tuple(number(value, scale=_MS) for value in (change.before_spread_ns, change.after_spread_ns))


_SPREAD_COLUMNS = (
    Column("before spread ms", "number", hint="interquartile range over the steps", brief=False),
    Column("after spread ms", "number", brief=False),
)


def _lines(result: Comparison) -> Table:
    return Table(
        name="lines",
        caption="A step's time, line by line; a clear change has an interval without 0",
        origin=_origin(result),
        columns=(Column("line", "name"), *_CHANGE_COLUMNS, Column("clear"), *_SPREAD_COLUMNS),
        rows=tuple(
            (Cell(line.name), *_change_cells(line), Cell("yes" if line.clear else "no"), *_spread_cells(line))
            for line in result.lines
        ),
        brief_rows=12,
    )


def _changes(name: str, changes: Sequence[Change], result: Comparison) -> Table:
    named = result.wording.kernels if name == "kernels" else name
    return Table(
        name=name,
        caption=f"{named.capitalize()} that changed clearly, per step and rank; the largest change first",
        origin=_origin(result),
        columns=(
            Column("name", "name"),
            *((Column("bytes", "number", brief=False),) if name == "collectives" else ()),
            *_CHANGE_COLUMNS,
            Column(result.wording.launches, hint="in a step of one rank, before and after"),
            *_SPREAD_COLUMNS,
        ),
        rows=tuple(
            (
                Cell(short_name(change.name), hint=change.name),
                *((number(change.size_bytes, 0),) if name == "collectives" else ()),
                *_change_cells(change),
                Cell(_launches(change)),
                *_spread_cells(change),
            )
            for change in changes
        ),
        nothing=f"No change is shown of any of the {named}.",
        filtered=len(changes) > 20,
    )


def _launches(change: Change) -> str:
    before, after = change.before_count or 0.0, change.after_count or 0.0
    return f"{before:g}" if before == after else f"{before:g}, {after:g}"


def _data(result: Comparison) -> dict[str, Any]:
    document = record(result, without=("limit", "missed", "lines", "kernels", "collectives", "notes"))
    return document | {
        "lines": [_change_data(change) for change in result.lines],
        "kernels": [_change_data(change) for change in result.kernels],
        "collectives": [_change_data(change) for change in result.collectives],
        "fail_if": None if result.limit is None else {"limit": str(result.limit), "missed": result.missed},
    }


def _change_data(change: Change) -> dict[str, Any]:
    interval = None if change.interval_ns is None else [milliseconds(edge) for edge in change.interval_ns]
    return record(change, without=("interval_ns",)) | {"interval_ms": interval}
