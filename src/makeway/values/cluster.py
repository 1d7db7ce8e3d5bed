"""Clusters: GPUs of one kind, and the networks that join them, from the inside out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from makeway.values.device import Device
from makeway.values.errors import InputError
from makeway.values.units import check_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One network: the links inside a node, the rails, a pod, the core."""

    name: str
    gpus: int | None  # that it joins; None: as many as there are
    bytes_per_s: float  # per GPU, one direction, as specified
    latency_ns: float  # of one hop
    efficiency: float  # of the rate that large messages reach
    half_rate_bytes: float = 0.0  # message at which half of that is reached; 0: at any size
    oversubscription: float = 1.0  # traffic that leaves the level below shares 1 / this of its rate
    reduces: bool = False  # switches add up all-reduces (NVLS, SHARP)
    source: str = ""

    def __post_init__(self) -> None:
        if not (self.bytes_per_s > 0 and 0 < self.efficiency <= 1 and self.oversubscription >= 1):
            raise InputError(
                f"level {self.name}: a rate above 0, an efficiency of at most 1, an oversubscription of 1 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that exchange data: `size` of them, `stride` GPUs apart."""

    size: int
    stride: int = 1

    def __post_init__(self) -> None:
        check_whole("group size", self.size, 1)
        check_whole("group stride", self.stride, 1)

    @property
    def span(self) -> int:
        """GPUs from the first to the last, with those between."""
        return (self.size - 1) * self.stride + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """How much the step time of GPUs varies: standard deviations, as shares of it."""

    transient: float  # of one GPU from step to step
    persistent: float  # between GPUs, for good
    source: str = ""

    def __post_init__(self) -> None:
        if not (0 <= self.transient < 1 and 0 <= self.persistent < 1):
            raise InputError(
                f"jitter is two shares of a step from 0 to 1, got {self.transient:g} and {self.persistent:g}"
            )

    @property
    def spread(self) -> float:
        """Of one step among all GPUs."""
        return float((self.transient**2 + self.persistent**2) ** 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """GPUs of one kind in networks; each level joins several of the level below."""

    name: str
    device: Device
    levels: tuple[Level, ...]
    jitter: Jitter | None = None  # of its GPUs; None: as much as published runs show
    source: str = ""
    summary: str = ""

    def __post_init__(self) -> None:
        if not self.levels:
            raise InputError(f"cluster {self.name} has no network")
        sizes = [level.gpus for level in self.levels]
        if None in sizes[:-1]:
            raise InputError(f"cluster {self.name}: only the outermost level may join any number of GPUs")
        known = [size for size in sizes if size is not None]
        if any(outer % inner for inner, outer in pairwise(known)):
            raise InputError(f"cluster {self.name}: each level must hold whole ones of the level below, got {known}")

    @property
    def most_gpus(self) -> int | None:
        return self.levels[-1].gpus

    def depth(self, group: Group) -> int:
        """The number of the level that joins all of a group, 0 for the innermost."""
        for number, level in enumerate(self.levels):
            if level.gpus is None or group.span <= level.gpus:
                return number
        raise InputError(f"{group.span:,} GPUs; cluster {self.name} joins at most {self.levels[-1].gpus:,}")
