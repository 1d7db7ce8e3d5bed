"""How the ranks of a process group open each other's segments and sockets, all of them or none."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
import torch.distributed as dist

from makeway.act.booted import boot_id
from makeway.act.cpu.flows import Window
from makeway.act.cpu.links import Links, connect, listen
from makeway.act.cpu.segments import Segment, remove_stale
from makeway.values.errors import MakewayError, UnsupportedError

T = TypeVar("T")
_MESSAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What two ranks must have in common to see the same shared memory."""

    boot_id: str
    shm_device: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """What a rank sends to the others: its host, its segment and layout, or why it cannot go on."""

    host: Host
    path: str
    window: Window
    error: str | None
    inode: int | None = None  # of unnamed memory, which `path` leads to


def this_host(directory: Path) -> Host:
    """The host of this process and the mount that it would share."""
    return Host(boot_id=boot_id(), shm_device=directory.stat().st_dev, name=os.uname().nodename)


def why_apart(hosts: list[Host]) -> str | None:
    """Why ranks on these hosts cannot share memory; None when they can."""
    for rank, host in enumerate(hosts):
        if host.boot_id != hosts[0].boot_id:
            return f"rank 0 runs on host {hosts[0].name}, rank {rank} on {host.name}"
        if host.shm_device != hosts[0].shm_device:
            return f"ranks 0 and {rank} run on one host but see different mounts of /dev/shm (containers?)"
    return None


def meet(group: dist.ProcessGroup, window: Window, directory: Path, timeout_s: float) -> tuple[list[Segment], Links]:
    """The segments of all ranks, in order of rank, and the links to them; no name is left in the file system."""
    remove_stale(directory)
    segment, error = _trying(lambda: Segment.create(window.segment_bytes, directory))
    listener = None
    try:
        if segment is not None:
            socket_path = _socket_path(segment.path)
            listener, error = _trying(lambda: listen(socket_path))
        message = _message(segment, window, directory, error)
        segments, sockets = _opened(group, segment, message, listener)
        return segments, Links(dist.get_rank(group), sockets, timeout_s)
    finally:
        if listener is not None:
            listener.close()
        if segment is not None:
            segment.unlink()
            _socket_path(segment.path).unlink(missing_ok=True)


def share(group: dist.ProcessGroup, size: int, directory: Path) -> list[Segment]:
    """A segment of `size` bytes from every rank, each open in all of them; no name is left."""
    segment, error = _trying(lambda: Segment.create(size, directory))
    try:
        return _opened(group, segment, _message(segment, _whole(size), directory, error))[0]
    finally:
        if segment is not None:
            segment.unlink()


def adopt(group: dist.ProcessGroup, storage: torch.UntypedStorage, directory: Path) -> list[Segment]:
    """The memory of every rank's tensor, open in all of them; tensors over it keep their contents.

    torch moves it to shared memory: an unnamed file of this user. Every rank's must have the same size.
    """
    size = storage.nbytes()
    inode = None

    def own() -> Segment:
        nonlocal inode
        descriptor = _moved(storage, directory, dist.get_world_size(group))
        inode = os.fstat(descriptor).st_ino
        return Segment.of_descriptor(Path(f"/proc/{os.getpid()}/fd/{descriptor}"), size, inode)

    segment, error = _trying(own)
    return _opened(group, segment, replace(_message(segment, _whole(size), directory, error), inode=inode))[0]


def _moved(storage: torch.UntypedStorage, directory: Path, ranks: int) -> int:
    """The descriptor of a storage that torch has moved to shared memory.

    torch sets no pages aside: in a full tmpfs the first touch of a missing page would kill the process. All ranks move
    theirs at the same time, and others may use the same tmpfs, so twice the space of all of them must be free.
    """
    space, needed = os.statvfs(directory), 2 * ranks * storage.nbytes()
    if needed > space.f_bavail * space.f_frsize:
        raise UnsupportedError(
            f"{directory} has no space for {ranks} times {storage.nbytes():,} bytes of shared memory, twice over"
        )
    try:
        descriptor: int = storage._share_fd_cpu_()[0]  # stays open as long as the storage lives
    except RuntimeError as error:
        raise UnsupportedError(f"torch cannot move a tensor to shared memory: {error}") from error
    return descriptor


def _whole(size: int) -> Window:
    return Window(ranks=1, piece_bytes=size, slots=1)


def _message(segment: Segment | None, window: Window, directory: Path, error: str | None) -> _Message:
    path = str(segment.path) if segment is not None else ""
    return _Message(host=this_host(directory), path=path, window=window, error=error)


def _socket_path(segment: Path) -> Path:
    return segment.with_name(segment.name + ".sock")


def _trying(act: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return act(), None
    except MakewayError as error:
        return None, str(error)


def _opened(
    group: dist.ProcessGroup, own: Segment | None, message: _Message, listener: socket.socket | None = None
) -> tuple[list[Segment], dict[int, socket.socket]]:
    """The segments of all ranks, in order of rank, and with a listener a socket to each.

    Every rank learns of every other's error before it waits for anything, so that all raise or none does.
    """
    rank = dist.get_rank(group)
    segments: list[Segment] = []
    sockets: dict[int, socket.socket] = {}
    try:
        messages = _exchanged(group, message)
        _refuse(messages)
        assert own is not None
        segments, error = _open_all(messages, own, rank)
        if error is None and listener is not None:
            paths = [_socket_path(Path(theirs.path)) for theirs in messages]
            connected, error = _trying(partial(connect, rank, paths, listener))
            sockets = connected or {}
        _refuse(_exchanged(group, replace(message, error=error)))
        return segments, sockets
    except BaseException:
        for sock in sockets.values():
            sock.close()
        for segment in (*segments, *([own] if own is not None else [])):
            segment.close()
        raise


def _exchanged(group: dist.ProcessGroup, message: _Message) -> list[_Message]:
    """Every rank's message. As bytes in tensors: torch's own exchange of objects needs numpy."""
    encoded = msgspec.json.encode(message).ljust(_MESSAGE_BYTES)
    given = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    received = [torch.empty_like(given) for _ in range(dist.get_world_size(group))]
    dist.all_gather(received, given, group=group)
    return [msgspec.json.decode(bytes(tensor.tolist()), type=_Message) for tensor in received]


def _refuse(messages: list[_Message]) -> None:
    first = messages[0]
    for rank, message in enumerate(messages):
        if message.error is not None:
            raise UnsupportedError(f"rank {rank} cannot take part in direct collectives: {message.error}")
        if message.window != first.window:
            raise UnsupportedError(f"ranks 0 and {rank} use different windows: {first.window}, {message.window}")
    if reason := why_apart([message.host for message in messages]):
        raise UnsupportedError(f"direct collectives need ranks that share a host: {reason}; use Gloo between hosts")


def _open_all(messages: list[_Message], own: Segment, rank: int) -> tuple[list[Segment], str | None]:
    segments: list[Segment] = []
    for peer, message in enumerate(messages):
        if peer == rank:
            segments.append(own)
            continue
        open_it = Segment.open if message.inode is None else partial(Segment.of_descriptor, inode=message.inode)
        opened, error = _trying(partial(open_it, Path(message.path), message.window.segment_bytes))
        if opened is None:
            return segments, error
        segments.append(opened)
    return segments, None
