"""One answer from shards: what `makeway analyze` says of all ranks, or `makeway scale --sweep` of all GPUs."""

from __future__ import annotations

import argparse
from pathlib import Path

from makeway.cli.output import add_output_options, show
from makeway.decide.analysis.many.analyze_job import merge
from makeway.decide.scale.shards import is_curve_shard, merge_curves

EXAMPLES = """\
examples:
  makeway analyze traces/ --shard 1/16 --out shard-1.summary     on any machine, in any order
  makeway merge shard-*.summary
  makeway merge shard-*.summary --json --html job.html
  makeway merge part-*.json                                      shards of makeway scale --sweep
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="written by makeway analyze --shard, or by makeway scale --shard",
    )
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    show(merge_curves(options.files) if is_curve_shard(options.files[0]) else merge(options.files), options)
    return 0
