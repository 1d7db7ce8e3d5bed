"""`makeway`: parse, run one command, turn errors into one clear message and exit code 2."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from makeway import __version__
from makeway.cli.streams import OutputError, discard, open_closed_streams, say, say_error, write_out
from makeway.show.new_file import check_place
from makeway.values.errors import MakewayError, printable, suggestion

COMMANDS = {
    "analyze": "profiler traces: exposed communication, waiting, causes, advice with predicted gains",
    "bench": "a workload on real ranks: sequential, overlapped, under each control, and as planned",
    "calibrate": "the self-test's certificate of a GPU as a device file for predictions",
    "compare": "two recordings of a program: what changed, with spread, an interval and a verdict",
    "demo": "the whole story on this machine: real ranks, simulated GPUs, a real recording; one page",
    "devices": "device facts and their sources",
    "doctor": "what this machine offers and which controls work here; --self-test proves them, --calibrate measures",
    "export": "a plan as environment variables, tuner file, framework options or compiler flags",
    "inspect": "resources of every kernel in a cubin, fatbin, shared library or hsaco",
    "merge": "the shards of a job of thousands of ranks, analysed on many machines, to one answer",
    "plan": "choose the controls for a workload or a recorded step, and say why",
    "record": "a few steady steps of an unmodified program, profiled on every rank",
    "residency": "does a collective's block fit beside a kernel; which pad or thread count makes room",
    "run": "run an unmodified program under a plan, and check that each control took effect",
    "scale": "a training step on thousands of GPUs: layouts, schedules, compression, controls, contention inside",
    "simulate": "a workload on a device under controls: predicted times, timeline, share of ideal",
    "validate": "published results beside ours, with the error of each",
    "view": "a live page on 127.0.0.1: change controls and see the effect, open traces, watch a tuned job",
}

EXIT_CANNOT_RUN = 2
_OUTPUTS = ("html", "perfetto", "out")
_EXAMPLES = """\
examples:
  makeway devices H100-SXM5-80GB
  makeway inspect libnccl.so.2 --arch sm_90
  makeway residency --device A100-SXM4-80GB --compute threads=128,registers=128,smem=48KiB \\
                    --comm nccl-2.32.3/ring-simple

exit codes: 0 done, 1 ran and missed a threshold you set, 2 could not run
"""


class Parser(argparse.ArgumentParser):
    """argparse that answers a wrong option in two lines: what is wrong, and the command's usage."""

    given: Sequence[str] = ()  # the words of the command line that this parser reads

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)  # an abbreviation changes its meaning with the next new option

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.given = list(sys.argv[1:] if args is None else args)
        options, rest = super().parse_known_args(self.given, namespace)
        if rest:
            self.error(f"unexpected argument {rest[0]!r}")
        return options, rest

    def error(self, message: str) -> NoReturn:
        unknown = self._unknown_option()
        if unknown and message.startswith(("unexpected argument", "the following arguments are required")):
            names = [name[2:] for name in self._option_string_actions if name.startswith("--")]
            nearest = suggestion(unknown[2:], names).replace("'", "'--", 1)
            message = f"unknown option {unknown!r}{nearest}"
        usage = self.usage or f"{self._usage()} [options]"
        self.exit(EXIT_CANNOT_RUN, f"{self.prog}: {_plain(message)}\nusage: {usage}; see `{self.prog} --help`\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        if message and file is sys.stdout:
            write_out(message)
        elif message:
            say(message, end="")

    def _unknown_option(self) -> str | None:
        """The first long option, before a bare --, that this command does not have."""
        for word in takewhile(lambda word: word != "--", self.given):
            name = word.partition("=")[0]
            if name.startswith("--") and not self._get_option_tuples(name) and name not in self._option_string_actions:
                return name
        return None

    def _usage(self) -> str:
        """The command with its arguments and the options that it needs."""
        needed = []
        for action in self._actions:
            value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
            if not action.option_strings:
                needed.append({"?": f"[{value}]", "*": f"[{value} ...]"}.get(str(action.nargs), value))
            elif action.option_strings and action.required:
                needed.append(f"{action.option_strings[-1]} {value}")
        return " ".join([self.prog, *needed])


def _plain(message: str) -> str:
    """A message of argparse in our own words; any other as it is."""
    if names := re.fullmatch(r"the following arguments are required: (.+)", message):
        words = [name if name.startswith("-") else name.upper() for name in names[1].split(", ")]
        if len(words) == 1:
            return f"{words[0]} is needed"
        return f"{', '.join(words[:-1])} and {words[-1]} are needed"
    if option := re.fullmatch(r"argument (\S+): (.+)", message):
        name, problem = option.groups()
        if choice := re.fullmatch(r"invalid choice: (.+) \(choose from (.+)\)", problem):
            return f"{name} takes one of {choice[2].replace(chr(39), '')}, got {choice[1]}"
        if value := re.fullmatch(r"invalid (int|float) value: (.+)", problem):
            return f"{name} takes a {'whole number' if value[1] == 'int' else 'number'}, got {value[2]}"
        if expected := re.fullmatch(r"expected (one|\d+) arguments?", problem):
            return f"{name} takes {'a value' if expected[1] == 'one' else expected[1] + ' values'}"
        if problem.startswith("takes "):
            return f"{name} {problem}"
    return message


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    open_closed_streams()
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
        options = parser.parse_args(arguments)  # options such as --help and --list print, too
    except BrokenPipeError:
        return _reader_gone()
    except OutputError as error:
        return _refused("makeway", error)
    if options.command is None:
        parser.print_help(sys.stderr)
        return EXIT_CANNOT_RUN
    return _run(options, arguments)


def _add_command(commands: argparse._SubParsersAction[Parser], command: str, summary: str, *, load: bool) -> None:
    """Declare a command; only the one to run is imported, so that start-up stays short."""
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


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    name = f"makeway {options.command}"
    try:
        _check_outputs(options)
        code: int = options.run(options)
        write_out("")
        return code
    except (MakewayError, MemoryError, RecursionError) as error:
        if options.debug:
            raise
        return _refused(name, error, arguments)
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:
        return 130


def _refused(name: str, error: Exception, arguments: Sequence[str] = ()) -> int:
    """Say why the command could not run; what it quotes from the command line keeps to its line."""
    match error:
        case MemoryError():
            message = "memory ran out; give it less to read, or more memory"
        case RecursionError():
            message = "the input nests too deeply"
        case _:
            message = str(error)
    for word in arguments:
        if not word.isprintable():
            message = message.replace(word, printable(word))
    say_error(f"{name}: {message}")
    return EXIT_CANNOT_RUN


def _check_outputs(options: argparse.Namespace) -> None:
    """Refuse output files that cannot be written now, not after the work."""
    for name in _OUTPUTS:
        if isinstance(path := getattr(options, name, None), Path):
            check_place(path)


def _reader_gone() -> int:
    """The reader of our output (head, less) has closed it: not an error."""
    discard(sys.stdout)
    return 0
