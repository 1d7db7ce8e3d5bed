"""Show the resources of every kernel in a cubin, fatbin, shared library or hsaco."""

from __future__ import annotations

import argparse
from pathlib import Path

from makeway.cli.output import add_output_options, show
from makeway.read.binaries import inspect

EXAMPLES = """\
examples:
  makeway inspect libnccl.so.2 --arch sm_90 --name AllReduce
  makeway inspect matmul.cubin --json
  makeway inspect kernel.hsaco

Dynamic shared memory and the launch shape are launch values: no file holds them.
smem is the file's figure, as cuobjdump prints it; from sm_90 on it includes the 1,024 B that the
system reserves (--verbose shows that part).
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the binary")
    parser.add_argument("--arch", help="only this architecture, for example sm_90 or gfx90a")
    parser.add_argument("--name", metavar="TEXT", help="only kernels whose name contains TEXT")
    parser.add_argument(
        "--reader",
        choices=("auto", "native", "cuobjdump"),
        default="auto",
        help="read the file natively, or ask NVIDIA's cuobjdump (default: natively where possible)",
    )
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    show(inspect(options.file, arch=options.arch, name=options.name, reader=options.reader), options)
    return 0
