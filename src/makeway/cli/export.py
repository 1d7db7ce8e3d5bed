"""A plan as environment variables, tuner file, framework options or compiler flags."""

from __future__ import annotations

import argparse
from pathlib import Path

from makeway.act.export.frameworks import DEFAULT_GROUPS
from makeway.act.export.targets import TARGETS, export
from makeway.cli.output import add_output_options, show, write_file
from makeway.cli.streams import write_out
from makeway.read.plan_file import load_plan
from makeway.show.export import verdict
from makeway.values.control import control_word
from makeway.values.errors import UnsupportedError

EXAMPLES = """\
examples:
  makeway export plan.toml --to env --library nccl-2.27.5 --out comm.env
  makeway export plan.toml --to torch
  makeway export plan.toml --to megatron --groups dp,ep

exit codes: 0 done, 2 could not run, or the target carries none of the plan's controls
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="a plan file (.toml); - for stdin")
    parser.add_argument("--to", required=True, metavar="TARGET", help=f"one of {', '.join(TARGETS)}")
    parser.add_argument("--out", metavar="FILE", help="write there and show a report (default, and -: stdout)")
    parser.add_argument(
        "--library", metavar="LIBRARY", help="library in use, such as nccl-2.27.5 (default: that of the plan)"
    )
    parser.add_argument(
        "--groups", metavar="A,B", help=f"Megatron's process groups (default: {','.join(DEFAULT_GROUPS)})"
    )
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    plan = load_plan(Path(options.plan))
    groups = options.groups.split(",") if options.groups is not None else None
    exported = export(plan, options.to, library=options.library, groups=groups)
    nothing = bool(plan.controls) and not exported.carried
    if nothing and not options.json:
        reasons = "\n".join(f"  {control_word(entry.control)}: {entry.refusal}" for entry in exported.refused)
        raise UnsupportedError(f"{verdict(exported)}; nothing was written:\n{reasons}")
    to_file = options.out not in (None, "-")
    if to_file and not nothing:
        write_file(Path(options.out), exported.text)
    if options.json or to_file or options.html:
        show(exported, options)
    else:
        write_out(exported.text)
    return 2 if nothing else 0
