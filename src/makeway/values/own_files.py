"""Files that makeway keeps for this user in `$XDG_CACHE_HOME/makeway` (default ~/.cache/makeway): read only if ours."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def cache_root() -> Path:
    """The directory of everything that may be deleted at any time."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "makeway"


def own_folder(name: str, *, closed: int) -> Path | None:
    """A folder of the cache, created where it is missing; None unless it is this user's and closed to others.

    `closed` are the permissions that nobody else may have: 0o022 to write, 0o077 all.
    """
    try:
        path = cache_root() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        facts = path.lstat()
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None
    own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & closed
    return path if own else None


def own_bytes(path: Path, *, most_bytes: int) -> bytes:
    """The content of a plain file of this user; an OSError where it is anything else."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_size > most_bytes:
            raise OSError(f"{path} is not a file of this user")
        return file.read()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file beside and rename it, so that nobody ever reads a part of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
