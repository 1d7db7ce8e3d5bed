"""Serve the live page until a signal ends it, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path

from makeway.act.private import TemporaryPlace
from makeway.show.view.opening import kind_of
from makeway.show.view.question import Question
from makeway.show.view.server import Server
from makeway.show.view.session import Session

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(
    paths: Sequence[Path] = (),
    *,
    first: Question | None = None,
    port: int = 0,
    device_file: Path | None = None,
    open_browser: bool = False,
    ready: Callable[[str, int], None] = lambda url, port: None,
) -> None:
    """Serve on 127.0.0.1 until SIGINT, SIGTERM or SIGHUP; `ready` gets the address. Call it from the main thread.

    A signal that is ignored, as under `nohup`, stays ignored.
    """
    for path in paths:
        kind_of(path)
    with _ended() as over, TemporaryPlace() as place:
        session = Session(place, device_file=device_file, first=first)
        try:
            with Server(session, port) as server:
                for worker in session.answers.values():
                    worker.start()
                if paths:
                    session.open([path.absolute() for path in paths])
                thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
                thread.start()
                ready(server.url, server.port)
                if open_browser:
                    _open(server.url, place)
                over.wait()
                server.shutdown()
        finally:
            session.close()


@contextmanager
def _ended() -> Iterator[threading.Event]:
    """An event that is set by the first signal to end."""
    over = threading.Event()
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: over.set())
    try:
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _open(url: str, place: Path) -> None:
    """Open the address in a browser with a window; other users see the arguments of programs, so a file names it."""
    if sys.platform != "darwin" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    file = place / "open.html"
    file.write_text(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={escape(url)}">', encoding="utf-8")
    webbrowser.open(file.as_uri())
