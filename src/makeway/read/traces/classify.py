"""Which kernels communicate, by name: the bundled patterns (data/patterns), preceded by a user's own.

Patterns are regular expressions searched anywhere in a kernel's name, which may be demangled, mangled or shortened;
the first match decides. `[[compute]]` entries come before `[[pattern]]` entries. A name that no pattern decides may
still be communication by other evidence in the trace, unless a `[[compute]]` entry names it. Copies between GPUs are
not kernels: the readers recognise them by their records.
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
from makeway.values.timeline import CommRule

OWN_FAMILY = "own"  # of patterns given on the command line


@dataclass(frozen=True, slots=True, kw_only=True)
class CommName:
    """What a kernel's name says about its communication."""

    kind: CollectiveKind | None  # None: a barrier, a broadcast, or a kernel that serves several kinds
    family: str  # the library: "nccl" (RCCL included), "deepep", "torch-symm-mem" ...
    own: bool = field(default=False, compare=False)  # a user's pattern, not a bundled one

    @property
    def rule(self) -> CommRule:
        """What the report says about how this name was recognised."""
        return CommRule(by="own-pattern" if self.own else "name", library=self.family)


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
    _decided: dict[str, NamePattern | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def find(self, name: str) -> CommName | None:
        """What kernel `name` communicates, or None if it computes as far as its name says."""
        pattern = self._deciding(name)
        return None if pattern is None else pattern.means

    def is_compute(self, name: str) -> bool:
        """Whether a pattern declares the kernel compute, whatever else the trace says."""
        pattern = self._deciding(name)
        return pattern is not None and pattern.means is None

    def _deciding(self, name: str) -> NamePattern | None:
        try:
            return self._decided[name]
        except KeyError:
            first = self._decided[name] = next((item for item in self.patterns if item.found_in(name)), None)
            return first


def load_comm_names(own: Path | str | None = None) -> CommNames:
    """The bundled patterns, preceded by the user's: a TOML file, or one regular expression for kernel names."""
    if own is None:
        return CommNames(patterns=_bundled())
    if isinstance(own, str) and not own.endswith(".toml") and (Path(own).is_dir() or not Path(own).exists()):
        match = _regex({"match": own}, "--comm-names")
        means = CommName(kind=None, family=OWN_FAMILY, own=True)
        return CommNames(patterns=(NamePattern(match=match, means=means), *_bundled()))
    where = str(own)
    patterns = _read_patterns(parse_toml(read_file(Path(own), "name patterns"), where=where), where=where, own=True)
    return CommNames(patterns=(*patterns, *_bundled()))


@cache
def _bundled() -> tuple[NamePattern, ...]:
    """Those of all files, in the order of their names; what they declare compute comes first."""
    files = sorted(data_files("patterns").iterdir(), key=lambda file: file.name)
    patterns = [
        pattern
        for file in files
        if file.name.endswith(".toml")
        for pattern in _read_patterns(parse_toml(file.read_text(), where=file.name), where=file.name)
    ]
    return tuple(sorted(patterns, key=lambda pattern: pattern.means is not None))


def _read_patterns(document: Mapping[str, Any], *, where: str, own: bool = False) -> tuple[NamePattern, ...]:
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
            match=_regex(entry, what),
            means=CommName(kind=_kind(entry, what), family=text(entry, "family", where=what), own=own),
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
