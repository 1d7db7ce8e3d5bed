"""The variants of a bench: what overlaps, under which controls, with how many compute threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from makeway.values.control import (
    Chunks,
    CommPriority,
    Compress,
    Control,
    CopyEngine,
    OwnCores,
    SmPartition,
    control_word,
)
from makeway.values.errors import InputError
from makeway.values.plan import Plan, parse_controls

Controls = tuple[Control, ...]
Mode = Literal["compute", "comm", "sequential", "overlap"]

COMPUTE, COMM = "compute alone", "comm alone"
SEQUENTIAL, OVERLAP, TORCHRUN, PLANNED = "sequential", "overlap", "overlap_torchrun", "planned"
BASELINES = (OVERLAP, TORCHRUN)  # what people have today: torch's own thread count, and torchrun's


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run a workload."""

    name: str
    mode: Mode = "overlap"
    controls: Controls = ()
    threads: int = 1  # compute threads of each rank, before controls; unused on GPUs

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise InputError(f"{self.name}: a rank needs at least 1 thread, got {self.threads}")
        Plan(controls=self.controls)  # refuses contradictory controls


def fair_threads(cores: int, ranks: int) -> int:
    """Threads per rank that share the cores of one host without crowding them."""
    return max(cores // ranks, 1)


def fixed_variants(cores: int, ranks: int) -> tuple[Variant, ...]:
    """What every bench on CPU ranks measures: each part alone, sequential, and torch's two defaults.

    Parts and sequential get a fair share of the cores: no gain comes from crowding in the run it is compared with.
    """
    fair = fair_threads(cores, ranks)
    return (
        Variant(name=COMPUTE, mode="compute", threads=fair),
        Variant(name=COMM, mode="comm", threads=fair),
        Variant(name=SEQUENTIAL, mode="sequential", threads=fair),
        Variant(name=OVERLAP, threads=cores),  # torch alone: a thread per core in every rank
        Variant(name=TORCHRUN, threads=1),  # torchrun sets OMP_NUM_THREADS=1
    )


def parse_variant(text: str) -> Controls:
    """The controls of one variant: "priority", or several joined, "copy-engine+chunks=4"."""
    return parse_controls(text.split("+"))


def variant_name(controls: Sequence[Control]) -> str:
    return "+".join(control_word(control) for control in controls)


def controlled_variants(sets: Iterable[Controls], threads: int = 1) -> tuple[Variant, ...]:
    """One variant for each set of controls."""
    return tuple(
        Variant(name=variant_name(controls), controls=controls, threads=threads) for controls in dict.fromkeys(sets)
    )


def candidate_controls(
    cores: int, *, shared_memory: bool, wide: bool = False, compressible: bool = False
) -> list[Controls]:
    """What planning tries by itself on CPU ranks; `wide` adds more pieces, and pairs of controls.

    Shared memory stands for copy engines on a CPU host; ranks on different hosts have none. `compressible`: results may
    change, and there are gradients to compress.
    """
    singles: list[Controls] = [(CommPriority(),), (Chunks(2),), (Chunks(4),)]
    if cores > 1:
        singles += [(SmPartition(1),), (OwnCores(), Chunks(4))]
    if shared_memory:
        singles.insert(0, (CopyEngine(),))
    pairs: list[Controls] = [(Chunks(8),), *((CommPriority(), Chunks(pieces)) for pieces in (2, 4, 8))]
    if shared_memory:
        pairs += [(CopyEngine(), CommPriority()), (CopyEngine(), Chunks(2)), (CopyEngine(), Chunks(4))]
    compressed: list[Controls] = [
        (Compress("bf16"),),
        (Compress("fp16"),),
        (Compress("powersgd"),),
        (Compress("topk"),),
    ]
    return singles + (pairs if wide else []) + (compressed if compressible else [])


def measured_as(variants: Sequence[Variant]) -> dict[str, str]:
    """For each variant the first one that runs the same: one measurement serves both, and they cannot differ."""
    first: dict[tuple[Mode, Controls, int], str] = {}
    return {
        variant.name: first.setdefault((variant.mode, variant.controls, variant.threads), variant.name)
        for variant in variants
    }


def rotated(variants: Sequence[Variant], turn: int) -> tuple[Variant, ...]:
    """The variants in the order of one round: each comes first, second, ... equally often."""
    start = turn % len(variants) if variants else 0
    return (*variants[start:], *variants[:start])
