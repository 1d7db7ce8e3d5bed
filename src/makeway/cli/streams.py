"""Standard streams that may be closed, full or without a reader: what we write there is text, and never a traceback."""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
from textwrap import fill
from typing import Any, TextIO

from makeway.values.errors import MakewayError, printable

LONGEST_LINE = 100  # characters of prose
_WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


class OutputError(MakewayError):
    """Standard output does not take the result."""


def open_closed_streams() -> None:
    """Give each closed standard stream its number back, before another file gets it.

    Writing there still fails, for us and for programs that we start.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)  # the lowest free number is this one
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = _writable(1)
    if sys.stderr is None:
        sys.stderr = _writable(2)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an old terminal lacks some characters


def _writable(number: int) -> TextIO:
    return open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


def write_out(text: str) -> None:
    """Write to standard output, or raise the error that says why not."""
    try:
        if text:
            sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard(sys.stdout)
        reason = "it is closed" if error.errno == errno.EBADF else error.strerror
        raise OutputError(f"cannot write to standard output: {reason}") from None


def say(message: str, *, end: str = "\n") -> None:
    """Write a message to standard error, if it takes it; only line ends are kept of what a terminal would obey."""
    write_err(printable(message, keep="\n") + end)


def say_note(note: str) -> None:
    """Write a note to standard error in lines that a terminal shows whole."""
    words = printable(note).split()
    write_err(fill(f"note: {' '.join(words)}", _line_width(), subsequent_indent="      ", **_WHOLE_WORDS) + "\n")


def say_error(message: str) -> None:
    """Write an error to standard error: in lines that a terminal shows whole; elsewhere as it is, to search in."""
    message = printable(message, keep="\n")
    if sys.stderr.isatty():
        message = "\n".join(fill(line, _line_width(), **_WHOLE_WORDS) for line in message.split("\n"))
    write_err(message + "\n")


def _line_width() -> int:
    return (
        min(shutil.get_terminal_size((LONGEST_LINE, 24)).columns, LONGEST_LINE) if sys.stderr.isatty() else LONGEST_LINE
    )


def write_err(text: str) -> None:
    """Write text of our own to standard error, if it takes it."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Drop what a stream did not take: Python would try again at its end, and fail."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return
    place = os.open(os.devnull, os.O_WRONLY)
    os.dup2(place, number)
    os.close(place)
