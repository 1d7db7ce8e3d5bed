"""The plan: an ordered set of compatible controls, what it was made for and its predicted effect."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from makeway.values.control import Control, CopyEngine, SmemPad, SmPartition, TileChoice, check_whole, parse_control
from makeway.values.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFor:
    """What a plan was made for; None where unknown."""

    workload: str | None = None
    device: str | None = None
    gpus: int | None = None
    library: str | None = None  # a footprint: "nccl-2.32.3/ring-simple"

    def __post_init__(self) -> None:
        if self.gpus is not None:
            check_whole("gpus", self.gpus, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Simulated times of a workload without and with a plan: predicted, never measured."""

    t_naive_ms: float
    t_plan_ms: float
    t_ideal_ms: float
    share_of_ideal_naive: float | None = None  # None: nothing to gain
    share_of_ideal_plan: float | None = None
    dispatchers: tuple[str, ...] = ()  # each time is the longest under these dispatch policies

    def __post_init__(self) -> None:
        for what in ("t_naive_ms", "t_plan_ms", "t_ideal_ms"):
            value = float(getattr(self, what))
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{what} must be a number above 0, got {value!r}")
            object.__setattr__(self, what, value)
        for what in ("share_of_ideal_naive", "share_of_ideal_plan"):
            share = getattr(self, what)
            if share is None:
                continue
            if not math.isfinite(share):
                raise InputError(f"{what} must be a number, got {share!r}")
            object.__setattr__(self, what, float(share))


@dataclass(frozen=True, slots=True)
class Rejected:
    """A control that was tried and turned down, and why."""

    control: Control
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An ordered set of controls, each with the reason for it ("" where none is given).

    Controls that contradict or repeat each other are an error. Redundant ones are not: copy-engine goes with
    comm-blocks, comm-threads and partition, since collectives that add still need blocks, and priority goes with
    partition, where it has nothing to overtake.
    """

    controls: tuple[Control, ...]
    reasons: tuple[str, ...] = ()
    made_for: MadeFor | None = None
    predicted: Forecast | None = None
    rejected: tuple[Rejected, ...] = ()

    def __post_init__(self) -> None:
        if not self.reasons:
            object.__setattr__(self, "reasons", ("",) * len(self.controls))
        if len(self.reasons) != len(self.controls):
            raise InputError(f"a plan of {len(self.controls)} controls has {len(self.reasons)} reasons; give each one")
        _refuse_repeats(self.controls)
        _refuse_comm_without_sms(self.controls)


def _refuse_repeats(controls: tuple[Control, ...]) -> None:
    """One kernel cannot have two pads or two tiles, nor communication two numbers of blocks."""
    kernels: dict[type[Control], list[str]] = {}
    for control in controls:
        kernels.setdefault(type(control), []).append(getattr(control, "kernel", "*"))
    for kind, patterns in kernels.items():
        if len(set(patterns)) < len(patterns):
            per_kernel = " for the same kernels" if kind in (SmemPad, TileChoice) else ""
            raise InputError(f"{kind.name} is set twice{per_kernel}; keep one")
        if "*" in patterns and len(patterns) > 1:
            other = next(pattern for pattern in patterns if pattern != "*")
            raise InputError(f"{kind.name} is set for every kernel and again for kernels named {other!r}; name both sets")


def _refuse_comm_without_sms(controls: tuple[Control, ...]) -> None:
    if SmPartition(0) in controls and not any(isinstance(control, CopyEngine) for control in controls):
        raise InputError(
            "partition=0 leaves communication no SM, and nothing moves it to copy engines; "
            "give partition at least 1 SM, or add copy-engine"
        )


def parse_controls(texts: Iterable[str]) -> tuple[Control, ...]:
    """The controls of a command line; two that contradict or repeat each other are an error."""
    return Plan(controls=tuple(parse_control(text) for text in texts)).controls
