"""Where traces are: local files, directories below one another, and remote places through fsspec.

A remote place is written as a URL (s3://bucket/run). `Path` drops one of its slashes, so that s3:/bucket/run is the
same place, unless there is such a local file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from makeway.values.errors import MissingExtraError, TraceError, printable
from makeway.values.facts import open_regular

MOST_DEPTH = 12  # directories below the one that was given
MOST_FILES = 200_000  # looked at in one directory and those below
_URL = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}(.+)", re.DOTALL)
_OWN_PACKAGE = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


def remote_url(path: Path) -> str | None:
    """The URL of a remote place; None for a local path."""
    match = _URL.fullmatch(str(path))
    if match is None or os.path.lexists(path):
        return None
    return f"{match[1]}://{match[2]}"


def open_place(path: Path) -> BinaryIO:
    """Open a trace to read it in pieces."""
    url = remote_url(path)
    if url is None:
        return open_regular(path)
    system, name = _system(url)
    try:
        file: BinaryIO = system.open(name, "rb")
    except Exception as error:  # each store has errors of its own
        raise TraceError(f"cannot read {printable(url)}: {printable(error)}") from error
    return file


def exists(path: Path) -> bool:
    """Whether there is a file or directory."""
    url = remote_url(path)
    return path.exists() if url is None else bool(_ask(url, "exists"))


def is_directory(path: Path) -> bool:
    """Whether it holds files, rather than being one."""
    url = remote_url(path)
    return path.is_dir() if url is None else bool(_ask(url, "isdir"))


def size_bytes(path: Path) -> int:
    """The size of a file; 0 where it is not known."""
    url = remote_url(path)
    return path.stat().st_size if url is None else int(_ask(url, "size") or 0)


def identity(path: Path) -> Path:
    """The same for two names of one file."""
    return path.resolve() if remote_url(path) is None else path


def files_below(directory: Path) -> Iterator[Path]:
    """The files in a directory and those below it, except hidden ones; each directory is entered once."""
    for count, path in enumerate(_local(directory) if remote_url(directory) is None else _remote(directory)):
        if count >= MOST_FILES:
            raise TraceError(f"{printable(directory)} holds more than {MOST_FILES:,} files: name a directory below it")
        yield path


def _local(directory: Path) -> Iterator[Path]:
    entered = {directory.resolve()}
    waiting = [(directory, 0)]
    while waiting:
        place, depth = waiting.pop()
        try:
            entries = [entry for entry in place.iterdir() if not entry.name.startswith(".")]
        except OSError as error:
            if depth == 0:
                raise TraceError(f"cannot read {printable(place)}: {error.strerror}") from error
            continue
        for entry in entries:
            if not entry.is_dir():
                yield entry
            elif depth < MOST_DEPTH and (real := entry.resolve()) not in entered:  # links may lead back here
                entered.add(real)
                waiting.append((entry, depth + 1))


def _remote(directory: Path) -> Iterator[Path]:
    url = remote_url(directory)
    assert url is not None
    scheme = url.partition("://")[0]
    for name in _ask(url, "find", maxdepth=MOST_DEPTH):
        if not any(part.startswith(".") for part in str(name).split("/")):
            yield Path(f"{scheme}://{str(name).lstrip('/')}")


def _ask(url: str, question: str, **arguments: Any) -> Any:
    system, name = _system(url)
    try:
        return getattr(system, question)(name, **arguments)
    except Exception as error:
        raise TraceError(f"cannot read {printable(url)}: {printable(error)}") from error


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and its name for the place."""
    scheme = url.partition("://")[0]
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise MissingExtraError(f"{printable(url)} is a remote place, and fsspec is not installed.", "remote") from None
    try:
        system, name = url_to_fs(url)
    except ImportError:
        package = _OWN_PACKAGE.get(scheme, f"the fsspec package for {scheme}://")
        raise TraceError(
            f"{printable(url)} needs {package}, which is not installed\nInstall it with: pip install {package}"
        ) from None
    except ValueError:
        raise TraceError(f"no file or directory {printable(url)}; {scheme}:// is no place that fsspec knows") from None
    return system, name
