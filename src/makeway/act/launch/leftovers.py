"""Ending the processes that a program leaves running: all of them are descendants, since we adopt orphans."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for processes that outlive the program."""

    settle_s: float = 1.0  # to end by themselves, as servers do when their pipe closes
    grace_s: float = 5.0  # after SIGTERM


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A process that the program left running, and the signal that ended it."""

    pid: int
    name: str
    ended_by: str


@dataclass(frozen=True, slots=True)
class Spared:
    """Processes that are not the program's: the guard above it, and children that were there before, with theirs."""

    guard: int | None = None
    earlier: frozenset[int] = frozenset()


def children() -> frozenset[int]:
    """Living descendants of this process."""
    return frozenset(_descendants(Spared()))


def end_leftovers(patience: Patience, *, spared: Spared) -> tuple[Leftover, ...]:
    """Terminate all descendants except `spared`, then kill those that stay. Needs SIGCHLD blocked."""
    if _none_left_within(patience.settle_s, spared):
        return ()
    ended = {pid: Leftover(pid=pid, name=name, ended_by="SIGTERM") for pid, name in _descendants(spared).items()}
    for pid in ended:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)  # a stopped process would not notice
    if not _none_left_within(patience.grace_s, spared):
        until = time.monotonic() + patience.grace_s
        while (left := _descendants(spared)) and time.monotonic() < until:
            for pid, name in left.items():  # a process that forks meanwhile is caught next time
                ended[pid] = Leftover(pid=pid, name=name, ended_by="SIGKILL")
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            _none_left_within(0.1, spared)
    return tuple(ended.values())


def reaped() -> list[tuple[int, int]]:
    """Process id and status of every child that has stopped or ended since the last call."""
    statuses = []
    with suppress(ChildProcessError):
        while (status := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
            statuses.append(status)
    return statuses


def _none_left_within(limit_s: float, spared: Spared) -> bool:
    until = time.monotonic() + limit_s
    while True:
        reaped()
        if not _descendants(spared):
            return True
        remaining_s = until - time.monotonic()
        if remaining_s <= 0:
            return False
        signal.sigtimedwait((signal.SIGCHLD,), min(remaining_s, 0.1))


def _descendants(spared: Spared) -> dict[int, str]:
    """Names of all living descendants except `spared`, by process id."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                head, _, tail = (entry / "stat").read_text(errors="replace").rpartition(")")
                state, parent, *_ = tail.split()
                if state not in "ZX" or entry.name == str(spared.guard):
                    parents[int(entry.name)] = (int(parent), head.partition("(")[2])
    descendants: dict[int, str] = {}
    above = {os.getpid()}
    while above:
        below = {
            pid: name
            for pid, (parent, name) in parents.items()
            if parent in above and pid not in descendants and pid not in spared.earlier
        }
        descendants |= below
        above = set(below)
    return {pid: name for pid, name in descendants.items() if pid != spared.guard}
