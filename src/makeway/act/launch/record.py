"""`makeway record`: a few steady steps of an unmodified program, profiled on every rank."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import ClassVar

from makeway.act.launch.run import Run, Warn, run
from makeway.act.launch.step_files import STACKS, WARM_UP, AtSteps, StepLog, StepSettings, no_steps
from makeway.act.launch.supervise import end_kept
from makeway.values.errors import InputError
from makeway.values.plan import Plan

RECORDED = 5
LEAST_STEPS = 4  # that a recording of one step takes: one of warm-up, one timed, one to warm the profiler up

_NO_STEP = "no step was seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecording:
    """The file of one rank; step times are medians, with the profiler and without it just before."""

    SHOWN: ClassVar = ("overhead_pct",)

    rank: int | None
    file: str | None  # None: nothing was written, and `problem` says why
    steps: int
    size_bytes: int | None
    plain_step_ns: float | None
    profiled_step_ns: float | None
    problem: str | None = None

    @property
    def overhead_pct(self) -> float | None:
        """By how much a step is longer under the profiler."""
        if not self.plain_step_ns or self.profiled_step_ns is None:
            return None
        return round(100 * (self.profiled_step_ns / self.plain_step_ns - 1), 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What became of a recording, and how the program ended."""

    SHOWN: ClassVar = ("overhead_pct",)

    program: tuple[str, ...]
    directory: str
    asked_steps: int
    ranks: tuple[RankRecording, ...]
    exit_code: int | None
    killed_by: int | None
    problem: str | None  # why there is nothing to analyze
    notes: tuple[str, ...] = ()

    @property
    def recorded(self) -> tuple[RankRecording, ...]:
        return tuple(rank for rank in self.ranks if rank.file is not None)

    @property
    def plain_step_ns(self) -> float | None:
        """The median over the ranks with both times; None where no rank has them."""
        times = [plain for plain, _ in self._timed]
        return median(times) if times else None

    @property
    def profiled_step_ns(self) -> float | None:
        """The median over the same ranks."""
        times = [profiled for _, profiled in self._timed]
        return median(times) if times else None

    @property
    def overhead_pct(self) -> float | None:
        """By how much the second is longer."""
        plain_ns, profiled_ns = self.plain_step_ns, self.profiled_step_ns
        return round(100 * (profiled_ns / plain_ns - 1), 3) if plain_ns and profiled_ns is not None else None

    @property
    def _timed(self) -> list[tuple[float, float]]:
        return [
            (rank.plain_step_ns, rank.profiled_step_ns)
            for rank in self.ranks
            if rank.plain_step_ns and rank.profiled_step_ns is not None
        ]


def record(
    command: Sequence[str],
    *,
    out: Path = Path("makeway-recording"),
    steps: int = RECORDED,
    warm_up: int = WARM_UP,
    step_marker: str | None = None,
    stacks: bool = False,
    environ: Mapping[str, str] = os.environ,
    stdout: int | None = None,
    warn: Warn = lambda message: None,
) -> Recording:
    """Run the command and record steps of every rank in `out`, one file per rank.

    The first `warm_up` steps are left alone, as many as are recorded are timed without the profiler, and one warms the
    profiler up. `stacks` also records the Python calls, which slows steps. Call it from the main thread of a process
    without other children.
    """
    if steps < 1 or warm_up < 1:
        raise InputError(f"steps and warm-up must be 1 or more, got {steps} and {warm_up}")
    out = out.absolute()
    made = not out.exists()
    _prepare(out)
    settings = StepSettings(
        kind="record",
        steps=steps,
        warm_up=warm_up,
        marker=step_marker,
        out=str(out),
        options={STACKS: 1.0} if stacks else {},
    )
    at_steps = AtSteps(settings)
    ran = run(command, Plan(controls=()), environ=environ, stdout=stdout, warn=warn, at_steps=at_steps)
    with end_kept(ran.exit_code, ran.killed_by):
        recording = _recording(ran, out, settings, at_steps.logs)
        if made and recording.problem is not None:
            with suppress(OSError):  # where it is not empty, it stays
                out.rmdir()
        return recording


def _prepare(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        earlier = next(out.glob("rank*.json*"), None)
    except OSError as error:
        raise InputError(f"cannot make {str(out)!r}: {error.strerror}; choose another place") from None
    if earlier is not None:
        raise InputError(f"{str(out)!r} has a recording already ({earlier.name}); name another directory, or empty it")
    if not os.access(out, os.W_OK | os.X_OK):
        raise InputError(f"cannot write in {str(out)!r}; choose another place")


def _recording(ran: Run, out: Path, settings: StepSettings, logs: Sequence[StepLog]) -> Recording:
    latest = {log.rank: log for log in logs}  # after a restart, the last process of each rank
    ranks = tuple(
        _rank(log, settings) for _, log in sorted(latest.items(), key=lambda item: -1 if item[0] is None else item[0])
    )
    notes = list(ran.notes)
    short = [rank for rank in ranks if rank.file is not None and rank.steps < settings.steps]
    if short:
        notes.append(
            f"the program ended early: {min(rank.steps for rank in short)} of {settings.steps} steps are recorded"
        )
    problem = None
    if not any(rank.file for rank in ranks):
        problems = (rank.problem for rank in ranks if rank.problem not in (None, _NO_STEP))
        problem = next(problems, f"{_NO_STEP}: {no_steps(ran.exit_code, settings.marker)}")
    elif len(missing := [rank for rank in ranks if rank.file is None]) > 0:
        notes.append(f"{len(missing)} of {len(ranks)} ranks left no recording: {missing[0].problem}")
    return Recording(
        program=ran.program,
        directory=str(out),
        asked_steps=settings.steps,
        ranks=ranks,
        exit_code=ran.exit_code,
        killed_by=ran.killed_by,
        problem=problem,
        notes=tuple(notes),
    )


def _rank(log: StepLog, settings: StepSettings) -> RankRecording:
    problem = log.error
    if log.file is None and problem is None:
        problem = _NO_STEP if log.steps == 0 else _too_few(log.steps, settings)
    return RankRecording(
        rank=log.rank,
        file=log.file,
        steps=log.recorded,
        size_bytes=Path(log.file).stat().st_size if log.file and Path(log.file).exists() else None,
        plain_step_ns=median(log.plain_ns) if log.plain_ns else None,
        profiled_step_ns=median(log.profiled_ns) if log.profiled_ns else None,
        problem=problem,
    )


def _too_few(steps: int, settings: StepSettings) -> str:
    """Why a program of so many steps left no recording, and with what options it would leave one."""
    made = f"the program made {steps} step{'' if steps == 1 else 's'}"
    if steps < LEAST_STEPS:
        return f"{made}; a recording takes {LEAST_STEPS} or more"
    least = settings.warm_up + settings.steps + 2
    fitting = (steps - 2) // 2  # as many are timed without the profiler
    return f"{made}; these options need {least} or more: try --warm-up 1 --steps {min(fitting, settings.steps)}"
