"""A job that `makeway run --tune` runs at this moment: what the files beside its receipts say so far."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from makeway.act.launch.step_files import Block, StepLog, StepSettings, read_logs, read_settings
from makeway.act.launch.tuned import RunTuning, tuning_of
from makeway.act.private import PREFIX
from makeway.values.control import Control
from makeway.values.errors import InputError, printable

SETTINGS = "at-steps.json"
MOST_BYTES = 64 << 20  # of one log


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingTime:
    """The step times of one set of controls, so far."""

    controls: tuple[Control, ...]
    steps: int
    samples: int  # step times that the median is of: those of trials; before any trial, medians of blocks
    median_ns: float
    spread_ns: float | None  # interquartile range; None: fewer than four steps were kept one by one
    in_force: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSoFar:
    """What a tuned job has shown up to its last meeting."""

    tuning: RunTuning
    times: tuple[SettingTime, ...]
    running: bool  # the process of rank 0 lives
    ranks: int | None


def tuned_jobs() -> tuple[Path, ...]:
    """Directories of jobs of this user that are tuned now, without `--receipts`."""

    def jobs() -> Iterator[Path]:
        with suppress(OSError):
            for place in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
                with suppress(OSError):
                    if place.lstat().st_uid == os.getuid() and is_tuned(place):
                        yield place

    return tuple(jobs())


def is_tuned(directory: Path) -> bool:
    """Whether a directory holds the files of `run --tune`."""
    return _settings(directory) is not None


def tuning_so_far(directory: Path) -> TuningSoFar:
    """What the logs in the directory of receipts say now."""
    settings = _settings(directory)
    if settings is None:
        raise InputError(
            f"{printable(directory)} holds no files of `makeway run --tune`: the job has ended, or runs without it"
        )
    leaders = [log for log in read_logs(directory, most_bytes=MOST_BYTES) if log.rank == 0]
    log = next((log for log in reversed(leaders) if log.blocks), leaders[-1] if leaders else None)
    tuning = tuning_of(log, settings, program=(), controls=(), exit_code=None, killed_by=None)
    return TuningSoFar(
        tuning=tuning,
        times=_times(log, settings, tuning.plan),
        running=log is not None and _lives(log.pid),
        ranks=log.ranks if log is not None else None,
    )


def _settings(directory: Path) -> StepSettings | None:
    try:
        path = directory / SETTINGS
        if path.stat().st_size > MOST_BYTES:
            return None
        settings = read_settings(path)
        return settings if settings.kind == "tune" and settings.controls else None
    except (OSError, msgspec.DecodeError, InputError):
        return None


def _times(log: StepLog | None, settings: StepSettings, in_force: Sequence[Control]) -> tuple[SettingTime, ...]:
    """The settings that ran, in the order in which they are tried."""
    blocks: dict[int, list[Block]] = {}
    for block in log.blocks if log is not None else ():
        if block.measured_ns and block.setting < len(settings.settings):
            blocks.setdefault(block.setting, []).append(block)
    sets = settings.controls
    return tuple(_time(sets[setting], blocks[setting], tuple(in_force)) for setting in sorted(blocks))


def _time(controls: tuple[Control, ...], blocks: Sequence[Block], in_force: tuple[Control, ...]) -> SettingTime:
    """Steps that were kept one by one count each; without any, the medians of blocks."""
    single = [time_ns for block in blocks if block.steps is None for time_ns in block.measured_ns]
    times = sorted(single or [time_ns for block in blocks for time_ns in block.measured_ns])
    quarter = len(times) // 4
    return SettingTime(
        controls=controls,
        steps=sum(block.count for block in blocks),
        samples=len(times),
        median_ns=median(times),
        spread_ns=float(times[-quarter - 1] - times[quarter]) if single and len(times) >= 4 else None,
        in_force=controls == in_force,
    )


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
