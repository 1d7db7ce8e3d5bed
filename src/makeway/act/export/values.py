"""What an export says: the text, which controls it carries and by which settings, and which it cannot and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from makeway.read.plan_file import one_line
from makeway.values.collective import ThreadChoice, library_names, load_footprint
from makeway.values.control import Control, describe
from makeway.values.device import device_names, load_device
from makeway.values.errors import InputError, UnknownNameError, UnsupportedError
from makeway.values.facts import data_files
from makeway.values.plan import Plan

Version = tuple[int, ...]
SettingValue = str | int | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A control that the target carries; no settings where the target does so by itself."""

    control: Control
    settings: tuple[tuple[str, SettingValue], ...] = ()
    note: str | None = None  # what must be true besides, or the control silently does nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCarried:
    """A control that the target cannot carry, and why."""

    control: Control
    reason: str


Answer = Carried | NotCarried


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A plan in another tool's words."""

    text: str
    carried: tuple[Carried, ...]
    not_carried: tuple[NotCarried, ...]


def exported(
    plan: Plan, target: str, answers: Iterable[Answer], body: Callable[[tuple[Carried, ...]], str]
) -> Exported:
    """The answers for all controls of a plan and, under comments that tell them, the target's own text."""
    found = tuple(answers)
    carried = tuple(answer for answer in found if isinstance(answer, Carried))
    not_carried = tuple(answer for answer in found if isinstance(answer, NotCarried))
    return Exported(
        text="\n".join([*_comments(plan, target, carried, not_carried), body(carried)]).rstrip("\n") + "\n",
        carried=carried,
        not_carried=not_carried,
    )


def spelled(key: str, value: SettingValue) -> str:
    """A setting as one word: "max_ctas=16"."""
    return f"{key}={str(value).lower() if isinstance(value, bool) else value}"


def _comments(
    plan: Plan, target: str, carried: tuple[Carried, ...], not_carried: tuple[NotCarried, ...]
) -> Iterable[str]:
    yield one_line(f"# makeway export --to {target}{_origin(plan)}")
    if not plan.controls:
        yield "# The plan has no controls: there is nothing to set."
    elif not carried:
        yield f"# Nothing to set: {target} carries none of the plan's controls."
    for answer in carried:
        settings = " ".join(spelled(key, value) for key, value in answer.settings) or "already so"
        yield one_line(f"# carried: {describe(answer.control)}: {settings}")
        if answer.note:
            yield one_line(f"#   {answer.note}")
    for refusal in not_carried:
        yield one_line(f"# not carried: {describe(refusal.control)}: {refusal.reason}")


def _origin(plan: Plan) -> str:
    made_for = plan.made_for
    if made_for is None or (made_for.workload is None and made_for.device is None):
        return ""
    return f", plan for {made_for.workload or 'a workload'} on {made_for.device or 'a device'}"


# --- the library behind the collectives --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The library that the collectives of a plan use, as far as the plan or the user says."""

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


_VERSION = re.compile(r"\d+\.\d+(\.\d+)*")


def library_of(plan: Plan, nccl: str | None = None) -> Library:
    """The library of a plan; `nccl` is a version that overrides the plan's.

    A plan that names none is taken to be for NCCL, or for RCCL when its device is AMD's.
    """
    made_for = plan.made_for
    footprint = made_for.library if made_for else None
    found = re.fullmatch(r"(nccl|rccl)-([^/]+)(/.*)?", footprint or "")
    device = made_for.device if made_for else None
    amd = device in device_names() and load_device(str(device)).vendor == "amd"
    is_rccl = found[1] == "rccl" if found else amd
    version = parse_version(nccl) if nccl is not None else None
    if version is None and found and not is_rccl and _VERSION.fullmatch(found[2]):  # RCCL's own versions are ROCm's
        version = parse_version(found[2])
    return Library(name="rccl" if is_rccl else "nccl", version=version, footprint=footprint if found else None)


def parse_version(text: str) -> Version:
    """The numbers of a version such as "2.27" or "2.27.5"."""
    if not _VERSION.fullmatch(text):
        raise InputError(f"cannot read NCCL version {text!r}; write for example 2.27 or 2.27.5")
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
    return max(
        (name for name in library_names() if name.startswith("nccl-")),
        key=lambda name: parse_version(name.removeprefix("nccl-")),
    )
