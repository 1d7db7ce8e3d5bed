"""What every command does with its result: text or JSON on stdout, a page where one was asked for."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import TextIO

from makeway.cli.streams import say, say_note, write_err, write_out
from makeway.values.errors import printable

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


def show(
    result: object, options: argparse.Namespace, *, text_to: TextIO | None = None, json_to: Path | None = None
) -> None:
    """Print a result as text (to stdout, or to stderr if that is `text_to`) or JSON; write its page if asked to.

    `json_to` is a file for the JSON document in place of stdout; the text is printed then, too.
    """
    from makeway.show.report import report_of

    report = report_of(result, arguments=command_line())
    if getattr(options, "html", None) is not None:
        from makeway.show.page import page

        write_file(options.html, page(report))
    if options.json or json_to is not None:
        from makeway.show.json import json

        if json_to is None:
            write_out(json(report))
            return
        write_file(json_to, json(report))
    from makeway.show.text import text

    stream = text_to or sys.stdout
    terminal = stream.isatty()
    width = options.width or (shutil.get_terminal_size((TEXT_WIDTH, 24)).columns if terminal else TEXT_WIDTH)
    write = write_err if stream is sys.stderr else write_out
    write(text(report, width=width, verbose=options.verbose, colour=terminal))
    for note in report.notes:
        say_note(note)


def write_file(path: Path, content: str, hint: str = "") -> None:
    """Write a file whole or not at all, and say so."""
    from makeway.show.new_file import new_file

    with new_file(path) as file:
        file.write(content)
    say(f"wrote {printable(path)}{hint}")


def command_line() -> str:
    """The command as it was typed, for the report's provenance."""
    return shlex.join(["makeway", *sys.argv[1:]])


def show_stage(stage: str) -> None:
    """On a terminal, show what is being done in place of the line before; "" clears it. Elsewhere nothing."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size((TEXT_WIDTH, 24)).columns
        write_err(f"\r\033[K{printable(stage)[: width - 1]}")


def show_reading(share: float, path: Path) -> None:
    """Show how much of all traces has been read, and from which file."""
    show_stage(f"reading {path.name}: {share:.0%} of all traces")
