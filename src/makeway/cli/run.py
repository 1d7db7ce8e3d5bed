"""Run an unmodified program under a plan, and check that each control took effect."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TextIO

from makeway.act.launch.run import Run, dry_run
from makeway.act.launch.run import run as run_program
from makeway.act.launch.supervise import end_by
from makeway.cli.output import add_output_options, show
from makeway.read.plan_file import load_plan, parse_plan
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
    _open_streams()
    plan = parse_plan(sys.stdin.read(), where="stdin") if options.plan == "-" else load_plan(Path(options.plan))
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


def _open_streams() -> None:
    """Put /dev/null in place of closed standard streams: else the next file opened would become one, for us or the
    program."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _silenced() -> list[TextIO]:
    """The streams that cannot be written (a full disk, a reader that has gone); what follows goes nowhere."""
    streams = []
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)
            stream.flush()
            streams.append(stream)
    return streams


def _warn(message: str) -> None:
    try:
        print(f"makeway run: {message}", file=sys.stderr, flush=True)
    except OSError:
        _silenced()


def _show(ran: Run, options: argparse.Namespace) -> None:
    """Show the result; neither an unwritable page nor an unwritable stream changes the program's exit code."""
    stream = sys.stdout if options.json else sys.stderr
    for _ in range(3):  # without the page, and without the stream that only has messages
        try:
            show(ran, options, text_to=stream)
            stream.flush()
            return
        except MakewayError as error:
            _warn(str(error))
            options.html = None
        except OSError:
            if stream in _silenced():
                return
