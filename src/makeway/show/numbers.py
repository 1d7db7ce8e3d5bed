"""Numbers as a report writes them."""

from __future__ import annotations

from makeway.show.blocks import Cell


def percent(value: float, form: str = ".0f") -> str:
    """A percentage that a line break does not part from its sign."""
    return f"{value:{form}}\N{NO-BREAK SPACE}%"


def time_text(time_ns: float) -> str:
    """A time in words, with three digits: 87.9 ms, 12.3 s."""
    for scale, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(time_ns) >= scale * (10 if unit == "s" else 1):
            size = abs(time_ns) / scale
            return f"{time_ns / scale:,.{0 if size >= 100 else 1 if size >= 10 else 2}f}\N{NO-BREAK SPACE}{unit}"
    return f"{time_ns:,.0f}\N{NO-BREAK SPACE}ns"


def number(value: float | None, digits: int = 3, *, scale: float = 1.0, hint: str | None = None) -> Cell:
    """A number that sorts by its value; a dash for one that is not known."""
    if value is None:
        return Cell("–", None, hint)
    return Cell(f"{value / scale:,.{digits}f}", value / scale, hint)


def count(amount: int, what: str) -> str:
    """1 rank, 8 ranks."""
    return f"{amount:,} {what}{'' if amount == 1 else 's'}"
