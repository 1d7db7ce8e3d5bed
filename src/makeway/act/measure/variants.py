"""Which variants a bench runs, as values: what overlaps, under which controls, with how many threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from makeway.act.measure.outcome import OVERLAP, SEQUENTIAL, TORCHRUN
from makeway.values.control import Chunks, CommPriority, Control, CopyEngine, SmPartition, control_word, parse_control
from makeway.values.errors import InputError
from makeway.values.plan import Plan

Mode = Literal["compute", "comm", "sequential", "overlap"]

COMPUTE, COMM = "compute alone", "comm alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to run a workload."""

    name: str
    mode: Mode = "overlap"
    controls: tuple[Control, ...] = ()
    threads: int  # compute threads of each rank, before controls

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise InputError(f"{self.name}: a rank needs at least 1 thread, got {self.threads}")
        Plan(controls=self.controls)  # controls that cannot hold together are an error


def fair_threads(cores: int, ranks: int) -> int:
    """Threads per rank that share the cores of one host without crowding them."""
    return max(cores // ranks, 1)


def fixed_settings(cores: int, ranks: int) -> tuple[Setting, ...]:
    """What every bench measures: the parts alone, one after the other, and torch's two defaults.

    The parts alone and the sequential run get a fair share of the cores, so that no gain is counted that comes
    from crowding in the run it is compared with.
    """
    fair = fair_threads(cores, ranks)
    return (
        Setting(name=COMPUTE, mode="compute", threads=fair),
        Setting(name=COMM, mode="comm", threads=fair),
        Setting(name=SEQUENTIAL, mode="sequential", threads=fair),
        Setting(name=OVERLAP, threads=cores),  # torch alone: a thread per core in every rank
        Setting(name=TORCHRUN, threads=1),  # torchrun sets OMP_NUM_THREADS=1
    )


def parse_variant(text: str) -> tuple[Control, ...]:
    """The controls of one variant: "priority", or several joined, "copy-engine+chunks=4"."""
    return tuple(parse_control(word) for word in text.split("+"))


def variant_name(controls: Sequence[Control]) -> str:
    return "+".join(control_word(control) for control in controls)


def controlled_settings(texts: Sequence[str], cores: int, ranks: int) -> tuple[Setting, ...]:
    """One setting for each variant that was named."""
    threads = fair_threads(cores, ranks)
    found = [parse_variant(text) for text in dict.fromkeys(texts)]
    return tuple(Setting(name=variant_name(controls), controls=controls, threads=threads) for controls in found)


def candidate_settings(cores: int, ranks: int, *, shared_memory: bool, wide: bool = False) -> tuple[Setting, ...]:
    """What planning tries by itself; `wide` adds pairs of controls.

    Copy engines stand for shared memory on a CPU host, which is no choice where ranks are apart.
    """
    singles: list[tuple[Control, ...]] = [(CommPriority(),), (Chunks(2),), (Chunks(4),)]
    if cores > 1:
        singles.append((SmPartition(1),))
    if shared_memory:
        singles.insert(0, (CopyEngine(),))
    pairs: list[tuple[Control, ...]] = [(CommPriority(), Chunks(2)), (CommPriority(), Chunks(4))]
    if shared_memory:
        pairs += [(CopyEngine(), CommPriority()), (CopyEngine(), Chunks(2)), (CopyEngine(), Chunks(4))]
    threads = fair_threads(cores, ranks)
    found = singles + (pairs if wide else [])
    return tuple(Setting(name=variant_name(controls), controls=controls, threads=threads) for controls in found)


def rotated(settings: Sequence[Setting], turn: int) -> tuple[Setting, ...]:
    """The settings in the order of one round: each comes first, second, ... equally often."""
    at = turn % len(settings) if settings else 0
    return (*settings[at:], *settings[:at])
