"""A headless Chromium in which no page requests anything or reports an error unnoticed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.browser.driving import OpenPage, count_cpu_time

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# No sandbox as root in a container, no traffic of the browser's own, and no name but loopback's has an address.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-quic", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    executable = next((path for name in names if (path := shutil.which(name))), None)
    if executable is None:
        pytest.skip(f"no browser ({', '.join(names)}): apt-get install chromium")
    with api.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=executable, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser, file: Path) -> Iterator[OpenPage]:
    """Opens the page; afterwards it must have reported no error and requested nothing but its own file."""
    contexts: list[Any] = []
    errors: list[str] = []
    files: list[str] = []
    requests: list[str] = []

    def opened(
        path: Path = file,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        timeline: bool = True,
        cpu_time: bool = False,
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: errors.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: errors.append(f"error: {error}"))
        page.on("request", lambda request: requests.append(request.url))
        if cpu_time:
            count_cpu_time(page)
        page.goto(path.as_uri())
        files.append(path.as_uri())
        if timeline:
            page.wait_for_selector("[data-timeline][data-time]")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert errors == []
    assert requests == files
