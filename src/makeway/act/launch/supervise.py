"""A child in a process group of its own: signals passed on once, its exit status unchanged, nothing left running.

The terminal stays with makeway's group, so that Ctrl-C and Ctrl-Z still reach it, the shell script around it and the
other commands of a pipeline; makeway passes them on. A child that reads the terminal stops with SIGTTIN and then gets
the terminal, as under sudo.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn

from makeway.act.launch.guard import Guard, adopt_orphans, start_guarded
from makeway.act.launch.leftovers import Leftover, Patience, Spared, children, end_leftovers
from makeway.values.errors import MakewayError, ProgramEndedError

# Terminals send these to a whole group. Others go to the child alone.
_TO_GROUP = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
_TO_CHILD = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# If the caller has other threads, one that does not block SIGCHLD may take it before we wait, and it is lost.
_LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the child ended: `code`, or the signal that killed it."""

    code: int | None
    killed_by: int | None = None
    leftovers: tuple[Leftover, ...] = ()


@contextmanager
def end_kept(exit_code: int | None, killed_by: int | None) -> Iterator[None]:
    """For what comes after the program's end: an error carries how it ended."""
    try:
        yield
    except ProgramEndedError:
        raise
    except Exception as error:
        why = str(error) if isinstance(error, MakewayError) else f"{type(error).__name__}: {error}"
        how = f"signal {killed_by}" if exit_code is None else f"exit code {exit_code}"
        raise ProgramEndedError(
            f"the program ended with {how}, and makeway failed after that: {why}",
            exit_code=exit_code,
            killed_by=killed_by,
        ) from error


def supervise(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    stdout: int | None = None,
    patience: Patience | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Ended:
    """Run the command to its end; `stdout` is a descriptor in place of its standard output.

    `meanwhile` is called once it runs; signals wait until that returns, and its errors are its own business.
    Descendants that outlive it are adopted, terminated and then killed. Call it from the main thread of a process
    without other children.
    """
    passed = {number for number in (*_TO_GROUP, *_TO_CHILD) if signal.getsignal(number) is not signal.SIG_IGN}
    waited = {*passed, signal.SIGCHLD}
    reaping = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it stayed ignored, the child's status would be lost
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    earlier = children()
    adopt_orphans(True)
    terminal = _Terminal()
    try:
        guard = start_guarded(command, environ, stdout=stdout, mask=mask, ignores_children=reaping is signal.SIG_IGN)
        try:
            if meanwhile is not None:
                with suppress(Exception):
                    meanwhile()
            ended = _until_ended(guard, waited, terminal)
            terminal.take_back()
            leftovers = end_leftovers(patience or Patience(), spared=Spared(guard.pid, earlier))
        finally:
            terminal.take_back()
            guard.end()
        return Ended(code=ended.code, killed_by=ended.killed_by, leftovers=leftovers)
    finally:
        terminal.close()
        adopt_orphans(False)
        while signal.sigtimedwait(passed, 0) is not None:  # a second Ctrl-C must not cut the table short
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# --- while it runs ------------------------------------------------------------------------------


def _until_ended(guard: Guard, waited: set[signal.Signals], terminal: _Terminal) -> Ended:
    while True:
        received = signal.sigtimedwait(waited, _LOOK_EVERY_S)
        if received is not None and received.si_signo != signal.SIGCHLD:
            _pass_on(received.si_signo, guard.program, terminal)
            continue
        for status in guard.statuses():
            if os.WIFSTOPPED(status):
                _child_stopped(os.WSTOPSIG(status), guard.program, terminal)
            elif os.WIFSIGNALED(status):
                return Ended(code=None, killed_by=os.WTERMSIG(status))
            else:
                return Ended(code=os.WEXITSTATUS(status))


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


def end_by(number: int) -> NoReturn:
    """End this process by a signal, as the child was ended, without a core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
    os.kill(os.getpid(), number)
    os._exit(128 + number)
