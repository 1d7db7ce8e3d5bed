"""Which carrier can carry which control: one table of data that doctor, back ends, exports and docs read.

A carrier is what brings a control to a program: the launch shim, a CUDA graph, torch, a library's environment, a
framework's options. data/support has one file per carrier with one row per control; reasons.toml has the reasons that
several carriers share. A new carrier is one file, a new control one row in each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, get_args

from makeway.values.control import Control
from makeway.values.errors import DataFileError, UnknownNameError, suggestion
from makeway.values.facts import data_files, parse_toml, refuse_unknown, text

Platform = Literal["cpu", "cuda", "rocm"]
PLATFORMS: dict[str, Platform] = {"nvidia": "cuda", "amd": "rocm", "cpu": "cpu"}  # by the vendor of a device
CONTROL_NAMES: tuple[str, ...] = tuple(kind.name for kind in get_args(Control))

_REASONS = "reasons.toml"
_FILE = ("name", "platforms", "target", "run", "source", "verified", "not_on", "sources", "controls")
_ROW = ("supported", "how", "verified", "why_not", "since", "limits", "instead", "not_on", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Whether one carrier carries one kind of control: how, since when and within which limits, or why not."""

    control: str  # its name: "pad", "partition"
    carrier: str
    supported: bool
    source: str
    how: str = ""  # the mechanism, where supported
    verified: str = ""  # what shows that it took effect, where supported
    why_not: str = ""  # where not supported
    since: str = ""  # "NCCL 2.28"; "" where no first version is known
    limits: str = ""  # what else must hold
    instead: str = ""  # the export target to try
    not_on: Mapping[Platform, str] = field(default_factory=dict)  # why not, by platform

    def refusal(self, platform: Platform, nccl: tuple[int, ...] | None = None) -> str | None:
        """Why a platform, with this NCCL version where one is known, cannot have it; None when it can."""
        reason = self.not_on.get(platform, None if self.supported else self.why_not)
        if reason is None and nccl is not None and nccl < self.least_nccl:
            reason = f"needs {self.since} or later"
        if reason is None:
            return None
        return f"{reason}; try makeway export --to {self.instead}" if self.instead else reason

    @property
    def least_nccl(self) -> tuple[int, ...]:
        """The NCCL version in `since`, () where it names none."""
        library, _, version = self.since.partition(" ")
        return tuple(map(int, version.split("."))) if library == "NCCL" else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """One carrier and its row for every control."""

    name: str
    platforms: tuple[Platform, ...]  # that it exists on
    target: str | None  # the word of `makeway export --to`; None: not an export
    run: tuple[str, ...]  # controls that `makeway run` brings to an unmodified program through it
    rows: Mapping[str, Support]


def support(control: Control | str, carrier: str) -> Support:
    """The row of a control, or of its name, in a carrier's table."""
    name = control if isinstance(control, str) else control.name
    try:
        return support_table()[carrier].rows[name]
    except KeyError:
        known = (*support_table(), *CONTROL_NAMES)
        unknown = name if carrier in support_table() else carrier
        raise UnknownNameError(f"the support table has no {unknown!r}{suggestion(unknown, known)}") from None


def carriers() -> tuple[str, ...]:
    """The names of all carriers."""
    return tuple(support_table())


def carriers_of(control: Control, platform: Platform) -> tuple[str, ...]:
    """The carriers that can apply a control on a platform."""
    return tuple(
        name
        for name, carrier in support_table().items()
        if platform in carrier.platforms and carrier.rows[control.name].refusal(platform) is None
    )


@cache
def support_table() -> Mapping[str, Carrier]:
    """Every carrier by name."""
    folder = data_files("support")
    reasons = parse_toml(folder.joinpath(_REASONS).read_bytes(), where=_REASONS)
    files = sorted((entry for entry in folder.iterdir() if entry.name != _REASONS), key=lambda entry: entry.name)
    loaded = [parse_carrier(parse_toml(entry.read_bytes(), where=entry.name), reasons, entry.name) for entry in files]
    return {carrier.name: carrier for carrier in loaded}


def parse_carrier(document: Mapping[str, Any], reasons: Mapping[str, str], where: str) -> Carrier:
    """A carrier of its file; a missing, unknown or incomplete row is an error."""
    refuse_unknown(document, _FILE, where=where)
    rows = document.get("controls", {})
    refuse_unknown(rows, CONTROL_NAMES, where=where)
    if missing := [name for name in CONTROL_NAMES if name not in rows]:
        raise DataFileError(f"{where}: no row for {', '.join(missing)}; every carrier answers for every control")
    shared = {"source": document.get("source"), "not_on": document.get("not_on", {})}
    shared |= {"verified": document["verified"]} if "verified" in document else {}
    name, platforms = text(document, "name", where=where), tuple(document.get("platforms", ()))
    if not platforms or not set(platforms) <= set(get_args(Platform)):
        raise DataFileError(f"{where}: platforms must name some of {', '.join(get_args(Platform))}")
    parsed = {
        control: _row(name, control, shared | rows[control], document, reasons.get(control, ""))
        for control in CONTROL_NAMES
    }
    run = tuple(document.get("run", ()))
    if wrong := [control for control in run if control not in parsed or not parsed[control].supported]:
        raise DataFileError(f"{where}: run names {', '.join(map(str, wrong))}, which it does not carry")
    return Carrier(name=name, platforms=platforms, target=document.get("target"), run=run, rows=parsed)


def _row(carrier: str, control: str, row: Mapping[str, Any], document: Mapping[str, Any], reason: str) -> Support:
    where = f"{carrier}: {control}"
    refuse_unknown(row, _ROW, where=where)
    supported, sources = row.get("supported"), document.get("sources", {})
    if not isinstance(supported, bool):
        raise DataFileError(f"{where}: supported must be true or false")
    if row["source"] not in sources:
        raise DataFileError(f"{where}: source {row['source']!r} is not listed in [sources]")
    not_on = {**document.get("not_on", {}), **row["not_on"]}
    refuse_unknown(not_on, get_args(Platform), where=where)
    why_not = "" if supported else row.get("why_not", reason)
    if not (row.get("how") if supported else why_not):
        raise DataFileError(f"{where}: say how it is carried, or why not")
    if supported and not row.get("verified"):
        raise DataFileError(f"{where}: say by what it is verified")
    return Support(
        control=control,
        carrier=carrier,
        supported=supported,
        source=sources[row["source"]],
        how=row.get("how", ""),
        verified=row["verified"] if supported else "",
        why_not=why_not,
        since=row.get("since", ""),
        limits=row.get("limits", ""),
        instead=row.get("instead", ""),
        not_on=not_on,
    )
