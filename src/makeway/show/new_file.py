"""Output files that appear whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from makeway.values.errors import InputError, printable


def check_place(path: Path) -> None:
    """Nothing, or the error that writing `path` would meet: worth knowing before hours of work."""
    name, parent = printable(path), printable(path.parent)
    try:
        if path.is_dir():
            raise InputError(f"cannot write {name}: it is a directory; name a file in it")
        if not path.parent.is_dir():
            raise InputError(f"cannot write {name}: there is no directory {parent}; create it, or name another")
        if not os.access(path if path.exists() and not path.is_file() else path.parent, os.W_OK):
            raise InputError(f"cannot write {name}: {parent} is not yours to write to; choose another place")
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        raise InputError(f"cannot write {name}: {getattr(error, 'strerror', None) or error}") from None


@contextmanager
def new_file(path: Path) -> Iterator[TextIO]:
    """A text file that takes the place of `path` when the block ends well, and leaves nothing behind when it does not.

    What is not a regular file (a pipe, /dev/null) is written to as it is.
    """
    check_place(path)
    try:
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
                yield file
            return
        # Beside the target, since only a rename within one file system is atomic.
        target = path.resolve()
        unfinished = target.with_name(f".makeway-{os.urandom(8).hex()}.unfinished")
        try:
            with _created(unfinished, target) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # before the rename, or a crash could leave an empty file
            os.replace(unfinished, target)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        place = f"cannot write {printable(path)}: {error.strerror or error}"
        raise InputError(f"{place}; choose a place you may write to") from error


def _created(path: Path, target: Path) -> TextIO:
    """A file that did not exist, with the permissions of the one it will replace."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with suppress(OSError):
        os.fchmod(number, stat.S_IMODE(target.stat().st_mode))
    return os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace", newline="\n")
