"""The site builds without a warning, has every page, and asks nothing from outside."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(
    r"""<(?:script|link|img|iframe|source|video|audio|object|embed)\b[^>]*?\b(?:src|href|data)=["']?(https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the documentation's tools are not installed: pip install 'makeway[docs]'")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_in_the_site(site: Path) -> None:
    docs = ROOT / "docs"
    for page in docs.rglob("*.md"):
        assert (site / page.relative_to(docs)).with_suffix(".html").is_file(), page


def test_no_page_loads_anything_from_outside(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not LOADED.search(text), page
        assert "@import" not in text


def test_style_sheets_load_nothing_from_outside(site: Path) -> None:
    sheets = list(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        assert not re.search(r"""url\(["']?(?:https?:)?//|@import""", sheet.read_text(encoding="utf-8")), sheet


def test_the_search_index_knows_the_pages(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "how-to/padding.html" in index


# --- in a browser --------------------------------------------------------------------------------


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    serving = Thread(target=server.serve_forever)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    serving.join()
    server.server_close()


def test_a_browser_asks_only_the_site_and_finds_what_is_searched_for(address: str) -> None:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no browser (chromium, google-chrome): apt-get install chromium")
    asked: list[str] = []
    complaints: list[str] = []
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        for name in ("index", "concepts", "numbers", "how-to/padding", "reference/cli"):
            page.goto(f"{address}/{name}.html")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, f"{name} is wider than a phone"
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto(f"{address}/index.html")
        page.locator("input.md-search__input").click()
        page.keyboard.type("straggler")
        page.wait_for_selector(".md-search-result__item a")
        browser.close()
    assert len(asked) > 10
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    assert complaints == []
