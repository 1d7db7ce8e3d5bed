"""The whole story on this machine, GPU or not: real ranks, published experiments, a step with its plan; one page."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from makeway.act.measure.demo import demo
from makeway.cli.output import add_output_options, show
from makeway.cli.streams import say

EXAMPLES = """\
examples:
  makeway demo                           some two minutes; needs torch for the real ranks
  makeway demo --quick --out demo.html   a few seconds, without the real ranks
"""
_NAME = "makeway-demo.html"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="leave the real ranks out, and most grids: under 20 s")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=f"the page (default: {_NAME} here, else in a temporary directory)"
    )
    add_output_options(parser, page=False)


def run(options: argparse.Namespace) -> int:
    options.html = options.out or _place()
    show(demo(quick=options.quick, progress=_progress), options)
    return 0


def _progress(stage: str) -> None:
    say(f"makeway demo: {stage} ...")


def _place() -> Path:
    """Here, or where one can write."""
    if os.access(".", os.W_OK):
        return Path(_NAME)
    return Path(tempfile.mkdtemp(prefix="makeway-")) / _NAME
