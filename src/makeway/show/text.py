"""A report as text for a terminal: the verdict first, nothing wider than asked, details only where they are wanted."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import assert_never

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from makeway.show.blocks import Bar, Bars, Block, Cell, Column, Facts, HeatMap, Lines, Notes, Report, Room, Table, Words
from makeway.show.numbers import ms_text
from makeway.show.sm_picture import legend, sm_picture
from makeway.values.errors import printable

_BAR = 24  # characters of the longest bar
_LEAST_WIDE = 24  # characters that prose in a table needs


def text(report: Report, *, width: int = 80, verbose: bool = False, colour: bool = False) -> str:
    """The report in lines of at most `width` characters."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for item in _rendered(report, width, verbose=verbose):
        console.print(item)
    lines = file.getvalue().replace("\N{NO-BREAK SPACE}", " ").splitlines()  # has served to keep units with numbers
    return "".join(line.rstrip() + "\n" for line in lines)


def _text(words: str, style: str = "") -> Text:
    """Words as a terminal may have them: names come from outside."""
    return Text(printable(words), style=style)


def _rendered(report: Report, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    origin = f" ({report.headline.origin})"
    yield _text(_sentence(report.headline.sentence) + origin + ".", style="bold")
    for words in report.lead:
        yield _words(words)
    for section in report.sections:
        if section.detail and not verbose:
            continue
        for block in section.blocks:
            items = tuple(_block(block, width, verbose=verbose))
            if items:
                yield Text("")
                yield from items


def _sentence(words: str) -> str:
    return words.removesuffix(".")


def _block(block: Block, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    match block:
        case Words():
            yield _words(block)
        case Notes(sentences=sentences):
            if sentences:
                yield Text("\n").join(_item(sentence) for sentence in sentences)
        case Facts(pairs=pairs):
            yield Text("\n").join(_text(f"{term}: {value}") for term, value in pairs)
        case Table():
            yield from _table(block, width, verbose=verbose)
        case Bars():
            yield from _bars(block, verbose=verbose)
        case HeatMap():
            yield from _heat(block)
        case Lines():
            return  # drawn on the page only
        case Room():
            for held in block.held:
                full = " (full)" if held == max(block.held) else ""
                yield _text(f"one SM of {block.device} holding {held} compute block{'' if held == 1 else 's'}{full}")
                yield sm_picture(block.sm, block.compute, held, block.comm)
            if block.held:
                yield legend()
        case _:
            assert_never(block)


def _words(words: Words) -> Text:
    origin = f" ({words.origin})" if words.origin else ""
    return _text(words.text + origin)


def _item(sentence: str) -> Text:
    return _text(f"- {sentence}")


# --- tables --------------------------------------------------------------------------------------


def _table(table: Table, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    if not table.rows:
        yield _text(table.nothing, style="bright_black")
        return
    origin = f" ({table.origin})" if table.origin else ""
    yield _text(_sentence(table.caption) + origin + ":", style="bright_black")
    rows = table.rows if verbose or len(table.rows) <= table.brief_rows else table.rows[: table.brief_rows]
    columns, left_out = _fitting(table, rows, width, verbose=verbose)
    grid = Grid(box=None, pad_edge=False, show_edge=False)
    for index in columns:
        column = table.columns[index]
        number = column.style == "number"
        grid.add_column(
            _text(column.title), justify="right" if number else "left", no_wrap=number, overflow="fold", ratio=None
        )
    for row in rows:
        grid.add_row(*(_text(row[index].words) for index in columns))
    yield Padding(grid, (0, 0, 0, 0), expand=False)
    more = []
    if len(rows) < len(table.rows):
        more.append(f"{len(table.rows) - len(rows):,} more rows")
    if left_out:
        more.append(f"{', '.join(column.title for column in left_out)} not shown")
    if more:
        yield _text(f"({'; '.join(more)}: --verbose, --width, --json or --html)", style="bright_black")


def _fitting(
    table: Table, rows: Sequence[Sequence[Cell]], width: int, *, verbose: bool
) -> tuple[list[int], list[Column]]:
    """Indices of the columns that fit side by side, and the columns that would but for the width."""
    wanted = [index for index, column in enumerate(table.columns) if verbose or column.brief]
    kept: list[int] = []
    used = 0
    for index in wanted:
        column = table.columns[index]
        longest = max([len(column.title), *(len(printable(row[index].words)) for row in rows)])
        least = min(longest, _LEAST_WIDE) if column.style in ("wide", "name") else longest
        if used + least > width and kept:
            continue
        kept.append(index)
        used += least + 2
    return kept, [table.columns[index] for index in wanted if index not in kept]


# --- charts --------------------------------------------------------------------------------------


def _bars(bars: Bars, *, verbose: bool) -> Iterator[RenderableType]:
    origin = f" ({bars.origin})" if bars.origin else ""
    yield _text(_sentence(bars.caption) + origin + ":", style="bright_black")
    longest = max((bar.time_ns for bar in bars.bars), default=0.0) or 1.0
    grid = Grid.grid(padding=(0, 2, 0, 0))
    for wraps in (True, False, False, True):
        grid.add_column(no_wrap=not wraps, overflow="fold")
    for bar in bars.bars:
        drawn = "█" * max(round(_BAR * bar.time_ns / longest), 1)
        grid.add_row(_text(bar.label), _milliseconds(bar.time_ns), drawn, _text(_bar_note(bar, verbose=verbose)))
    if bars.mark_ns is not None:
        grid.add_row(_text(bars.mark), _milliseconds(bars.mark_ns), "", "")
    yield grid


def _milliseconds(time_ns: float) -> Text:
    return Text(ms_text(time_ns), justify="right")


def _bar_note(bar: Bar, *, verbose: bool) -> str:
    notes = [] if bar.spread_ns is None else [f"IQR {ms_text(bar.spread_ns)}, n = {bar.samples}"]
    if bar.note:
        notes.append(bar.note)
    if verbose and len(bar.parts) > 1:
        notes += [f"{part.name} {ms_text(part.time_ns)}" for part in bar.parts]
    return "; ".join(notes)


def _heat(heat: HeatMap) -> Iterator[RenderableType]:
    origin = f" ({heat.origin})" if heat.origin else ""
    yield _text(_sentence(heat.caption) + origin + ":", style="bright_black")
    grid = Grid(box=None, pad_edge=False, show_edge=False)
    grid.add_column(_text(f"{heat.row_title} \\ {heat.column_title}"), justify="right")
    for column in heat.columns:
        grid.add_column(_text(column), justify="right", no_wrap=True)
    for title, values in zip(heat.rows, heat.values, strict=True):
        cells = (Text("–" if value is None else f"{value:.{heat.digits}f}") for value in values)
        grid.add_row(_text(title), *cells)
    yield grid
