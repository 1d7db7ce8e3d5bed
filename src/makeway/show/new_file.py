"""Output files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from makeway.values.errors import InputError


def check_place(path: Path) -> None:
    """Nothing, or the error that writing `path` would meet: worth knowing before hours of work."""
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a directory; name a file in it")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no directory {path.parent}; create it, or name another")
    if not os.access(path if path.exists() and not path.is_file() else path.parent, os.W_OK):
        raise InputError(f"cannot write {path}: {path.parent} is not yours to write to; choose another place")


@contextmanager
def new_file(path: Path) -> Iterator[TextIO]:
    """A text file that takes the place of `path` when the block ends well, and leaves nothing behind when it does not.

    What is not a regular file (a pipe, /dev/null) is written to as it is.
    """
    check_place(path)
    straight = path.exists() and not path.is_file()
    # Beside the target, since only a rename within one file system is atomic.
    target = path if straight else path.resolve()
    unfinished = target if straight else target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        if not straight:
            os.replace(unfinished, target)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; choose a place you may write to") from error
    finally:
        if not straight:
            unfinished.unlink(missing_ok=True)
