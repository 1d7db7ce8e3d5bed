"""Run an unmodified program under a plan, and check that each control took effect; or find the plan as it runs."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from makeway.act.launch.run import dry_run
from makeway.act.launch.run import run as run_program
from makeway.act.launch.step_files import SHARE, WARM_UP
from makeway.cli.output import show, write_file
from makeway.cli.program import add_program, ended, keeps_exit_code, program_of, show_after, warn_as
from makeway.cli.streams import say
from makeway.read.plan_file import dump_plan, load_plan
from makeway.show.new_file import check_place
from makeway.values.errors import InputError, MakewayError

EXAMPLES = """\
examples:
  makeway run --plan plan.toml -- torchrun --nproc-per-node 8 train.py
  makeway run --plan plan.toml --dry-run -- torchrun train.py
  makeway run --plan plan.toml --compare -- torchrun --nproc-per-node 2 train.py
  makeway run --tune --plan-out plan.toml -- torchrun --nproc-per-node 2 train.py
  torchrun --nproc-per-node 8 --no-python makeway run --plan plan.toml -- python train.py

The program keeps its standard output and its exit code; the table of controls goes to stderr. With --json the
document goes to stdout, and what the program prints there goes to stderr; with --out it goes to a file.

exit codes: the program's own, or its signal; with --strict or --fail-if 1 if it succeeded and a control was not
applied or the limit holds; 2 if it was not started, or if nothing was measured for --fail-if
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "makeway run (--plan FILE | --tune) [options] -- PROGRAM [ARGUMENT ...]"
    parser.add_argument("--plan", metavar="FILE", help="a plan file (.toml); - for stdin")
    parser.add_argument("--dry-run", action="store_true", help="show what would be set, and start nothing")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a control was not applied on every rank")
    parser.add_argument("--force", action="store_true", help="replace variables that you have set to something else")
    parser.add_argument("--receipts", type=Path, metavar="DIR", help="keep the receipts of every process (default: no)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON document there")
    comparing = parser.add_argument_group("with against without the plan, in the job itself")
    comparing.add_argument("--compare", action="store_true", help="alternate in blocks of steps, and tell the gain")
    comparing.add_argument("--compare-steps", type=int, metavar="N", help="at most to spend on it (default: 2000)")
    comparing.add_argument(
        "--compare-runs", type=int, metavar="N", help="alternate whole runs, N of each: for controls set at the start"
    )
    comparing.add_argument("--warm-up", type=int, metavar="N", help=f"steps to leave alone first (default: {WARM_UP})")
    comparing.add_argument("--seed", type=int, help="of the order of blocks or runs (default: 0)")
    comparing.add_argument("--fail-if", metavar="LIMIT", help="exit 1 if it holds: slower, faster, 'difference>5%%'")
    tuning = parser.add_argument_group("the plan found in the job itself")
    tuning.add_argument("--tune", action="store_true", help="try controls in blocks of steps, and keep what is faster")
    tuning.add_argument(
        "--tune-share", type=float, metavar="SHARE", help="of the job's steps for trials, at most (default: 0.05)"
    )
    tuning.add_argument("--job-steps", type=int, metavar="N", help="steps of the whole job (default: not known)")
    tuning.add_argument("--plan-out", type=Path, metavar="FILE", help="write the plan that it ended with")
    tuning.add_argument("--log", type=Path, metavar="FILE", help="write what was tried, as JSON lines")
    tuning.add_argument("--allow-lossy", action="store_true", help="also try controls that change results: compress")
    add_program(parser)


@keeps_exit_code
def run(options: argparse.Namespace) -> int:
    command = program_of(options)
    for path in filter(None, (options.out, options.plan_out, options.log)):
        check_place(path)
    if options.tune:
        return _tune(command, options)
    if any(value not in (None, False) for value in (getattr(options, name) for name in _TUNING)):
        raise InputError(f"{', '.join(map(_option, _TUNING))} need --tune")
    if options.plan is None:
        raise InputError("--plan is needed: name a plan file, or find one in the job itself with --tune")
    plan = load_plan(Path(options.plan))
    options.json_to = options.out
    comparing = options.compare or options.compare_runs is not None
    if wrong := [name for name in _AT_STEPS if not comparing and getattr(options, name) is not None]:
        raise InputError(f"{_option(wrong[0])} needs --compare or --tune: a plan alone does nothing at steps")
    if options.dry_run and comparing:
        raise InputError("--dry-run starts nothing, so there is nothing to compare; leave out one of the two")
    if options.dry_run:
        show(dry_run(command, plan, force=options.force), options, json_to=options.out)
        return 0
    stdout = sys.stderr.fileno() if options.json and options.out is None else None
    if comparing:
        from makeway.act.launch.compare_run import STEPS, compare_run

        compared = compare_run(
            command,
            plan,
            steps=options.compare_steps if options.compare_steps is not None else STEPS,
            runs=options.compare_runs,
            seed=options.seed if options.seed is not None else 0,
            warm_up=options.warm_up if options.warm_up is not None else WARM_UP,
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
        if code == 0 and compared.unchecked:
            say(f"makeway run: {compared.limit} was not checked: nothing was measured")
            return 2
        return 1 if code == 0 and (compared.missed or (options.strict and not compared.all_applied)) else code
    ran = run_program(command, plan, force=options.force, receipts=options.receipts, stdout=stdout, warn=warn_as("run"))
    show_after(ran, options, "run")
    code = ended(ran.exit_code, ran.killed_by)
    return 1 if options.strict and code == 0 and not ran.all_applied else code


_TUNING = ("tune_share", "job_steps", "plan_out", "log", "allow_lossy")
_AT_STEPS = ("step_marker", "warm_up", "seed", "fail_if", "compare_steps")
_NOT_WITH_TUNE = ("dry_run", "strict", "compare", "compare_steps", "compare_runs", "fail_if")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _tune(command: list[str], options: argparse.Namespace) -> int:
    from makeway.act.launch.tune_run import tune_run

    if wrong := [name for name in _NOT_WITH_TUNE if getattr(options, name) not in (None, False)]:
        raise InputError(f"{_option(wrong[0])} does not go with --tune; tune first, then use the plan of --plan-out")
    options.json_to = options.out
    tuned = tune_run(
        command,
        load_plan(Path(options.plan)) if options.plan is not None else None,
        share=options.tune_share if options.tune_share is not None else SHARE,
        job_steps=options.job_steps,
        seed=options.seed if options.seed is not None else 0,
        warm_up=options.warm_up if options.warm_up is not None else WARM_UP,
        step_marker=options.step_marker,
        allow_lossy=options.allow_lossy,
        force=options.force,
        receipts=options.receipts,
        stdout=sys.stderr.fileno() if options.json and options.out is None else None,
        warn=warn_as("run"),
        meanwhile=_load_report,
        since_ns=0,
    )
    from makeway.show.run_tuning import log_lines

    for path, content in ((options.plan_out, dump_plan(tuned.as_plan)), (options.log, log_lines(tuned))):
        if path is not None:
            try:
                write_file(path, content)
            except MakewayError as error:  # the program's exit code is not lost
                warn_as("run")(str(error))
    show_after(tuned, options, "run")
    return ended(tuned.exit_code, tuned.killed_by)


def _load_report() -> None:
    """Load what shows a tuned job while the program starts: a job that ends would wait for it."""
    for name in ("report", "run_tuning", "json", "text"):
        import_module(f"makeway.show.{name}")
