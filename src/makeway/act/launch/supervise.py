"""A child in a process group of its own: signals passed on once, its end reported as it was, nothing left running.

The terminal stays with makeway's group, so that Ctrl-C and Ctrl-Z reach it, the shell script around it and the other
commands of a pipeline as ever; makeway passes them on. A child that reads the terminal stops with SIGTTIN, and is
then given the terminal, as sudo does.
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

# By nature for a whole group: they come from a terminal. Others go to the process that was asked for.
_TO_GROUP = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
_TO_CHILD = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long processes that outlive the program are waited for."""

    settle_s: float = 1.0  # to end by themselves, as servers do whose pipe has closed
    grace_s: float = 5.0  # after SIGTERM


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A process that the program left running, and what ended it."""

    pid: int
    name: str
    ended_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the child ended: `code`, or the signal that killed it."""

    code: int | None
    killed_by: int | None = None
    leftovers: tuple[Leftover, ...] = ()

    @property
    def words(self) -> str:
        if self.killed_by is None:
            return f"the program ended with exit code {self.code}"
        return f"the program was killed by {signal.Signals(self.killed_by).name}"


def supervise(
    command: Sequence[str], environ: Mapping[str, str], *, stdout: int | None = None, patience: Patience | None = None
) -> Ended:
    """Run the command to its end; `stdout` is a descriptor that takes the place of its standard output.

    Descendants that outlive it are adopted, asked to end and then ended. Call it from the main thread of a process
    that has no other children.
    """
    passed = {number for number in (*_TO_GROUP, *_TO_CHILD) if signal.getsignal(number) is not signal.SIG_IGN}
    waited = {*passed, signal.SIGCHLD}
    reaping = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it was ignored, the child's end would be lost
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
    process.returncode = 0  # waited for here, with all that it leaves behind
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
    found = []
    with suppress(ChildProcessError):
        while (one := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
            found.append(one)
    return found


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
        os.killpg(0, signal.SIGSTOP)  # the whole job, as the shell expects; SIGCONT goes on above


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
        """Make the child's group the one in the foreground; False when it is not ours to give."""
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
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))  # else the background may not
        try:
            os.tcsetpgrp(self._fd, group)
        except OSError:
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return True


# --- after it has ended -------------------------------------------------------------------------


def _end_leftovers(patience: Patience) -> tuple[Leftover, ...]:
    """End what the program left: all of it is among our descendants, since orphans are handed to us."""
    if _none_left_within(patience.settle_s):
        return ()
    found = _descendants()
    ended = {pid: Leftover(pid=pid, name=name, ended_by="SIGTERM") for pid, name in found.items()}
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)  # a stopped one would not notice
    if not _none_left_within(patience.grace_s):
        until = time.monotonic() + patience.grace_s
        while (left := _descendants()) and time.monotonic() < until:  # one that forks meanwhile is caught next time
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
    """Name by number of every living process below this one."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                head, _, tail = (entry / "stat").read_text(errors="replace").rpartition(")")
                state, parent, *_ = tail.split()
                if state not in "ZX":
                    parents[int(entry.name)] = (int(parent), head.partition("(")[2])
    found: dict[int, str] = {}
    above = {os.getpid()}
    while above:
        below = {pid: name for pid, (parent, name) in parents.items() if parent in above and pid not in found}
        found |= below
        above = set(below)
    return found


def end_like(ended: Ended) -> NoReturn:
    """End this process by the signal that killed the child, without a core file of its own."""
    assert ended.killed_by is not None
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if ended.killed_by != signal.SIGKILL:
        signal.signal(ended.killed_by, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (ended.killed_by,))
    os.kill(os.getpid(), ended.killed_by)
    os._exit(128 + ended.killed_by)


def _prctl(option: int, value: int) -> None:
    with suppress(AttributeError, OSError):  # Linux only; elsewhere orphans are the system's
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
