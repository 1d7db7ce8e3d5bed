"""An export: a plan as a target's settings, control by control, and the library that those settings are for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from makeway.read.plan_file import one_line
from makeway.values.collective import ThreadChoice, library_names, load_footprint
from makeway.values.control import CommBlocks, Control, describe
from makeway.values.device import device_names, load_device
from makeway.values.errors import InputError, UnknownNameError, UnsupportedError
from makeway.values.facts import data_files
from makeway.values.plan import Plan
from makeway.values.receipt import Receipt
from makeway.values.support import support

Version = tuple[int, ...]
SettingValue = str | int | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One control of a plan as a target takes it; without settings the target does so by default."""

    control: Control
    settings: tuple[tuple[str, SettingValue], ...] = ()
    note: str = ""  # what else must hold, or the settings silently do nothing
    refusal: str = ""  # why the target cannot carry the control; "": it does

    @property
    def as_text(self) -> str:
        """The settings in one line, or the refusal."""
        return self.refusal or " ".join(setting_word(*setting) for setting in self.settings) or "already the default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A plan as one target's file."""

    target: str
    carrier: str
    text: str
    entries: tuple[Entry, ...]  # one per control of the plan

    @property
    def carried(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if not entry.refusal)

    @property
    def refused(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.refusal)

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """One per control: refused, or "not seen", since an export cannot know whether its settings ever act."""
        return tuple(
            Receipt(
                control=entry.control,
                status="refused" if entry.refusal else "not seen",
                detail=entry.as_text,
                carrier=self.carrier,
            )
            for entry in self.entries
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is exported, and for what."""

    plan: Plan
    library: Library
    groups: tuple[str, ...] = ()  # Megatron's process groups

    @property
    def blocks(self) -> int | None:
        """The comm blocks that the plan sets, if it does."""
        return next((control.blocks for control in self.plan.controls if isinstance(control, CommBlocks)), None)

    def has(self, kind: type[Control]) -> bool:
        """Whether the plan has a control of this kind."""
        return any(isinstance(control, kind) for control in self.plan.controls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """How a plan is written for one carrier."""

    carrier: str
    entry: Callable[[Control, Request, str], Entry]  # a control that the support table allows, and its limits
    body: Callable[[tuple[Entry, ...], Request], str]  # the file below its comments

    def export(self, name: str, request: Request) -> Export:
        entries = tuple(self._entry(control, request) for control in request.plan.controls)
        carried = tuple(entry for entry in entries if not entry.refusal)
        lines = [*_comments(request.plan, name, entries, carried), self.body(carried, request)]
        return Export(target=name, carrier=self.carrier, text="\n".join(lines).rstrip("\n") + "\n", entries=entries)

    def _entry(self, control: Control, request: Request) -> Entry:
        row, library = support(control, self.carrier), request.library
        if reason := row.refusal("rocm" if library.name == "rccl" else "cuda", library.version):
            return Entry(control=control, refusal=reason)
        return self.entry(control, request, row.limits)


def setting_word(key: str, value: SettingValue) -> str:
    """A setting as one word: "max_ctas=16"."""
    return f"{key}={str(value).lower() if isinstance(value, bool) else value}"


def _comments(plan: Plan, target: str, entries: tuple[Entry, ...], carried: tuple[Entry, ...]) -> list[str]:
    lines = [f"# makeway export --to {target}{_origin(plan)}"]
    if not plan.controls:
        lines.append("# The plan has no controls: there is nothing to set.")
    elif not carried:
        lines.append(f"# Nothing to set: {target} carries none of the plan's controls.")
    for entry in carried:
        lines.append(f"# carried: {describe(entry.control)}: {entry.as_text}")
        if entry.note:
            lines.append(f"#   {entry.note}")
    lines += [f"# not carried: {describe(entry.control)}: {entry.refusal}" for entry in entries if entry.refusal]
    return [one_line(line) for line in lines]


def _origin(plan: Plan) -> str:
    made_for = plan.made_for
    if made_for is None or (made_for.workload is None and made_for.device is None):
        return ""
    return f", plan for {made_for.workload or 'a workload'} on {made_for.device or 'a device'}"


# --- the library behind the collectives --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The library that a plan's collectives use, as far as the plan or the user says."""

    name: Literal["nccl", "rccl"]
    version: Version | None = None  # of NCCL's interface; None: not known
    footprint: str | None = None  # "nccl-2.32.3/ring-simple"

    @property
    def path(self) -> str | None:
        """Algorithm and protocol: "ring-simple"."""
        return self.footprint.partition("/")[2].partition(",")[0] or None if self.footprint else None

    def before(self, *version: int) -> bool:
        """Whether the library is known to be older than that."""
        return self.version is not None and self.version < version


_NUMBERS = re.compile(r"\d+\.\d+(\.\d+)*")
_NAME = re.compile(r"(nccl|rccl)-([^/]+)(/.*)?")


def library_of(plan: Plan, library: str | None = None) -> Library:
    """The library of a plan; `library` ("nccl-2.27.5", with or without a path) overrides it.

    A plan that names none is for NCCL, or for RCCL when its device is AMD's.
    """
    planned = _NAME.fullmatch((plan.made_for and plan.made_for.library) or "")
    given = None
    if library is not None:
        given = _NAME.fullmatch(library)
        if given is None or (given[1] == "nccl" and not _NUMBERS.fullmatch(given[2])):
            raise InputError(f"cannot read library {library!r}; write for example nccl-2.27 or nccl-2.27.5/ring-simple")
    named = given or planned
    device = plan.made_for.device if plan.made_for else None
    amd = device in device_names() and load_device(str(device)).vendor == "amd"
    is_rccl = named[1] == "rccl" if named else amd
    version = None
    if named and not is_rccl and _NUMBERS.fullmatch(named[2]):  # RCCL's own versions are ROCm's
        version = parse_version(named[2])
    footprint = next((match[0] for match in (given, planned) if match and match[3]), planned and planned[0])
    return Library(name="rccl" if is_rccl else "nccl", version=version, footprint=footprint)


def parse_version(text: str) -> Version:
    """The numbers of a version such as "2.27" or "2.27.5"."""
    return tuple(int(part) for part in text.split("."))


def thread_choices(library: Library) -> tuple[tuple[ThreadChoice, ...], str]:
    """The block sizes that the library's path offers, each with the setting that gives it, and the path's name.

    Without a path in the plan, those of the newest NCCL's ring-simple.
    """
    name = library.footprint or f"{_newest_nccl()}/ring-simple"
    for entry in sorted(entry.name for entry in data_files("architectures").iterdir()):
        try:
            return load_footprint(name.partition(",")[0], entry.removesuffix(".toml")).choices, name
        except UnsupportedError:  # no code for this architecture; block sizes are the same on all
            continue
        except UnknownNameError:
            break
    return (), name


def _newest_nccl() -> str:
    names = (name for name in library_names() if name.startswith("nccl-"))
    return max(names, key=lambda name: parse_version(name.removeprefix("nccl-")))
