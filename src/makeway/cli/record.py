"""Record a few steady steps of an unmodified program on every rank, with torch.profiler."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from makeway.act.launch.record import RECORDED, record
from makeway.act.launch.step_files import WARM_UP
from makeway.cli.program import add_program, ended, keeps_exit_code, program_of, show_after, warn_as

EXAMPLES = """\
examples:
  makeway record -- torchrun --nproc-per-node 8 train.py
  makeway record --steps 10 --out profiles/before -- torchrun --nproc-per-node 2 train.py
  makeway record --step-marker mypackage.loop:train_step -- torchrun train.py

Steps are found by the optimizer's step. The program keeps its standard output and its exit code; the summary goes to
stderr. With --json the document goes to stdout, and what the program prints there goes to stderr.

exit codes: the program's own, or its signal; 2 if it was not started, or if it succeeded and nothing was recorded
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "makeway record [options] -- PROGRAM [ARGUMENT ...]"
    parser.add_argument(
        "--out",
        metavar="DIR",
        default="makeway-recording",
        help="where the ranks' files go (default: makeway-recording)",
    )
    parser.add_argument("--steps", type=int, default=RECORDED, metavar="N", help=f"to record (default: {RECORDED})")
    parser.add_argument(
        "--warm-up", type=int, default=WARM_UP, metavar="N", help=f"steps to leave alone first (default: {WARM_UP})"
    )
    parser.add_argument(
        "--stacks", action="store_true", help="record Python calls, too: shows what runs between operators, costs time"
    )
    add_program(parser)


@keeps_exit_code
def run(options: argparse.Namespace) -> int:
    recording = record(
        program_of(options),
        out=Path(options.out),
        steps=options.steps,
        warm_up=options.warm_up,
        step_marker=options.step_marker,
        stacks=options.stacks,
        stdout=sys.stderr.fileno() if options.json else None,
        warn=warn_as("record"),
    )
    show_after(recording, options, "record")
    code = ended(recording.exit_code, recording.killed_by)
    return 2 if code == 0 and recording.problem is not None else code
