"""Ranks as processes: started as torchrun starts them, watched, and all ended when one fails.

Each rank reads its job from standard input and reports on a pipe, one JSON object per line (see `Message`). No file is
written. A rank ends when this process does, whatever ends it.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from makeway.act.measure.link import LOOPBACK, Link
from makeway.values.errors import InputError, RankError

RANK_COMMAND = (sys.executable, "-m", "makeway.act.measure.ranks.main")
REPORT_VARIABLE, PARENT_VARIABLE, MEETING_VARIABLE = "MAKEWAY_REPORT_FD", "MAKEWAY_PARENT_PID", "MAKEWAY_MEETING"
_OUTPUT_BYTES = 4000


class RankFailedError(RankError):
    """A rank died, did not start, or kept the others waiting; all ranks have been ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long ranks may take."""

    start_s: float = 60.0  # until all ranks have met: torch takes seconds to load
    silence_s: float = 60.0  # without a message from any rank
    settle_s: float = 1.0  # after a first failure, for others to report theirs
    grace_s: float = 2.0  # between asking ranks to end and ending them


class Message(msgspec.Struct, omit_defaults=True):
    """One line from a rank: where it is, or how it ended.

    `blocked`: others did not reach a collective in time. `lost`: the connection to another broke. In both cases the
    cause is elsewhere; with `failed` it is here.
    """

    stage: str | None = None
    met: bool = False
    blocked: str | None = None
    lost: str | None = None
    failed: str | None = None
    result: Any = None
    done: bool = False


@dataclass(slots=True, kw_only=True)
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    report_fd: int
    unread: bytes = b""
    output: bytes = b""
    stage: str | None = None  # None: no message yet
    met: bool = False
    done: bool = False
    verdict: Message | None = None
    result: Any = None
    open_fds: set[int] = field(default_factory=set)

    @property
    def failed(self) -> bool:
        return self.verdict is not None or (self.process.poll() is not None and not self.done and not self.open_fds)


def run_ranks(
    world: int,
    argv: Sequence[str] = RANK_COMMAND,
    *,
    job: bytes,
    env: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    link: Link = LOOPBACK,
    progress: Callable[[str], None] = lambda stage: None,
) -> Any:
    """The result that rank 0 reports when every rank is done.

    A rank that dies, does not start or keeps the others waiting ends all of them, and the error names it. The ranks
    meet in a file without a name, which no other user can open and nobody has to remove, and listen on the loopback
    alone.
    """
    if world < 1:
        raise InputError(f"a run needs at least 1 rank, got {world}")
    limits = limits or Limits()
    ranks: list[_Rank] = []
    meeting_fd = os.memfd_create("makeway-ranks")
    try:
        for number in range(world):
            ranks.append(_start(number, world, (*link.prefix, *argv), job, env or {}, meeting_fd))
        _watch(ranks, limits, progress)
        return ranks[0].result
    finally:
        _end(ranks, limits.grace_s)
        os.close(meeting_fd)


def _start(
    number: int, world: int, command: Sequence[str], job: bytes, env: Mapping[str, str], meeting_fd: int
) -> _Rank:
    read_fd, write_fd = os.pipe()
    variables = {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        MEETING_VARIABLE: f"/proc/self/fd/{meeting_fd}",
        REPORT_VARIABLE: str(write_fd),
        PARENT_VARIABLE: str(os.getpid()),
    }
    inherited = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    try:
        process = subprocess.Popen(
            command,
            env={**inherited, **variables, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(write_fd, meeting_fd),
            # Ctrl-C reaches this process alone, which then ends the ranks. They stay in one session: where Linux groups
            # threads by session (autogroup), the niceness of one rank's threads must count against another's.
            process_group=0,
        )
    except OSError as error:
        os.close(read_fd)
        raise RankFailedError(f"rank {number} could not be started: {error}") from error
    finally:
        os.close(write_fd)
    assert process.stdin is not None
    try:
        process.stdin.write(job + b"\n")
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended already; watching finds out how
    return _Rank(number=number, process=process, report_fd=read_fd)


# --- watching ----------------------------------------------------------------------------------


def _watch(ranks: Sequence[_Rank], limits: Limits, progress: Callable[[str], None]) -> None:
    """Return when all ranks are done; raise when one fails or all are silent for too long."""
    started = last = time.monotonic()
    with _readable(ranks) as selector:
        while not all(rank.done and rank.process.poll() is not None for rank in ranks):
            for key, _ in selector.select(timeout=0.1):
                last = time.monotonic()
                _read(selector, key, progress)
            if any(rank.failed for rank in ranks):
                _settle(selector, ranks, limits.settle_s)
                raise _verdict(ranks)
            now = time.monotonic()
            if not all(rank.met for rank in ranks) and now - started > limits.start_s:
                raise _late(ranks, limits.start_s)
            if now - last > limits.silence_s:
                raise _silent(ranks, limits.silence_s)


@contextmanager
def _readable(ranks: Sequence[_Rank]) -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            assert rank.process.stdout is not None
            for fd, is_report in ((rank.report_fd, True), (rank.process.stdout.fileno(), False)):
                selector.register(fd, selectors.EVENT_READ, (rank, is_report))
                rank.open_fds.add(fd)
        yield selector


def _read(selector: selectors.BaseSelector, key: selectors.SelectorKey, progress: Callable[[str], None]) -> None:
    fd, (rank, is_report) = key.fd, key.data
    data = os.read(fd, 1 << 16)
    if not data:
        selector.unregister(fd)
        rank.open_fds.discard(fd)
    elif not is_report:
        rank.output = (rank.output + data)[-_OUTPUT_BYTES:]
    else:
        *lines, rank.unread = (rank.unread + data).split(b"\n")
        for line in lines:
            _note(rank, msgspec.json.decode(line, type=Message), progress)


def _note(rank: _Rank, message: Message, progress: Callable[[str], None]) -> None:
    rank.met |= message.met
    rank.done |= message.done
    if message.stage is not None:
        rank.stage = message.stage
        if rank.number == 0:
            progress(message.stage)
    if message.result is not None:
        rank.result = message.result
    if message.failed or message.blocked or message.lost:
        rank.verdict = message


def _settle(selector: selectors.BaseSelector, ranks: Sequence[_Rank], settle_s: float) -> None:
    """Read what other ranks report: the first to fail is not always the cause."""
    until = time.monotonic() + settle_s
    while time.monotonic() < until and selector.get_map():
        for key, _ in selector.select(timeout=0.1):
            _read(selector, key, lambda stage: None)


def _verdict(ranks: Sequence[_Rank]) -> Exception:
    """The failure nearest to the cause: a death, then a rank's own error, then who kept others waiting."""
    verdicts = [(rank, rank.verdict) for rank in ranks if rank.verdict is not None]
    for rank in ranks:
        if rank.verdict is None and not rank.done and rank.process.poll() is not None:
            return RankFailedError(_death(rank, len(ranks)))
    for rank, verdict in verdicts:
        if verdict.failed:
            return RankFailedError(f"{_name(rank, len(ranks))} failed at {rank.stage!r}: {verdict.failed}")
    waited = next((verdict for _, verdict in verdicts if verdict.blocked), None)
    if waited is not None:
        absent = [rank for rank in ranks if rank.verdict is None]
        who = " and ".join(_name(rank, len(ranks)) for rank in absent) or "every rank"
        return RankFailedError(
            f"{who} did not reach a collective in time ({_states(absent)}); the others waited: {waited.blocked}. "
            "If it was only slow, give more time with --timeout."
        )
    rank, verdict = verdicts[0]
    return RankFailedError(f"{_name(rank, len(ranks))} lost its connection at {rank.stage!r}: {verdict.lost}")


def _death(rank: _Rank, world: int) -> str:
    code = rank.process.poll()
    assert code is not None
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    lines = [line for line in rank.output.decode(errors="replace").splitlines() if line.strip()]
    last = f"; its last output: {lines[-1].strip()}" if lines else ""
    return f"{_name(rank, world)} {how} at {rank.stage or 'its start'!r}{last}"


def _late(ranks: Sequence[_Rank], limit_s: float) -> RankFailedError:
    absent = [rank for rank in ranks if rank.stage is None] or [rank for rank in ranks if not rank.met]
    who = " and ".join(_name(rank, len(ranks)) for rank in absent)
    return RankFailedError(f"{who} did not join the others within {limit_s:g} s ({_states(absent)})")


def _silent(ranks: Sequence[_Rank], limit_s: float) -> RankFailedError:
    waiting = [rank for rank in ranks if not rank.done]
    who = " and ".join(_name(rank, len(ranks)) for rank in waiting)
    return RankFailedError(f"{who} made no progress for {limit_s:g} s ({_states(waiting)}); see --timeout")


def _name(rank: _Rank, world: int) -> str:
    return f"rank {rank.number} of {world}"


def _states(ranks: Sequence[_Rank]) -> str:
    """What each process was doing, according to the kernel."""
    states = [f"process {rank.process.pid} {_state(rank.process)}, at {rank.stage or 'its start'!r}" for rank in ranks]
    return "; ".join(states) or "none absent"


def _state(process: subprocess.Popen[bytes]) -> str:
    try:
        with open(f"/proc/{process.pid}/stat", encoding="utf-8") as file:
            letter = file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
    return {"T": "stopped", "S": "sleeping", "D": "waiting for a device", "Z": "ended"}.get(letter, "running")


# --- ending ------------------------------------------------------------------------------------


def _end(ranks: Sequence[_Rank], grace_s: float) -> None:
    """End every rank and what it started; a second Ctrl-C does not stop this."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        _signal(ranks, signal.SIGTERM)
        until = time.monotonic() + grace_s
        while time.monotonic() < until and any(rank.process.poll() is None for rank in ranks):
            time.sleep(0.02)
        _signal(ranks, signal.SIGKILL)
        for rank in ranks:
            rank.process.wait()
            os.close(rank.report_fd)
            if rank.process.stdout is not None:
                rank.process.stdout.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _signal(ranks: Sequence[_Rank], number: signal.Signals) -> None:
    for rank in ranks:
        # The leader may be gone while what it started is not: the group has the leader's number.
        with suppress(ProcessLookupError):
            os.killpg(rank.process.pid, number)
