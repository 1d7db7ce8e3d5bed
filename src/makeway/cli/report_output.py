"""The options that every command with a report has, and what they write."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from makeway.report.blocks import Report


def add_report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page to look at and send: one file")
    parser.add_argument("--report", metavar="FILE", type=Path, help="write what the page shows as JSON")


def wants_report(options: argparse.Namespace) -> bool:
    return options.html is not None or options.report is not None


def command_line() -> str:
    """The command as it was typed, for the report's provenance."""
    return shlex.join(["makeway", *sys.argv[1:]])


def write_report(options: argparse.Namespace, make: Callable[[], Report]) -> None:
    """The files that were asked for; the report is made only for those."""
    if not wants_report(options):
        return
    import msgspec

    from makeway.report.new_file import new_file
    from makeway.report.page import html_page
    from makeway.report.report_file import report_document

    report = make()
    if options.report is not None:
        with new_file(options.report) as file:
            file.write(msgspec.json.encode(report_document(report)).decode() + "\n")
        print(f"wrote {options.report}", file=sys.stderr)
    if options.html is not None:
        with new_file(options.html) as file:
            file.write(html_page(report))
        print(f"wrote {options.html}", file=sys.stderr)
