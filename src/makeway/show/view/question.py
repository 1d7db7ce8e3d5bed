"""What the live page asks: a workload on a device under controls and settings, answered by `simulate`."""

from __future__ import annotations

import shlex
from typing import Literal, Protocol, TypeVar

import msgspec

from makeway.model.presets import PresetOptions, load_preset, preset_options
from makeway.model.simulate.policies import DISPATCHES, HBM_POLICIES
from makeway.model.simulate.predict import Prediction, Settings, simulate
from makeway.model.simulate.sweep import MANY_BLOCKS, with_alternatives
from makeway.values.device import Device
from makeway.values.errors import InputError, suggestion
from makeway.values.kernel import KernelResources, parse_resources
from makeway.values.plan import parse_controls
from makeway.values.workload import Workload

MOST_CONTROLS = 16
MOST_CHARACTERS = 300  # of a text in a question
Stage = Literal["quick", "settled", "whole"]
T = TypeVar("T")


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of the page's form. Texts are those of the command line; None is the default."""

    workload: str
    device: str
    controls: tuple[str, ...] = ()
    block: str | None = None  # of the preset's GEMMs
    ranks: int | None = None
    dispatch: str | None = None
    hbm: str = "proportional"
    jitter: float | None = None
    skew_us: float = 0.0

    def __post_init__(self) -> None:
        if len(self.controls) > MOST_CONTROLS:
            raise ValueError(f"at most {MOST_CONTROLS} controls")
        if any(len(text) > MOST_CHARACTERS for text in (self.workload, self.device, self.block or "", *self.controls)):
            raise ValueError(f"a text has more than {MOST_CHARACTERS} characters")


class Desk(Protocol):
    """What a question may name besides presets and known devices."""

    def workload(self, name: str) -> tuple[Workload, Device | None] | None:
        """An opened workload, and the device of a recorded one; None for any other name."""

    def device(self, name: str) -> Device:
        """The device of that name; never a file that the page names."""


def answer(question: Question, stage: Stage, desk: Desk) -> Prediction:
    """The prediction; "settled" is that of `makeway simulate`, "whole" has all that its JSON has.

    "quick" takes the class engine, which knows equal block times only and answers in tens of milliseconds.
    """
    workload, device = subject(question, desk)
    controls = parse_controls(question.controls)
    settings = settings_of(question, stage)
    prediction = simulate(workload, device, controls, settings)
    if stage == "whole" and prediction.blocks <= MANY_BLOCKS:
        return with_alternatives(prediction, settings)
    return prediction


def settings_of(question: Question, stage: Stage) -> Settings:
    """The settings that the question asks for."""
    if question.skew_us < 0:
        raise InputError(f"skew cannot be negative, got {question.skew_us:g}")
    quick = stage == "quick"
    return Settings(
        engine="class" if quick else "auto",
        dispatch=None if question.dispatch is None else _known(DISPATCHES, question.dispatch, "dispatch policy"),
        hbm=_known(HBM_POLICIES, question.hbm, "HBM policy"),
        jitter=None if quick else question.jitter,
        skew_ns=question.skew_us * 1e3,
        record=stage == "whole",
    )


def subject(question: Question, desk: Desk) -> tuple[Workload, Device]:
    """The workload and the device; an opened workload keeps what its file says, a recording its own device."""
    if (opened := desk.workload(question.workload)) is not None:
        if question.block is not None or question.ranks is not None:
            raise InputError("block and ranks are of presets; a workload file or a recording says them itself")
        workload, own_device = opened
        return workload, own_device or desk.device(question.device)
    device = desk.device(question.device)
    options = PresetOptions(ranks=question.ranks, block=parse_resources(question.block) if question.block else None)
    return load_preset(question.workload, device, options), device


def command_of(question: Question, path: str | None = None) -> str:
    """The same question on the command line."""
    parts = ["makeway", "simulate", path or question.workload, "--device", question.device]
    for name in ("ranks", "block", "dispatch", "jitter"):
        if (value := getattr(question, name)) is not None:
            parts += [f"--{name}", str(value)]
    if question.hbm != "proportional":
        parts += ["--hbm", question.hbm]
    if question.skew_us:
        parts += ["--skew-us", f"{question.skew_us:g}"]
    for control in question.controls:
        parts += ["--control", control]
    return shlex.join(parts)


def block_text(block: KernelResources) -> str:
    """A block as `parse_resources` reads it."""
    return f"threads={block.threads},registers={block.registers_per_thread},smem={block.smem_bytes}"


def takes(workload: str, option: str) -> bool:
    """Whether a preset has an option."""
    return option in preset_options(workload)


def _known(policies: dict[str, T], name: str, what: str) -> T:
    if name not in policies:
        raise InputError(f"no {what} {name!r}{suggestion(name, policies)}; known: {', '.join(policies)}")
    return policies[name]
