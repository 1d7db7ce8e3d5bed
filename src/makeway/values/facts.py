"""Facts with a source: the numbers of the data files, and where each was read.

A fact is written `{ value = 132, source = "whitepaper" }`; the source is a key of the file's `[sources]`.
A fact without a trusted source has `unconfirmed = "why"`. In a user's own file a plain number is enough: its
source is the file.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, BinaryIO

from makeway.values.errors import DataFileError, suggestion

Value = int | float | tuple[int, ...]

MOST_BYTES = 64 << 20  # of a plan, workload, device file or table
STDIN = Path("-")
_NOT_REGULAR = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One number, where it was read, and why it is in doubt, if it is."""

    value: Value
    source: str
    unconfirmed: str | None = None


def data_files(directory: str) -> Traversable:
    """A data directory of the package ("devices", "architectures", "footprints")."""
    return files("makeway").joinpath("data", directory)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read it.

    Anything else is an OSError and is not opened: a named pipe may never answer, and opening some devices changes them.
    """
    _refuse_special(path.stat().st_mode)
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    try:
        _refuse_special(os.fstat(file.fileno()).st_mode)  # it may have been replaced meanwhile
    except OSError:
        file.close()
        raise
    return file


def _refuse_special(mode: int) -> None:
    for is_one, name in _NOT_REGULAR:
        if is_one(mode):
            raise OSError(errno.EINVAL, f"it is {name}, not a regular file")


def read_file(path: Path, what: str, *, instead: str = "") -> bytes:
    """The content of a user's file, or of stdin for "-"; the error of an unreadable one names it, and what to do."""
    if path == STDIN:
        content = _read_stdin()
    else:
        try:
            with _open_own_pipe(path) or open_regular(path) as file:
                content = file.read(MOST_BYTES + 1)
        except OSError as error:
            hint = f"; {instead}" if instead else ""
            raise DataFileError(f"cannot read {what} {str(path)!r}: {error.strerror}{hint}") from None
    if len(content) > MOST_BYTES:
        raise DataFileError(f"cannot read {what} {str(path)!r}: it is larger than {MOST_BYTES >> 20} MiB")
    return content


def _open_own_pipe(path: Path) -> BinaryIO | None:
    """A pipe that the shell opened for us, as `<(command)` does; None for any other path."""
    own = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", str(path))
    if own is None or not stat.S_ISFIFO(path.stat().st_mode):
        return None
    return os.fdopen(os.dup(int(own[1])), "rb")


def _read_stdin() -> bytes:
    binary = getattr(sys.stdin, "buffer", None)
    content: bytes = (
        sys.stdin.read(MOST_BYTES + 1).encode(errors="replace") if binary is None else binary.read(MOST_BYTES + 1)
    )
    return content


def parse_toml(text: str | bytes, *, where: str) -> dict[str, Any]:
    """The document of a TOML file; the error of a bad one names file and line."""
    try:
        return tomllib.loads(text if isinstance(text, str) else text.decode())
    except ValueError as error:  # bad TOML, bad UTF-8, a number of thousands of digits
        raise DataFileError(f"{where}: not a TOML file ({error})") from None
    except RecursionError:
        raise DataFileError(f"{where}: not a TOML file that can be read: it nests too deeply") from None


def read_facts(document: Mapping[str, Any], section: str, *, where: str) -> dict[str, Fact]:
    """The facts of one section of a data file, each with its source spelled out."""
    sources = document.get("sources", {})
    table = document.get(section, {})
    if not isinstance(sources, dict) or not isinstance(table, dict):
        raise DataFileError(f"{where}: [sources] and [{section}] must be tables")
    return {key: _read_fact(entry, f"{where}: {section}.{key}", sources, where) for key, entry in table.items()}


def _read_fact(entry: object, what: str, sources: Mapping[str, Any], where: str) -> Fact:
    if not isinstance(entry, dict):
        return Fact(value=_number(entry, what), source=where)
    if extra := set(entry) - {"value", "source", "unconfirmed"}:
        raise DataFileError(f"{what}: unknown key {sorted(extra)[0]!r}; a fact has value, source and unconfirmed")
    if "value" not in entry:
        raise DataFileError(f"{what}: the value is missing")
    source = entry.get("source")
    if source is not None and source not in sources:
        raise DataFileError(f"{what}: source {source!r} is not listed in [sources]")
    return Fact(
        value=_number(entry["value"], what),
        source=str(sources[source]) if source is not None else where,
        unconfirmed=entry.get("unconfirmed"),
    )


def _number(value: object, what: str) -> Value:
    if isinstance(value, list) and value and all(type(item) is int and item >= 0 for item in value):
        return tuple(value)
    if type(value) in (int, float) and value >= 0:  # type: ignore[operator]
        return value  # type: ignore[return-value]
    raise DataFileError(f"{what}: {value!r} is not a number of 0 or more")


def whole_fact(facts: Mapping[str, Fact], key: str, *, where: str, low: int = 0, default: int | None = None) -> int:
    """The whole number under `key`; `default` where there is none."""
    if key not in facts:
        if default is not None:
            return default
        raise DataFileError(f"{where}: facts.{key} is missing")
    value = facts[key].value
    if isinstance(value, tuple) or value != int(value) or value < low:
        raise DataFileError(f"{where}: facts.{key} must be a whole number of {low} or more, got {value!r}")
    return int(value)


def text(document: Mapping[str, Any], key: str, *, where: str) -> str:
    """The string under `key`; required."""
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise DataFileError(f"{where}: {key} is missing; it must be a string")
    return value


def texts(document: Mapping[str, Any], key: str, *, where: str) -> tuple[str, ...]:
    """The list of strings under `key`, empty when absent."""
    value = document.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise DataFileError(f"{where}: {key} must be a list of strings")
    return tuple(value)


def refuse_unknown(given: Iterable[str], known: Iterable[str], *, where: str) -> None:
    """Refuse a key that nothing reads: a typing error must not pass."""
    known = tuple(known)
    for key in given:
        if key not in known:
            raise DataFileError(f"{where}: unknown key {key!r}{suggestion(key, known)}")
