"""A child in a process group of its own: signals passed on once, its exit status unchanged, nothing left running.

The terminal stays with makeway's group, so that Ctrl-C and Ctrl-Z still reach it, the shell script around it and the
other commands of a pipeline; makeway passes them on. A child that reads the terminal stops with SIGTTIN and then gets
the terminal, as under sudo.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from makeway.values.errors import InputError

# Terminals send these to a whole group. Others go to the child alone.
_TO_GROUP = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
_TO_CHILD = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the child ended: `code`, or the signal that killed it."""

    code: int | None
    killed_by: int | None = None
    leftovers: tuple[Leftover, ...] = ()


def supervise(
    command: Sequence[str], environ: Mapping[str, str], *, stdout: int | None = None, patience: Patience | None = None
) -> Ended:
    """Run the command to its end; `stdout` is a descriptor in place of its standard output.

    Descendants that outlive it are adopted, terminated and then killed. Call it from the main thread of a process
    without other children.
    """
    passed = {number for number in (*_TO_GROUP, *_TO_CHILD) if signal.getsignal(number) is not signal.SIG_IGN}
    waited = {*passed, signal.SIGCHLD}
    reaping = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it stayed ignored, the child's status would be lost
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    terminal = _Terminal()
    try:
        child = _start(command, environ, stdout, mask, ignores_children=reaping is signal.SIG_IGN)
        try:
            ended = _until_ended(child, waited, terminal)
        finally:
            terminal.take_back()
        return Ended(code=ended.code, killed_by=ended.killed_by, leftovers=_end_leftovers(patience or Patience()))
    finally:
        terminal.close()
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)
        while signal.sigtimedwait(passed, 0) is not None:  # a second Ctrl-C must not cut the table short
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start(
    command: Sequence[str],
    environ: Mapping[str, str],
    stdout: int | None,
    mask: Iterable[int],
    *,
    ignores_children: bool,
) -> int:
    parent = os.getpid()

    def in_child() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # makeway killed by SIGKILL leaves no program behind
        if os.getppid() != parent:
            os._exit(1)
        if ignores_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    try:
        process = subprocess.Popen(
            command,
            env=environ,
            stdout=stdout,
            process_group=0,
            preexec_fn=in_child,  # noqa: PLW1509  # makeway has one thread
        )
    except OSError as error:
        raise InputError(
            f"cannot start {command[0]!r}: {error.strerror}; give the program and its arguments after --"
        ) from None
    process.returncode = 0  # we wait for it ourselves, and for all that it leaves behind
    return process.pid


# --- while it runs ------------------------------------------------------------------------------


def _until_ended(child: int, waited: set[signal.Signals], terminal: _Terminal) -> Ended:
    while True:
        received = signal.sigwaitinfo(waited).si_signo
        if received != signal.SIGCHLD:
            _pass_on(received, child, terminal)
            continue
        for pid, status in _reaped():
            if pid != child:
                continue  # an orphan that ended while the program runs
            if os.WIFSTOPPED(status):
                _child_stopped(os.WSTOPSIG(status), child, terminal)
            elif os.WIFSIGNALED(status):
                return Ended(code=None, killed_by=os.WTERMSIG(status))
            else:
                return Ended(code=os.WEXITSTATUS(status))


def _reaped() -> list[tuple[int, int]]:
    statuses = []
    with suppress(ChildProcessError):
        while (status := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
            statuses.append(status)
    return statuses


def _pass_on(number: int, child: int, terminal: _Terminal) -> None:
    if number == signal.SIGCONT:
        terminal.give_again(child)
    with suppress(ProcessLookupError):
        if number in _TO_GROUP:
            os.killpg(child, number)
        else:
            os.kill(child, number)
    if number == signal.SIGTSTP:
        os.kill(os.getpid(), signal.SIGSTOP)


def _child_stopped(by: int, child: int, terminal: _Terminal) -> None:
    if by in (signal.SIGTTIN, signal.SIGTTOU) and terminal.give(child):
        os.killpg(child, signal.SIGCONT)
    elif by in (signal.SIGTTIN, signal.SIGTTOU) or (by == signal.SIGTSTP and terminal.given):
        terminal.lend_back()
        os.killpg(0, signal.SIGSTOP)  # the whole job, as the shell expects; _pass_on handles SIGCONT


class _Terminal:
    """The controlling terminal, if there is one, and whether the child has it."""

    def __init__(self) -> None:
        self.given = False
        self._wanted = False
        try:
            self._fd: int | None = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self._fd = None

    def give(self, child: int) -> bool:
        """Put the child's group in the foreground; False when our own group is not there."""
        self._wanted = True
        if self._fd is None or os.tcgetpgrp(self._fd) != os.getpgrp():
            return False
        self.given = self._hand_to(child)
        return self.given

    def give_again(self, child: int) -> None:
        if self._wanted and not self.given:
            self.give(child)

    def lend_back(self) -> None:
        if self.given:
            self._hand_to(os.getpgrp())
        self.given = False

    def take_back(self) -> None:
        self.lend_back()
        self._wanted = False

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def _hand_to(self, group: int) -> bool:
        assert self._fd is not None
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))  # sent to background groups that try this
        try:
            os.tcsetpgrp(self._fd, group)
        except OSError:
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return True


# --- after it has ended -------------------------------------------------------------------------


def _end_leftovers(patience: Patience) -> tuple[Leftover, ...]:
    """End what the program left: all of it is among our descendants, since we adopt orphans."""
    if _none_left_within(patience.settle_s):
        return ()
    ended = {pid: Leftover(pid=pid, name=name, ended_by="SIGTERM") for pid, name in _descendants().items()}
    for pid in ended:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)  # a stopped process would not notice
    if not _none_left_within(patience.grace_s):
        until = time.monotonic() + patience.grace_s
        while (
            left := _descendants()
        ) and time.monotonic() < until:  # a process that forks meanwhile is caught next time
            for pid, name in left.items():
                ended[pid] = Leftover(pid=pid, name=name, ended_by="SIGKILL")
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            _none_left_within(0.1)
    return tuple(ended.values())


def _none_left_within(limit_s: float) -> bool:
    until = time.monotonic() + limit_s
    while True:
        _reaped()
        if not _descendants():
            return True
        remaining_s = until - time.monotonic()
        if remaining_s <= 0:
            return False
        signal.sigtimedwait((signal.SIGCHLD,), min(remaining_s, 0.1))


def _descendants() -> dict[int, str]:
    """Names of all living descendants, by process id."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                head, _, tail = (entry / "stat").read_text(errors="replace").rpartition(")")
                state, parent, *_ = tail.split()
                if state not in "ZX":
                    parents[int(entry.name)] = (int(parent), head.partition("(")[2])
    descendants: dict[int, str] = {}
    above = {os.getpid()}
    while above:
        below = {pid: name for pid, (parent, name) in parents.items() if parent in above and pid not in descendants}
        descendants |= below
        above = set(below)
    return descendants


def end_by(number: int) -> NoReturn:
    """End this process by a signal, as the child was ended, without a core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _prctl(option: int, value: int) -> None:
    with suppress(AttributeError, OSError):  # Linux only; elsewhere init adopts orphans
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
