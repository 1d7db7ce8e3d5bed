"""A report as text for a terminal: the verdict first, nothing wider than asked, details only where they are wanted."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from rich.console import Console, RenderableType
from rich.constrain import Constrain
from rich.table import Table as Grid
from rich.text import Text

from makeway.show.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Column,
    Curves,
    Facts,
    HeatMap,
    Lines,
    Notes,
    Paragraph,
    Report,
    Room,
    Table,
    Unit,
)
from makeway.show.numbers import count
from makeway.show.sm_picture import legend, sm_picture
from makeway.values.errors import printable

_MOST_ACROSS = 3  # curves as columns
_LONGEST_LINE = 100  # of prose, however wide the terminal
_GAP = 2  # characters between columns
_BAR = 24  # characters of the longest bar
_LEAST_WIDE = {"wide": 20, "name": 24}  # characters that prose and names in a table need, if they have as many
_NO_BREAK, _HELD = "\N{NO-BREAK SPACE}", "\ue000"  # rich breaks lines at the former
_MARKER = re.compile(r" *(?:\d+\. +)?")  # before the text of an item: later lines are indented as far


def text(report: Report, *, width: int = 80, verbose: bool = False, colour: bool = False) -> str:
    """The report in lines of at most `width` characters, except for a command to type next.

    The first line says where its numbers come from; a block repeats that only where it differs.
    """
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
    for item in _rendered(report, _Options(width, verbose, report.headline.origin)):
        if isinstance(item, Text):
            console.print(item, soft_wrap=bool(item.no_wrap), width=None if item.no_wrap else min(width, _LONGEST_LINE))
        else:
            console.print(item)
    return "".join(line.rstrip() + "\n" for line in file.getvalue().replace(_HELD, " ").splitlines())


def _safe(text: str) -> str:
    """A text from outside as a terminal may have it; no line breaks between a number and its unit."""
    return printable(text).replace(_NO_BREAK, _HELD)


def _text(text: str, style: str = "") -> Text:
    return Text(_safe(text), style=style)


@dataclass(frozen=True, slots=True)
class _Options:
    width: int
    verbose: bool
    origin: str  # of the headline: blocks say theirs where it differs


def _rendered(report: Report, options: _Options) -> Iterator[RenderableType]:
    yield Text(f"{_sentence(report.headline.sentence)} ({options.origin}).", style="bold")
    for words in report.lead:
        yield from _paragraph(words, options)
    for section in report.sections:
        if section.lesson is not None:
            yield Text("")
            lesson = section.lesson
            yield from _paragraph(replace(lesson, text=f"{section.title}: {lesson.text}"), options)
        if section.detail and not options.verbose:
            continue
        for block in section.blocks:
            items = tuple(_block(block, options))
            if items:
                yield Text("")
                yield from items


def _sentence(words: str) -> str:
    return _safe(words.removesuffix("."))


def _block(block: Block, options: _Options) -> Iterator[RenderableType]:
    match block:
        case Paragraph():
            yield from _paragraph(block, options)
        case Notes(sentences=sentences):
            for sentence in sentences:
                yield _indented("- ", sentence)
        case Facts(pairs=pairs):
            grid = _hanging()
            for term, value in pairs:
                grid.add_row(_text(f"{term}: "), Text("\n".join(map(_safe, value.splitlines()))))
            yield grid
        case Table():
            yield from _table(block, options)
        case Bars():
            yield from _bars(block, options)
        case HeatMap():
            yield from _heat(block, options)
        case Curves():
            yield from _curves(block, options)
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


def _paragraph(paragraph: Paragraph, options: _Options) -> Iterator[RenderableType]:
    marker = _MARKER.match(paragraph.text)
    assert marker is not None
    before, sentence = marker.group(), paragraph.text[marker.end() :]
    if paragraph.origin and paragraph.origin != options.origin:
        sentence = f"{sentence.removesuffix('.')} ({paragraph.origin}){'.' if sentence.endswith('.') else ''}"
    yield _indented(before, sentence) if before else _text(sentence)
    if paragraph.command:  # a terminal folds a long line itself, and copies it in one piece
        yield Text(_safe(f"Next: {paragraph.command}"), no_wrap=True, overflow="ignore")


def _indented(marker: str, sentence: str) -> RenderableType:
    """A marker and a sentence whose later lines start below its first."""
    grid = _hanging()
    grid.add_row(Text(marker), _text(sentence))
    return Constrain(grid, _LONGEST_LINE)


def _hanging() -> Grid:
    grid = Grid.grid()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _caption(words: str, origin: str | None, options: _Options) -> Text:
    different = f" ({origin})" if origin and origin != options.origin else ""
    return Text(f"{_sentence(words)}{different}:", style="bright_black")


# --- tables --------------------------------------------------------------------------------------


def _table(table: Table, options: _Options) -> Iterator[RenderableType]:
    if not table.rows:
        yield _text(table.nothing, style="bright_black")
        return
    yield _caption(table.caption, table.origin, options)
    rows = table.rows if options.verbose else table.rows[: table.brief_rows]
    widths, left_out = _fitting(table, rows, options)
    grid = Grid(box=None, padding=0)
    for place, (index, width) in enumerate(widths.items()):
        if place:
            grid.add_column(width=_GAP)
        justify: Literal["left", "right"] = "right" if table.columns[index].style == "number" else "left"
        grid.add_column(Text(table.columns[index].title), justify=justify, overflow="fold", width=width)
    for row in rows:
        cells = [_text(row[index].text) for index in widths]
        grid.add_row(*[part for cell in cells for part in ("", cell)][1:])
    yield grid
    more = []
    if len(rows) < len(table.rows):
        more.append(count(len(table.rows) - len(rows), "more row"))
    if left_out:
        more.append(f"{', '.join(column.title for column in left_out)} not shown")
    if more:
        yield _text(f"({'; '.join(more)}: --verbose, --width, --json or --html)", style="bright_black")


def _fitting(table: Table, rows: Sequence[Sequence[Cell]], options: _Options) -> tuple[dict[int, int], list[Column]]:
    """The columns that fit side by side, with the width of each, and those that would but for the width.

    A column without a single entry is shown only with --verbose.
    """
    wanted = [
        index
        for index, column in enumerate(table.columns)
        if options.verbose or (column.brief and any(row[index].text not in ("", "–") for row in rows))
    ]
    longest = {
        index: max([len(table.columns[index].title), *(len(_safe(row[index].text)) for row in rows)])
        for index in wanted
    }
    widths: dict[int, int] = {}
    free = options.width
    for index in wanted:
        least = min(longest[index], _LEAST_WIDE.get(table.columns[index].style, longest[index]))
        if least <= free or not widths:
            widths[index] = min(least, free)
            free -= least + _GAP
    left_out = [table.columns[index] for index in wanted if index not in widths]
    return _widened(widths, longest, free + _GAP), left_out


def _widened(widths: dict[int, int], longest: dict[int, int], free: int) -> dict[int, int]:
    """The widths with `free` characters more, one each in turn, for columns that have longer entries."""
    while free > 0 and (short := [index for index in widths if widths[index] < longest[index]]):
        for index in short[:free]:
            widths[index] += 1
        free -= len(short)
    return widths


# --- charts --------------------------------------------------------------------------------------


def _bars(bars: Bars, options: _Options) -> Iterator[RenderableType]:
    yield _caption(bars.caption, bars.origin, options)
    longest = max((bar.amount for bar in bars.bars), default=0.0) or 1.0
    grid = Grid.grid(padding=(0, 2, 0, 0))
    for wraps in (True, False, False, True):
        grid.add_column(no_wrap=not wraps, overflow="fold")
    for bar in bars.bars:
        drawn = "█" * max(round(_BAR * bar.amount / longest), 1)
        note = _bar_note(bar, bars.unit, verbose=options.verbose)
        grid.add_row(_safe(bar.label), _amount(bars.unit, bar.amount), drawn, _safe(note))
    if bars.mark_ns is not None:
        grid.add_row(_text(bars.mark), _amount(bars.unit, bars.mark_ns), "", "")
    yield grid


def _amount(unit: Unit, amount: float) -> Text:
    return Text(unit.text(amount), justify="right")


def _bar_note(bar: Bar, unit: Unit, *, verbose: bool) -> str:
    spread = bar.spread_text(unit)
    notes = [] if spread is None else [spread]
    if bar.note:
        notes.append(bar.note)
    if verbose and len(bar.parts) > 1:
        notes += [f"{part.name} {unit.text(part.amount)}" for part in bar.parts]
    return "; ".join(notes)


def _heat(heat: HeatMap, options: _Options) -> Iterator[RenderableType]:
    yield _caption(heat.caption, heat.origin, options)
    grid = Grid(box=None, pad_edge=False, show_edge=False)
    grid.add_column(_text(f"{heat.row_title} \\ {heat.column_title}"), justify="right")
    for column in heat.columns:
        grid.add_column(_text(column), justify="right", no_wrap=True)
    for title, values in zip(heat.rows, heat.values, strict=True):
        cells = (Text("–" if value is None else f"{value:z.{heat.digits}f}") for value in values)
        grid.add_row(_text(title), *cells)
    yield grid


def _curves(curves: Curves, options: _Options) -> Iterator[RenderableType]:
    """A column for each of a few curves, a row for each of many; they are drawn on the page."""
    yield _caption(curves.caption, curves.origin, options)
    labels, places = [curve.label for curve in curves.curves], [f"{place:,}" for place in curves.places]
    cells = [
        ["–" if value is None else f"{value:,.{curves.digits}f}" for value in curve.values] for curve in curves.curves
    ]
    down = len(labels) <= _MOST_ACROSS
    heads, titles, rows = (labels, places, list(zip(*cells, strict=True))) if down else (places, labels, cells)
    for first, last in _side_by_side(heads, titles, rows, options.width) if not down else ((0, len(heads)),):
        grid = Grid(box=None, pad_edge=False, show_edge=False)
        grid.add_column(_text(curves.place_title), justify="right" if down else "left", overflow="fold")
        for head in heads[first:last]:
            grid.add_column(_text(head), justify="right", no_wrap=not down, overflow="fold")
        for title, row in zip(titles, rows, strict=True):
            grid.add_row(_text(title), *row[first:last])
        yield grid


def _side_by_side(
    heads: Sequence[str], titles: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> Iterator[tuple[int, int]]:
    """Which columns stand beside the titles in one table: as many as fit, then the next."""
    widths = [max(len(head), *(len(row[place]) for row in rows)) + _GAP for place, head in enumerate(heads)]
    free = width - min(max(map(len, titles)), _LEAST_WIDE["name"])
    first, taken = 0, 0
    for place, wide in enumerate(widths):
        if taken + wide > free and place > first:
            yield first, place
            first, taken = place, 0
        taken += wide
    yield first, len(heads)
