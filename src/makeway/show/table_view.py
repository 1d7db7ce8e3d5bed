"""Tables of a page: they sort by any column, and large ones filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from makeway.show.blocks import Cell, Column, Table
from makeway.show.markup import Html, badge

Origins = Mapping[tuple[str, int], int]  # by timeline and rank: the time in ns that the page's drawing counts from

_MOST_ON_A_PHONE = 4  # columns side by side; rows of wider tables become cards


def table_view(data: Table, origins: Origins | None = None) -> Html:
    """A table without its empty columns; cells with a place in time lead there, where a timeline has that rank."""
    if not data.rows:
        return Html(f'<p class="soft">{escape(data.nothing)}</p>')
    box = ""
    if data.filtered:
        box = (
            f'<label><input type="search" data-table="{escape(data.name)}" placeholder="filter" '
            f'aria-label="filter: {escape(data.caption)}"> <output class="soft"></output></label>'
        )
    every = range(len(data.columns))
    shown = [place for place in every if any(row[place].text not in ("", "–") for row in data.rows)] or every
    columns = [data.columns[place] for place in shown]
    head = "".join(map(_header, columns))
    body = "".join(_row([row[place] for place in shown], columns, origins or {}) for row in data.rows)
    prose = any(column.style == "wide" for column in columns)
    cards = " cards" if prose or len(columns) > _MOST_ON_A_PHONE else ""
    caption = escape(data.caption) + (f" {badge(data.origin)}" if data.origin else "")
    return Html(
        f'<div class="table"><div class="above"><span class="soft" id="{escape(data.name)}-caption">{caption}</span>'
        f'{box}</div><div class="scroll" tabindex="0" role="region" aria-labelledby="{escape(data.name)}-caption">'
        f'<table class="sortable{cards}" id="{escape(data.name)}" aria-labelledby="{escape(data.name)}-caption">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>\n"
    )


def _header(column: Column) -> str:
    origin = badge(column.origin) if column.origin else ""
    return (
        f'<th scope="col" class="{escape(column.style)}"{_title(column.hint)}>'
        f'<button type="button">{escape(column.title)}</button>{origin}</th>'
    )


def _row(row: Sequence[Cell], columns: Sequence[Column], origins: Origins) -> str:
    cells = (_cell(cell, column, origins) for cell, column in zip(row, columns, strict=True))
    return f"<tr>{''.join(cells)}</tr>\n"


def _cell(cell: Cell, column: Column, origins: Origins) -> str:
    value = ""
    if column.style == "number":
        value = f' data-value="{"" if cell.value is None else repr(cell.value)}"'
    shown = escape(cell.text)
    if cell.go and (origin_ns := origins.get((cell.go.lines, cell.go.rank))) is not None:
        place = f"{cell.go.rank} {cell.go.start_ns - origin_ns} {cell.go.time_ns}"
        there = escape(cell.go.lines)
        shown = f'<button type="button" class="plain" data-lines="{there}-data" data-go="{place}">{shown}</button>'
    names = f'class="{escape(column.style)}" data-title="{escape(column.title)}"'
    return f"<td {names}{value}{_title(cell.hint)}>{shown}</td>"


def _title(hint: str | None) -> str:
    return f' title="{escape(hint)}"' if hint else ""
