"""What a plan sets before a program starts, and what of that the user's environment already decides."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from makeway.act.launch.partition import partition_refusal
from makeway.act.launch.start.sitecustomize import PLAN, RECEIPTS, RULES
from makeway.act.launch.start.sitecustomize import rank_of as rank_of
from makeway.values.control import CommBlocks, CommPriority, Control, SmemPad, SmPartition
from makeway.values.plan import Plan
from makeway.values.receipt import Receipt, Status
from makeway.values.support import Platform

if TYPE_CHECKING:
    from makeway.act.export.values import SettingValue
    from makeway.act.tuner.carry import Tuner

CARRIER = "launcher"
PRELOAD, PYTHON_PATH = "LD_PRELOAD", "PYTHONPATH"
NEVER_ON = "the job ended before it was switched on, or nothing here can switch it"
START_HOOK = Path(__file__).parent / "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable that a control wants, beside the user's own value; None: the user has not set it."""

    control: Control
    name: str
    wanted: str
    present: str | None
    forced: bool = False
    kept_with: str | None = None  # another variable of the control, whose value the user keeps
    SHOWN: ClassVar = ("is_set",)

    @property
    def kept(self) -> bool:
        """The user's own value stays, and it is not what the plan wants."""
        return self.present not in (None, self.wanted) and not self.forced

    @property
    def is_set(self) -> bool:
        """makeway sets it. A control gets all of its variables or none: half of one may contradict the rest."""
        return not self.kept and self.kept_with is None

    @property
    def summary(self) -> str:
        """What happens to the variable."""
        setting = f"{self.name}={self.wanted}"
        if self.present is None and self.kept_with is not None:
            return f"not set: {setting} belongs with {self.kept_with}, which was kept"
        if self.present is None:
            return f"set: {setting}"
        if self.present == self.wanted:
            return f"already so: {setting}"
        if self.forced:
            return f"replaced: {setting}; {self.present} was set by you"
        return f"kept: {self.name}={self.present} was set by you; the plan wants {self.wanted} (--force replaces it)"


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence about one control."""

    control: Control
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the controls of a plan need at the start of a program."""

    variables: tuple[Variable, ...]
    launch_shim: tuple[Control, ...]  # controls that the launch shim carries
    tuner_plugin: tuple[Control, ...]  # controls that the tuner plugin carries, besides the variables
    conditions: tuple[Remark, ...]  # what must hold besides the variables
    no_variable: tuple[Remark, ...]  # controls that no variable carries, and why
    refused: tuple[Remark, ...]  # controls that nothing here can apply, why, and what would work

    @property
    def settings(self) -> dict[str, str]:
        """The variables to set."""
        return {variable.name: variable.wanted for variable in self.variables if variable.is_set}

    @property
    def read_by_nccl(self) -> dict[Control, dict[str, str]]:
        """The variables that the library itself reads, by the control that sets them."""
        wanted: dict[Control, dict[str, str]] = {}
        for variable in self.variables:
            if variable.is_set and variable.name.startswith("NCCL_"):
                wanted.setdefault(variable.control, {})[variable.name] = variable.wanted
        return wanted


def needs_of(plan: Plan, environ: Mapping[str, str], *, force: bool = False, platform: Platform | None = None) -> Needs:
    """The variables of `makeway export --to env`, and the controls for launch shim and tuner plugin.

    `platform` is that of this machine's GPUs, None without one.
    """
    from makeway.act.export.targets import environment  # some time to load, and a trial needs none of it
    from makeway.act.export.values import library_of
    from makeway.act.tuner.carry import tuner_refusal

    library = library_of(plan)
    exported = environment(plan, library)
    variables = tuple(
        variable
        for answer in exported.carried
        for variable in _variables(answer.control, answer.settings, environ, force=force)
    )
    conditions = [Remark(answer.control, answer.note) for answer in exported.carried if answer.note]
    kept = {variable.control for variable in variables if variable.kept}
    tuned = tuple(
        answer.control
        for answer in exported.carried
        if platform is not None and isinstance(answer.control, CommBlocks) and answer.control not in kept
    )
    if tuned and (reason := tuner_refusal(plan, environ, version=library.version, force=force)):
        conditions += [Remark(control, f"without the tuner plugin: {reason}") for control in tuned]
        tuned = ()
    return Needs(
        variables=variables,
        launch_shim=tuple(control for control in plan.controls if isinstance(control, SmemPad | CommPriority)),
        tuner_plugin=tuned,
        conditions=tuple(conditions),
        no_variable=tuple(Remark(answer.control, answer.refusal) for answer in exported.refused),
        refused=tuple(
            Remark(control, partition_refusal(platform, environ))
            for control in plan.controls
            if platform is not None and isinstance(control, SmPartition)
        ),
    )


def needs_on_cpu(sets: Sequence[Sequence[Control]]) -> Needs:
    """What a job on CPU ranks needs that alternates between sets of controls: its processes switch all of them."""
    every = dict.fromkeys(control for controls in sets for control in controls)
    return Needs(
        variables=(),
        launch_shim=(),
        tuner_plugin=(),
        conditions=(),
        no_variable=tuple(Remark(control, NEVER_ON) for control in every),
        refused=(),
    )


def needs_of_trial(needs: Needs, sets: Sequence[Sequence[Control]]) -> Needs:
    """What a job on GPUs needs that alternates between sets of controls.

    Variables hold from start to end, so none is set: Python processes, launch shim and tuner plugin change what they
    carry as the job runs.
    """
    without = {remark.control for remark in needs.no_variable}
    every = tuple(dict.fromkeys(control for controls in sets for control in controls))
    return replace(
        needs,
        variables=(),
        conditions=tuple(remark for remark in needs.conditions if remark.text.startswith("without the tuner plugin")),
        launch_shim=tuple(control for control in every if isinstance(control, SmemPad | CommPriority)),
        tuner_plugin=tuple(control for control in every if isinstance(control, CommBlocks))
        if needs.tuner_plugin
        else (),
        no_variable=(
            *needs.no_variable,
            *(Remark(control, NEVER_ON) for control in every if control not in without),
        ),
    )


def _variables(
    control: Control, settings: Sequence[tuple[str, SettingValue]], environ: Mapping[str, str], *, force: bool
) -> Iterator[Variable]:
    variables = [
        Variable(control=control, name=name, wanted=str(value), present=environ.get(name), forced=force)
        for name, value in settings
    ]
    kept = next((variable.name for variable in variables if variable.kept), None)
    for variable in variables:
        yield replace(variable, kept_with=kept if variable.name != kept else None)


def receipts_at_start(plan: Plan, needs: Needs, *, no_shim: str | None = None) -> tuple[Receipt, ...]:
    """The receipt of each control unless a process of the program knows more; `no_shim`: why there is no shim."""
    return tuple(
        Receipt(control=control, status=status, detail=detail, carrier=CARRIER)
        for control in plan.controls
        for status, detail in [_at_start(control, needs, no_shim)]
    )


def _at_start(control: Control, needs: Needs, no_shim: str | None) -> tuple[Status, str]:
    variables = [variable for variable in needs.variables if variable.control == control]
    if kept := [variable.summary for variable in variables if variable.kept]:
        return "refused", "; ".join(kept)
    if reason := next((remark.text for remark in needs.refused if remark.control == control), None):
        return "refused", reason
    by_shim = control in needs.launch_shim
    if by_shim and no_shim is not None:
        return "refused", no_shim
    if variables:
        settings = " ".join(f"{variable.name}={variable.wanted}" for variable in variables)
        if control in needs.tuner_plugin:
            return "not seen", f"{settings} was set, and no NCCL or RCCL loaded the tuner plugin to confirm it"
        return "not seen", f"{settings} was set, and no process has confirmed that it took effect"
    if control in needs.tuner_plugin:
        return "not seen", "no NCCL or RCCL loaded the tuner plugin, which would have changed its channels"
    if by_shim:
        return "not seen", "no process launched a kernel through the CUDA or HIP driver under the launch shim"
    reasons = {remark.control: remark.text for remark in needs.no_variable}
    return "not seen", f"no process applied it: {reasons.get(control, 'nothing to set before the start')}"


# --- the route ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The files by which a plan reaches the program's processes."""

    plan: Path
    receipts: Path
    rules: Path | None = None  # both or neither: the launch shim
    shim: Path | None = None
    tuner: Tuner | None = None

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables that name the files; lists that the user has are extended, never replaced."""
        settings = {
            PLAN: str(self.plan),
            RECEIPTS: str(self.receipts),
            # First, since Python imports only the first sitecustomize on the path; ours imports the next one.
            PYTHON_PATH: _joined([str(START_HOOK), *_entries(environ.get(PYTHON_PATH), os.pathsep)]),
        }
        if self.shim is not None:
            # Last: what the user preloads may insist on being first, as AddressSanitizer does.
            before = _entries((environ.get(PRELOAD) or "").replace(" ", ":"), ":")
            settings |= {RULES: str(self.rules), PRELOAD: _joined([*before, str(self.shim)])}
        return settings | (self.tuner.variables if self.tuner else {})


def unloadable(shim: Path) -> str | None:
    """Why LD_PRELOAD cannot name that path; ld.so(8) splits the variable at blanks and colons."""
    if any(character in str(shim) for character in " :\t\n"):
        return f"LD_PRELOAD cannot hold {str(shim)!r}: it has a blank or a colon; set XDG_CACHE_HOME to another place"
    return None


def _entries(text: str | None, separator: str) -> list[str]:
    return [entry for entry in (text or "").split(separator) if entry]


def _joined(entries: Sequence[str]) -> str:
    return ":".join(dict.fromkeys(entries))
