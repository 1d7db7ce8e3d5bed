"""Say whether a collective's block fits beside a compute kernel on one SM, what binds, and what makes room."""

from __future__ import annotations

import argparse
from typing import Any

from rich.table import Table

from makeway.cli.output import console, print_json
from makeway.model.residency import Shortage, check_launch
from makeway.model.room import Fit, Option, RoomAnswer, make_room, verdict
from makeway.show.sm_picture import legend, sm_picture
from makeway.values.collective import library_names, load_footprint
from makeway.values.device import load_device
from makeway.values.kernel import parse_resources

EXAMPLES = f"""\
examples:
  makeway residency --device H100-SXM5-80GB --compute threads=256,registers=98,smem=48KiB \\
                    --comm nccl-2.32.3/ring-simple
  makeway residency --device A100-SXM4-80GB --compute threads=128,registers=128,smem=48KiB \\
                    --comm nccl-2.32.3/ring-simple,threads=288 --json
  makeway residency --device B200 --compute threads=256,registers=94,smem=49168 \\
                    --comm threads=512,registers=64,smem=0

--compute and a --comm of your own: threads=, registers= (per thread), smem= (static + dynamic per
block, bytes or KiB), and where they apply cluster=, barriers=, sgprs=.
--comm by name: LIBRARY-VERSION/PATH[,threads=N]; libraries: {", ".join(library_names())}.

The model takes the SM at its largest shared-memory carve-out. One kernel alone equals NVIDIA's
occupancy calculator; two kernels side by side is makeway's own model, not yet run on hardware.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", required=True, help="a device name (`makeway devices`) or FILE.toml")
    parser.add_argument("--compute", required=True, metavar="BLOCK", help="what one compute block occupies")
    parser.add_argument("--comm", required=True, metavar="BLOCK", help="the collective's block, by name or written out")


def run(options: argparse.Namespace) -> int:
    device = load_device(options.device)
    compute = parse_resources(options.compute)
    check_launch(device, compute)  # before the collective: a device that cannot be asked at all should say so first
    answer = make_room(device, compute, load_footprint(options.comm, device.arch))
    if options.json:
        print_json(document(answer))
    else:
        _show(answer)
    return 0


def document(answer: RoomAnswer) -> dict[str, Any]:
    """The answer as data."""
    block = answer.comm.block
    return {
        "device": answer.device.name,
        "compute": {
            "threads": answer.compute.threads,
            "registers_per_thread": answer.compute.registers_per_thread,
            "smem_bytes": answer.compute.smem_bytes,
            "blocks_alone": answer.alone.blocks,
            "binds": answer.alone.binds,
        },
        "comm": {
            "name": answer.comm.name,
            "threads": block.threads if block else None,
            "registers_per_thread": block.registers_per_thread if block else None,
            "smem_bytes": block.smem_bytes if block else None,
            "cluster": block.cluster if block else None,
            "unconfirmed": answer.comm.unconfirmed,
        },
        "needs_sm": block is not None,
        "fits_beside_full": answer.beside_full.fits or block is None,
        "fits_beside_one": answer.beside_one.fits or block is None,
        "beside_full": _fit_document(answer.beside_full),
        "beside_one": _fit_document(answer.beside_one),
        "binds": answer.binds,
        "short_of": _short_of(answer.short_of),
        "options": [_option_document(option) for option in answer.options],
        "verdict": verdict(answer),
    }


def _fit_document(fit: Fit) -> dict[str, Any]:
    return {
        "compute_blocks": fit.compute_blocks,
        "comm_blocks": fit.comm_blocks,
        "binds": [shortage.resource for shortage in fit.short_of],
        "short_of": _short_of(fit.short_of),
    }


def _short_of(shortages: tuple[Shortage, ...]) -> dict[str, int]:
    return {shortage.key: shortage.amount for shortage in shortages}


def _option_document(option: Option) -> dict[str, Any]:
    return {
        "control": option.control,
        "joins": option.joins,
        "pad_bytes": option.pad_bytes,
        "pad_most_bytes": option.pad_most_bytes,
        "comm_threads": option.comm_threads,
        "setting": option.setting,
        "compute_blocks": option.compute_blocks,
        "comm_blocks": option.comm_blocks,
        "sms_at_once": option.sms_at_once,
    }


def _show(answer: RoomAnswer) -> None:
    out = console()
    out.print(verdict(answer), style="bold")
    block = answer.comm.block
    if block is None:
        return
    for held in sorted({answer.alone.blocks, 1}, reverse=True):
        full = " (full)" if held == answer.alone.blocks else ""
        out.print(f"\none SM of {answer.device.name} holding {held} compute block{'' if held == 1 else 's'}{full}")
        out.print(sm_picture(answer.device.sm, answer.compute, held, block))
    out.print(legend())
    out.print(f"compute alone: {answer.alone.blocks} per SM, bound by {', '.join(answer.alone.binds)}\n")
    _show_options(answer)
    for key, reason in answer.comm.unconfirmed.items():
        out.print(f"unconfirmed {key}: {reason}")


def _show_options(answer: RoomAnswer) -> None:
    titles = {
        "beside_full": "joins a full SM",
        "after_one_retires": "takes the place of one block",
        "whole_drain": "takes the SM when its one block retires",
    }
    table = Table(
        "option", "pad per block", "comm threads", "compute/SM", "comm/SM", "SMs at once", box=None, pad_edge=False
    )
    for option in answer.options:
        threads = f"{option.comm_threads} ({option.setting})" if option.setting else f"{option.comm_threads}"
        pad = f"{option.pad_bytes:,}..{option.pad_most_bytes:,} B" if option.pad_bytes else "none"
        table.add_row(
            titles[option.joins],
            pad,
            threads,
            str(option.compute_blocks),
            str(option.comm_blocks),
            str(option.sms_at_once),
        )
    console().print(table)
