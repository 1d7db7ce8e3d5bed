"""Child processes that measure for the self-test: started, read line by line, killed after a time limit."""

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

_LONGEST_ERROR = 300  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a process printed, and how it failed if it did."""

    lines: tuple[Line, ...]
    trouble: str | None = None

    def outcome(self, check: str) -> Line | None:
        """The result of a check; None where the process did not get that far."""
        return next((line for line in self.lines if line.check == check and not line.begins), None)

    def began(self, check: str) -> bool:
        return any(line.check == check for line in self.lines)


def run_children(
    module: str, arguments: Sequence[Sequence[str]], *, timeout_s: float, environ: Mapping[str, str] | None = None
) -> tuple[Output, ...]:
    """Run `python -m module ARGUMENTS`, one process per list of arguments, all at once."""
    started: list[subprocess.Popen[str]] = []
    try:
        for each in arguments:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, *each],
                    env=dict(os.environ if environ is None else environ),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
        return tuple(_output(child, timeout_s) for child in started)
    finally:
        for child in started:
            _end(child)


def _output(child: subprocess.Popen[str], timeout_s: float) -> Output:
    try:
        out, errors = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(child)
        out, _ = child.communicate()
        return Output(lines=read_lines(out), trouble=f"it did not finish within {timeout_s:g} s")
    if child.returncode == 0:
        return Output(lines=read_lines(out))
    code = child.returncode
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    last = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
    return Output(lines=read_lines(out), trouble=": ".join(filter(None, (how, last[:_LONGEST_ERROR]))))


def read_lines(out: str) -> tuple[Line, ...]:
    """Our own lines; torch and drivers may print others between them."""
    lines = []
    for text in out.splitlines():
        with suppress(msgspec.DecodeError):
            lines.append(msgspec.json.decode(text.encode(), type=Line))
    return tuple(lines)


def _end(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
