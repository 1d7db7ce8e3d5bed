"""What a plan asks to be set before a program starts, and what of that the user's environment already says."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from makeway.act.export.targets import environment
from makeway.act.export.values import Entry, library_of
from makeway.values.control import CommPriority, Control, SmemPad
from makeway.values.plan import Plan

RULES, RECEIPTS, PLAN = "MAKEWAY_RULES", "MAKEWAY_RECEIPTS", "MAKEWAY_PLAN"
PRELOAD, PYTHON_PATH = "LD_PRELOAD", "PYTHONPATH"
RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")  # torchrun, srun, Open MPI, Hydra
START_HOOK = Path(__file__).parent / "start"


def rank_of(environ: Mapping[str, str]) -> int | None:
    """The rank that a launcher has given to this process; None where none did."""
    found = (environ.get(name, "") for name in RANK_VARIABLES)
    return next((int(text) for text in found if text.isdigit()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable that a control asks for, beside what the user's environment has; None: it has none."""

    control: Control
    name: str
    wanted: str
    found: str | None
    forced: bool = False
    beside: str | None = None  # a variable of the same control that the user's environment keeps

    @property
    def kept(self) -> bool:
        """The user's own value stays, and it is not what the plan wants."""
        return self.found not in (None, self.wanted) and not self.forced

    @property
    def words(self) -> str:
        """What becomes of it."""
        setting = f"{self.name}={self.wanted}"
        if self.found is None and self.beside is not None:
            return f"not set: {setting} belongs with {self.beside}, which was kept"
        if self.found is None:
            return f"set: {setting}"
        if self.found == self.wanted:
            return f"already so: {setting}"
        if self.forced:
            return f"replaced: {setting}; {self.found} was set by you"
        return f"kept: {self.name}={self.found} was set by you; the plan wants {self.wanted} (--force replaces it)"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtStart:
    """What is known of a control before the program has run: it cannot be had, or nobody has confirmed it yet."""

    control: Control
    status: Literal["refused", "not seen"]
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the controls of a plan need at the start of a program."""

    variables: tuple[Variable, ...]
    notes: tuple[tuple[Control, str], ...]  # what must be true besides the variables
    lacking: tuple[tuple[Control, str], ...]  # controls that no variable carries, and why
    shim: tuple[Control, ...]  # controls that the launch shim carries

    @property
    def settings(self) -> dict[str, str]:
        """The variables to set; a control has all of its own or none, since half of one may contradict the rest."""
        return {
            variable.name: variable.wanted
            for variable in self.variables
            if not variable.kept and variable.beside is None
        }


def needs_of(plan: Plan, environ: Mapping[str, str], *, force: bool = False) -> Needs:
    """What must be there before the program starts: variables as `makeway export --to env` gives them, and the shim."""
    answered = environment(plan, library_of(plan))
    return Needs(
        variables=tuple(
            variable for answer in answered.carried for variable in _variables(answer, environ, force=force)
        ),
        notes=tuple((answer.control, answer.note) for answer in answered.carried if answer.note),
        lacking=tuple((answer.control, answer.refusal) for answer in answered.refused),
        shim=tuple(control for control in plan.controls if isinstance(control, SmemPad | CommPriority)),
    )


def _variables(answer: Entry, environ: Mapping[str, str], *, force: bool) -> Iterator[Variable]:
    found = [
        Variable(control=answer.control, name=name, wanted=str(value), found=environ.get(name), forced=force)
        for name, value in answer.settings
    ]
    kept = next((variable.name for variable in found if variable.kept), None)
    for variable in found:
        yield replace(variable, beside=kept if variable.name != kept else None)


def at_start(plan: Plan, needs: Needs, *, no_shim: str | None = None) -> tuple[AtStart, ...]:
    """For each control, what to say of it where no process of the program says more; `no_shim`: why there is none."""
    return tuple(_at_start(control, needs, no_shim) for control in plan.controls)


def _at_start(control: Control, needs: Needs, no_shim: str | None) -> AtStart:
    mine = [variable for variable in needs.variables if variable.control == control]
    if kept := [variable.words for variable in mine if variable.kept]:
        return AtStart(control=control, status="refused", detail="; ".join(kept))
    if no_shim is not None and control in needs.shim:
        return AtStart(control=control, status="refused", detail=no_shim)
    if control in needs.shim and not mine:
        detail = "no process launched a kernel through the CUDA or HIP driver under the launch shim"
    elif mine:
        settings = " ".join(f"{variable.name}={variable.wanted}" for variable in mine)
        detail = f"{settings} was set, and no process has told whether it took effect"
    else:
        detail = f"no process applied it: {dict(needs.lacking).get(control, 'nothing to set before the start')}"
    return AtStart(control=control, status="not seen", detail=detail)


# --- the way in ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WayIn:
    """The files by which a plan reaches the program's processes."""

    plan: Path
    receipts: Path
    rules: Path | None = None  # both or neither: the launch shim
    shim: Path | None = None


def unloadable(shim: Path) -> str | None:
    """Why the dynamic loader could not be given that path; ld.so(8) splits LD_PRELOAD at blanks and colons."""
    if any(character in str(shim) for character in " :\t\n"):
        return f"LD_PRELOAD cannot hold {str(shim)!r}: it has a blank or a colon; set XDG_CACHE_HOME to another place"
    return None


def way_in(files: WayIn, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that carry the files; lists that the user has are extended, never replaced."""
    settings = {
        PLAN: str(files.plan),
        RECEIPTS: str(files.receipts),
        # First, since only the first sitecustomize of the path is imported; it imports the next one itself.
        PYTHON_PATH: _joined([str(START_HOOK), *_entries(environ.get(PYTHON_PATH), os.pathsep)]),
    }
    if files.shim is not None:
        # Last: what the user preloads may insist on being first, as AddressSanitizer does.
        before = _entries((environ.get(PRELOAD) or "").replace(" ", ":"), ":")
        settings |= {RULES: str(files.rules), PRELOAD: _joined([*before, str(files.shim)])}
    return settings


def _entries(text: str | None, separator: str) -> list[str]:
    return [entry for entry in (text or "").split(separator) if entry]


def _joined(entries: Sequence[str]) -> str:
    return ":".join(dict.fromkeys(entries))
