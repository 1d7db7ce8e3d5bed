"""Tokens between the ranks of one host: which pieces are in shared memory, which were taken, which ranks are gone.

One Unix socket per pair of ranks. A waiting rank sleeps in the kernel, a dead one hangs up, and the kernel orders a
token after the bytes it announces on every processor, which plain flags in shared memory would not.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from makeway.values.errors import MakewayError, RankError, UnsupportedError

PAIR, COMMON = 0, 1  # the two channels of a segment: for one peer, for all peers
READY, TAKEN = (b"r", b"R"), (b"t", b"T")  # by channel
HEADER_BYTES = 32
FAILED = struct.Struct("<cH")
_CONNECT_S = 20.0  # all ranks have just answered: far beyond any scheduling delay


class LostRankError(RankError):
    """A rank ended, left or is late; `rank` is its number in the group."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class Links:
    """The sockets of one rank to all others, and what arrived through them."""

    def __init__(self, rank: int, sockets: dict[int, socket.socket], timeout_s: float) -> None:
        self.rank = rank
        self.peers = tuple(sorted(sockets))
        self.timeout_s = timeout_s
        self.ready = {peer: [0, 0] for peer in self.peers}  # by channel: pieces that arrived and were not yet taken
        self.untaken = {peer: [0, 0] for peer in self.peers}  # by channel: pieces given and not yet taken
        self.headers: dict[int, deque[bytes]] = {peer: deque() for peer in self.peers}
        self._sockets = sockets
        self._by_descriptor = {sock.fileno(): peer for peer, sock in sockets.items()}
        self._unread = dict.fromkeys(self.peers, b"")
        self._unsent = {peer: bytearray() for peer in self.peers}
        self._gone: set[int] = set()
        self._failed: LostRankError | None = None
        self._poll = select.poll()
        self._aborted = False
        self._alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = threading.Lock()
        for descriptor in (self._alarm, *self._by_descriptor):
            self._poll.register(descriptor, select.POLLIN)

    def say(self, peer: int, message: bytes) -> None:
        """Queue a message for a peer until `flush`."""
        self._unsent[peer] += message

    def flush(self) -> None:
        """Send what is queued. A peer that is gone is noticed in `wait`, not here."""
        for peer, message in self._unsent.items():
            if message:
                with suppress(BrokenPipeError, ConnectionResetError):
                    self._sockets[peer].sendall(message)
                message.clear()

    def look(self, timeout_ms: int = 0) -> bool:
        """Read what has arrived, waiting at most `timeout_ms` for the first message."""
        events = self._poll.poll(timeout_ms)
        for descriptor, _ in events:
            if descriptor == self._alarm:
                self._aborted = True
                continue
            peer = self._by_descriptor[descriptor]
            try:
                message = self._sockets[peer].recv(65536)
            except ConnectionResetError:
                message = b""
            if message:
                self._take_in(peer, message)
            else:
                self._gone.add(peer)
                self._poll.unregister(descriptor)
        return bool(events)

    def _take_in(self, peer: int, message: bytes) -> None:
        message = self._unread[peer] + message
        at = 0
        while at < len(message):
            kind = message[at : at + 1]
            size = {b"h": 1 + HEADER_BYTES, b"f": FAILED.size}.get(kind, 1)
            if at + size > len(message):
                break
            if kind == b"h":
                self.headers[peer].append(message[at + 1 : at + size])
            elif kind == b"f":
                lost = FAILED.unpack_from(message, at)[1]
                self._failed = LostRankError(f"rank {lost} is lost: rank {peer} found it gone or late", lost)
            elif kind in READY:
                self.ready[peer][READY.index(kind)] += 1
            else:
                self.untaken[peer][TAKEN.index(kind)] -= 1
            at += size
        self._unread[peer] = message[at:]

    def wait(self, blockers: Collection[int], what: str) -> None:
        """Sleep until something arrives; raises, naming the rank, when one of `blockers` is gone or late."""
        self.flush()
        deadline = time.monotonic() + self.timeout_s
        while True:
            if self._aborted:
                raise MakewayError(f"{what}: the group was closed")
            if self._failed is not None:
                raise LostRankError(f"{what}: {self._failed}", self._failed.rank)
            if lost := self._gone.intersection(blockers):
                rank = min(lost)
                raise LostRankError(f"{what}: rank {rank} ended or left; see its own output for the cause", rank)
            if self.look(max(0, int((deadline - time.monotonic()) * 1000) + 1)):
                return
            if time.monotonic() >= deadline:
                names = ", ".join(map(str, sorted(blockers)))
                raise LostRankError(
                    f"{what}: rank {names} did not answer within {self.timeout_s:g} s; see whether it still runs and "
                    "calls the same collectives, or allow more with timeout_s=",
                    min(blockers),
                )

    def send_failure(self, lost: int) -> None:
        """Name the lost rank to every peer, so that nobody blames this one."""
        for peer in self.peers:
            self.say(peer, FAILED.pack(b"f", lost))
        self.flush()

    def abort(self) -> None:
        """Wake a thread in `wait` with an error."""
        with self._closing:  # that thread may close the links at the same moment
            if self._alarm >= 0:
                os.eventfd_write(self._alarm, 1)

    def close(self) -> None:
        """Hang up; harmless when repeated. A forked child closes its own copies only."""
        for sock in self._sockets.values():
            sock.close()
        with self._closing:
            if self._alarm >= 0:
                os.close(self._alarm)
                self._alarm = -1


# --- meeting -----------------------------------------------------------------------------------


def listen(path: Path) -> socket.socket:
    """A socket to which the other ranks of this user can connect."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)  # before listen(): nobody can have connected
        listener.listen(1024)
    except OSError as error:
        listener.close()
        path.unlink(missing_ok=True)
        raise UnsupportedError(f"cannot open a socket at {path}: {error.strerror or error}") from error
    listener.settimeout(_CONNECT_S)
    return listener


def connect(rank: int, paths: list[Path], listener: socket.socket) -> dict[int, socket.socket]:
    """One socket to every other rank: connects to lower ranks, accepts higher ones."""
    sockets: dict[int, socket.socket] = {}
    try:
        for peer in range(rank):
            sockets[peer] = sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(_CONNECT_S)
            sock.connect(str(paths[peer]))
            sock.sendall(struct.pack("<H", rank))
        while len(sockets) < len(paths) - 1:
            sock, _ = listener.accept()
            sock.settimeout(_CONNECT_S)
            caller = _caller(sock)
            if caller is None or not rank < caller < len(paths) or caller in sockets:
                sock.close()
                continue
            sockets[caller] = sock
        for sock in sockets.values():
            sock.settimeout(None)
    except OSError as error:
        for sock in sockets.values():
            sock.close()
        raise UnsupportedError(f"rank {rank} cannot reach the other ranks of this host: {error}") from error
    return sockets


def _caller(sock: socket.socket) -> int | None:
    """The rank that connected; None when it is another user's process."""
    _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    rank = sock.recv(2, socket.MSG_WAITALL)
    return struct.unpack("<H", rank)[0] if user == os.geteuid() and len(rank) == 2 else None
