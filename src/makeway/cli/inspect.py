"""Show the resources of every kernel in a cubin, fatbin, shared library or hsaco."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from rich.table import Table

from makeway.cli.output import console, print_json
from makeway.read.binaries import BinaryKernel, inspect_file

EXAMPLES = """\
examples:
  makeway inspect libnccl.so.2 --arch sm_90
  makeway inspect matmul.cubin --json
  makeway inspect kernel.hsaco

Dynamic shared memory and the launch shape are launch values and never in a file: shown as unknown.
smem is the file's figure, as cuobjdump prints it; from sm_90 on it includes the 1,024 B that the
system reserves, and the column "of it system" says so.
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


def run(options: argparse.Namespace) -> int:
    kernels = inspect_file(options.file, arch=options.arch, reader=options.reader)
    kernels = [kernel for kernel in kernels if options.name is None or options.name in kernel.name]
    if options.json:
        print_json({"file": str(options.file), "kernels": [dataclasses.asdict(kernel) for kernel in kernels]})
    else:
        _show(options.file, kernels)
    return 0


def _show(file: Path, kernels: list[BinaryKernel]) -> None:
    amd = any(kernel.scalar_registers is not None for kernel in kernels)
    headings = ["arch", "registers", "threads", "smem static", "of it system", "smem dynamic", "barriers", "cluster"]
    table = Table(*headings, *(["SGPRs"] if amd else []), "kernel", box=None, pad_edge=False)
    for kernel in kernels:
        cells = [
            kernel.arch,
            str(kernel.registers),
            _threads(kernel),
            f"{kernel.smem_static_bytes:,} B",
            f"{kernel.smem_system_bytes:,} B" if kernel.smem_system_bytes else "-",
            "unknown",
            _known(kernel.barriers),
            _known(kernel.cluster),
        ]
        table.add_row(*cells, *([_known(kernel.scalar_registers)] if amd else []), kernel.name)
    out = console()
    out.print(table)
    out.print(f"{len(kernels)} kernel{'' if len(kernels) == 1 else 's'} in {file}")


def _threads(kernel: BinaryKernel) -> str:
    if kernel.threads is None:
        return "unknown"
    return f"{kernel.threads}" if kernel.threads_required else f"at most {kernel.threads}"


def _known(value: int | None) -> str:
    return "-" if value is None else str(value)
