"""Pages in a headless Chromium, timed in the page: opening, zooming through 100,000 spans, moving the pad's slider.

Goals: a timeline of 100,000 spans painted within 2 s of asking for the page, a zoom within 100 ms, pages below 6 MB.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright
from timing import line

from makeway.decide.analysis.analyze import analysis_of
from makeway.decide.planning.planner import plan
from makeway.model.presets import load_preset
from makeway.model.simulate.predict import simulate
from makeway.show.analysis import report as analysis_report
from makeway.show.blocks import Report
from makeway.show.page import page as html_page
from makeway.show.report import report_of
from makeway.values.control import SmemPad
from makeway.values.device import load_device
from makeway.values.timeline import Rank, Span, Timeline

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SPANS = 100_000
OPENINGS = 7
ZOOMS = 30

# Notes when the timeline, and when everything that scripts draw, has been on the screen for a frame.
WATCH = """
    const once = (condition, name) => {
        if (condition()) requestAnimationFrame(() => { window[name] = performance.now(); });
        else requestAnimationFrame(() => once(condition, name));
    };
    const all = (what, drawn) => [...document.querySelectorAll(what)].every(drawn);
    const timeline = () => document.querySelector("[data-time]") && all("[data-timeline]", (one) => one.dataset.time);
    const charts = () => all("[data-chart]", (one) => one.querySelector(".main-svg"));
    once(timeline, "timelineAfter");
    once(() => document.readyState === "complete" && charts() && timeline(), "drawnAfter");
"""
OPENED = """new Promise((done) => {
    const look = () => {
        const paint = performance.getEntriesByName("first-contentful-paint")[0];
        if (window.drawnAfter && window.timelineAfter && paint) done([paint.startTime, timelineAfter, drawnAfter]);
        else requestAnimationFrame(look);
    };
    look();
})"""
# From the click to the frame after the one that draws: work in scripts, painting and the wait for the screen.
ZOOM = """(what) => new Promise((done) => {
    const clicked = performance.now();
    document.querySelector(`[data-do=${what}]`).click();
    requestAnimationFrame((time) => {
        const drawn = performance.now();
        requestAnimationFrame(() => done([drawn - Math.max(time, clicked), performance.now() - clicked]));
    });
})"""
SLIDE = """(share) => {
    const slider = document.querySelector("[data-room] input");
    const began = performance.now();
    slider.value = share * slider.max;
    slider.dispatchEvent(new Event("input"));
    slider.closest("[data-room]").getBoundingClientRect();
    return performance.now() - began;
}"""
ANSWERS = """() => {
    const box = document.querySelector("[data-room]");
    const data = JSON.parse(document.getElementById(box.dataset.room).textContent);
    const began = performance.now();
    for (let pad = 0; pad < 1000; pad++) roomAnswer(data, 64 * pad);
    return performance.now() - began;
}"""


# --- pages ---------------------------------------------------------------------------------------


def many_spans() -> Report:
    """Kernels of many names on three streams, and every twentieth a collective on its own."""
    spans = [
        Span(
            name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL" if at % 20 == 0 else f"kernel_{at % 300}",
            kind="comm" if at % 20 == 0 else "compute",
            stream="20" if at % 20 == 0 else str(7 + at % 3),
            start_ns=2_713 * at,
            end_ns=2_713 * at + 1_907 + (at % 7) * 300,
            launched_ns=2_713 * at - 9_000,
        )
        for at in range(SPANS)
    ]
    ranks = (Rank(rank=0, device="NVIDIA A100-SXM4-80GB", source="synthetic"),)
    timeline = Timeline(spans=tuple(spans), origin="imported", ranks=ranks)
    return analysis_report(analysis_of([timeline], what_if=False), arguments="makeway analyze synthetic")


def planned() -> Report:
    device = load_device("H100-SXM5-80GB")
    workload = load_preset("gemm-ar", device)
    return report_of(plan(workload, device, timelines=True), arguments="makeway plan")


def padded() -> Report:
    device = load_device("MI250X")
    workload = load_preset("cb-ar", device)
    predicted = simulate(workload, device, [SmemPad(16 * 1024)])
    return report_of(predicted, arguments="makeway simulate")


# --- measuring -----------------------------------------------------------------------------------


@contextmanager
def opened(browser: Browser, path: Path) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.add_init_script(WATCH)
    page.goto(path.as_uri())
    yield page
    context.close()


def measure_opening(browser: Browser, path: Path) -> None:
    taken = []
    for _ in range(OPENINGS):
        with opened(browser, path) as page:
            taken.append([time_ms / 1e3 for time_ms in page.evaluate(OPENED)])
    painted, timeline, everything = map(list, zip(*taken, strict=True))
    print(f"{path.stem}: {path.stat().st_size / 1e6:.2f} MB")
    print(line("  first paint", painted))
    print(line("  timeline drawn", timeline))
    print(line("  everything drawn", everything) + f"  goal: 2000 ms, {_verdict(everything, 2.0)}")


def measure_zoom(browser: Browser, path: Path) -> None:
    with opened(browser, path) as page:
        page.evaluate(OPENED)
        page.locator("[data-timeline]").scroll_into_view_if_needed()
        for name, steps in (("in and out of the whole", ("in", "whole")), ("ever further in", ("in",))):
            taken = [page.evaluate(ZOOM, steps[at % len(steps)]) for at in range(ZOOMS)]
            whole = [total / 1e3 for _, total in taken]
            print(line(f"  zoom {name}: script", [script / 1e3 for script, _ in taken]))
            print(line(f"  zoom {name}: to the next frame", whole) + f"  goal: 100 ms, {_verdict(whole, 0.1)}")
            page.evaluate(ZOOM, "whole")


def measure_slider(browser: Browser, path: Path) -> None:
    with opened(browser, path) as page:
        page.evaluate(OPENED)
        slides = [page.evaluate(SLIDE, at / ZOOMS) / 1e3 for at in range(ZOOMS)]
        answers = [page.evaluate(ANSWERS) / 1e3 for _ in range(OPENINGS)]
    print(line("  slider moved: drawn and laid out", slides))
    print(line("  residency computed in the page", answers, per=1000, unit=1e-6, sign="us"))


def _verdict(seconds: list[float], goal: float) -> str:
    return f"{'met' if statistics.median(seconds) <= goal else 'MISSED'}; longest {1e3 * max(seconds):.0f} ms"


def main() -> None:
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        print("no chromium here: pages not measured", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as driver:
        paths = {}
        for name, report in (("100,000 spans", many_spans()), ("plan", planned()), ("simulation", padded())):
            paths[name] = Path(directory, f"{name}.html")
            paths[name].write_text(html_page(report), encoding="utf-8")
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        print(f"pages in headless Chromium {browser.version}, 1280 x 900, files of this machine")
        measure_opening(browser, paths["100,000 spans"])
        measure_zoom(browser, paths["100,000 spans"])
        measure_opening(browser, paths["plan"])
        measure_opening(browser, paths["simulation"])
        measure_slider(browser, paths["simulation"])
        browser.close()


if __name__ == "__main__":
    main()
