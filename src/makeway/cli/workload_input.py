"""Workloads on the command line: a preset by name, or a workload file."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from makeway.cli.streams import write_out
from makeway.model.presets import PresetOptions, load_preset, preset_names, preset_summary
from makeway.read.workload_file import load_workload
from makeway.values.collective import load_footprint
from makeway.values.device import Device
from makeway.values.errors import InputError
from makeway.values.kernel import parse_resources
from makeway.values.workload import CollectiveOp, Workload

_PRESET_OPTIONS = ("ranks", "grid", "tile", "in_flight", "iterations", "library", "block")


class ShowPresets(argparse.Action):
    """--list: print the presets and stop, as --help does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print_list(parser, "presets", [(name, preset_summary(name)) for name in preset_names()])


def print_list(parser: argparse.ArgumentParser, kind: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print names with their summaries, as text or as JSON, and stop."""
    if "--json" in getattr(parser, "given", ()):
        import msgspec

        items = [{"name": name, "summary": summary} for name, summary in rows]
        document = {"schema": f"makeway/{kind}/1", kind: items}
        write_out(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
    else:
        write_out("".join(f"{name:<18} {summary}\n" for name, summary in rows))
    parser.exit()


def add_preset_options(parser: argparse.ArgumentParser) -> None:
    """The options that name a workload and a device and, for presets, change it."""
    parser.add_argument("workload", help=f"a preset ({', '.join(preset_names()[:4])}, ...) or a workload file (.toml)")
    parser.add_argument("--device", required=True, metavar="NAME", help="a device (`makeway devices`) or FILE.toml")
    add_preset_choices(parser)


def add_preset_choices(parser: argparse.ArgumentParser) -> None:
    """What can be changed about a preset."""
    parser.add_argument("--list", action=ShowPresets, nargs=0, help="list the presets and stop")
    parser.add_argument("--ranks", type=int, metavar="N", help="GPUs of a preset (default: the preset's)")
    parser.add_argument("--grid", metavar="XxY", help="grid of the published experiment's GEMM")
    parser.add_argument("--tile", metavar="MxNxK", help="tile of a preset's GEMM")
    parser.add_argument(
        "--block",
        metavar="BLOCK",
        help="what a block of a preset's GEMMs occupies: threads=256,registers=98,smem=48KiB",
    )
    parser.add_argument("--in-flight", type=int, metavar="N", help="GEMMs of different iterations in flight")
    parser.add_argument("--iterations", type=int, metavar="N", help="iterations of the published experiment")
    parser.add_argument(
        "--library",
        metavar="NAME",
        help="footprint of the collectives (nccl-2.27.5/ring-simple), or a version only (nccl-2.27.5)",
    )


def workload_of(options: argparse.Namespace, device: Device, name: str | None = None) -> Workload:
    """The workload `name` (default: the one that the options name), with the changes that the options ask for."""
    library = options.library
    version_only = library is not None and not set(library) & set("/=")
    workload = _loaded(name or options.workload, options, device, None if version_only else library)
    return _with_version(workload, library, device) if version_only else workload


def _with_version(workload: Workload, version: str, device: Device) -> Workload:
    """The workload with its collectives in another version of the library; an unknown one is an error."""
    operations = []
    for op in workload.operations:
        changed = op
        if isinstance(op, CollectiveOp) and "/" in op.library:
            changed = replace(op, library=f"{version}/{op.library.partition('/')[2]}")
            load_footprint(changed.library, device.arch)
        operations.append(changed)
    return replace(workload, operations=tuple(operations))


def _loaded(name: str, options: argparse.Namespace, device: Device, library: str | None) -> Workload:
    changes = {option: getattr(options, option) for option in _PRESET_OPTIONS} | {"library": library}
    if name.endswith(".toml"):
        given = [option for option, value in changes.items() if value is not None]
        if given:
            raise InputError(f"--{given[0].replace('_', '-')} is for presets; a workload file says it itself")
        return load_workload(Path(name))
    return load_preset(
        name,
        device,
        PresetOptions(
            ranks=options.ranks,
            grid=sides(options.grid, 2, "--grid 64x64"),  # type: ignore[arg-type]
            tile=sides(options.tile, 3, "--tile 64x64x32"),  # type: ignore[arg-type]
            in_flight=options.in_flight,
            iterations=options.iterations,
            library=library,
            block=parse_resources(options.block) if options.block is not None else None,
        ),
    )


def sides(text: str | None, count: int, example: str) -> tuple[int, ...] | None:
    """The numbers of "64x64", or None where nothing was given."""
    if text is None:
        return None
    if not re.fullmatch(r"\d+" + r"x\d+" * (count - 1), text):
        raise InputError(f"cannot read {text!r}; write for example {example}")
    return tuple(int(part) for part in text.split("x"))
