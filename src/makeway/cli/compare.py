"""Compare two recordings of a program: the step time with an interval, where it changed, and a verdict."""

from __future__ import annotations

import argparse
from pathlib import Path

from makeway.cli.output import add_output_options, show, show_stage
from makeway.cli.streams import say
from makeway.decide.analysis.compare import compare

EXAMPLES = """\
examples:
  makeway compare before.json.gz after.json.gz
  makeway compare traces/before traces/after     directories with one file per rank
  makeway compare traces/before traces/after --fail-if slower
  makeway compare traces/before traces/after --fail-if 'difference>5%' --json

a directory of directories holds several runs, which show how much runs differ by themselves
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, metavar="BEFORE", help="a recording, or a directory with one per rank")
    parser.add_argument("after", type=Path, metavar="AFTER", help="the recording to compare with it")
    parser.add_argument(
        "--fail-if", metavar="LIMIT", help="exit 1 if it holds: slower, faster, or a shown 'difference>5%%'"
    )
    parser.add_argument(
        "--comm-names", metavar="PATTERN|FILE", help="kernels of yours that communicate: a pattern of names, or .toml"
    )
    parser.add_argument("--jobs", metavar="N", type=int, help="processes that read traces (default: one per core)")
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    try:
        comparison = compare(
            options.before,
            options.after,
            fail_if=options.fail_if,
            comm_names=options.comm_names,
            jobs=options.jobs,
            progress=lambda path, _: show_stage(f"reading {path.name}"),
        )
    finally:
        show_stage("")
    show(comparison, options)
    if comparison.missed:
        say(f"makeway compare: a step is {comparison.difference_pct:+.1f} %: {comparison.limit}")
    return int(comparison.missed)
