"""List the devices that makeway knows, or show one with the source of every number."""

from __future__ import annotations

import argparse
from typing import Any

from rich.table import Table

from makeway.cli.output import console, print_json
from makeway.values.device import Device, device_names, load_device
from makeway.values.facts import Fact, Value
from makeway.values.units import format_bytes

EXAMPLES = """\
examples:
  makeway devices                      all names
  makeway devices MI250X               one device, each number with its source
  makeway devices ./mine.toml --json   check a device file of your own

A number marked "unconfirmed" could not be read in a text we trust; the reason stands beside it.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="a device name, an alias, or a device file ending in .toml")


def run(options: argparse.Namespace) -> int:
    if options.name is None:
        _show_all([load_device(name) for name in device_names()], as_json=options.json)
    elif options.json:
        print_json(device_document(load_device(options.name)))
    else:
        _show_one(load_device(options.name))
    return 0


def device_document(device: Device) -> dict[str, Any]:
    """One device as data."""
    return {
        "name": device.name,
        "vendor": device.vendor,
        "arch": device.arch,
        "aliases": device.aliases,
        "link": device.link,
        "notes": device.notes,
        "facts": {
            key: {"value": fact.value, "source": fact.source, "unconfirmed": fact.unconfirmed}
            for key, fact in device.facts.items()
        },
    }


def _show_all(devices: list[Device], *, as_json: bool) -> None:
    if as_json:
        print_json({"devices": [device_document(device) for device in devices]})
        return
    table = Table(
        "device", "arch", "SMs", "shared memory/SM", "memory", "FP16", "HBM", "link", box=None, pad_edge=False
    )
    for device in devices:
        table.add_row(
            device.name,
            device.arch,
            str(device.sms),
            format_bytes(device.limits.smem_bytes) if device.limits else "-",
            *[
                _mark(device, key)
                for key in ("memory_bytes", "fp16_flops_per_s", "hbm_bytes_per_s", "link_bytes_per_s")
            ],
        )
    console().print(table)
    console().print("? not confirmed; see `makeway devices NAME`. SMs: AMD compute units, CPU cores.")


def _mark(device: Device, key: str) -> str:
    fact = device.facts.get(key)
    return "-" if fact is None else _shown(key, fact.value) + (" ?" if fact.unconfirmed else "")


def _show_one(device: Device) -> None:
    out = console()
    out.print(f"{device.name} ({device.vendor}, {device.arch}), joined by {device.link}", style="bold")
    if device.aliases:
        out.print(f"also known as: {', '.join(device.aliases)}")
    for note in device.notes:
        out.print(f"note: {note}")
    numbers: dict[str, int] = {}
    table = Table("fact", "value", "source", "", box=None, pad_edge=False)
    for key, fact in device.facts.items():
        number = numbers.setdefault(fact.source, len(numbers) + 1)
        table.add_row(key, _shown(key, fact.value), f"\\[{number}]", _doubt(fact))
    out.print(table)
    for source, number in numbers.items():
        out.print(f"\\[{number}] {source}")


def _doubt(fact: Fact) -> str:
    return f"unconfirmed: {fact.unconfirmed}" if fact.unconfirmed else ""


def _shown(key: str, value: Value) -> str:
    """A number with its unit, which its name carries."""
    if isinstance(value, tuple):
        return ", ".join(format_bytes(int(item)) if item else "0" for item in value)
    if key.endswith("_bytes"):
        return format_bytes(int(value))
    for suffix, unit in (("_flops_per_s", "FLOP/s"), ("_bytes_per_s", "B/s"), ("_hz", "Hz")):
        if key.endswith(suffix):
            return _scaled(float(value), unit)
    return f"{value:,}"


def _scaled(value: float, unit: str) -> str:
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:,.6g} {prefix}{unit}"
    return f"{value:,.6g} {unit}"
