"""The options that every command with a report has, and what they write."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from makeway.show.blocks import Report


def add_report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page to look at and send: one file")


def wants_report(options: argparse.Namespace) -> bool:
    return options.html is not None


def command_line() -> str:
    """The command as it was typed, for the report's provenance."""
    return shlex.join(["makeway", *sys.argv[1:]])


def write_report(options: argparse.Namespace, make: Callable[[], Report]) -> None:
    """The files that were asked for; the report is made only for those."""
    if not wants_report(options):
        return
    from makeway.show.new_file import new_file
    from makeway.show.page import page

    report = make()
    if options.html is not None:
        with new_file(options.html) as file:
            file.write(page(report))
        print(f"wrote {options.html}", file=sys.stderr)
