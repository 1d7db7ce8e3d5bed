"""Plans: an ordered set of compatible controls, what it was made for, its predicted effect, and how it was found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from makeway.values.control import (
    Control,
    CopyEngine,
    SmemPad,
    SmPartition,
    TileChoice,
    describe,
    describe_on_host,
    parse_control,
)
from makeway.values.errors import InputError
from makeway.values.units import check_whole

if TYPE_CHECKING:  # a program under a plan waits for what is loaded here
    from makeway.values.device import Device
    from makeway.values.support import Support
    from makeway.values.timeline import Timeline
    from makeway.values.workload import Workload

CPU_RANKS = "cpu"  # where a bench or a tuned job ran, as its plan says
HOSTS = ("CPU-host", "this-host", CPU_RANKS)  # as plans name CPU hosts: the known one, a calibrated one, measured ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFor:
    """What a plan was made for; None where unknown."""

    workload: str | None = None
    device: str | None = None
    ranks: int | None = None
    library: str | None = None  # a footprint: "nccl-2.32.3/ring-simple"

    def __post_init__(self) -> None:
        if self.ranks is not None:
            check_whole("ranks", self.ranks, 1)

    @property
    def on_host(self) -> bool:
        """Made for CPU ranks."""
        return self.device in HOSTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Simulated times of a workload without and with a plan: predicted, never measured."""

    t_naive_ns: int
    t_plan_ns: int
    t_ideal_ns: int
    t_sequential_ns: int | None = None  # None: not known
    share_of_ideal_naive: float | None = None  # None: nothing to gain
    share_of_ideal_plan: float | None = None
    dispatchers: tuple[str, ...] = ()  # the plan was judged by these dispatch policies; the times are under the first

    def __post_init__(self) -> None:
        for name in ("t_naive_ns", "t_plan_ns", "t_ideal_ns", "t_sequential_ns"):
            if name != "t_sequential_ns" or self.t_sequential_ns is not None:
                check_whole(name, getattr(self, name), 1)
        for name in ("share_of_ideal_naive", "share_of_ideal_plan"):
            share = getattr(self, name)
            if share is not None and not math.isfinite(share):
                raise InputError(f"{name} must be a number, got {share!r}")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A control that was considered and rejected, and why."""

    control: Control
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What a published heuristic sets, and its predicted time by the same score as the plan."""

    controls: tuple[Control, ...]
    t_ns: int
    share_of_ideal: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTimes:
    """Predicted times under one dispatch policy that the device may follow."""

    dispatch: str
    t_naive_ns: int
    t_plan_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How a plan was found: what was tried, what it was compared with, and how times were predicted."""

    workload: Workload | None  # None: a recording of CPU ranks, which is not simulated
    device: Device
    heuristic: str  # "makeway", or the published one that was followed
    summary: tuple[str, ...]  # sentences; the first is the verdict
    leave_as_is: bool  # the best gain is within the error of differences: the plan holds only required controls
    best_controls: tuple[Control, ...]  # the fastest found, even if not worth applying
    t_best_ns: int
    baselines: Mapping[str, Baseline]  # by heuristic
    policies: tuple[PolicyTimes, ...]  # the vendor's first
    error_of_difference: float  # of the model between two settings, out of sample; part of the sequential time
    error_basis: str  # what that was computed from
    evaluations: int  # sets of controls that the search scored
    judged: int  # runs of the predictor that decided: a set under a dispatch policy each
    engine: str  # that predicted the times
    destination: str | None = None  # the carrier that it was made for; None: any
    routes: tuple[tuple[Support, ...], ...] = ()  # for each control of the plan, what can apply it on this device
    notes: tuple[str, ...] = ()
    timelines: tuple[tuple[str, Timeline], ...] = ()  # without and with the plan, where they were wanted


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
    search: Search | None = field(default=None, compare=False)  # None: read from a file, or written by hand

    @property
    def describe(self) -> Callable[[Control], str]:
        """A control in prose, in words for the hardware that the plan was made for."""
        return describe_on_host if self.made_for is not None and self.made_for.on_host else describe

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
            raise InputError(
                f"{kind.name} is set for every kernel and again for kernels named {other!r}; name both sets"
            )


def _refuse_comm_without_sms(controls: tuple[Control, ...]) -> None:
    if SmPartition(0) in controls and not any(isinstance(control, CopyEngine) for control in controls):
        raise InputError(
            "partition=0 leaves communication no SM, and nothing moves it to copy engines; "
            "give partition at least 1 SM, or add copy-engine"
        )


def parse_controls(texts: Iterable[str]) -> tuple[Control, ...]:
    """The controls of a command line; two that contradict or repeat each other are an error."""
    return Plan(controls=tuple(parse_control(text) for text in texts)).controls
