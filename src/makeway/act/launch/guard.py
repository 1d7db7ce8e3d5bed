"""A process between makeway and the program that ends everything the program started if makeway is killed outright.

Only an ancestor keeps hold of processes that start sessions of their own or lose their parent, and makeway cannot act
on its own SIGKILL. So the guard is the program's parent and adopts its orphans. It passes on how the program stops and
ends; signals and the terminal stay with makeway. If the guard itself is killed, makeway adopts the program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from makeway.act.launch.leftovers import Patience, Spared, end_leftovers, reaped
from makeway.values.errors import InputError

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36  # linux/prctl.h
_RECORD = struct.Struct("ii")  # the program's id and wait status; first of all its id and 0, or 0 and an errno
_AFTER_KILL = Patience(settle_s=0.0, grace_s=2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A running guard, seen from makeway."""

    pid: int
    program: int
    pipe: int  # the guard writes what becomes of the program, and sends SIGCHLD

    def statuses(self) -> list[int]:
        """Wait statuses of the program since the last call, from the guard or, if it was killed, from the kernel."""
        statuses = []
        guard_lives = False
        try:
            while record := os.read(self.pipe, _RECORD.size):
                statuses.append(_RECORD.unpack(record)[1])
        except BlockingIOError:
            guard_lives = True
        statuses += [status for pid, status in reaped() if pid == self.program]
        if not (statuses or guard_lives or Path(f"/proc/{self.program}").exists()):
            statuses.append(signal.SIGKILL)  # the guard took the status with it
        return statuses

    def end(self) -> None:
        """End the guard; what the program left has been ended before."""
        with suppress(ChildProcessError):  # killed, and reaped with the other children
            if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        os.close(self.pipe)


def start_guarded(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    stdout: int | None,
    mask: Iterable[int],
    ignores_children: bool,
) -> Guard:
    """Start the command in a process group of its own, with the signal mask `mask`, below a guard.

    The caller has blocked SIGCHLD and adopts orphans.
    """
    makeway = os.getpid()
    pipe, guards_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            os.setpgid(0, 0)  # what is sent to makeway's group is not for the guard
            _be_guard(makeway, guards_end, _Start(command, environ, stdout, mask, ignores_children))
        finally:
            os._exit(1)
    os.close(guards_end)
    first = os.read(pipe, _RECORD.size)
    program, error = _RECORD.unpack(first) if first else (0, 0)
    if not program:
        os.close(pipe)
        os.waitpid(pid, 0)
        reason = os.strerror(error) if error else "it was killed at once"
        raise InputError(f"cannot start {command[0]!r}: {reason}; give the program and its arguments after --")
    os.set_blocking(pipe, False)
    return Guard(pid=pid, program=program, pipe=pipe)


def adopt_orphans(adopt: bool) -> None:
    """Whether descendants of this process that lose their parent become its children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


@dataclass(frozen=True, slots=True)
class _Start:
    command: Sequence[str]
    environ: Mapping[str, str]
    stdout: int | None
    mask: Iterable[int]
    ignores_children: bool

    def program(self) -> int:
        guard = os.getpid()

        def in_child() -> None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # for the case that the guard is killed with makeway
            if os.getppid() != guard:
                os._exit(1)
            if self.ignores_children:
                signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

        process = subprocess.Popen(
            self.command,
            env=self.environ,
            stdout=self.stdout,
            process_group=0,
            preexec_fn=in_child,  # noqa: PLW1509  # makeway has one thread
        )
        process.returncode = 0  # we wait for it ourselves
        return process.pid


def _be_guard(makeway: int, pipe: int, start: _Start) -> NoReturn:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(_PR_SET_NAME, b"makeway-guard")
    adopt_orphans(True)
    if os.getppid() != makeway:
        os._exit(1)
    try:
        program = start.program()
    except OSError as error:
        os.write(pipe, _RECORD.pack(0, error.errno or 0))
        os._exit(1)
    os.write(pipe, _RECORD.pack(program, 0))
    _let_go_of_files(pipe)
    while True:
        signal.sigwaitinfo((signal.SIGCHLD, signal.SIGTERM))
        if os.getppid() != makeway:
            end_leftovers(_AFTER_KILL, spared=Spared())
            os._exit(0)
        for pid, status in reaped():
            if pid == program:
                with suppress(BrokenPipeError):
                    os.write(pipe, _RECORD.pack(pid, status))
        with suppress(ProcessLookupError):
            os.kill(makeway, signal.SIGCHLD)


def _let_go_of_files(kept: int) -> None:
    """Readers of makeway's output must not wait for the guard."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            with suppress(OSError):
                os.close(int(name))


def _prctl(option: int, value: int | bytes) -> None:
    with suppress(AttributeError, OSError):  # Linux only; elsewhere init adopts orphans
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
