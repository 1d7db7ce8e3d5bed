"""Shared memory between the ranks of one host: private files in /dev/shm that leave no trace.

A segment's name says which process made it, so that the next run recognises and removes what a killed run left.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from makeway.values.errors import UnsupportedError
from makeway.values.units import format_bytes

SHM = Path("/dev/shm")
_NAME = re.compile(r"makeway-(\d+)-(\d+)-(\d+)-[0-9a-f]{32}(\.sock)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that made a segment; a process id alone may be reused."""

    pid_namespace: int
    pid: int
    start_ticks: int

    def new_name(self) -> str:
        """An unguessable name for one segment."""
        return f"makeway-{self.pid_namespace}-{self.pid}-{self.start_ticks}-{secrets.token_hex(16)}"


def this_process() -> Owner:
    """The calling process as an owner of segments."""
    pid = os.getpid()
    return Owner(pid_namespace=_pid_namespace(), pid=pid, start_ticks=start_ticks(pid) or 0)


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is no such process or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before ")" may hold anything
    return None if fields[0] in "ZX" else int(fields[19])


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def owner_of(name: str) -> Owner | None:
    """The process that a file name in /dev/shm names; None when the file is not ours."""
    match = _NAME.fullmatch(name)
    if not match:
        return None
    return Owner(pid_namespace=int(match[1]), pid=int(match[2]), start_ticks=int(match[3]))


def remove_stale(directory: Path = SHM) -> tuple[str, ...]:
    """Remove what dead processes of this user left, and return the names.

    Processes of other pid namespaces are invisible here, so their files stay.
    """
    removed = []
    for path in directory.glob("makeway-*"):
        owner = owner_of(path.name)
        if owner is None or owner.pid_namespace != _pid_namespace() or start_ticks(owner.pid) == owner.start_ticks:
            continue
        with suppress(FileNotFoundError):  # another rank removed it first
            if path.lstat().st_uid == os.geteuid():
                path.unlink()
                removed.append(path.name)
    return tuple(removed)


class Segment:
    """A mapped file in shared memory. Unlinking removes the name; the memory lives until the last rank closes it."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self._map: mmap.mmap | None = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._bytes: torch.Tensor | None = torch.frombuffer(self._map, dtype=torch.uint8)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @classmethod
    def create(cls, size: int, directory: Path = SHM) -> Segment:
        """A new segment that only this user can open, with every page allocated."""
        path = directory / this_process().new_name()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UnsupportedError(
                f"cannot create shared memory in {directory}: {error.strerror}; direct collectives need to write there"
            ) from error
        try:
            # A full tmpfs fails here; without this the first touch of a missing page would kill the process.
            os.posix_fallocate(descriptor, 0, size)
            return cls(path, descriptor, size)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise UnsupportedError(_too_little_memory(size, directory, error)) from error
        finally:
            os.close(descriptor)

    @classmethod
    def open(cls, path: Path, size: int) -> Segment:
        """Another rank's segment."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError as error:
            raise UnsupportedError(
                f"cannot open the shared memory {path} of another rank: {error.strerror}; direct collectives need "
                "ranks of one user on one host with the same /dev/shm"
            ) from error
        try:
            if (held := os.fstat(descriptor).st_size) != size:
                raise UnsupportedError(f"{path} holds {held:,} bytes where {size:,} were agreed")
            return cls(path, descriptor, size)
        finally:
            os.close(descriptor)

    @classmethod
    def of_descriptor(cls, path: Path, size: int, inode: int) -> Segment:
        """Unnamed memory that a process of this user has open at /proc/PROCESS/fd/NUMBER."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError as error:
            raise UnsupportedError(
                f"cannot open the memory of another rank at {path}: {error.strerror}; direct collectives need ranks of "
                "one user that see each other's processes"
            ) from error
        try:
            facts = os.fstat(descriptor)
            if (facts.st_size, facts.st_ino, facts.st_uid) != (size, inode, os.geteuid()):
                raise UnsupportedError(f"{path} is not the agreed memory: other ranks' processes are not visible here")
            return cls(path, descriptor, size)
        finally:
            os.close(descriptor)

    def view(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """`count` bytes from `offset` as a tensor over the shared memory itself."""
        assert self._bytes is not None
        return self._bytes[offset : offset + count].view(dtype)

    def unlink(self) -> None:
        """Remove the name: from now on the memory ends with its last user, even a killed one."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmap; harmless when repeated."""
        self._bytes = None
        if self._map is not None:
            with suppress(BufferError):  # a view still exists; the mapping ends with it
                self._map.close()
            self._map = None


def _too_little_memory(size: int, directory: Path, error: OSError) -> str:
    space = os.statvfs(directory)
    free = space.f_bavail * space.f_frsize
    return (
        f"cannot set aside {format_bytes(size)} of shared memory in {directory} ({error.strerror}): "
        f"{format_bytes(free)} are free of {format_bytes(space.f_blocks * space.f_frsize)}; "
        "make it larger (docker run --shm-size, mount -o remount,size=) or use smaller pieces (piece_bytes=)"
    )
