"""What commands share that run a program of the user: its arguments, its output beside ours, its end."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Protocol

from makeway.act.launch.supervise import end_by, end_kept
from makeway.cli.output import add_output_options, show
from makeway.cli.streams import OutputError, discard, say
from makeway.values.errors import InputError, MakewayError, ProgramEndedError

NOTHING_TOLD = 2  # the program succeeded, and its results could not be read


def keeps_exit_code(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """A command's `run` that ends as its program did, also where an error of ours comes after the program's end."""

    @wraps(run)
    def kept(options: argparse.Namespace) -> int:
        try:
            return run(options)
        except ProgramEndedError as error:
            if options.debug:
                traceback.print_exc()
            warn_as(options.command)(str(error))
            return ended(error.exit_code, error.killed_by) or NOTHING_TOLD

    return kept


def add_program(parser: argparse.ArgumentParser) -> None:
    """The options of output and of steps, and the program after a bare --."""
    parser.add_argument(
        "--step-marker",
        type=_marker,
        metavar="MODULE:FUNCTION",
        help="a step ends when this function returns (default: the optimizer's step)",
    )
    add_output_options(parser)
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...", help="what to run")


def _marker(text: str) -> str:
    module, colon, function = text.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *function.split("."))):
        raise argparse.ArgumentTypeError(f"takes MODULE:FUNCTION, such as package.loop:train_step, got {text!r}")
    if module == "__main__":
        raise argparse.ArgumentTypeError("takes a module that can be imported, and __main__ cannot")
    return text


def program_of(options: argparse.Namespace) -> list[str]:
    """The program and its arguments."""
    given: list[str] = options.program
    return given[1:] if given[:1] == ["--"] else given


def warn_as(command: str) -> Callable[[str], None]:
    return lambda message: say(f"makeway {command}: {message}")


class HasEnded(Protocol):
    """A result of a program: how it ended."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def killed_by(self) -> int | None: ...


def show_after(result: HasEnded, options: argparse.Namespace, command: str) -> None:
    """Show the result; neither an unwritable page nor an unwritable stream changes the program's exit code."""
    with end_kept(result.exit_code, result.killed_by):
        _show_after(result, options, command)


def _show_after(result: object, options: argparse.Namespace, command: str) -> None:
    json_to = getattr(options, "json_to", None)
    stream = sys.stdout if options.json and json_to is None else sys.stderr
    for _ in range(2):  # the second time without the page
        try:
            show(result, options, text_to=stream, json_to=json_to)
            return
        except BrokenPipeError:
            discard(stream)
            return
        except MakewayError as error:
            warn_as(command)(str(error))
            if options.html is None or isinstance(error, OutputError):
                return
            options.html = None


def ended(code: int | None, killed_by: int | None) -> int:
    """The program's exit code; ends this process as the program was, when a signal did it."""
    if killed_by is not None:
        end_by(killed_by)
    if code is None:
        raise InputError("the program ended neither by an exit code nor by a signal")
    return code
