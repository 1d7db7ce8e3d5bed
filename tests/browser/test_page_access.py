"""Every kind of page for every reader: keyboard, screen reader, weak eyes, paper; a picture of each is kept."""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.browser.driving import OpenPage, drawn, eventually, keep_picture
from tests.browser.test_analysis_page import html, recorded
from tests.browser.test_report_pages import experiment, measured, plan_of
from tests.unit.test_renderers import small_demo

from makeway.act.measure.demo import DeviceMap
from makeway.act.measure.experiment import PAPER_SIDES, Experiments
from makeway.model.presets import load_preset
from makeway.model.simulate.predict import simulate
from makeway.show.page import page as page_of
from makeway.show.report import report_of
from makeway.values.control import SmemPad
from makeway.values.device import load_device

if TYPE_CHECKING:
    from playwright.sync_api import Page

KINDS = tuple(
    pytest.param(kind, marks=() if kind in ("analysis", "demo") else pytest.mark.long)  # these have every block
    for kind in ("analysis", "plan", "simulation", "bench", "experiment", "demo")
)
LEAST_CONTRAST = 4.5  # WCAG 2.2, success criterion 1.4.3, for text of any size


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    where = tmp_path_factory.mktemp("pages")
    mi250x, timelines = load_device("MI250X"), [recorded(0), recorded(1)]
    padded = simulate(load_preset("cb-ar", mi250x), mi250x, [SmemPad(16 * 1024)])
    made = {
        "analysis": html(timelines),
        "plan": page_of(plan_of(load_device("H100-SXM5-80GB"))),
        "simulation": page_of(report_of(padded, arguments="makeway simulate")),
        "bench": page_of(report_of(measured(), arguments="makeway bench")),
        "experiment": page_of(report_of(Experiments(experiments=(experiment(),)), arguments="makeway bench cb-ar")),
        "demo": page_of(report_of(small_demo(), arguments="makeway demo")),
    }
    for name, text in made.items():
        (where / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: where / f"{name}.html" for name in made}


@pytest.fixture(scope="module")
def file(pages: dict[str, Path]) -> Path:
    return pages["analysis"]


def opened(open_page: OpenPage, pages: dict[str, Path], kind: str) -> Page:
    page = open_page(pages[kind], timeline=kind != "experiment")
    drawn(page)
    return page


# --- eyes ----------------------------------------------------------------------------------------

# The lowest contrast of each kind of text with what is behind it; text in a drawing is asked for by its own test.
CONTRAST = """() => {
    const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const parts = (colour) => {
        pen.clearRect(0, 0, 1, 1);
        pen.fillStyle = colour;
        pen.fillRect(0, 0, 1, 1);
        return [...pen.getImageData(0, 0, 1, 1).data];
    };
    const light = (colour) => {
        const [r, g, b] = parts(colour).map((value) => value / 255)
            .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (one, other) => {
        const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    const behind = (element) => {
        for (; element; element = element.parentElement) {
            const style = getComputedStyle(element), stripes = style.backgroundImage.match(/(rgba?|color)\\([^)]*\\)/g);
            if (stripes) return stripes;
            if (parts(style.backgroundColor)[3] === 255) return [style.backgroundColor];
        }
        return ["#fff"];
    };
    const found = new Map();
    const note = (element, colour, backs) => {
        const what = `${element.tagName.toLowerCase()}.${element.getAttribute("class") ?? ""}: ${colour} on ${backs}`;
        for (const back of backs) found.set(what, Math.min(found.get(what) ?? 99, contrast(colour, back)));
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.matches("script")) continue;
        const style = getComputedStyle(element);
        if (!element.closest("svg")) note(element, style.color, behind(element));
        else if (element.closest(".bartext-inside")) {
            note(element, style.fill, [getComputedStyle(element.closest(".point").querySelector("path")).fill]);
        } else if (element.closest(".heatmap-label")) {
            note(element, style.fill, element.closest(".chart").data[0].colorscale.map(([, colour]) => colour));
        } else note(element, style.fill, behind(element.closest(".chart")));
    }
    return [...found].sort((one, other) => one[1] - other[1]);
}"""


@pytest.mark.parametrize("kind", KINDS)
def test_text_stands_out_from_what_is_behind_it_by_day_and_by_night(
    open_page: OpenPage, pages: dict[str, Path], kind: str
) -> None:
    page = opened(open_page, pages, kind)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            eventually(page, FITTING)
            assert picture_width(keep_picture(page, f"{kind}-{width}-{theme}")) == width
        assert too_faint(page) == []


def too_faint(page: Page) -> list[tuple[str, float]]:
    found = page.evaluate(CONTRAST)
    assert len(found) > 5
    return [(what, round(ratio, 2)) for what, ratio in found if ratio < LEAST_CONTRAST]


# Plotly takes a moment to follow the window.
FITTING = "[...document.querySelectorAll('.main-svg')].every((drawing) => drawing.clientWidth <= innerWidth)"


def picture_width(path: Path) -> int:
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    (width,) = struct.unpack(">I", content[16:20])
    return int(width)


def test_names_in_the_timeline_stand_out_from_their_spans(open_page: OpenPage) -> None:
    page = open_page()
    data = "document.getElementById(document.querySelector('[data-timeline]').dataset.timeline).textContent"
    kinds = page.evaluate(f"JSON.parse({data}).kinds")
    assert {"compute", "comm"} <= set(kinds)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        colours = "(names) => names.map((name) => getComputedStyle(document.body).getPropertyValue(`--${name}`).trim())"
        for colour in page.evaluate(colours, kinds):
            assert contrast(colour, page.evaluate("inkOn", colour)) >= LEAST_CONTRAST


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """WCAG 2.2's relative luminance of #rrggbb or #rgb."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


# --- keyboard and screen reader ------------------------------------------------------------------

# What a reader can act on and see, in the order of the page.
CONTROLS = """() => {
    window.controls = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
        .filter((one) => one.checkVisibility() && !one.disabled && one.tabIndex >= 0);
    document.activeElement.blur();
    return controls.length;
}"""


@pytest.mark.parametrize("kind", KINDS)
def test_the_tab_key_reaches_every_control_in_the_order_of_the_page_and_each_can_be_seen(
    open_page: OpenPage, pages: dict[str, Path], kind: str
) -> None:
    page = opened(open_page, pages, kind)
    count = page.evaluate(CONTROLS)
    assert count >= page.locator("nav a").count() > 0
    reached = []
    for _ in range(count):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("controls.indexOf(document.activeElement)"))
    assert reached == list(range(count))
    hidden = "controls.filter((one) => one.closest('[aria-hidden=true], .for-readers')).map((one) => one.outerHTML)"
    assert page.evaluate(hidden) == []


NAMED = {"application", "button", "image", "link", "region", "searchbox", "slider"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_screen_reader_finds_a_name_on_all_that_it_stops_at(
    open_page: OpenPage, pages: dict[str, Path], kind: str
) -> None:
    page = opened(open_page, pages, kind)
    found = spoken(page)
    assert [node for node in found if node["role"] in NAMED and not node["name"].strip()] == []
    roles = {node["role"] for node in found}
    assert {"banner", "main", "navigation", "heading"} <= roles
    assert sum(node["role"] == "table" for node in found) == page.locator("table").count()
    assert sum(node["role"] == "heading" and node["level"] == 1 for node in found) == 1
    unnamed = "[...document.querySelectorAll('table')].filter((table) => !(table.ariaLabelledByElements?.[0] ?? "
    unnamed += "table.caption ?? table.closest('figure')?.querySelector('figcaption'))?.textContent.trim()).length"
    assert page.evaluate(unnamed) == 0
    if kind != "experiment":
        timelines = [node["name"] for node in found if node["role"] == "application"]
        assert len(timelines) == page.locator("details.rank[open] canvas").count()
        assert all(name.startswith("timeline of ") for name in timelines)


def test_the_slider_says_in_words_what_it_does_and_tables_say_what_they_hold(
    open_page: OpenPage, pages: dict[str, Path]
) -> None:
    page = opened(open_page, pages, "simulation")
    slider = page.get_by_role("slider", name="pad per compute block")
    before = slider.get_attribute("aria-valuetext") or ""
    slider.focus()
    page.keyboard.press("Home")
    after = slider.get_attribute("aria-valuetext") or ""
    assert before.startswith("With a pad of 16,384 B: 2 compute blocks")
    assert after.startswith("With a pad of 0 B: 4 compute blocks")
    for table in page.locator("table.sortable").all():
        caption = page.locator(f"#{table.get_attribute('aria-labelledby')}")
        assert caption.inner_text().strip()


def spoken(page: Page) -> list[dict[str, Any]]:
    """The browser's own accessibility tree, without what it ignores."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    return [
        {
            "role": node["role"]["value"],
            "name": node.get("name", {}).get("value", ""),
            "level": next(
                (one["value"]["value"] for one in node.get("properties", ()) if one["name"] == "level"), None
            ),
        }
        for node in nodes
        if not node["ignored"]
    ]


# --- paper ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["analysis", "plan"])
def test_a_page_prints_with_its_timeline(open_page: OpenPage, pages: dict[str, Path], kind: str) -> None:
    page = opened(open_page, pages, kind)
    whole = rectangles(page.pdf(format="A4"))
    page.add_style_tag(content="details.rank canvas { visibility: hidden; }")
    without = rectangles(page.pdf(format="A4"))
    assert whole - without >= 3 * page.locator("details.rank[open] canvas").count() > 0


@pytest.mark.parametrize("kind", ["bench", "experiment"])
def test_text_can_be_read_on_paper_when_printed_from_a_dark_screen(
    open_page: OpenPage, pages: dict[str, Path], kind: str
) -> None:
    page = opened(open_page, pages, kind)
    page.emulate_media(color_scheme="dark")
    page.emulate_media(color_scheme="dark", media="print")
    drawn(page)
    for _ in range(50):  # Plotly draws its text anew when the colours change
        if not too_faint(page):
            break
        page.wait_for_timeout(100)
    assert too_faint(page) == []


def rectangles(paper: bytes) -> int:
    """How many the pages fill; Chromium prints a canvas as the shapes that were drawn on it."""
    assert paper.startswith(b"%PDF-")
    streams = re.findall(rb"/FlateDecode.*?stream\r?\n(.*?)\r?\nendstream", paper, re.DOTALL)
    assert streams
    return sum(zlib.decompress(stream).count(b" re\n") for stream in streams)


# --- the first screen, a phone, and the demo as a whole ----------------------------------------------


PICTURES = "main figure, main canvas, main .room"


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_screen_has_the_verdict_and_a_picture(open_page: OpenPage, pages: dict[str, Path], kind: str) -> None:
    page = opened(open_page, pages, kind)
    assert page.locator("h1").bounding_box()["y"] < 100  # type: ignore[index]
    tops = page.evaluate(f"[...document.querySelectorAll('{PICTURES}')].map((one) => one.getBoundingClientRect().top)")
    assert min(tops) < 600


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_phone_no_table_hides_anything_to_the_right(
    open_page: OpenPage, pages: dict[str, Path], kind: str
) -> None:
    page = opened(open_page, pages, kind)
    page.set_viewport_size({"width": 390, "height": 844})
    eventually(page, FITTING)
    shown = "[...document.querySelectorAll('.scroll, figure')].filter((box) => !box.closest('.for-readers'))"
    wide = f"{shown}.filter((box) => box.scrollWidth > box.clientWidth + 1).map((box) => box.innerText.slice(0, 40))"
    assert page.evaluate(wide) == []


def test_the_whole_demo_fits_six_thousand_pixels(open_page: OpenPage, tmp_path: Path) -> None:
    small = small_demo()
    cells = tuple(
        replace(small.maps[0].experiment.cells[0], grid=(x, y), t_overlap_ns=5e5 + 4e2 * (x + y))
        for x in PAPER_SIDES
        for y in PAPER_SIDES
    )
    experiment = replace(small.maps[0].experiment, cells=cells)
    maps = tuple(
        DeviceMap(name=name, experiment=experiment, published={cell.grid: 0.7 for cell in cells})
        for name in ("A40", "A100", "MI250X")
    )
    assert small.job.tuning is not None
    tuning = replace(small.job.tuning, tried=small.job.tuning.tried * 8)
    path = tmp_path / "demo.html"
    whole = replace(small, maps=maps, job=replace(small.job, tuning=tuning))
    path.write_text(page_of(report_of(whole, arguments="makeway demo")), encoding="utf-8")
    page = open_page(path)
    eventually(page, "document.querySelectorAll('.chart .main-svg').length >= 4")
    assert 4_000 < page.evaluate("document.documentElement.scrollHeight") <= 6_000
