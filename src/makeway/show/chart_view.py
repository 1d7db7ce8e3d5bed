"""Charts of a page: bars and curves, drawn by Plotly where it is installed, and readable without it.

What Plotly draws is also there as plain markup: bars of styled spans, a table. That is what a screen reader reads, and
what a page shows that was made without the `report` extra.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files
from importlib.util import find_spec

from makeway.show.blocks import Bar, Bars, Block, Curves, Unit
from makeway.show.markup import Html, embedded, figure, joined, legend


def plotly_script(blocks: Iterable[Block]) -> Html:
    """Plotly's own script, where a block needs it and it is installed; else nothing. It fetches nothing."""
    if not any(_plotted(block) for block in blocks) or find_spec("plotly") is None:
        return Html("")
    return Html(f"<script>\n{_plotly()}\n</script>\n")


def _plotted(block: Block) -> bool:
    """Charts with spread, a mark or two axes; plain stacks of time do well without a script of 5 MB."""
    match block:
        case Curves():
            return True
        case Bars(bars=bars, mark_ns=mark_ns):
            return mark_ns is not None or any(bar.whiskers is not None for bar in bars)
        case _:
            return False


@cache
def _plotly() -> str:
    return (
        (files("plotly") / "package_data" / "plotly.min.js")
        .read_text(encoding="utf-8")
        .replace("</script", "<\\/script")
    )


# --- bars ----------------------------------------------------------------------------------------


def bars_view(data: Bars) -> Html:
    """Bars on one scale, with a legend; their parts are named the same in every bar."""
    longest = max((*(bar.amount for bar in data.bars), data.mark_ns or 0.0)) or 1.0
    names = {part.name: part.colour for bar in data.bars for part in bar.parts}
    drawn = "".join(
        f"<span>{escape(bar.label)}</span>{_bar(bar, longest, data.unit)}"
        f"<span class='soft'>{escape(_note(bar, data.unit))}</span>"
        for bar in data.bars
    )
    mark = (
        f'<p class="soft">{escape(data.mark)}: {escape(data.unit.text(data.mark_ns))}</p>'
        if data.mark_ns is not None
        else ""
    )
    plain = joined(
        legend(list(names.items())) if len(names) > 1 else Html(""),
        Html(f'<div class="bars">{drawn}</div>{mark}'),
    )
    return _figure(data.name, data.caption, data.origin, plain, _bar_traces(data) if _plotted(data) else None)


def _bar(bar: Bar, longest: float, unit: Unit) -> str:
    amounts = ", ".join(f"{part.name} {unit.text(part.amount)}" for part in bar.parts)
    parts = "".join(
        f'<span style="--colour: var(--{escape(part.colour)}); width: {100 * part.amount / longest:.4f}%" '
        f'title="{escape(part.name)}: {unit.text(part.amount)}, {100 * part.amount / (bar.amount or 1):.1f} %">'
        "</span>"
        for part in bar.parts
        if part.amount > 0
    )
    return f'<div class="bar" role="img" aria-label="{escape(bar.label)}: {escape(amounts)}">{parts}</div>'


def _note(bar: Bar, unit: Unit) -> str:
    amount = unit.text(bar.amount)
    if spread := bar.spread_text(unit):
        amount += f", {spread}"
    return "; ".join([amount, *([bar.note] if bar.note else [])])


def _bar_traces(data: Bars) -> object:
    names = dict.fromkeys(part.name for bar in data.bars for part in bar.parts)
    labels, per = [bar.label for bar in data.bars], data.unit.per
    traces = []
    for name in names:
        parts = [next((part for part in bar.parts if part.name == name), None) for bar in data.bars]
        own = next(part.colour for part in parts if part)  # the legend shows the colour of the first bar
        colours = [part.colour if part else own for part in parts]
        traces.append(
            {"name": name, "colours": colours, "amounts": [part.amount / per if part else 0 for part in parts]}
        )
    return {
        "kind": "bars",
        "labels": labels,
        "traces": traces,
        "spread": [None if bar.whiskers is None else [side / per for side in bar.whiskers] for bar in data.bars],
        "notes": [bar.note for bar in data.bars],
        "mark_at": None if data.mark_ns is None else data.mark_ns / per,
        "mark": data.mark if data.mark_ns is None else f"{data.mark}: {data.unit.text(data.mark_ns)}",
        "unit": data.unit.name,
    }


# --- curves --------------------------------------------------------------------------------------


def curves_view(data: Curves) -> Html:
    """Lines over a logarithmic axis; the plain form is a table."""
    head = "".join(f'<th scope="col">{escape(curve.label)}</th>' for curve in data.curves)
    rows = "".join(_curve_row(data, at) for at in range(len(data.places)))
    plain = Html(
        f'<div class="scroll" tabindex="0"><table aria-label="{escape(data.caption)}"><thead><tr>'
        f'<th scope="col">{escape(data.place_title)}</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )
    traces = {
        "kind": "curves",
        "places": data.places,
        "place_title": data.place_title,
        "value_title": data.value_title,
        "digits": data.digits,
        "curves": [{"label": curve.label, "values": curve.values} for curve in data.curves],
    }
    return _figure(data.name, data.caption, data.origin, plain, traces)


def _curve_row(data: Curves, at: int) -> str:
    cells = "".join(_value(curve.values[at], data.digits) for curve in data.curves)
    return f'<tr><th scope="row">{data.places[at]:,}</th>{cells}</tr>'


def _value(value: float | None, digits: int) -> str:
    return "<td>–</td>" if value is None else f"<td>{value:,.{digits}f}</td>"


def _figure(name: str, caption: str, origin: str | None, plain: Html, data: object | None) -> Html:
    drawing = ""
    if data is not None:
        chart = embedded(f"{name}-data", json.dumps(data, separators=(",", ":"), ensure_ascii=False))
        drawing = f'<div class="chart" data-chart="{escape(name)}-data" aria-hidden="true" hidden></div>{chart}'
    return figure(name, caption, origin, Html(f'{drawing}<div class="plain-chart">{plain}</div>'))
