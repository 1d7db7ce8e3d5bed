"""The control map as a figure: plain SVG, one rectangle per cell, its reason as a tooltip."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

CONTROLS = ("pad", "priority", "priority_pad", "order", "partition", "copy")
WORTH = 1.0  # percent: less is noise of the block times

Row = dict[str, Any]

LEFT, TOP, CELL_W, CELL_H, GROUP_GAP = 268, 132, 62, 18, 14
HEADS = ("pad", "priority", "priority\n+ pad", "launch\norder", "partition", "copy\nengine")
MOST_PCT = 42.0  # the colour scale's end


def colour(gain: float) -> str:
    """White at no gain, blue for time saved, orange for time lost."""
    weight = min(abs(gain) / MOST_PCT, 1.0)
    end = (33, 102, 172) if gain > 0 else (217, 95, 14)
    return "#" + "".join(f"{round(250 + (part - 250) * weight):02x}" for part in end)


def figure(rows: Sequence[Row]) -> str:
    """The heat map: the library's own block, HBM shared in proportion."""
    shown = [row for row in rows if row["footprint"] in ("ring 544", "RCCL 256") and row["hbm"] == "proportional"]
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in shown:
        lines.setdefault((row["device"], row["kernel"]), []).append(row)
    devices = list(dict.fromkeys(device for device, _ in lines))
    width = LEFT + 2 * (len(HEADS) + 1) * CELL_W + GROUP_GAP + 24
    height = TOP + len(lines) * CELL_H + len(devices) * GROUP_GAP + 76
    parts = [*_frame(width, height), *_headings()]
    y = TOP
    for device in devices:
        y += GROUP_GAP
        mine = [(kernel, pair) for (name, kernel), pair in lines.items() if name == device]
        parts.append(f'<text x="12" y="{y + 13}" font-weight="bold">{escape(device)}</text>')
        for kernel, pair in mine:
            label = f"{kernel} ({pair[0]['blocks_per_sm']})"
            parts.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(label)}</text>')
            for side, row in enumerate(pair):
                parts += _cells(row, _left(side), y)
            y += CELL_H
    parts += _legend(y + 22)
    return "\n".join([*parts, "</svg>", ""])


def _left(side: int) -> int:
    return LEFT + side * ((len(HEADS) + 1) * CELL_W + GROUP_GAP)


def _frame(width: int, height: int) -> list[str]:
    title = "Where each control helps: time saved against naive overlap, in percent (predicted)"
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" font-family="Helvetica, Arial, sans-serif" font-size="11.5" fill="#222222">',
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="16" font-weight="bold">{title}</text>',
        '<text x="12" y="43">One kernel of 1 ms and an all-gather of 0.8 ms launched 50 us later; the library\'s own '
        "blocks (NCCL ring, 544 threads; RCCL, 256); HBM shared in proportion; 5 % spread of block times</text>",
    ]


def _headings() -> list[str]:
    sides = ("strict queue (AMD: the device's default policy)", "back-fill (AMD: shader-engines policy)")
    parts = [f'<text x="12" y="{TOP}" font-style="italic">device, kernel (blocks per SM)</text>']
    for side, name in enumerate(sides):
        left = _left(side)
        parts.append(f'<text x="{left}" y="72" font-weight="bold">{name}</text>')
        for column, head in enumerate(("naive:\nt / t_seq", *HEADS)):
            for line, word in enumerate(reversed(head.split("\n"))):
                x = left + column * CELL_W + CELL_W // 2
                parts.append(f'<text x="{x}" y="{TOP - 4 - 14 * line}" text-anchor="middle">{word}</text>')
        parts.append(f'<line x1="{left}" y1="{TOP + 4}" x2="{left + 7 * CELL_W}" y2="{TOP + 4}" stroke="#999999"/>')
    return parts


def _cells(row: Row, left: int, y: int) -> list[str]:
    parts = [_text(left, y, f"{float(row['naive']):.2f}", "#555555")]
    for column, name in enumerate(CONTROLS, start=1):
        x, value = left + column * CELL_W, row[f"{name}_gain_pct"]
        if value == "":
            parts.append(_text(x, y, "?", "#777777"))
            continue
        gain = float(value)
        added = name == "priority_pad" and float(row["pad_over_priority_pct"]) >= WORTH
        edge = ' stroke="#111111" stroke-width="1.6"' if added else ""
        parts.append(
            f'<rect x="{x + 1}" y="{y + 1}" width="{CELL_W - 2}" height="{CELL_H - 2}" fill="{colour(gain)}"{edge}>'
            f"<title>{escape(row[f'{name}_reason'])}</title></rect>"
        )
        parts.append(_text(x, y, f"{gain:.0f}".replace("-0", "0"), "#ffffff" if gain > 24 else "#222222"))
    return parts


def _text(x: int, y: int, text: str, fill: str) -> str:
    text = text.replace("-", "\N{MINUS SIGN}")
    return f'<text x="{x + CELL_W // 2}" y="{y + 13}" text-anchor="middle" fill="{fill}">{text}</text>'


def _legend(y: int) -> list[str]:
    parts = [f'<text x="12" y="{y + 13}">time saved, %</text>']
    for index, gain in enumerate((-40, -20, -10, 0, 10, 20, 30, 40)):
        x = 110 + index * 44
        parts.append(f'<rect x="{x}" y="{y}" width="44" height="18" fill="{colour(gain)}" stroke="#cccccc"/>')
        fill = "#ffffff" if gain > 24 else "#222222"
        parts.append(f'<text x="{x + 22}" y="{y + 13}" text-anchor="middle" fill="{fill}">{gain}</text>')
    x = 110 + 8 * 44 + 24
    parts.append(f'<rect x="{x}" y="{y}" width="30" height="18" fill="#ffffff" stroke="#111111" stroke-width="1.6"/>')
    parts.append(f'<text x="{x + 38}" y="{y + 13}">the pad adds 1 % or more to what priority saves</text>')
    parts.append(f'<text x="{x + 330}" y="{y + 13}">?  number of copy engines not known</text>')
    note = "Best of the pads tried, no pad included. The reason for each cell is in control-map.csv"
    return [*parts, f'<text x="12" y="{y + 38}">{note}</text>']
