"""What this machine offers to makeway; with --calibrate, its speed as a device file for predictions."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from makeway.cli.output import console, print_json
from makeway.measure.bench import cores, require_torch
from makeway.measure.calibrate import calibrate
from makeway.report.new_file import new_file
from makeway.units import format_bytes

EXAMPLES = """\
examples:
  makeway doctor
  makeway doctor --calibrate --out host.toml      measures this host, about a minute
"""
_SHARED_MEMORY = Path("/dev/shm")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calibrate", action="store_true", help="measure this host for predictions on its CPU")
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks to measure with (default: one per core)")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="rounds of each measurement (default: 7)")
    parser.add_argument("--out", metavar="FILE", help="write the device file there (default: stdout)")


def run(options: argparse.Namespace) -> int:
    if options.calibrate:
        return _calibrated(options)
    found = _machine()
    if options.json:
        print_json(found)
        return 0
    for key, value in found.items():
        console().print(f"{key.replace('_', ' '):<16} {value}", markup=False)
    return 0


def _calibrated(options: argparse.Namespace) -> int:
    require_torch()
    told = (lambda stage: print(f"\r\033[K{stage}", end="", file=sys.stderr)) if sys.stderr.isatty() else _silent
    calibration = calibrate(ranks=options.ranks, rounds=options.repeats, progress=told)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    if options.out:
        with new_file(Path(options.out)) as file:
            file.write(calibration.text)
        print(f"wrote {options.out}: pass it with --device", file=sys.stderr)
    if options.json:
        print_json({"cores": calibration.cores, "rounds": calibration.rounds, "facts": dict(calibration.facts)})
    elif not options.out:
        sys.stdout.write(calibration.text)
    return 0


def _silent(stage: str) -> None:
    """Nobody watches."""


def _machine() -> dict[str, Any]:
    """What `bench` and `run` can use here."""
    shared = shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else 0
    return {
        "cores": cores(),
        "torch": _version("torch"),
        "triton": _version("triton"),
        "shared_memory": f"{format_bytes(shared)} free in {_SHARED_MEMORY}",
        "paced_links": _tool("tc", "iproute2") if os.path.exists("/proc/self/ns/user") else "no user namespaces here",
        "nvidia_driver": "found" if os.path.exists("/proc/driver/nvidia/version") else "not found",
        "amd_driver": "found" if os.path.exists("/dev/kfd") else "not found",
        "compiler": shutil.which("cc") or "not found",
    }


def _version(package: str) -> str:
    if importlib.util.find_spec(package) is None:
        return f"not installed (pip install 'makeway[{package}]')"
    from importlib.metadata import version

    return version(package)


def _tool(name: str, package: str) -> str:
    return f"{shutil.which(name)}" if shutil.which(name) else f"{name} not found (Debian: {package})"
