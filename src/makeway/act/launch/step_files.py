"""What a program's processes do at its steps, and what they report: two kinds of JSON files beside the receipts.

`makeway record`, `run --compare` and `run --tune` write one file of settings before the start, named by MAKEWAY_STEPS;
the start hook reads it. Each process that follows steps rewrites its own log as it goes. Loads nothing of torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from makeway.values.control import Control, control_word, parse_control
from makeway.values.errors import InputError

STEPS = "MAKEWAY_STEPS"
QUIET = "KINETO_LOG_LEVEL"  # torch.profiler reports its start and end on stderr below this
SLEEP = "MAKEWAY_TEST_SLEEP"  # a share of the step by which setting 1 sleeps; in tests only
WARM_UP = 5  # steps before anything is recorded or measured, unless the user says otherwise
SHARE = 0.05  # of the job's steps for exploration, unless the user says otherwise
STACKS = "stacks"  # option of a recording: Python calls, too
Kind = Literal["record", "measure", "compare", "tune"]


class StepSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to do at steps.

    `settings` are the sets of controls among which a job alternates, as words; the first is where it starts.
    """

    kind: Kind
    directory: str = ""  # of the logs; the run fills it in, and a program that tunes itself keeps none
    steps: int  # to record, or at most to spend on a trial
    warm_up: int = WARM_UP
    settings: tuple[tuple[str, ...], ...] = ((),)
    over_network: tuple[int, ...] = ()  # of them, those to leave out where the ranks share memory
    seed: int = 0
    marker: str | None = None  # MODULE:FUNCTION whose return ends a step; None: the optimizer's step
    out: str | None = None  # where recordings go
    options: dict[str, float] = {}  # of one kind
    start_ns: int = 0  # what makeway took before the program started

    @property
    def controls(self) -> tuple[tuple[Control, ...], ...]:
        return tuple(tuple(map(parse_control, setting)) for setting in self.settings)


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive steps under one setting; of each step the median over the ranks."""

    setting: int
    times_ns: tuple[int, ...]
    dropped: int = 0  # of them, at the front: the program was still settling after the switch
    tag: str = ""  # the director's own word for it
    steps: int | None = None  # where `times_ns` has only their median
    losses: tuple[float, ...] = ()  # of each step the mean over the ranks, where some setting is lossy
    overhead_ns: int = 0  # of the meeting and the switch before it, the median over the ranks

    @property
    def count(self) -> int:
        """Steps in it."""
        return len(self.times_ns) if self.steps is None else self.steps

    @property
    def measured_ns(self) -> tuple[int, ...]:
        return self.times_ns[self.dropped :]


class StepLog(msgspec.Struct, kw_only=True):
    """What one process reports of its steps."""

    pid: int
    rank: int | None = None
    ranks: int | None = None
    steps: int = 0  # boundaries seen
    blocks: list[Block] = []  # by the leader of a trial, rank 0
    refused: dict[int, str] = {}  # settings that some rank could not have, and why
    final: int | None = None  # the setting in which the trial left the job
    start_ns: int = 0  # of a trial: what makeway took before the first step, outside this process and in it
    error: str | None = None  # why the trial or the recording ended early
    file: str | None = None  # of a recording
    recorded: int = 0  # steps in it
    plain_ns: list[int] = []  # step times before the profiler ran
    profiled_ns: list[int] = []
    notes: list[str] = []


class StepLogFile:
    """The log of this process, `steps-<pid>.json`, or in memory only; a child made by fork writes nothing."""

    def __init__(self, directory: Path | None, *, rank: int | None, ranks: int | None) -> None:
        self.log = StepLog(pid=os.getpid(), rank=rank, ranks=ranks)
        self._path = directory / f"steps-{self.log.pid}.json" if directory is not None else None

    def write(self) -> None:
        """Replace the file; a full or vanished directory must not stop the program."""
        if self._path is None or os.getpid() != self.log.pid:
            return
        unfinished = self._path.with_name(f".{self._path.name}.new")
        with suppress(OSError):
            unfinished.write_bytes(msgspec.json.encode(self.log))
            unfinished.replace(self._path)


class AtSteps:
    """Settings for one run, and the logs of its processes after it; files lie in the run's directory of receipts."""

    def __init__(self, settings: StepSettings, *, since_ns: int = 0) -> None:
        """`since_ns`: the processor time of this process when the work for the run began."""
        self.settings = settings
        self._since_ns = since_ns
        self.logs: tuple[StepLog, ...] = ()

    @property
    def trial(self) -> tuple[tuple[Control, ...], ...]:
        """The sets of controls among which the job alternates; none where it does not."""
        return self.settings.controls if self.settings.kind in ("compare", "tune") else ()

    def variables(self, directory: Path, environ: Mapping[str, str]) -> dict[str, str]:
        path = directory / "at-steps.json"
        taken_ns = time.process_time_ns() - self._since_ns
        write_settings(path, msgspec.structs.replace(self.settings, directory=str(directory), start_ns=taken_ns))
        quiet = {QUIET: "99"} if self.settings.kind == "record" and QUIET not in environ else {}
        return {STEPS: str(path), **quiet}

    def read(self, directory: Path) -> None:
        self.logs = read_logs(directory)


def write_settings(path: Path, settings: StepSettings) -> None:
    """Write the file that MAKEWAY_STEPS names."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(settings), indent=1))
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror}; choose another place") from None


def read_settings(path: Path) -> StepSettings:
    return msgspec.json.decode(path.read_bytes(), type=StepSettings)


def read_logs(directory: Path, *, most_bytes: int | None = None) -> tuple[StepLog, ...]:
    """The logs of all processes in the order of their last change; unreadable or too large ones are left out."""

    def logs() -> Iterator[tuple[float, StepLog]]:
        for path in directory.glob("steps-*.json"):
            with suppress(OSError, msgspec.DecodeError):
                facts = path.stat()
                if most_bytes is None or facts.st_size <= most_bytes:
                    yield facts.st_mtime, msgspec.json.decode(path.read_bytes(), type=StepLog)

    return tuple(log for _, log in sorted(logs(), key=lambda item: item[0]))


def control_words(controls: tuple[Control, ...]) -> tuple[str, ...]:
    return tuple(map(control_word, controls))


def no_steps(exit_code: int | None, marker: str | None = None) -> str:
    """Why no step was seen, by how the program ended (None: by a signal), and what to do."""
    if exit_code != 0:
        return "the program failed before its first step; what it printed says why"
    if marker is not None:
        return (
            f"no process that called torch.distributed.init_process_group called {marker}; name a function that the "
            "program calls once per step, or leave out --step-marker"
        )
    return (
        "no process that called torch.distributed.init_process_group called the step of a torch optimizer; name a "
        "function that ends a step with --step-marker MODULE:FUNCTION"
    )
