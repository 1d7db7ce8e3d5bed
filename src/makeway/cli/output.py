"""What every command does with its result: text or JSON on stdout, a page where one was asked for."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import TextIO

TEXT_WIDTH = 80  # where no terminal says otherwise
LEAST_WIDTH = 40  # below, words are cut


def add_output_options(parser: argparse.ArgumentParser, *, page: bool = True) -> None:
    """The options of every command that shows a result."""
    if page:
        parser.add_argument("--html", metavar="FILE", type=Path, help="write a page to look at and send: one file")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--verbose", action="store_true", help="show details, too")
    parser.add_argument("--width", type=_columns, metavar="N", help="columns of text (default: the terminal's, or 80)")


def _columns(text: str) -> int:
    if not text.isdecimal() or int(text) < LEAST_WIDTH:
        raise argparse.ArgumentTypeError(f"takes {LEAST_WIDTH} columns or more, got {text!r}")
    return int(text)


def show(result: object, options: argparse.Namespace, *, text_to: TextIO | None = None) -> None:
    """Print a result as text (to `text_to`, by default stdout) or JSON; write its page where one was asked for."""
    from makeway.show.report import report_of

    report = report_of(result, arguments=command_line())
    if getattr(options, "html", None) is not None:
        from makeway.show.page import page

        write_file(options.html, page(report))
    if options.json:
        from makeway.show.json import json

        sys.stdout.write(json(report))
        return
    from makeway.show.text import text

    stream = text_to or sys.stdout
    terminal = stream.isatty()
    width = options.width or (shutil.get_terminal_size((TEXT_WIDTH, 24)).columns if terminal else TEXT_WIDTH)
    stream.write(text(report, width=width, verbose=options.verbose, colour=terminal))
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)


def write_file(path: Path, content: str, hint: str = "") -> None:
    """Write a file whole or not at all, and say so."""
    from makeway.show.new_file import new_file

    with new_file(path) as file:
        file.write(content)
    print(f"wrote {path}{hint}", file=sys.stderr)


def command_line() -> str:
    """The command as it was typed, for the report's provenance."""
    return shlex.join(["makeway", *sys.argv[1:]])


def show_stage(stage: str) -> None:
    """On a terminal, show what is being done in place of the line before; "" clears it. Elsewhere nothing."""
    if sys.stderr.isatty():
        print(f"\r\033[K{stage}", end="", file=sys.stderr, flush=True)
