"""Text, page and JSON show the same figures, for every kind of result."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import cache
from html import escape

import pytest

from makeway import load_device, load_preset, report_of, simulate, sweep
from makeway.show.blocks import Bars, HeatMap, Report, Table
from makeway.show.json import json as as_json
from makeway.show.numbers import ms_text
from makeway.show.page import page
from makeway.show.report import _SHOWN_BY
from makeway.show.text import text

H100 = load_device("H100-SXM5-80GB")
WIDE = 1_000  # columns: nothing is left out of the text
SHOWN_AS = (1.0, 100.0, 1e-3, 1e3)  # a share as percent; milliseconds as seconds or microseconds

RESULTS: dict[str, Callable[[], object]] = {
    "Prediction": lambda: simulate(load_preset("gemm-ar", H100), H100),
    "Sweep": lambda: sweep("comm-blocks", load_preset("gemm-ar", H100), H100),
}


@cache
def report(kind: str) -> Report:
    return report_of(RESULTS[kind](), arguments=f"makeway {kind}")


def figures(shown: Report) -> Iterator[tuple[str, float, str]]:
    """Where each figure of the blocks is, its value, and how it is written."""
    for section in shown.sections:
        for block in section.blocks:
            match block:
                case Table():
                    for row in block.rows:
                        for column, cell in zip(block.columns, row, strict=True):
                            if cell.value is not None:
                                yield f"{block.name}: {column.title}", cell.value, cell.words
                case Bars():
                    for bar in block.bars:
                        for part in bar.parts:
                            yield f"{block.name}: {bar.label}", part.time_ns / 1e6, ms_text(part.time_ns)
                case HeatMap():
                    for values in block.values:
                        for value in values:
                            if value is not None:
                                yield block.name, value, f"{value:.{block.digits}f}"


def numbers(document: object) -> Iterator[float]:
    match document:
        case dict():
            for value in document.values():
                yield from numbers(value)
        case list():
            for value in document:
                yield from numbers(value)
        case bool() | None | str():
            return
        case int() | float():
            yield float(document)


def is_among(value: float, known: list[float]) -> bool:
    """Whether a figure is one of these numbers, in its own or a larger unit."""
    return any(
        math.isclose(value, number * scale, rel_tol=1e-6, abs_tol=6e-7 * scale)
        for number in known
        for scale in SHOWN_AS
    )


def test_every_kind_of_result_is_here() -> None:
    assert set(RESULTS) == set(_SHOWN_BY)


@pytest.mark.parametrize("kind", RESULTS)
def test_every_figure_is_in_text_page_and_json(kind: str) -> None:
    shown = report(kind)
    known = sorted(set(numbers(json.loads(as_json(shown)))))
    lines, markup = text(shown, width=WIDE, verbose=True), page(shown)
    assert list(figures(shown)), "a report without figures shows nothing"
    for where, value, words in figures(shown):
        assert is_among(value, known), f"{where}: {value} is not in the JSON"
        assert words in lines, f"{where}: {words} is not in the text"
        assert escape(words) in markup, f"{where}: {words} is not on the page"


@pytest.mark.parametrize("kind", RESULTS)
def test_text_leads_with_the_verdict_and_fits(kind: str) -> None:
    shown = report(kind)
    for width in (80, 120):
        lines = text(shown, width=width).splitlines()
        assert max(map(len, lines)) <= width
        begin = " ".join(" ".join(lines[:4]).replace("\N{NO-BREAK SPACE}", " ").split())
        assert begin.startswith(
            " ".join(shown.headline.sentence.replace("\N{NO-BREAK SPACE}", " ").split()).rstrip(".")
        )


@pytest.mark.parametrize("kind", RESULTS)
def test_json_names_its_schema_and_its_verdict(kind: str) -> None:
    document = json.loads(as_json(report(kind)))
    assert document["schema"] == f"makeway/{report(kind).result}/1"
    assert list(document)[:3] == ["schema", "makeway", "verdict"]
    assert document["verdict"] in page(report(kind)).replace("\N{NO-BREAK SPACE}", " ").replace("&#x27;", "'")
