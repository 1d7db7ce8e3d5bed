"""Run an unmodified program under a plan, and check that each control took effect."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from makeway import __version__
from makeway.act.launch.environment import Needs, needs_of
from makeway.act.launch.launch import Run, launch, needs_document, run_document
from makeway.act.launch.outcome import ControlOutcome, OnRank
from makeway.act.launch.supervise import end_like
from makeway.cli.output import print_json
from makeway.cli.report_output import add_report_options, command_line, write_report
from makeway.read.plan_file import load_plan, parse_plan
from makeway.show.run_report import run_report
from makeway.values.control import control_word, describe
from makeway.values.errors import InputError, MakewayError
from makeway.values.plan import Plan

EXAMPLES = """\
examples:
  makeway run --plan plan.toml -- torchrun --nproc-per-node 8 train.py
  makeway run --plan plan.toml --dry-run -- torchrun train.py
  torchrun --nproc-per-node 8 --no-python makeway run --plan plan.toml -- python train.py

The program keeps its standard output and its exit code; the table of controls goes to stderr. With --json the
document goes to stdout, and what the program prints there goes to stderr.

exit codes: the program's own, or its signal; with --strict 1 if it ended well and a control was not applied;
2 if it was not started
"""
_ROWS_PER_CONTROL = 8


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "makeway run --plan FILE [options] -- PROGRAM [ARGUMENT ...]"
    parser.add_argument("--plan", required=True, metavar="FILE", help="a plan file (.toml); - for stdin")
    parser.add_argument("--dry-run", action="store_true", help="show what would be set, and start nothing")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a control was not applied on every rank")
    parser.add_argument("--force", action="store_true", help="replace variables that you have set to something else")
    parser.add_argument("--receipts", type=Path, metavar="DIR", help="keep what every process tells (default: do not)")
    add_report_options(parser)
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...", help="what to run")


def run(options: argparse.Namespace) -> int:
    plan = parse_plan(sys.stdin.read(), where="stdin") if options.plan == "-" else load_plan(Path(options.plan))
    words = options.program[1:] if options.program[:1] == ["--"] else options.program
    if options.dry_run:
        return _dry_run(plan, words, options)
    ran = launch(
        plan,
        words,
        environ=os.environ,
        force=options.force,
        receipts=options.receipts,
        stdout=sys.stderr.fileno() if options.json else None,
        say=lambda said: print(f"makeway run: {said}", file=sys.stderr),
    )
    _tell(ran, as_json=options.json)
    try:
        write_report(options, lambda: run_report(ran, words, arguments=command_line(), version=__version__))
    except MakewayError as error:  # the program's exit code matters more
        print(f"makeway run: {error}", file=sys.stderr)
    if ran.ended.killed_by is not None:
        end_like(ran.ended)
    assert ran.ended.code is not None
    return 1 if options.strict and ran.ended.code == 0 and not ran.all_applied else ran.ended.code


# --- before -------------------------------------------------------------------------------------


def _dry_run(plan: Plan, words: Sequence[str], options: argparse.Namespace) -> int:
    if not words:
        raise InputError("no program to run; give it and its arguments after --")
    needs = needs_of(plan, os.environ, force=options.force)
    if options.json:
        print_json({"program": list(words), **needs_document(needs)})
    else:
        print("\n".join(_planned(plan, needs, words)))
    return 0


def _planned(plan: Plan, needs: Needs, words: Sequence[str]) -> Iterator[str]:
    yield f"would run: {shlex.join(words)}"
    notes, lacking = dict(needs.notes), dict(needs.lacking)
    for control in plan.controls:
        yield f"{control_word(control)}: {describe(control)}"
        yield from (f"  {variable.words}" for variable in needs.variables if variable.control == control)
        if control in needs.shim:
            yield "  LD_PRELOAD: the launch shim is added"
        if control in notes:
            yield f"  {notes[control]}"
        if control in lacking and control not in needs.shim:
            yield f"  no variable carries it: {lacking[control]}"
    if plan.controls:
        yield "PYTHONPATH: the start hook is added; it applies what it can in processes that use torch.distributed"
    else:
        yield "the plan has no controls: nothing to set"


# --- after --------------------------------------------------------------------------------------


def _tell(ran: Run, *, as_json: bool) -> None:
    """The document or the table; a reader that has gone changes nothing about the program's exit code."""
    stream = sys.stdout if as_json else sys.stderr
    try:
        if as_json:
            print_json(run_document(ran))
        else:
            print("\n".join(_told(ran)), file=stream)
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _told(ran: Run) -> Iterator[str]:
    where = "" if ran.rank is None else f" (rank {ran.rank})"
    yield f"makeway run{where}: {ran.ended.words}"
    rows = [row for outcome in ran.controls for row in _rows(outcome)]
    if not rows:
        yield "the plan has no controls"
    else:
        yield from _aligned([("control", "outcome", "ranks", "what"), *rows])
    yield from (variable.words for variable in ran.needs.variables)
    yield from (f"note: {note}" for note in ran.notes)


def _rows(outcome: ControlOutcome) -> Iterator[tuple[str, str, str, str]]:
    """One row for all ranks of which the same is said; the first names the control."""
    groups: dict[tuple[str, str], list[OnRank]] = {}
    for one in outcome.ranks:
        groups.setdefault((one.status, one.detail), []).append(one)
    name = control_word(outcome.control)
    for number, ((status, detail), ones) in enumerate(groups.items()):
        if number == _ROWS_PER_CONTROL:
            yield ("", "...", "", f"{len(groups) - number} more rows; --json has every rank")
            return
        yield (name if number == 0 else "", status, _ranks([one.rank for one in ones]), detail)


def _ranks(ranks: Sequence[int | None]) -> str:
    """Rising numbers as ranges: "0-3,5"; "-" where there are no ranks."""
    ranges: list[list[int]] = []
    for rank in ranks:
        if rank is None:
            return "-"
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
