"""One answer from the shards of a job: what `makeway analyze` says of all its ranks together."""

from __future__ import annotations

import argparse
from pathlib import Path

from makeway.cli.output import add_output_options, show
from makeway.decide.analysis.many.analyze_job import merge

EXAMPLES = """\
examples:
  makeway analyze traces/ --shard 1/16 --out shard-1.summary     on any machine, in any order
  makeway merge shard-*.summary
  makeway merge shard-*.summary --json --html job.html
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="written by makeway analyze --shard")
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    show(merge(options.files), options)
    return 0
