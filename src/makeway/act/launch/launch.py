"""`makeway run`: files for the way in, the program under them, and the outcome of every control."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from makeway.act.launch.environment import Needs, WayIn, at_start, needs_of, rank_of, unloadable, way_in
from makeway.act.launch.mpi import handing_on
from makeway.act.launch.outcome import ControlOutcome, outcomes, read_torch_receipts
from makeway.act.launch.supervise import Ended, supervise
from makeway.read.plan_file import dump_plan
from makeway.values.control import control_word
from makeway.values.errors import InputError, MakewayError
from makeway.values.plan import Plan

if TYPE_CHECKING:
    from makeway.act.preload.receipts import LaunchReceipts

_RECEIPT_FILES = ("launch-*", "torch-*.json")
_VERSION_WAIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A program that has run under a plan, and what became of the plan."""

    rank: int | None  # of makeway itself, where it was started once per rank
    needs: Needs
    ended: Ended
    controls: tuple[ControlOutcome, ...]
    notes: tuple[str, ...]

    @property
    def all_applied(self) -> bool:
        return all(control.status == "applied" for control in self.controls)


def launch(
    plan: Plan,
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    force: bool = False,
    receipts: Path | None = None,
    stdout: int | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> Run:
    """Run the command under the plan and wait for its end.

    `receipts` is kept; without it they live in a temporary directory for as long as the program. `stdout` is a
    descriptor in place of the program's standard output.
    """
    _refuse_what_is_no_program(command, environ)
    needs = needs_of(plan, environ, force=force)
    rank = rank_of(environ)
    with _directory(receipts, rank) as directory:
        files, no_shim = _prepared(plan, needs, directory, say)
        settings = needs.settings | way_in(files, environ)
        handed = handing_on(command, settings, environ, _version)
        if handed.note:
            say(handed.note)
        ended = supervise(handed.words, {**environ, **settings}, stdout=stdout)
        launches = _launch_receipts(directory) if files.shim is not None else ()
        found = outcomes(plan, at_start(plan, needs, no_shim=no_shim), launches, read_torch_receipts(directory))
    notes = [note for one in launches for note in one.notes]
    notes += [
        f"process {left.pid} ({left.name}) was still running when the program ended, and was ended by {left.ended_by}"
        for left in ended.leftovers
    ]
    return Run(rank=rank, needs=needs, ended=ended, controls=found, notes=tuple(dict.fromkeys(notes)))


def _refuse_what_is_no_program(command: Sequence[str], environ: Mapping[str, str]) -> None:
    if not command:
        raise InputError("no program to run; give it and its arguments after --")
    if shutil.which(command[0], path=environ.get("PATH")) is None:
        raise InputError(f"cannot start {command[0]!r}: no such program; give the program and its arguments after --")


@contextmanager
def _directory(asked: Path | None, rank: int | None) -> Iterator[Path]:
    """Where the processes of this run leave their receipts: empty at first, one for each rank that has its own run."""
    if asked is None:
        try:
            made = tempfile.TemporaryDirectory(prefix="makeway-run-", ignore_cleanup_errors=True)
        except OSError as error:
            raise InputError(f"cannot make a temporary directory: {error.strerror}; name one with --receipts") from None
        with made:
            yield Path(made.name)
        return
    directory = (asked if rank is None else asked / f"rank-{rank}").absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {str(directory)!r}: {error.strerror}; choose another place") from None
    if any(next(directory.glob(pattern), None) for pattern in _RECEIPT_FILES):
        raise InputError(f"{str(directory)!r} has receipts of an earlier run; name another directory, or empty it")
    yield directory


def _prepared(plan: Plan, needs: Needs, directory: Path, say: Callable[[str], None]) -> tuple[WayIn, str | None]:
    """The files of the way in, and why there is no launch shim among them though the plan asks for it."""
    path = directory / "plan.toml"  # a copy: the plan of this run, whatever happens to the file meanwhile
    _write(path, dump_plan(plan).encode())
    without = WayIn(plan=path, receipts=directory)
    if not needs.shim:
        return without, None
    try:
        shim, rules = _shim(plan)
        if reason := unloadable(shim):
            return without, reason
    except MakewayError as error:  # the program runs all the same
        reason = " ".join(str(error).split("\n"))
        say(f"without the launch shim: {reason}")
        return without, reason
    rules_path = directory / "rules"
    _write(rules_path, rules)
    return WayIn(plan=path, receipts=directory, rules=rules_path, shim=shim), None


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror}; choose another place") from None


def _shim(plan: Plan) -> tuple[Path, bytes]:
    from makeway.act.preload.build import library
    from makeway.act.preload.rules import encode_rules, rules_of

    return library(), encode_rules(rules_of(plan))


def _launch_receipts(directory: Path) -> tuple[LaunchReceipts, ...]:
    from makeway.act.preload.receipts import read_receipts

    return read_receipts(directory)


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


# --- as data ------------------------------------------------------------------------------------


def run_document(run: Run) -> dict[str, Any]:
    """A run as data."""
    return {
        "rank": run.rank,
        "exit_code": run.ended.code,
        "killed_by": run.ended.killed_by,
        "all_applied": run.all_applied,
        "controls": [
            {
                "control": control_word(outcome.control),
                "status": outcome.status,
                "ranks": [
                    {
                        "rank": one.rank,
                        "status": one.status,
                        "detail": one.detail,
                        "launches": None
                        if one.launches is None
                        else {name: getattr(one.launches, name) for name in ("seen", "changed", "refused", "skipped")},
                    }
                    for one in outcome.ranks
                ],
            }
            for outcome in run.controls
        ],
        "variables": needs_document(run.needs)["variables"],
        "notes": list(run.notes),
    }


def needs_document(needs: Needs) -> dict[str, Any]:
    """What a plan needs at the start of a program, as data."""
    return {
        "variables": [
            {
                "control": control_word(variable.control),
                "name": variable.name,
                "wanted": variable.wanted,
                "found": variable.found,
                "set": variable.name in needs.settings,
            }
            for variable in needs.variables
        ],
        "launch_shim": [control_word(control) for control in needs.shim],
        "notes": [{"control": control_word(control), "note": note} for control, note in needs.notes],
        "no_variable": [{"control": control_word(control), "reason": reason} for control, reason in needs.lacking],
    }
