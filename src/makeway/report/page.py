"""Pages of one file each: the shell, tables that sort and filter, and bars. Nothing is fetched from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import NewType

from makeway.timeline import Origin

Html = NewType("Html", str)  # markup that is safe as it is; all else goes through `text`

# The page may run its own script and style, and load nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def text(words: object) -> Html:
    """Plain words as markup."""
    return Html(escape(str(words)))


def joined(*parts: Html) -> Html:
    return Html("".join(parts))


def paragraph(*parts: Html, style: str = "") -> Html:
    return Html(f'<p class="{escape(style)}">{"".join(parts)}</p>' if style else f"<p>{''.join(parts)}</p>")


def badge(origin: str) -> Html:
    """Whether numbers were measured, imported or predicted."""
    return Html(f'<span class="origin">{escape(origin)}</span>')


def percent(value: float, form: str = ".0f") -> str:
    """A percentage that a line break does not part from its sign."""
    return f"{value:{form}}\N{NO-BREAK SPACE}%"


def notes(sentences: Sequence[str]) -> Html:
    """A list of sentences; nothing for none."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return Html(f'<ul class="notes">{items}</ul>' if items else "")


def facts(pairs: Sequence[tuple[str, Html]]) -> Html:
    """Terms, each with what is known of it."""
    return Html('<dl class="facts">' + "".join(f"<dt>{escape(t)}</dt><dd>{v}</dd>" for t, v in pairs) + "</dl>")


def time_text(time_ns: float) -> str:
    """A time in words, with three digits: 87.9 ms, 12.3 s."""
    for scale, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(time_ns) >= scale * (10 if unit == "s" else 1):
            size = abs(time_ns) / scale
            return f"{time_ns / scale:,.{0 if size >= 100 else 1 if size >= 10 else 2}f}\N{NO-BREAK SPACE}{unit}"
    return f"{time_ns:,.0f}\N{NO-BREAK SPACE}ns"


# --- tables --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """A place in the page's timeline, in the times that the timeline counts."""

    rank: int
    start_ns: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Cell:
    """What one cell shows; `value` is what it sorts by, where that is not its text."""

    words: str
    value: float | None = None
    hint: str | None = None
    go: Go | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column: of numbers, of prose ("wide"), of names, or of short words."""

    title: str
    style: str = ""  # "number", "wide", "name"
    origin: Origin | str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells; `name` is unique in the page."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    origin: str | None = None  # of all numbers whose column does not say otherwise
    nothing: str = "Nothing to show."  # instead of a table without rows
    filtered: bool = False


def number(value: float | None, digits: int = 3, *, scale: float = 1.0, hint: str | None = None) -> Cell:
    """A number that sorts by its value; a dash for one that is not known."""
    if value is None:
        return Cell("–", None, hint)
    shown = f"{value / scale:,.{digits}f}"
    return Cell(shown, value / scale, hint)


def table(data: Table) -> Html:
    """A table that sorts by any column and, if asked, shows only the rows with the words typed."""
    if not data.rows:
        return paragraph(text(data.nothing), style="soft")
    box = ""
    if data.filtered:
        box = (
            f'<label><input type="search" data-table="{escape(data.name)}" placeholder="filter" '
            f'aria-label="filter: {escape(data.caption)}"> <output class="soft"></output></label>'
        )
    head = "".join(_header(column) for column in data.columns)
    body = "".join(_row(row, data.columns) for row in data.rows)
    prose = " prose" if any(column.style == "wide" for column in data.columns) else ""
    caption = escape(data.caption) + (f" {badge(data.origin)}" if data.origin else "")
    return Html(
        f'<div class="table"><div class="above"><span class="soft" id="{escape(data.name)}-caption">{caption}</span>'
        f'{box}</div><div class="scroll" tabindex="0" role="region" aria-labelledby="{escape(data.name)}-caption">'
        f'<table class="sortable{prose}" id="{escape(data.name)}" aria-labelledby="{escape(data.name)}-caption">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>\n"
    )


def _header(column: Column) -> str:
    origin = badge(column.origin) if column.origin else ""
    return (
        f'<th scope="col" class="{escape(column.style)}"{_title(column.hint)}>'
        f'<button type="button">{escape(column.title)}</button>{origin}</th>'
    )


def _row(row: Sequence[Cell], columns: Sequence[Column]) -> str:
    cells = (_cell(cell, column) for cell, column in zip(row, columns, strict=True))
    return f"<tr>{''.join(cells)}</tr>\n"


def _cell(cell: Cell, column: Column) -> str:
    value = ""
    if column.style == "number":
        value = f' data-value="{"" if cell.value is None else repr(cell.value)}"'
    shown = escape(cell.words)
    if cell.go:
        place = f"{cell.go.rank} {cell.go.start_ns} {cell.go.time_ns}"
        shown = f'<button type="button" class="plain" data-go="{place}">{shown}</button>'
    names = f'class="{escape(column.style)}" data-title="{escape(column.title)}"'
    return f"<td {names}{value}{_title(cell.hint)}>{shown}</td>"


def _title(hint: str | None) -> str:
    return f' title="{escape(hint)}"' if hint else ""


# --- bars ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar; `colour` names one of the style sheet's."""

    name: str
    time_ns: int
    colour: str


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    parts: tuple[Part, ...]

    @property
    def time_ns(self) -> int:
        return sum(part.time_ns for part in self.parts)


def bars(rows: Sequence[Bar]) -> Html:
    """Bars on one scale, with a legend; their parts are named the same in every bar."""
    longest = max((row.time_ns for row in rows), default=0) or 1
    drawn = "".join(f"<span>{escape(row.label)}</span>{_bar(row, longest)}" for row in rows)
    names = {part.name: part.colour for row in rows for part in row.parts}
    return joined(legend(list(names.items())), Html(f'<div class="bars">{drawn}</div>\n'))


def _bar(row: Bar, longest: int) -> str:
    words = ", ".join(f"{part.name} {part.time_ns / 1e6:,.3f} ms" for part in row.parts)
    parts = "".join(
        f'<span style="--colour: var(--{escape(part.colour)}); width: {100 * part.time_ns / longest:.4f}%" '
        f'title="{escape(part.name)}: {part.time_ns / 1e6:,.3f} ms, {100 * part.time_ns / (row.time_ns or 1):.1f} %">'
        "</span>"
        for part in row.parts
        if part.time_ns > 0
    )
    return f'<div class="bar" role="img" aria-label="{escape(row.label)}: {escape(words)}">{parts}</div>'


def legend(names: Sequence[tuple[str, str]]) -> Html:
    """What the colours stand for: (name, colour) pairs."""
    items = "".join(
        f'<li><span class="swatch" style="--colour: var(--{escape(colour)})"></span>{escape(name)}</li>'
        for name, colour in names
    )
    return Html(f'<ul class="legend">{items}</ul>')


# --- the shell -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page; `name` is its anchor."""

    name: str
    title: str
    body: Html


def embedded(name: str, json_text: str) -> Html:
    """Data for the page's script. No text in it can end the element: "<" does not occur."""
    safe = json_text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return Html(f'<script type="application/json" id="{escape(name)}">{safe}</script>\n')


def page(*, title: str, headline: Html, lead: Html, sections: Sequence[Section], over: str) -> str:
    """A whole page: `over` stands above the headline, `lead` below it."""
    links = "".join(f'<a href="#{escape(part.name)}">{escape(part.title)}</a>' for part in sections)
    body = "".join(
        f'<section id="{escape(part.name)}"><h2>{escape(part.title)}</h2>{part.body}</section>\n' for part in sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n"
        f'<header><div class="over">{escape(over)}</div><h1>{headline}</h1>{lead}<nav>{links}</nav></header>\n'
        f'<main>{body}</main>\n<div id="tip" role="status" hidden></div>\n'
        f"<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


@cache
def _asset(name: str) -> str:
    return (files("makeway.report") / "assets" / name).read_text(encoding="utf-8")
