"""Summaries of traces on disk, under a hash of all that they depend on.

One file each in `$XDG_CACHE_HOME/makeway/summaries` (default ~/.cache/makeway/summaries), readable by its owner only.
The directory may be deleted at any time. What is damaged, or belongs to somebody else, is not read. When the files
exceed MOST_BYTES, those that were not used for longest are removed.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from makeway.values.own_files import own_bytes, own_folder, write_whole

FOLDER = "summaries"
MOST_BYTES = 4 << 30  # of all files; 4,096 ranks take half a gigabyte
MOST_FILE_BYTES = 1 << 30
_DIGEST_BYTES = 20
_SUFFIX = ".summary"
_PRUNE_SHARE = 64  # about one write in this many looks at the sizes of all files


class SummaryCache:
    """The summaries that this user's earlier runs left."""

    def __init__(self) -> None:
        self._directory = own_folder(FOLDER, closed=0o077)

    def read(self, key: str) -> bytes | None:
        """The bytes kept under a key; None where there are none that can be trusted."""
        if self._directory is None:
            return None
        path = self._directory / f"{key}{_SUFFIX}"
        try:
            data = own_bytes(path, most_bytes=MOST_FILE_BYTES)
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
            write_whole(self._directory / f"{key}{_SUFFIX}", _digest(data) + data)
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


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
