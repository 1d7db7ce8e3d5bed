"""`makeway`: parse, run one command, turn errors into one clear message and exit code 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from makeway import __version__
from makeway.show.new_file import check_place
from makeway.values.errors import MakewayError, suggestion

COMMANDS = {
    "analyze": "profiler traces: exposed communication, waiting, causes, advice with predicted gains",
    "bench": "a workload on real ranks: sequential, overlapped, under each control, and as planned",
    "demo": "the whole story on this machine: real ranks, simulated GPUs, a real recording; one page",
    "devices": "device facts and their sources",
    "doctor": "what this machine offers and which controls work here; --self-test proves them, --calibrate measures",
    "export": "a plan as environment variables, tuner file, framework options or compiler flags",
    "inspect": "resources of every kernel in a cubin, fatbin, shared library or hsaco",
    "plan": "choose the controls for a workload or a recorded step, and say why",
    "residency": "does a collective's block fit beside a kernel; which pad or thread count makes room",
    "run": "run an unmodified program under a plan, and check that each control took effect",
    "simulate": "a workload on a device under controls: predicted times, timeline, share of ideal",
    "validate": "published results beside ours, with the error of each",
}

EXIT_CANNOT_RUN = 2
_OUTPUTS = ("html", "report", "perfetto", "out")
_EXAMPLES = """\
examples:
  makeway devices H100-SXM5-80GB
  makeway inspect libnccl.so.2 --arch sm_90
  makeway residency --device A100-SXM4-80GB --compute threads=128,registers=128,smem=48KiB \\
                    --comm nccl-2.32.3/ring-simple

exit codes: 0 done, 1 ran and missed a threshold you set, 2 could not run
"""


class Parser(argparse.ArgumentParser):
    """argparse that answers a wrong option with one line and where to look, not a page of usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_CANNOT_RUN, f"{self.prog}: {message}\nSee `{self.prog} --help`.\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    name = next((word for word in arguments if not word.startswith("-")), None)
    parser = Parser(
        prog="makeway",
        description="Make room for communication on a busy GPU.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"makeway {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command, summary in COMMANDS.items():
        _add_command(commands, command, summary, load=command == name)
    if name is not None and name not in COMMANDS:
        parser.error(f"unknown command {name!r}{suggestion(name, COMMANDS)}")
    try:
        options = parser.parse_args(arguments)  # options such as --help and --presets print, too
    except BrokenPipeError:
        return _reader_gone()
    if options.command is None:
        parser.print_help(sys.stderr)
        return EXIT_CANNOT_RUN
    return _run(options)


def _add_command(commands: argparse._SubParsersAction[Parser], command: str, summary: str, *, load: bool) -> None:
    """Declare a command; only the one that was asked for is imported, so that start-up stays short."""
    parser = commands.add_parser(command, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
    if not load:
        return
    module = import_module(f"makeway.cli.{command}")
    parser.description, parser.epilog = module.__doc__, module.EXAMPLES
    module.configure(parser)
    if "--json" not in parser._option_string_actions:
        parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(run=module.run)


def _run(options: argparse.Namespace) -> int:
    try:
        _check_outputs(options)
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except MakewayError as error:
        if options.debug:
            raise
        print(f"makeway {options.command}: {error}", file=sys.stderr)
        return EXIT_CANNOT_RUN
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:
        return 130


def _check_outputs(options: argparse.Namespace) -> None:
    """Files that are asked for can be written: known now, not after the work."""
    for name in _OUTPUTS:
        if isinstance(path := getattr(options, name, None), Path):
            check_place(path)


def _reader_gone() -> int:
    """The reader of our output (head, less) has gone: not an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
