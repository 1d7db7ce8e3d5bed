"""Show every published result beside the model's, with the assumptions used, misses included."""

from __future__ import annotations

import argparse
from pathlib import Path

from makeway.cli.output import add_output_options, show, show_stage
from makeway.decide.validation import PARTS, validate

EXAMPLES = """\
examples:
  makeway validate
  makeway validate --only grid --verbose
  makeway validate scale
  makeway validate --data my_heat_map.csv --json

--data takes a table with columns device, grid_y, grid_x, time_ratio (t_overlap / t_sequential), or bytes and
columns parallel_copy, broadcast, one_engine, swap, each also with _prelaunch (speed-up over parallel_copy), or runs
of a cycle-level simulator (scenario, role alone or overlap, total_cycles, k1_name, ...; docs/model.md), or training
steps (id, device, gpus, model, layers, ...; docs/scale.md), also as a directory of tables: so anyone can test the
model on results it has never seen.

Text shows the worst rows of each table, all of them with --verbose.
"""


def _part(word: str) -> str:
    """A part; `choices` would name the empty list among them."""
    if word not in PARTS:
        raise argparse.ArgumentTypeError(f"invalid choice: {word!r} (choose from {', '.join(PARTS)})")
    return word


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("part", nargs="*", type=_part, metavar="PART", help=f"what to validate: {', '.join(PARTS)}")
    parser.add_argument("--only", action="append", choices=tuple(PARTS), help="only this part; may be repeated")
    parser.add_argument("--data", type=Path, metavar="FILE.csv", help="test the model on a table of your own instead")
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    show_stage("simulating the published experiments (all of them: about 15 s) ...")
    validation = validate([*options.part, *(options.only or ())], data=options.data)
    show_stage("")
    show(validation, options)
    return 0
