"""What tests of pages do in a browser: wait for a drawing, and read where the timeline is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]


def view(page: Page) -> tuple[float, float]:
    """Start and length of what the timeline shows, in ns, after what was asked for is drawn."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    start, time = page.evaluate("(({ start, time }) => [+start, +time])(document.querySelector('[data-time]').dataset)")
    return start, time


def eventually(page: Page, condition: str) -> None:
    """Waits frame by frame; the page's policy forbids Playwright's own way, which evaluates text."""
    page.evaluate(
        """new Promise((done, fail) => {
            const began = performance.now();
            const look = () => {
                if (CONDITION) done();
                else if (performance.now() - began > 10000) fail(new Error("never: CONDITION"));
                else requestAnimationFrame(look);
            };
            look();
        })""".replace("CONDITION", condition)
    )
