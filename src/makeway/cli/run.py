"""Run an unmodified program under a plan, and check that each control took effect."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from makeway.act.launch.run import dry_run
from makeway.act.launch.run import run as run_program
from makeway.cli.output import show
from makeway.cli.program import add_program, ended, program_of, show_after, warn_as
from makeway.cli.streams import say
from makeway.read.plan_file import load_plan
from makeway.values.errors import InputError

EXAMPLES = """\
examples:
  makeway run --plan plan.toml -- torchrun --nproc-per-node 8 train.py
  makeway run --plan plan.toml --dry-run -- torchrun train.py
  makeway run --plan plan.toml --compare -- torchrun --nproc-per-node 2 train.py
  torchrun --nproc-per-node 8 --no-python makeway run --plan plan.toml -- python train.py

The program keeps its standard output and its exit code; the table of controls goes to stderr. With --json the
document goes to stdout, and what the program prints there goes to stderr; with --out it goes to a file.

exit codes: the program's own, or its signal; with --strict or --fail-if 1 if it succeeded and a control was not
applied or the limit holds; 2 if it was not started
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "makeway run --plan FILE [options] -- PROGRAM [ARGUMENT ...]"
    parser.add_argument("--plan", required=True, metavar="FILE", help="a plan file (.toml); - for stdin")
    parser.add_argument("--dry-run", action="store_true", help="show what would be set, and start nothing")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a control was not applied on every rank")
    parser.add_argument("--force", action="store_true", help="replace variables that you have set to something else")
    parser.add_argument("--receipts", type=Path, metavar="DIR", help="keep the receipts of every process (default: no)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON document there")
    comparing = parser.add_argument_group("with against without the plan, in the job itself")
    comparing.add_argument("--compare", action="store_true", help="alternate in blocks of steps, and tell the gain")
    comparing.add_argument("--compare-steps", type=int, metavar="N", help="at most to spend on it (default: 1000)")
    comparing.add_argument(
        "--compare-runs", type=int, metavar="N", help="alternate whole runs, N of each: for controls set at the start"
    )
    comparing.add_argument(
        "--warm-up", type=int, default=5, metavar="N", help="steps to leave alone first (default: 5)"
    )
    comparing.add_argument("--seed", type=int, default=0, help="of the order of blocks or runs (default: 0)")
    comparing.add_argument("--fail-if", metavar="LIMIT", help="exit 1 if it holds: slower, faster, 'difference>5%%'")
    add_program(parser)


def run(options: argparse.Namespace) -> int:
    plan = load_plan(Path(options.plan))
    command = program_of(options)
    options.json_to = options.out
    if options.dry_run:
        show(dry_run(command, plan, force=options.force), options, json_to=options.out)
        return 0
    stdout = sys.stderr.fileno() if options.json and options.out is None else None
    if options.compare or options.compare_runs is not None:
        from makeway.act.launch.compare_run import STEPS, compare_run

        compared = compare_run(
            command,
            plan,
            steps=options.compare_steps if options.compare_steps is not None else STEPS,
            runs=options.compare_runs,
            seed=options.seed,
            warm_up=options.warm_up,
            step_marker=options.step_marker,
            fail_if=options.fail_if,
            force=options.force,
            receipts=options.receipts,
            stdout=stdout,
            warn=warn_as("run"),
        )
        show_after(compared, options, "run")
        code = ended(compared.exit_code, compared.killed_by)
        if compared.missed:
            say(f"makeway run: a step is {compared.difference_pct:+.1f} %: {compared.limit}")
        return 1 if code == 0 and compared.missed else code
    if options.fail_if is not None or options.compare_steps is not None:
        raise InputError("--fail-if and --compare-steps need --compare")
    ran = run_program(command, plan, force=options.force, receipts=options.receipts, stdout=stdout, warn=warn_as("run"))
    show_after(ran, options, "run")
    code = ended(ran.exit_code, ran.killed_by)
    return 1 if options.strict and code == 0 and not ran.all_applied else code
