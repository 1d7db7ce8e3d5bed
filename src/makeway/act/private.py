"""Directories that nobody else can change, and temporary ones that do not stay behind."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

PREFIX = "makeway-run-"
_NAMED = re.compile(rf"{PREFIX}\d+-.+")  # with the process id of the owner, who holds a lock


def intruder(path: Path) -> str | None:
    """Why somebody else could change what `path` leads to; None when only this user and root can.

    Every directory on the way counts, also behind links: it must belong to us or root, and be writable by nobody else.
    A directory with the sticky bit, as /tmp, is fine for entries that are ours: nobody else can rename them.
    """
    path = Path(os.path.abspath(path))
    real = Path(os.path.realpath(path))
    for place in dict.fromkeys((*reversed(real.parents), real, *reversed(path.parents), path)):
        facts = place.lstat()
        if facts.st_uid not in (os.getuid(), 0):
            return f"{place} belongs to user {facts.st_uid}"
        if stat.S_ISLNK(facts.st_mode):
            continue
        sticky = stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX and place not in (real, path)
        if facts.st_mode & 0o022 and not sticky:
            return f"{place} can be written by other users"
    return None


def make_private(directory: Path) -> None:
    """Create a directory, and those above it that are missing, for this user alone."""
    for place in (*reversed(directory.parents), directory):
        if not place.is_dir():
            with suppress(FileExistsError):  # another process was faster
                place.mkdir(mode=0o700)


class TemporaryPlace:
    """A directory of this process: removed at the end, or by a later process if this one is killed.

    A lock on the directory says that its owner lives, also across process-id namespaces.
    """

    def __init__(self) -> None:
        remove_stale()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
            self._lock = _locked(self.path)
            if self._lock is not None:
                return  # otherwise somebody took it for stale before it was locked

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None


def remove_stale() -> None:
    """Remove what killed processes of this user left; what others own or still use stays."""
    with suppress(OSError):
        for place in Path(tempfile.gettempdir()).iterdir():
            if _NAMED.fullmatch(place.name) and (lock := _locked(place)) is not None:
                shutil.rmtree(place, ignore_errors=True)
                os.close(lock)


def _locked(place: Path) -> int | None:
    """A descriptor that locks the directory; None when it is not ours, is in use or has gone."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        facts = os.fstat(descriptor)
        if facts.st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(facts, place.lstat()):
                return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
