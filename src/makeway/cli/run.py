"""Run an unmodified program under a plan, and check that each control took effect."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from makeway.act.launch.run import Run, dry_run
from makeway.act.launch.run import run as run_program
from makeway.act.launch.supervise import end_by
from makeway.cli.output import add_output_options, show
from makeway.cli.streams import OutputError, discard, say
from makeway.read.plan_file import load_plan
from makeway.values.errors import MakewayError

EXAMPLES = """\
examples:
  makeway run --plan plan.toml -- torchrun --nproc-per-node 8 train.py
  makeway run --plan plan.toml --dry-run -- torchrun train.py
  torchrun --nproc-per-node 8 --no-python makeway run --plan plan.toml -- python train.py

The program keeps its standard output and its exit code; the table of controls goes to stderr. With --json the
document goes to stdout, and what the program prints there goes to stderr.

exit codes: the program's own, or its signal; with --strict 1 if it succeeded and a control was not applied;
2 if it was not started
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "makeway run --plan FILE [options] -- PROGRAM [ARGUMENT ...]"
    parser.add_argument("--plan", required=True, metavar="FILE", help="a plan file (.toml); - for stdin")
    parser.add_argument("--dry-run", action="store_true", help="show what would be set, and start nothing")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a control was not applied on every rank")
    parser.add_argument("--force", action="store_true", help="replace variables that you have set to something else")
    parser.add_argument("--receipts", type=Path, metavar="DIR", help="keep the receipts of every process (default: no)")
    add_output_options(parser)
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...", help="what to run")


def run(options: argparse.Namespace) -> int:
    plan = load_plan(Path(options.plan))
    command = options.program[1:] if options.program[:1] == ["--"] else options.program
    if options.dry_run:
        show(dry_run(command, plan, force=options.force), options)
        return 0
    ran = run_program(
        command,
        plan,
        force=options.force,
        receipts=options.receipts,
        stdout=sys.stderr.fileno() if options.json else None,
        warn=_warn,
    )
    _show(ran, options)
    if ran.killed_by is not None:
        end_by(ran.killed_by)
    assert ran.exit_code is not None
    return 1 if options.strict and ran.exit_code == 0 and not ran.all_applied else ran.exit_code


def _warn(message: str) -> None:
    say(f"makeway run: {message}")


def _show(ran: Run, options: argparse.Namespace) -> None:
    """Show the result; neither an unwritable page nor an unwritable stream changes the program's exit code."""
    stream = sys.stdout if options.json else sys.stderr
    for _ in range(2):  # the second time without the page
        try:
            show(ran, options, text_to=stream)
            return
        except BrokenPipeError:
            discard(stream)
            return
        except MakewayError as error:
            _warn(str(error))
            if options.html is None or isinstance(error, OutputError):
                return
            options.html = None
