"""Facts with a source: the numbers of the data files, and where each was read.

A fact is written `{ value = 132, source = "whitepaper" }`; the source is a key of the file's `[sources]`.
A fact without a trusted source has `unconfirmed = "why"`. In a user's own file a plain number is enough: its
source is the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from makeway.values.errors import DataFileError, suggestion

Value = int | float | tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One number, where it was read, and why it is in doubt, if it is."""

    value: Value
    source: str
    unconfirmed: str | None = None


def data_files(directory: str) -> Traversable:
    """A data directory of the package ("devices", "architectures", "footprints")."""
    return files("makeway").joinpath("data", directory)


def read_file(path: Path, what: str) -> bytes:
    """The content of a user's file; the error of an unreadable one names it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataFileError(f"cannot read {what} {str(path)!r}: {error.strerror}") from None


def parse_toml(text: str | bytes, *, where: str) -> dict[str, Any]:
    """The document of a TOML file; the error of a bad one names file and line."""
    try:
        return tomllib.loads(text if isinstance(text, str) else text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataFileError(f"{where}: not a TOML file ({error})") from None


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
