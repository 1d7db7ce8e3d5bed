"""Which kernels communicate, by name: the bundled patterns (data/patterns), preceded by a user's own.

Patterns are regular expressions searched anywhere in a kernel's name, which may be demangled, mangled or shortened;
the first match decides. `[[compute]]` entries of a file come before its `[[pattern]]` entries. Copies between GPUs
are not kernels: the readers recognise them by their records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

from makeway.values.collective import CollectiveKind
from makeway.values.errors import DataFileError, suggestion
from makeway.values.facts import data_files, parse_toml, read_file, refuse_unknown, text


@dataclass(frozen=True, slots=True, kw_only=True)
class CommName:
    """What a kernel's name says about its communication."""

    kind: CollectiveKind | None  # None: a barrier, a broadcast, or a kernel that serves several kinds
    family: str  # the library: "nccl" (RCCL included), "deepep", "torch-symm-mem" ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePattern:
    """One pattern and what it means; `means` None: compute, whatever later patterns say."""

    match: re.Pattern[str]
    means: CommName | None
    literal: str = field(init=False, repr=False, compare=False)  # part of every match, and quick to search for

    def __post_init__(self) -> None:
        object.__setattr__(self, "literal", required_literal(self.match))

    def found_in(self, name: str) -> bool:
        return self.literal in name and self.match.search(name) is not None


_LEADING_BRACKET = re.compile(r"\^?\]?")


def required_literal(pattern: re.Pattern[str]) -> str:
    """The longest text outside groups, classes and choices that every match contains; "" for none."""
    if pattern.flags & (re.IGNORECASE | re.VERBOSE):
        return ""
    text = pattern.pattern
    runs: list[str] = []
    run, at, depth, in_class = "", 0, 0, False
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\":
            at += 1
            run = _ended(runs, run)
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
            first = _LEADING_BRACKET.match(text, at)
            at = first.end() if first else at  # a leading bracket belongs to the class
            run = _ended(runs, run)
        elif char in "()":
            depth += 1 if char == "(" else -1
            run = _ended(runs, run)
        elif char == "|" and not depth:
            return ""
        elif char in "?*{":
            run = _ended(runs, run[:-1])
            at = text.find("}", at) + 1 if char == "{" else at
        elif char in "+.^$" or depth:
            run = _ended(runs, run)
        else:
            run += char
    _ended(runs, run)
    return max(runs, key=len, default="")


def _ended(runs: list[str], run: str) -> str:
    runs.append(run)
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommNames:
    """The patterns in order. A trace repeats few names, so each is classified once."""

    patterns: tuple[NamePattern, ...]
    _decided: dict[str, CommName | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def find(self, name: str) -> CommName | None:
        """What kernel `name` communicates, or None if it computes."""
        try:
            return self._decided[name]
        except KeyError:
            means = next((pattern.means for pattern in self.patterns if pattern.found_in(name)), None)
            self._decided[name] = means
            return means


def load_comm_names(path: Path | None = None) -> CommNames:
    """The bundled patterns, preceded by those of the user's file `path`."""
    if path is None:
        return CommNames(patterns=_bundled())
    own = _read_patterns(parse_toml(read_file(path, "name patterns"), where=str(path)), where=str(path))
    return CommNames(patterns=(*own, *_bundled()))


@cache
def _bundled() -> tuple[NamePattern, ...]:
    file = data_files("patterns").joinpath("comm-kernels.toml")
    return _read_patterns(parse_toml(file.read_text(), where=file.name), where=file.name)


def _read_patterns(document: Mapping[str, Any], *, where: str) -> tuple[NamePattern, ...]:
    refuse_unknown(document, ("sources", "pattern", "compute"), where=where)
    sources = document.get("sources", {})
    if not isinstance(sources, dict):
        raise DataFileError(f"{where}: [sources] must be a table")
    compute = [
        NamePattern(match=_regex(entry, what), means=None)
        for what, entry in _entries(document, "compute", ("match", "source"), sources, where)
    ]
    comm = [
        NamePattern(
            match=_regex(entry, what), means=CommName(kind=_kind(entry, what), family=text(entry, "family", where=what))
        )
        for what, entry in _entries(document, "pattern", ("match", "source", "family", "kind"), sources, where)
    ]
    if not compute and not comm:
        raise DataFileError(f"{where}: no patterns; write [[pattern]] with match, family and kind, or [[compute]]")
    return (*compute, *comm)


def _entries(
    document: Mapping[str, Any], section: str, keys: Iterable[str], sources: Mapping[str, Any], where: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    entries = document.get(section, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataFileError(f"{where}: write each {section} under [[{section}]]")
    for number, entry in enumerate(entries, 1):
        what = f"{where}: {section} {number}"
        refuse_unknown(entry, keys, where=what)
        if "source" in entry and entry["source"] not in sources:
            raise DataFileError(f"{what}: source {entry['source']!r} is not listed in [sources]")
        yield what, entry


def _regex(entry: Mapping[str, Any], what: str) -> re.Pattern[str]:
    try:
        regex = re.compile(text(entry, "match", where=what))
    except re.error as error:
        raise DataFileError(f"{what}: match is not a regular expression ({error}): {entry['match']!r}") from None
    if regex.search(""):
        raise DataFileError(f"{what}: match {entry['match']!r} matches every name")
    return regex


def _kind(entry: Mapping[str, Any], what: str) -> CollectiveKind | None:
    if "kind" not in entry:
        return None
    kind, known = text(entry, "kind", where=what), get_args(CollectiveKind)
    if kind not in known:
        raise DataFileError(f"{what}: unknown kind {kind!r}{suggestion(kind, known)}; known: {', '.join(known)}")
    return cast(CollectiveKind, kind)
