"""A plan as environment variables, tuner file, framework options or compiler flags."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from makeway.act.export.frameworks import DEFAULT_GROUPS
from makeway.act.export.targets import TARGETS, export_document, export_plan
from makeway.cli.output import print_json
from makeway.read.plan_file import load_plan, parse_plan
from makeway.values.errors import InputError
from makeway.values.plan import Plan

EXAMPLES = """\
examples:
  makeway export plan.toml --to env --nccl 2.27.5 --out comm.env
  makeway export plan.toml --to torch
  makeway export plan.toml --to megatron --groups dp,ep
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="a plan file (.toml); - for stdin")
    parser.add_argument("--to", required=True, metavar="TARGET", help=f"one of {', '.join(TARGETS)}")
    parser.add_argument("--out", metavar="FILE", help="write there (default: stdout, which is also -)")
    parser.add_argument("--nccl", metavar="VERSION", help="NCCL version in use (default: that of the plan's library)")
    parser.add_argument(
        "--groups", metavar="A,B", help=f"Megatron's process groups (default: {','.join(DEFAULT_GROUPS)})"
    )


def run(options: argparse.Namespace) -> int:
    plan = _plan(options.plan)
    groups = options.groups.split(",") if options.groups is not None else None
    exported = export_plan(plan, options.to, nccl=options.nccl, groups=groups)
    to_file = options.out not in (None, "-")
    if to_file:
        _write(Path(options.out), exported.text)
    if options.json:
        print_json(export_document(options.to, exported))
    elif not to_file:
        sys.stdout.write(exported.text)
    if plan.controls and not exported.carried:
        print(f"makeway export: warning: {options.to} carries none of the plan's controls", file=sys.stderr)
    return 0


def _plan(asked: str) -> Plan:
    return parse_plan(sys.stdin.read(), where="stdin") if asked == "-" else load_plan(Path(asked))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror}") from None
