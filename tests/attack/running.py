"""Run a command in a session of its own, with a time limit, and leave none of its processes behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
MAKEWAY = (sys.executable, "-m", "makeway")
LIMIT_S = 20.0
MARK = "MAKEWAY_ATTACK_MARK"
NOBODY = 65534  # a second user, who owns nothing
TRACEBACK = "Traceback (most recent call last)"

_OURS = ("MAKEWAY", "LD_", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "SLURM_", "OMPI_", "PMI_", "XDG_CACHE_HOME")


def environment(**variables: str) -> dict[str, str]:
    """The environment without anything that steers makeway, and with this tree's sources."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**inherited, "PYTHONPATH": str(ROOT / "src"), **variables}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended; `code` None: it did not within its time, and was killed."""

    code: int | None
    out: str
    err: str
    seconds: float

    @property
    def said(self) -> str:
        return self.out + self.err


@dataclass(slots=True, kw_only=True)
class Started:
    """A running command whose processes carry a mark in their environment."""

    process: subprocess.Popen[bytes]
    mark: str
    began: float = field(default_factory=time.monotonic)

    def alive(self) -> dict[int, str]:
        """The command line of every living process that carries the mark."""
        return marked(self.mark)

    def ended(self, limit_s: float = LIMIT_S) -> Ended:
        """The end of the command, which is killed at the time limit with all that it started."""
        try:
            out, err = self.process.communicate(timeout=limit_s)
            code: int | None = self.process.returncode
        except subprocess.TimeoutExpired:
            self.kill()
            out, err = self.process.communicate()
            code = None
        seconds = time.monotonic() - self.began
        self.kill()
        return Ended(code=code, out=(out or b"").decode(), err=(err or b"").decode(), seconds=seconds)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        until = time.monotonic() + 5
        while (left := self.alive()) and time.monotonic() < until:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


def marked(mark: str) -> dict[int, str]:
    """The command line of every living process with that mark in its environment."""
    wanted = f"{MARK}={mark}".encode()
    processes = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                if state not in "ZX" and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    processes[int(entry.name)] = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
    return processes


def start(
    *command: str | Path,
    env: Mapping[str, str] | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = subprocess.PIPE,
    stderr: int | IO[bytes] | None = subprocess.PIPE,
    prepare: Callable[[], None] | None = None,
    cwd: Path | None = None,
) -> Started:
    """Start a command; `prepare` runs in the child before the program does (limits, another user)."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [str(word) for word in command],
        env={**(environment() if env is None else env), MARK: mark},
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        preexec_fn=prepare,  # noqa: PLW1509  # tests have one thread
        start_new_session=True,
        cwd=cwd,
    )
    return Started(process=process, mark=mark)


def run(
    *command: str | Path,
    limit_s: float = LIMIT_S,
    env: Mapping[str, str] | None = None,
    stdout: int | IO[bytes] | None = subprocess.PIPE,
    stderr: int | IO[bytes] | None = subprocess.PIPE,
    prepare: Callable[[], None] | None = None,
    cwd: Path | None = None,
) -> Ended:
    """Run a command to its end, or kill it at the time limit."""
    return start(*command, env=env, stdout=stdout, stderr=stderr, prepare=prepare, cwd=cwd).ended(limit_s)


@contextmanager
def started(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Iterator[Started]:
    """A command that runs inside the block and is killed at its end."""
    running = start(*command, env=env, cwd=cwd)
    try:
        yield running
    finally:
        running.kill()
        running.process.communicate()


def until(met: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Whether a condition comes true in time."""
    end = time.monotonic() + limit_s
    while not met():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def as_nobody(*command: str | Path) -> Sequence[str]:
    """The command as the second user, without the groups of this one."""
    return ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", *map(str, command)]
