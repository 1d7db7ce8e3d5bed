"""Steps of browser tests: wait for a drawing, read the timeline's position, keep a screenshot."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

OpenPage = Callable[..., "Page"]
_COUNTED: WeakKeyDictionary[Page, CDPSession] = WeakKeyDictionary()


def count_cpu_time(page: Page) -> None:
    """Count the processor time of the page from here on; a busy machine does not change it."""
    _COUNTED[page] = page.context.new_cdp_session(page)
    _COUNTED[page].send("Performance.enable", {"timeDomain": "threadTicks"})


def cpu_ms(page: Page) -> float:
    """Processor time of the page's main thread: scripts, style, layout and painting."""
    metrics = _COUNTED[page].send("Performance.getMetrics")["metrics"]
    return 1e3 * next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def drawn(page: Page) -> None:
    """Wait until pending changes are on the screen."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def view(page: Page) -> tuple[float, float]:
    """Start and length of the visible part of the timeline, in ns, after pending changes are drawn."""
    drawn(page)
    start, time = page.evaluate("(({ start, time }) => [+start, +time])(document.querySelector('[data-time]').dataset)")
    return start, time


def eventually(page: Page, condition: str) -> None:
    """Wait frame by frame: the page's policy forbids Playwright's own wait, which evaluates text."""
    page.evaluate(
        """new Promise((done, fail) => {
            const began = performance.now();
            const look = () => {
                if (CONDITION) done();
                else if (performance.now() - began > 30000) fail(new Error("never: CONDITION"));
                else requestAnimationFrame(look);
            };
            look();
        })""".replace("CONDITION", condition)
    )


def keep_picture(page: Page, name: str) -> Path:
    """Save the whole page as NAME.png in $MAKEWAY_ARTEFACTS, or in build/screenshots, for people to look at."""
    default = Path(__file__).resolve().parents[2] / "build" / "screenshots"
    path = Path(os.environ.get("MAKEWAY_ARTEFACTS") or default) / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # timelines below the screen are drawn as well
    page.screenshot(path=path, full_page=True)
    return path
