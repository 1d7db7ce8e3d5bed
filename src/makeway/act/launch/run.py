"""`makeway run`: a program under a plan, from the files that carry the plan to the outcome of every control."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from makeway.act.doctor.gpus import gpu_platform
from makeway.act.launch.environment import (
    Needs,
    Route,
    Variable,
    needs_of,
    needs_of_trial,
    needs_on_cpu,
    rank_of,
    receipts_at_start,
    unloadable,
)
from makeway.act.launch.leftovers import Leftover
from makeway.act.launch.mpi import with_exports
from makeway.act.launch.step_files import AtSteps
from makeway.act.launch.supervise import end_kept, supervise
from makeway.act.plans import PlanLike, plan_of
from makeway.act.private import TemporaryPlace
from makeway.read.plan_file import dump_plan
from makeway.values.control import Control, SmemPad, control_word, lossy
from makeway.values.errors import InputError, MakewayError
from makeway.values.plan import Plan
from makeway.values.receipt import Receipt
from makeway.values.support import Platform

if TYPE_CHECKING:  # loaded where they are needed, or while the program starts
    from makeway.act.launch.outcome import Outcome
    from makeway.act.tuner.carry import Tuner

_RECEIPT_FILES = ("launch-*", "torch-*.json", "steps-*.json", "tuner-*", "nccl-*")
_VERSION_WAIT_S = 20.0
Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A program that ran under a plan: how it ended, and what became of every control."""

    program: tuple[str, ...]
    rank: int | None  # of makeway itself, where it was started once per rank
    exit_code: int | None  # None: killed by a signal
    killed_by: int | None
    controls: tuple[Outcome, ...]
    variables: tuple[Variable, ...]
    notes: tuple[str, ...]

    @property
    def applied(self) -> int:
        """Controls that every rank applied."""
        return sum(outcome.status == "applied" for outcome in self.controls)

    @property
    def all_applied(self) -> bool:
        return self.applied == len(self.controls)


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What `run` would set for a program."""

    program: tuple[str, ...]
    controls: tuple[Control, ...]
    needs: Needs


def run(
    command: Sequence[str],
    plan: PlanLike,
    *,
    environ: Mapping[str, str] = os.environ,
    force: bool = False,
    receipts: Path | None = None,
    stdout: int | None = None,
    platform: Platform | None = None,
    warn: Warn = lambda message: None,
    at_steps: AtSteps | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Run:
    """Run the command under the plan and wait for its end.

    `force` replaces variables that the user has set to something else. Receipts are kept in the directory `receipts`,
    by default only as long as the program runs. `stdout` is a descriptor in place of the program's standard output.
    `platform` is that of the GPUs, by default of those that this machine has. `at_steps`: what processes do at the
    program's steps. `meanwhile` is called while the program starts. Call it from the main thread of a process without
    other children.
    """

    def load() -> None:
        import_module("makeway.act.launch.outcome")
        if meanwhile is not None:
            meanwhile()

    plan = plan_of(plan)
    _check_program(command, environ)
    platform = platform or gpu_platform()
    trial = at_steps.trial if at_steps is not None else ()
    live = bool(trial) and platform is not None
    if trial and not live:
        needs = needs_on_cpu(trial)
    else:
        needs = needs_of(plan, environ, force=force, platform=platform)
        needs = needs_of_trial(needs, trial) if live else needs
    rank = rank_of(environ)
    with _receipt_directory(receipts, rank) as directory:
        # A trial on GPUs always has the shim: it sees graphs, whose kernels no trial can change.
        sets = trial or (plan.controls,)
        route, no_shim = _route(plan, sets, directory, warn, shim=live or bool(needs.launch_shim))
        route = replace(route, tuner=_tuner(sets, needs, directory, warn))
        settings = needs.settings | route.variables(environ)
        if platform is not None and (needs.read_by_nccl or needs.tuner_plugin):
            from makeway.act.tuner.nccl_log import log_variables

            settings |= log_variables(directory, environ, command[0], temporary=receipts is None)
        if at_steps is not None:
            settings |= at_steps.variables(directory, environ)
        launched = with_exports(command, settings, environ, _version)
        for note in filter(None, (launched.note, _pads_all(plan), _changes_results(plan))):
            warn(note)
        ended = supervise(launched.arguments, {**environ, **settings}, stdout=stdout, meanwhile=load)
        with end_kept(ended.code, ended.killed_by):
            from makeway.act.launch.outcome import outcomes, read_left

            if at_steps is not None:
                at_steps.read(directory)
            left = read_left(directory)
            at_start = receipts_at_start(plan, needs, no_shim=no_shim)
            if at_steps is not None:
                at_start = (*at_start, *_also_tried(at_start, at_steps.settings.controls))
            controls = outcomes(
                plan,
                at_start,
                left.launches,
                left.processes,
                left.tallies,
                tuned=needs.tuner_plugin if route.tuner else (),
                logs=left.logs,
                wanted=needs.read_by_nccl,
                trial=trial,
            )
    notes = [*left.notes, *(_still_running(process) for process in ended.leftovers)]
    return Run(
        program=tuple(command),
        rank=rank,
        exit_code=ended.code,
        killed_by=ended.killed_by,
        controls=controls,
        variables=needs.variables,
        notes=tuple(dict.fromkeys(notes)),
    )


def _still_running(process: Leftover) -> str:
    return (
        f"process {process.pid} ({process.name}) was still running when the program ended, and was ended by "
        f"{process.ended_by}"
    )


def dry_run(
    command: Sequence[str], plan: PlanLike, *, environ: Mapping[str, str] = os.environ, force: bool = False
) -> DryRun:
    """What `run` would set; nothing is started."""
    plan = plan_of(plan)
    if not command:
        raise InputError(NO_PROGRAM)
    needs = needs_of(plan, environ, force=force, platform=gpu_platform())
    return DryRun(program=tuple(command), controls=plan.controls, needs=needs)


NO_PROGRAM = "no program to run; give it and its arguments after --"


def _also_tried(at_start: Sequence[Receipt], settings: Sequence[Sequence[Control]]) -> Iterator[Receipt]:
    """Receipts for controls of a trial that differ from the plan's of the same kind."""
    known = {receipt.control for receipt in at_start}
    for control in dict.fromkeys(control for controls in settings for control in controls if control not in known):
        yield from (replace(item, control=control) for item in at_start if type(item.control) is type(control))


def _changes_results(plan: Plan) -> str | None:
    names = ", ".join(control.name for control in plan.controls if lossy(control))
    return f"the program's results may change: {names} is lossy" if names else None


def _pads_all(plan: Plan) -> str:
    """A warning for a pad that names no kernel: some kernels cannot bear one, and not all of them can be recognised."""
    pads = [control for control in plan.controls if isinstance(control, SmemPad) and control.kernel == "*"]
    if not pads:
        return ""
    return (
        f"{control_word(pads[0])} pads every compute kernel; one whose blocks wait for each other could hang. "
        f"Name the kernels, such as {control_word(pads[0])}:*gemm*"
    )


def _check_program(command: Sequence[str], environ: Mapping[str, str]) -> None:
    if not command:
        raise InputError(NO_PROGRAM)
    if shutil.which(command[0], path=environ.get("PATH")) is not None:
        return
    given = Path(command[0])
    why, instead = "no such program", "give the program and its arguments after --"
    if os.sep in command[0] and given.exists():
        why = "it is a directory" if given.is_dir() else "it is not executable"
        instead = f"start it with its interpreter, such as `python {given}`" if given.suffix == ".py" else instead
    raise InputError(f"cannot start {command[0]!r}: {why}; {instead}")


@contextmanager
def _receipt_directory(chosen: Path | None, rank: int | None) -> Iterator[Path]:
    """Where the processes of this run leave their receipts: empty at first, one for each rank that has its own run."""
    if chosen is None:
        try:
            temporary = TemporaryPlace()
        except OSError as error:
            raise InputError(f"cannot make a temporary directory: {error.strerror}; name one with --receipts") from None
        with temporary as place:
            yield place
        return
    directory = (chosen if rank is None else chosen / f"rank-{rank}").absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {str(directory)!r}: {error.strerror}; choose another place") from None
    if any(next(directory.glob(pattern), None) for pattern in _RECEIPT_FILES):
        raise InputError(f"{str(directory)!r} has receipts of an earlier run; name another directory, or empty it")
    yield directory


Sets = Sequence[tuple[Control, ...]]


def _route(plan: Plan, sets: Sets, directory: Path, warn: Warn, *, shim: bool) -> tuple[Route, str | None]:
    """The files for the program's processes, and why the launch shim is missing where it is needed.

    `sets` are the plan's controls, or those among which a job alternates: it starts with the first.
    """
    path = directory / "plan.toml"  # a copy: the plan of this run, whatever happens to the file meanwhile
    _write(path, dump_plan(plan).encode())
    without_shim = Route(plan=path, receipts=directory)
    if not shim:
        return without_shim, None
    try:
        built, rules = _shim(sets, warn)
        if reason := unloadable(built):
            return without_shim, reason
    except MakewayError as error:  # the program runs all the same
        reason = " ".join(str(error).split("\n"))
        warn(f"without the launch shim: {reason}")
        return without_shim, reason
    rules_path = directory / "rules"
    _write(rules_path, rules)
    return Route(plan=path, receipts=directory, rules=rules_path, shim=built), None


def _tuner(sets: Sets, needs: Needs, directory: Path, warn: Warn) -> Tuner | None:
    """The tuner plugin and its rules where the plan needs them; without it the variables of the plan still hold."""
    for remark in needs.conditions:
        if remark.text.startswith("without the tuner plugin"):
            warn(remark.text)
    if not needs.tuner_plugin:
        return None
    from makeway.act.tuner.build import plugin
    from makeway.act.tuner.carry import Tuner, write_rules

    try:
        return Tuner(plugin=plugin(warn=warn), rules=write_rules(sets, directory))
    except MakewayError as error:  # the program runs all the same
        warn(f"without the tuner plugin: {' '.join(str(error).split())}")
        return None


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror}; choose another place") from None


def _shim(sets: Sets, warn: Warn) -> tuple[Path, bytes]:
    from makeway.act.preload.build import library
    from makeway.act.preload.rules import encode_rules, rules_of

    return library(warn=warn), encode_rules(*(rules_of(Plan(controls=controls)) for controls in sets))


def _version(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_VERSION_WAIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
