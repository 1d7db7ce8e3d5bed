"""The analysis page as a person uses it, in a headless Chromium."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.browser.driving import OpenPage, cpu_ms, drawn, eventually, view

from makeway.decide.analysis.analyze import Analysis
from makeway.decide.analysis.causes import cause_groups
from makeway.decide.analysis.figures import figures
from makeway.decide.analysis.findings import Advice, Cause, RankFindings
from makeway.decide.analysis.what_if import Outcome, Replay, WhatIf
from makeway.show.analysis import report
from makeway.show.page import page as html_page
from makeway.values.control import CommPriority, CopyEngine
from makeway.values.kernel import KernelResources, Launch
from makeway.values.timeline import Rank, Span, Timeline

if TYPE_CHECKING:
    from playwright.sync_api import Page

NASTY = "nccl</script><script>document.title='broken'</script><b>&amp;"
CLOCK = 1_698_957_820_972_482_000
MS = 1_000_000
BLOCK = KernelResources(threads=256, registers_per_thread=96, smem_bytes=48 * 1024)


def recorded(rank: int) -> Timeline:
    """A kernel of 40 ms, a collective from 30 to 90 + 10 ms per rank, and 50 short kernels after it."""
    end = (90 + 10 * rank) * MS
    spans = [
        Span(name="big_gemm", kind="compute", stream="7", start_ns=0, end_ns=40 * MS, launched_ns=-15_000,
             launch=Launch(blocks=432, threads=256, resources=BLOCK)),
        Span(name=NASTY, kind="comm", stream="20", start_ns=30 * MS, end_ns=end),
        *(Span(name=f"short_{at // MS % 3}", kind="compute", stream="7", start_ns=at, end_ns=at + 400_000)
          for at in range(end, end + 50 * MS, MS)),
    ]  # fmt: skip
    return timeline(rank, spans)


def timeline(rank: int, spans: list[Span]) -> Timeline:
    moved = tuple(
        Span(
            name=one.name, kind=one.kind, stream=one.stream, rank=rank, launch=one.launch,
            start_ns=CLOCK + one.start_ns, end_ns=CLOCK + one.end_ns,
            launched_ns=None if one.launched_ns is None else CLOCK + one.launched_ns,
        )
        for one in spans
    )  # fmt: skip
    return Timeline(spans=moved, origin="imported", ranks=(Rank(rank=rank, device="A100", source=f"rank{rank}.json"),))


def analysis(timelines: list[Timeline]) -> Analysis:
    waiting = {0: 5 * MS}
    ranks = tuple(
        RankFindings(
            rank=rank,
            device="A100",
            source=f"rank{rank}.json",
            figures=figures(one.spans),
            waiting_ns=waiting.get(rank),
            exposed_waiting_ns=20 * MS if rank == 1 else 0,
        )
        for rank, one in enumerate(timelines)
    )
    causes = [
        Cause(kind="straggler", of="exposed", collective=NASTY, rank=1, at_ns=CLOCK + 40 * MS, time_ns=20 * MS,
              confidence="high", evidence="rank 0 came last"),
        Cause(kind="dependency", of="late", collective="other", rank=0, at_ns=CLOCK + 20 * MS, time_ns=10 * MS,
              confidence="low", evidence=NASTY),
    ]  # fmt: skip
    return Analysis(
        ranks=ranks,
        causes=tuple(causes),
        groups=cause_groups(causes),
        longest=tuple(causes),
        advice=(
            Advice(
                text="let it in",
                why=NASTY,
                at_most_ns=9 * MS,
                line="transfer",
                cause="straggler",
                predicted_gain_ns=4.0 * MS,
                controls=(CommPriority(),),
            ),
        ),
        notes=("a note " + "x" * 200,),
        timelines=tuple(timelines),
    )


def html(timelines: list[Timeline]) -> str:
    answers = WhatIf(
        rank=0, device="A100", replay=Replay(recorded_ns=100 * MS, predicted_ns=104.0 * MS),
        outcomes=(Outcome(control=CommPriority(), gain_ns=4.0 * MS), Outcome(control=CopyEngine(), gain_ns=None,
                                                                             why_not="needs peer access")),
        assumed=("sizes of collectives are guessed",),
    )  # fmt: skip
    arguments = "makeway analyze " + "very/long/path/" * 20
    return html_page(report(replace(analysis(timelines), what_if=answers), arguments=arguments))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "analysis.html"
    path.write_text(html([recorded(0), recorded(1)]), encoding="utf-8")
    return path


def place(page: Page, rank: int, row: int, time_ns: float) -> tuple[float, float]:
    """Where a moment of a row is on the screen: three added rows come first, then the streams."""
    canvas = page.locator("details.rank canvas").nth(rank)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    start, time = view(page)
    labels = 92 if box["width"] < 600 else 170
    x = labels + (time_ns - start) / time * (box["width"] - labels)
    return box["x"] + x, box["y"] + 22 + row * 21 + 9


def colour_at(page: Page, rank: int, row: int, time_ns: float) -> str:
    """The colour that the canvas has there, above the span's name, as the style sheet writes colours."""
    x, y = place(page, rank, row, time_ns)
    pixel: list[int] = page.evaluate(
        """([rank, x, y]) => {
            const canvas = document.querySelectorAll("details.rank canvas")[rank], box = canvas.getBoundingClientRect();
            const copy = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
            copy.drawImage(canvas, Math.round(box.x - x), Math.round(box.y - y));
            return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }""",
        [rank, x, y - 7],
    )
    return "#" + "".join(f"{part:02x}" for part in pixel)


def variable(page: Page, name: str) -> str:
    value: str = page.evaluate("(name) => getComputedStyle(document.documentElement).getPropertyValue(name)", name)
    return value.strip()


# --- it opens ------------------------------------------------------------------------------------


def test_names_from_traces_do_not_run(open_page: OpenPage) -> None:
    page = open_page()
    assert page.title().startswith("makeway: ")
    assert page.locator("b").count() == 0
    assert page.locator("h1").inner_text().startswith("60.0\N{NO-BREAK SPACE}ms of communication is exposed on rank 1")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen_or_on_top_of_something_else(
    open_page: OpenPage, width: int, dark: bool
) -> None:
    page = open_page(width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = [part.bounding_box() for part in page.locator("header, section > *").all()]
    known = [box for box in boxes if box is not None and box["height"]]
    assert len(known) > 10
    for upper, lower in pairwise(known):
        assert upper["y"] + upper["height"] <= lower["y"] + 0.5
        assert upper["x"] + upper["width"] <= width


def test_dark_and_light_differ_in_paper_and_in_drawing(open_page: OpenPage) -> None:
    light, dark = open_page(), open_page(dark=True)
    background = "getComputedStyle(document.body).backgroundColor"
    assert (light.evaluate(background), dark.evaluate(background)) == ("rgb(255, 255, 255)", "rgb(18, 23, 29)")
    for page in (light, dark):
        assert colour_at(page, 0, 4, 60 * MS) == variable(page, "--comm")
    light.emulate_media(color_scheme="dark")
    assert colour_at(light, 0, 4, 60 * MS) == variable(dark, "--comm")


def test_print_shows_whole_tables_and_no_buttons_to_zoom(open_page: OpenPage) -> None:
    page = open_page()
    page.emulate_media(media="print")
    assert not page.locator(".tools").is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowY") == "visible"


# --- tables --------------------------------------------------------------------------------------


def column(page: Page, table: str, place: int) -> list[str]:
    return page.locator(f"#{table} tbody tr:not([hidden]) td:nth-child({place})").all_inner_texts()


def test_a_click_on_a_title_sorts_and_another_turns_the_order(open_page: OpenPage) -> None:
    page = open_page()
    title = page.locator("#ranks th", has_text="exposed ms")
    assert column(page, "ranks", 4) == ["50.000", "60.000"]
    title.get_by_role("button").click()
    assert (column(page, "ranks", 4), title.get_attribute("aria-sort")) == (["60.000", "50.000"], "descending")
    title.get_by_role("button").press("Enter")
    assert (column(page, "ranks", 4), title.get_attribute("aria-sort")) == (["50.000", "60.000"], "ascending")


def test_unknown_numbers_come_last_whichever_way_the_order(open_page: OpenPage) -> None:
    page = open_page()
    title = page.locator("#ranks th", has_text="waiting ms").get_by_role("button")
    for _ in range(2):
        title.click()
        assert column(page, "ranks", 10) == ["5.000", "–"]


def test_the_filter_keeps_the_rows_with_all_words(open_page: OpenPage) -> None:
    page = open_page()
    box = page.locator("input[data-table=causes-one-by-one]")
    box.fill("LATE dependency")
    assert column(page, "causes-one-by-one", 4) == ["dependency"]
    assert box.locator("xpath=../output").inner_text() == "1 of 2"
    box.fill("")
    assert len(column(page, "causes-one-by-one", 4)) == 2


# --- the timeline --------------------------------------------------------------------------------


def test_spans_are_drawn_where_and_in_the_colour_they_belong(open_page: OpenPage) -> None:
    page = open_page()
    for row, time_ns, kind in ((0, 60, "exposed"), (1, 35, "overlapped"), (2, 25, "dependency"), (3, 5, "compute")):
        assert colour_at(page, 0, row, time_ns * MS) == variable(page, f"--{kind}")
    assert colour_at(page, 0, 4, 10 * MS) == "#000000"  # nothing there: transparent


def test_buttons_keys_and_wheel_zoom_and_the_whole_comes_back(open_page: OpenPage) -> None:
    page = open_page()
    start, whole = view(page)
    page.get_by_role("button", name="zoom in").click()
    assert view(page)[1] == pytest.approx(whole / 1.6)
    page.mouse.click(*place(page, 0, 3, 30 * MS))
    page.keyboard.press("+")
    assert view(page)[1] == pytest.approx(whole / 1.6**2)
    page.keyboard.press("-")
    assert view(page)[1] == pytest.approx(whole / 1.6)
    point = place(page, 0, 3, 60 * MS)
    page.mouse.move(*point)
    page.mouse.wheel(0, -300)
    eventually(page, f"document.querySelector('[data-time]').dataset.time < {whole / 1.6 - 1}")
    assert place(page, 0, 3, 60 * MS)[0] == pytest.approx(point[0], abs=1.5)  # the wheel zooms around the pointer
    page.keyboard.press("0")
    assert view(page)[0] == pytest.approx(start)
    assert view(page)[1] == pytest.approx(whole)


def test_until_the_timeline_is_clicked_the_wheel_scrolls_the_page(open_page: OpenPage) -> None:
    page = open_page()
    before = view(page)
    page.mouse.move(*place(page, 0, 3, 20 * MS))
    scrolled = page.evaluate("scrollY")
    page.mouse.wheel(0, 120)
    eventually(page, f"scrollY > {scrolled}")
    assert view(page) == before


def test_drag_and_arrows_pan(open_page: OpenPage) -> None:
    page = open_page()
    page.get_by_role("button", name="zoom in").click()
    page.get_by_role("button", name="zoom in").click()
    start, time = view(page)
    x, y = place(page, 0, 3, start + time / 2)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 100, y)
    page.mouse.up()
    dragged, as_wide = view(page)
    assert (dragged > start, as_wide) == (True, time)
    page.keyboard.press("ArrowLeft")
    assert view(page)[0] == pytest.approx(dragged - time / 8)


@pytest.mark.parametrize("width", [390, 1280])
def test_hovering_tells_what_a_span_is(open_page: OpenPage, width: int) -> None:
    page = open_page(width=width)
    tip = page.locator("#tip")
    page.mouse.move(*place(page, 0, 3, 20 * MS))
    told = tip.inner_text()
    for words in (
        "big_gemm",
        "compute",
        "40 ms",
        "432 of 256 threads",
        "96 registers",
        "48 KiB",
        "launched",
        "15 us before its start",
    ):
        assert words in told
    page.mouse.move(*place(page, 0, 4, 80 * MS))
    assert NASTY in tip.inner_text()
    box = tip.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    page.mouse.move(*place(page, 0, 4, 5 * MS))
    assert not tip.is_visible()


def test_the_keyboard_alone_reaches_every_span(open_page: OpenPage) -> None:
    page = open_page()
    page.locator("details.rank canvas").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Home")
    for _ in range(60):
        page.keyboard.press("Shift+ArrowLeft")
    assert page.locator("#tip strong").inner_text() == "big_gemm"
    page.keyboard.press("Shift+ArrowRight")
    assert page.locator("#tip strong").inner_text() == "short_0"
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()


def test_keys_work_before_a_rank_was_drawn(open_page: OpenPage) -> None:
    page = open_page(height=100)
    canvas = page.locator("details.rank canvas").last
    assert canvas.evaluate("canvas => canvas.width") == 300  # of every canvas, until it is drawn
    canvas.evaluate(
        "canvas => ['ArrowDown', 'ArrowUp'].forEach(key => canvas.dispatchEvent(new KeyboardEvent('keydown', {key})))"
    )


def test_nothing_moves_when_a_rank_is_drawn(open_page: OpenPage) -> None:
    page = open_page(height=100)
    canvas = page.locator("details.rank canvas").last
    height = "canvas => canvas.getBoundingClientRect().height"
    before = canvas.evaluate(height)
    canvas.scroll_into_view_if_needed()
    drawn(page)
    assert canvas.evaluate("canvas => canvas.width") != 300, "it was not drawn"
    assert canvas.evaluate(height) == before


def test_a_cause_leads_to_its_place_in_the_timeline(open_page: OpenPage) -> None:
    page = open_page()
    page.locator("#causes-one-by-one [data-go]").first.click()
    start, time = view(page)
    assert start + time / 2 == pytest.approx(50 * MS)
    assert time == pytest.approx(60 * MS)
    assert page.evaluate("document.activeElement.tagName") == "CANVAS"


def test_a_hundred_thousand_spans_are_painted_within_two_seconds_of_processor_time(
    open_page: OpenPage, tmp_path: Path
) -> None:
    spans = [
        Span(name=f"kernel_{at % 300}", kind="comm" if at % 20 == 0 else "compute", stream=str(at % 4),
             start_ns=2_713 * at, end_ns=2_713 * at + 1_907, launched_ns=2_713 * at - 9_000)
        for at in range(100_000)
    ]  # fmt: skip
    path = tmp_path / "many.html"
    path.write_text(html([timeline(0, spans)]), encoding="utf-8")
    page = open_page(path, cpu_time=True)
    drawn_ms = cpu_ms(page)
    print(f"100,000 spans: {path.stat().st_size / 1e6:.1f} MB, drawn in {drawn_ms:.0f} ms of processor time")
    assert 0 < drawn_ms < 2_000
    page.get_by_role("button", name="zoom in").click()
    assert view(page)[1] == pytest.approx(1.02 * (2_713 * 99_999 + 1_907) / 1.6)
