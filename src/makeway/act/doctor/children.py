"""Processes that measure for the self-test: started, read line by line, ended in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from makeway.act.doctor.samples import Line

_LAST_WORDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a process said, and how it ended if that was not well."""

    lines: tuple[Line, ...]
    trouble: str | None = None

    def outcome(self, check: str) -> Line | None:
        """What a check gave; None where it did not get so far."""
        return next((line for line in self.lines if line.check == check and not line.begins), None)

    def began(self, check: str) -> bool:
        return any(line.check == check for line in self.lines)


def run_children(
    module: str, arguments: Sequence[Sequence[str]], *, timeout_s: float, environ: Mapping[str, str] | None = None
) -> tuple[Told, ...]:
    """`python -m module ARGUMENTS`, one process for each list of arguments, all at once."""
    started: list[subprocess.Popen[str]] = []
    try:
        for words in arguments:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, *words],
                    env=dict(os.environ if environ is None else environ),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
        return tuple(_told(child, timeout_s) for child in started)
    finally:
        for child in started:
            _end(child)


def _told(child: subprocess.Popen[str], timeout_s: float) -> Told:
    try:
        out, errors = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(child)
        out, _ = child.communicate()
        return Told(lines=read_lines(out), trouble=f"it did not end within {timeout_s:g} s")
    if child.returncode == 0:
        return Told(lines=read_lines(out))
    code = child.returncode
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    last = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
    return Told(lines=read_lines(out), trouble=": ".join(filter(None, (how, last[:_LAST_WORDS]))))


def read_lines(out: str) -> tuple[Line, ...]:
    """The lines that are ours; torch and drivers may print others between them."""
    found = []
    for text in out.splitlines():
        with suppress(msgspec.DecodeError):
            found.append(msgspec.json.decode(text.encode(), type=Line))
    return tuple(found)


def _end(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
