"""What makeway does, on this machine, GPU or not: a job, a GPU, the papers, a cluster; one page."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from makeway.act.measure.demo import demo
from makeway.cli.output import add_output_options, show
from makeway.cli.streams import say
from makeway.show.demo import WHAT

EXAMPLES = """\
examples:
  makeway demo                           some two minutes; the job needs torch and two cores
  makeway demo --quick --out demo.html   under half a minute, without the job
"""
_NAME = "makeway-demo.html"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quick", action="store_true", help="leave the job out, and most of the papers and the cluster"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=f"the page (default: {_NAME} here, else in a temporary directory)"
    )
    add_output_options(parser, page=False)


def run(options: argparse.Namespace) -> int:
    options.html = options.out or _place()
    say(f"{WHAT}. This takes about {'20 seconds' if options.quick else 'two minutes'} and writes {options.html}.")
    show(demo(quick=options.quick, progress=_progress), options)
    return 0


def _progress(stage: str, left_s: float) -> None:
    say(f"makeway demo, {int(left_s) // 60}:{int(left_s) % 60:02} left: {stage} ...")


def _place() -> Path:
    """Here, or where one can write."""
    if os.access(".", os.W_OK):
        return Path(_NAME)
    return Path(tempfile.mkdtemp(prefix="makeway-")) / _NAME
