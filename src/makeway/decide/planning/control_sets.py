"""Sets of controls: what may stand beside what, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Compress,
    Control,
    CopyEngine,
    LaunchOrder,
    OwnCores,
    SmemPad,
    SmPartition,
    TileChoice,
)
from makeway.values.plan import Rejected

# How much a control interferes with a program, from a hint to the scheduler up to other results.
INTRUSIVENESS: dict[type[Control], int] = {
    CommPriority: 1, LaunchOrder: 1, CommBlocks: 2, CommThreads: 2, SmemPad: 3, SmPartition: 4, OwnCores: 4,
    CopyEngine: 5, Chunks: 6, TileChoice: 7, Compress: 8,
}  # fmt: skip

Option = tuple[Control, ...]  # one value of an axis: a control, or a partition with its channels


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Values of each kind of control; leaving a kind out is always possible unless it is forced."""

    axes: tuple[tuple[Option, ...], ...]  # one kind each; pads: one kind of block each
    forced: tuple[Control, ...]
    rejected: tuple[Rejected, ...]
    all_on_copy_engines: bool  # whether copy engines could carry every collective
    pad_room: str  # what keeps the collective's block off an SM with one compute block; "": nothing

    @property
    def points(self) -> int:
        """Sets of controls with at most one value of each axis."""
        total = 1
        for axis in self.axes:
            total *= len(axis) + 1
        return total

    def point(self, controls: Iterable[Control]) -> tuple[Control, ...]:
        """A set as it is scored: with the forced controls, without those that copy engines make idle."""
        kept = [*self.forced, *(item for item in controls if not any(exclusive(item, own) for own in self.forced))]
        if self.all_on_copy_engines and any(isinstance(control, CopyEngine) for control in kept):
            idle = (CommPriority, CommBlocks, CommThreads)
            kept = [item for item in kept if not isinstance(item, idle) or item in self.forced]
        return ordered(kept)

    def replaced(self, controls: Iterable[Control], option: Option) -> tuple[Control, ...]:
        """The set with an option in place of what contradicts it."""
        return (*(item for item in controls if not any(exclusive(item, new) for new in option)), *option)

    def without(self, controls: Iterable[Control], axis: tuple[Option, ...]) -> tuple[Control, ...]:
        """The set without any value of an axis."""
        own = axis[0][0]
        return tuple(item for item in controls if not (type(item) is type(own) and kernels_of(item) == kernels_of(own)))


def exclusive(one: Control, other: Control) -> bool:
    """Whether a plan cannot hold both: two of a kind, unless for different kernels."""
    return type(one) is type(other) and (
        kernels_of(one) == kernels_of(other) or "*" in (kernels_of(one), kernels_of(other))
    )


def kernels_of(control: Control) -> str:
    """The pattern of the kernels that a control acts on."""
    return str(getattr(control, "kernel", "*"))


def ordered(controls: Iterable[Control]) -> tuple[Control, ...]:
    """Controls in the order of a plan: the least intrusive first."""
    return tuple(sorted(controls, key=lambda item: (INTRUSIVENESS[type(item)], type(item).__name__, repr(item))))
