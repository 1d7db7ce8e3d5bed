"""Heat maps of a page: a table of coloured cells, which needs no script and prints as it is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from makeway.show.blocks import HeatMap
from makeway.show.markup import Html, figure

_Colour = tuple[int, int, int]
# From the least value to the most, by day and by night: after ColorBrewer's YlGnBu and RdBu, which colour-blind
# readers can tell apart.
_ONE_WAY = (
    ((255, 255, 224), (161, 218, 180), (65, 182, 196), (34, 94, 168), (12, 44, 104)),
    ((27, 34, 42), (28, 70, 100), (38, 122, 150), (96, 186, 170), (222, 244, 190)),
)
_TWO_WAYS = (
    ((33, 102, 172), (146, 197, 222), (247, 247, 247), (244, 165, 130), (178, 24, 43)),
    ((120, 180, 235), (48, 98, 150), (37, 45, 54), (150, 66, 52), (244, 130, 110)),
)


def heat_view(data: HeatMap) -> Html:
    """A heat map with a key of its colours; a dash was not run."""
    low, high = reach(data)
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in data.columns)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(_cell(value, data) for value in row)}</tr>'
        for name, row in zip(data.rows, data.values, strict=True)
    )
    table = (
        f'<table class="heat" aria-label="{escape(data.caption)}"><thead><tr><td></td>{head}'
        f"</tr></thead><tbody>{body}</tbody></table>"
    )
    marks = (low, high) if data.centre is None else (low, data.centre, high)
    steps = "".join(f'<i style="{_style(low + (high - low) * step / 20, data)}"></i>' for step in range(21))
    ends = "".join(f"<span>{_text(mark, data)}</span>" for mark in marks)
    scale = f'<div class="key"><div>{steps}</div><div>{ends}</div></div>' if high > low else ""
    axes = escape(f"{data.column_title} across, {data.row_title} down" if data.row_title else "")
    key = f'<div class="below soft" aria-hidden="true"><span>{axes}</span>{scale}</div>'
    return figure(data.name, data.caption, data.origin, Html(table + key), style="map")


def reach(data: HeatMap) -> tuple[float, float]:
    """The values at the ends of the colours; as far above the centre as below it."""
    known = [value for row in data.values for value in row if value is not None]
    low, high = data.reach or ((min(known), max(known)) if known else (0.0, 0.0))
    if data.centre is None:
        return low, high
    far = max(abs(low - data.centre), abs(high - data.centre))
    return data.centre - far, data.centre + far


def _cell(value: float | None, data: HeatMap) -> str:
    if value is None:
        return "<td>–</td>"
    return f'<td style="{_style(value, data)}">{_text(value, data)}</td>'


def _text(value: float, data: HeatMap) -> str:
    """The value; differences carry their sign, and what rounds to nothing has none."""
    shown = f"{value:z.{data.digits}f}"
    return f"+{shown}" if data.centre == 0 and float(shown) > 0 else shown


def _style(value: float, data: HeatMap) -> str:
    low, high = reach(data)
    share = 0.5 if high - low < 1e-12 else min(max((value - low) / (high - low), 0.0), 1.0)
    day, night = (_between(scale, share) for scale in (_ONE_WAY if data.centre is None else _TWO_WAYS))
    return f"--day:{_hex(day)};--day-ink:{ink_on(day)};--night:{_hex(night)};--night-ink:{ink_on(night)}"


def _between(scale: Sequence[_Colour], share: float) -> _Colour:
    place = share * (len(scale) - 1)
    first = min(int(place), len(scale) - 2)
    red, green, blue = (
        round(one + (other - one) * (place - first)) for one, other in zip(*scale[first : first + 2], strict=True)
    )
    return red, green, blue


def _hex(colour: _Colour) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


def ink_on(colour: _Colour) -> str:
    """Black or white: one of them has a contrast of 4.5 on any colour (WCAG 2.2, relative luminance)."""
    parts = [part / 255 for part in colour]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return "#000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#fff"
