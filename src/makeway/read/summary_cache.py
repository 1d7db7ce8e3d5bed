"""Summaries of traces on disk, under a hash of all that they depend on.

One file each in `$XDG_CACHE_HOME/makeway/summaries` (default ~/.cache/makeway/summaries), readable by its owner only.
The directory may be deleted at any time. What is damaged, or belongs to somebody else, is not read. When the files
exceed MOST_BYTES, those that were not used for longest are removed.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 4 << 30  # of all files; 4,096 ranks take half a gigabyte
MOST_FILE_BYTES = 1 << 30
_DIGEST_BYTES = 20
_SUFFIX = ".summary"
_PRUNE_SHARE = 64  # about one write in this many looks at the sizes of all files


class SummaryCache:
    """The summaries that this user's earlier runs left."""

    def __init__(self) -> None:
        self._directory = _own_directory()

    def read(self, key: str) -> bytes | None:
        """The bytes kept under a key; None where there are none that can be trusted."""
        if self._directory is None:
            return None
        path = self._directory / f"{key}{_SUFFIX}"
        try:
            data = _own_bytes(path)
        except OSError:
            return None
        if data[:_DIGEST_BYTES] != _digest(data[_DIGEST_BYTES:]):
            return None
        with suppress(OSError):
            os.utime(path)  # it was used
        return data[_DIGEST_BYTES:]

    def write(self, key: str, data: bytes) -> None:
        """Keep bytes for other runs; where the disk refuses, the trace is read again next time."""
        if self._directory is None or len(data) > MOST_FILE_BYTES:
            return
        try:
            handle, name = tempfile.mkstemp(dir=self._directory, prefix=".summary-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_digest(data) + data)
                os.replace(name, self._directory / f"{key}{_SUFFIX}")
            except BaseException:
                os.unlink(name)
                raise
        except OSError:
            return
        if int(key[:8], 16) % _PRUNE_SHARE == 0:
            prune(self._directory)


def prune(directory: Path, most_bytes: int = MOST_BYTES) -> None:
    """Remove the files that were not used for longest, until the rest take at most `most_bytes`."""
    files = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIX):
                with suppress(OSError):  # another process removed it
                    facts = entry.stat(follow_symlinks=False)
                    files.append((facts.st_mtime_ns, facts.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= most_bytes:
            return
        with suppress(OSError):
            os.unlink(path)
        total -= size


def default_directory() -> Path:
    """The directory of summaries."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "makeway" / "summaries"


def _own_directory() -> Path | None:
    """The directory, created where it is missing; None unless only its owner, this user, may enter it."""
    try:
        path = default_directory()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        facts = path.lstat()
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None
    own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077
    return path if own else None


def _own_bytes(path: Path) -> bytes:
    """The content of a plain file of this user."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_size > MOST_FILE_BYTES:
            raise OSError(f"{path} is not a file of this user")
        return file.read()


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
