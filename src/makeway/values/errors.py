"""Everything makeway raises on purpose.

    MakewayError
    ├── InputError                 what was given cannot be used
    │   ├── UnknownNameError       no such device, library, path or architecture
    │   ├── DataFileError          a device or footprint file is malformed (names the key)
    │   ├── InvalidKernelError     a block that no GPU, or not this one, can launch
    │   ├── BinaryError            not a readable cubin, fatbin, shared library or hsaco
    │   └── TraceError             not a readable trace, or traces that do not belong together
    ├── UnsupportedError           this device, file or machine cannot do that
    │   └── MissingExtraError      ... until an optional package is installed
    ├── RankError                  a rank of a running job died, never came or kept the others waiting
    └── ProgramEndedError          the user's program has ended, and its results could not be read

A message says what was asked, what is the case, and what to do next. What it quotes from outside may hold any
character; `printable` spells out those that a terminal would obey.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

_LONGEST_SUGGESTED = 200  # characters; searching for a longer name takes seconds


class MakewayError(Exception):
    """Base of all errors whose message is meant for the user."""


class InputError(MakewayError):
    """What was given cannot be used."""


class UnknownNameError(InputError):
    """A name that no list has."""


class DataFileError(InputError):
    """A fact file that breaks its schema."""


class InvalidKernelError(InputError):
    """A block that cannot be launched."""


class BinaryError(InputError):
    """A file without GPU code that makeway can read."""


class TraceError(InputError):
    """A file without a trace that makeway can read."""


class UnsupportedError(MakewayError):
    """This device, file or machine cannot do what was asked."""


class MissingExtraError(UnsupportedError):
    """An optional package is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what}\nInstall it with: pip install 'makeway[{extra}]'")


class RankError(MakewayError):
    """A rank that is needed is missing."""


class ProgramEndedError(MakewayError):
    """A program has ended, and an error of ours came after that: its exit code is not to be lost."""

    def __init__(self, message: str, *, exit_code: int | None, killed_by: int | None) -> None:
        super().__init__(message)
        self.exit_code, self.killed_by = exit_code, killed_by


def suggestion(asked: str, known: Iterable[str]) -> str:
    """`; did you mean 'X'?` for the closest known name, or nothing when none is close."""
    if len(asked) > _LONGEST_SUGGESTED:
        return ""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(asked.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""


def printable(name: object, keep: str = "") -> str:
    """A text from outside, with every character that moves the cursor or reorders text spelled out, except `keep`."""
    text = str(name)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep or unicodedata.category(char) == "Zs" else spelled_out(char)
        for char in text
    )


def spelled_out(char: str) -> str:
    """The character as an escape sequence: "\\x1b"."""
    return char.encode("unicode_escape").decode()
