"""A report as one HTML file: it shows what the report holds, and fetches nothing from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from importlib.resources import files
from typing import assert_never

from makeway.show.blocks import (
    Bars,
    Block,
    Curves,
    Facts,
    HeatMap,
    Lines,
    Notes,
    Paragraph,
    Report,
    Room,
    Section,
    Table,
)
from makeway.show.chart_view import bars_view, curves_view, plotly_script
from makeway.show.heat_view import heat_view
from makeway.show.markup import Html, badge, joined, notes, text
from makeway.show.room_view import room_view
from makeway.show.table_view import table_view
from makeway.show.timeline_view import TimelineView, timeline_view

# The page may run its own script and style, and load nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(report: Report) -> str:
    """The whole page."""
    blocks = [block for section in report.sections for block in section.blocks]
    views = {block.name: timeline_view(block.ranks, name=block.name) for block in blocks if isinstance(block, Lines)}
    links = "".join(f'<a href="#{escape(part.name)}">{escape(part.title)}</a>' for part in report.sections)
    body = "".join(_section(part, views) for part in report.sections)
    headline = joined(text(report.headline.sentence), text(" "), badge(report.headline.origin))
    lead = "".join(_paragraph(words) for words in report.lead)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(f'makeway: {report.headline.sentence}')}</title>\n"
        f"<style>\n{asset('page.css')}</style>\n</head>\n<body>\n"
        f'<header><div class="over">{escape(report.over)}</div><h1>{headline}</h1>{lead}<nav>{links}</nav></header>\n'
        f'<main>{body}</main>\n<div id="tip" role="status" hidden></div>\n'
        f"{''.join(_scripts(blocks))}"
        "</body>\n</html>\n"
    )


def _scripts(blocks: list[Block]) -> Iterator[str]:
    """The scripts that these blocks need; Plotly takes a second to start, so all that can do without it comes first."""
    room = asset("room.js") if any(isinstance(block, Room) for block in blocks) else ""
    yield f"<script>\n{asset('page.js')}{asset('timeline.js')}{room}</script>\n"
    if plotly := plotly_script(blocks):
        yield plotly
        yield f"<script>\n{asset('charts.js')}</script>\n"


@cache
def asset(name: str) -> str:
    """A script or a style sheet of the pages."""
    return (files("makeway.show") / "assets" / name).read_text(encoding="utf-8")


def _section(part: Section, views: Mapping[str, TimelineView]) -> str:
    title, blocks = f"<h2>{escape(part.title)}</h2>", [block_view(block, views) for block in part.blocks]
    if part.lesson is not None:
        blocks.insert(part.lesson_after, Html(f'<div class="lesson">{_paragraph(part.lesson)}</div>'))
    body = "".join(blocks)
    if part.folded:
        body, title = f'<details class="more"><summary>{title}</summary>{body}</details>', ""
    return f'<section id="{escape(part.name)}">{title}{body}</section>\n'


# --- blocks --------------------------------------------------------------------------------------


def block_view(block: Block, views: Mapping[str, TimelineView]) -> Html:
    """One block as markup; `views` has the timelines of its report by name."""
    match block:
        case Paragraph():
            return _paragraph(block)
        case Notes(sentences=sentences):
            return notes(sentences)
        case Facts():
            return _facts(block)
        case Table():
            return table_view(block, _origins(views))
        case Bars():
            return bars_view(block)
        case HeatMap():
            return heat_view(block)
        case Curves():
            return curves_view(block)
        case Lines():
            return views[block.name].html
        case Room():
            return room_view(block)
        case _:
            assert_never(block)


def _origins(views: Mapping[str, TimelineView]) -> dict[tuple[str, int], int]:
    return {(name, rank): origin_ns for name, view in views.items() for rank, origin_ns in view.origin_ns.items()}


def _paragraph(words: Paragraph) -> Html:
    origin = f" {badge(words.origin)}" if words.origin else ""
    command = f"<p>Next: <code>{escape(words.command)}</code></p>" if words.command else ""
    return Html(f"<p>{escape(words.text)}{origin}</p>{command}")


def _facts(facts: Facts) -> Html:
    pairs = "".join(f"<dt>{escape(term)}</dt><dd>{_fact(term, value, facts)}</dd>" for term, value in facts.pairs)
    return Html(f'<dl class="facts">{pairs}</dl>')


def _fact(term: str, value: str, facts: Facts) -> str:
    lines = [escape(line) for line in value.splitlines()] or [""]
    return "<br>".join(f"<code>{line}</code>" if term in facts.code else line for line in lines)
