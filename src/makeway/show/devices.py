"""Devices as reports: all of them in a table, or one with every number and its source."""

from __future__ import annotations

from typing import Any

from makeway.show.blocks import Cell, Column, Facts, Headline, Notes, Paragraph, Report, Section, Table
from makeway.show.data import record
from makeway.show.numbers import count
from makeway.show.provenance import provenance
from makeway.values.device import Device, DeviceList
from makeway.values.facts import Value
from makeway.values.units import GIB, KIB, format_bytes

_RATES = {  # column -> fact, and the unit that the caption names
    "memory": ("memory_bytes", GIB),
    "FP16": ("fp16_flops_per_s", 1e12),
    "HBM": ("hbm_bytes_per_s", 1e9),
    "link": ("link_bytes_per_s", 1e9),
    "smem": ("smem_bytes", KIB),
}
_SHOWN = ("name", "vendor", "arch", "aliases", "link", "notes", "facts")


def report(result: Device | DeviceList, *, arguments: str = "") -> Report:
    """One device, or all of them."""
    return _list(result, arguments) if isinstance(result, DeviceList) else _device(result, arguments)


def _list(listed: DeviceList, arguments: str) -> Report:
    table = Table(
        name="device-table",
        caption="SMs (AMD: compute units, CPU: cores); memory in GiB, FP16 in TFLOP/s, HBM and link in GB/s, "
        "shared memory of an SM in KiB; ? is not confirmed (`makeway devices NAME` says why)",
        columns=(
            Column("device", "name"),
            Column("arch"),
            Column("SMs", "number"),
            *(Column(title, "number") for title in _RATES),
        ),
        rows=tuple(
            (
                Cell(device.name),
                Cell(device.arch),
                Cell(str(device.sms), device.sms),
                *(_rate(device, key, unit) for key, unit in _RATES.values()),
            )
            for device in listed.devices
        ),
        brief_rows=len(listed.devices),
    )
    return Report(
        result="devices",
        over="makeway devices",
        headline=Headline(sentence=f"makeway knows {count(len(listed.devices), 'device')}", origin="cited facts"),
        sections=(
            Section(name="devices", title="Devices", blocks=(table,)),
            provenance(arguments, numbers="facts from device files, each with its source"),
        ),
        data={"devices": [_data(device) for device in listed.devices]},
        arguments=arguments,
    )


def _device(device: Device, arguments: str) -> Report:
    sources = list(dict.fromkeys(fact.source for fact in device.facts.values()))
    table = Table(
        name="fact-table",
        caption="Facts of the device and of its architecture",
        columns=(Column("fact", "name"), Column("value", "wide"), Column("source"), Column("doubt", "wide")),
        rows=tuple(
            (
                Cell(key),
                _value(key, fact.value),
                Cell(f"[{sources.index(fact.source) + 1}]"),
                Cell(f"unconfirmed: {fact.unconfirmed}" if fact.unconfirmed else ""),
            )
            for key, fact in device.facts.items()
        ),
        brief_rows=len(device.facts),
    )
    cited = Facts(pairs=tuple((f"[{index}]", source) for index, source in enumerate(sources, start=1)))
    return Report(
        result="device",
        over=f"makeway devices {device.name}",
        headline=Headline(
            sentence=f"{device.name} ({device.vendor}, {device.arch}), linked by {device.link}", origin="cited facts"
        ),
        lead=(Paragraph(text=f"Also known as {', '.join(device.aliases)}."),) if device.aliases else (),
        sections=(
            Section(name="facts", title="Facts", blocks=(table, Notes(sentences=device.notes), cited)),
            provenance(arguments, numbers="facts from device files, each with its source"),
        ),
        data=_data(device),
        arguments=arguments,
    )


def _data(device: Device) -> dict[str, Any]:
    data = record(device)
    return {key: data[key] for key in _SHOWN}


def _rate(device: Device, key: str, unit: float) -> Cell:
    fact = device.facts.get(key)
    if fact is None or isinstance(fact.value, tuple):
        return Cell("–")
    doubt = " ?" if fact.unconfirmed else ""
    return Cell(f"{fact.value / unit:,.5g}{doubt}", float(fact.value))


def _value(key: str, value: Value) -> Cell:
    if isinstance(value, tuple):
        return Cell(", ".join(format_bytes(int(item)) if item else "0" for item in value))
    return Cell(_with_unit(key, value), float(value))


def _with_unit(key: str, value: float) -> str:
    """A number with the unit that its name ends in."""
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
