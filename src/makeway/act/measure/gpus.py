"""What a bench on GPUs runs: how many ranks, which settings, which candidates. Not yet run on hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from makeway.act.cuda.machine import look
from makeway.act.measure.names import pair_collective
from makeway.act.measure.outcome import OVERLAP, SEQUENTIAL
from makeway.act.measure.simulated import simulated_workload
from makeway.act.measure.variants import COMM, COMPUTE, Setting, parse_variant, variant_name
from makeway.decide.planning.planner import plan
from makeway.model.presets import PresetOptions
from makeway.values.control import Chunks, CommBlocks, CommPriority, Control, CopyEngine, LaunchOrder, SmPartition
from makeway.values.device import Device
from makeway.values.errors import InputError, UnsupportedError

Vendor = Literal["nvidia", "amd"]
Settings = tuple[Setting, ...]

VENDORS: dict[str, Vendor] = {"cuda": "nvidia", "rocm": "amd"}
USUAL_STEPS = 8  # the first GEMM and the last collective of a round have nothing beside them


def gpu_ranks(on: str, asked: int | None) -> int:
    """One rank for each GPU of this host, or as many as asked; an error where there are not so many."""
    machine = look(VENDORS[on])
    if machine.missing is not None:
        raise UnsupportedError(
            f"--on {on}: {machine.missing}; measure on this host with --on cpu, or predict with --on sim:DEVICE "
            "(`makeway devices` lists them)"
        )
    if asked is not None and asked > machine.devices:
        raise InputError(
            f"--ranks {asked} on {machine.devices} GPUs: each rank needs one of its own; several hosts are started by "
            "torchrun"
        )
    return machine.devices if asked is None else asked


def gpu_settings(workload: str, texts: Sequence[str], *, plan: bool, wide: bool) -> tuple[Settings, Settings]:
    """The settings to measure and the candidates to choose from; named variants are both."""
    kind = pair_collective(workload)
    asked = _settings([parse_variant(text) for text in dict.fromkeys(texts)])
    fixed = (
        Setting(name=COMPUTE, mode="compute", threads=1),
        Setting(name=COMM, mode="comm", threads=1),
        Setting(name=SEQUENTIAL, mode="sequential", threads=1),
        Setting(name=OVERLAP, threads=1),
    )
    if not plan:
        return (*fixed, *asked), ()
    own = _settings(_candidates(copies=kind != "all-reduce", free=workload.startswith("conccl"), wide=wide))
    return (*fixed, *asked), asked if texts and not wide else (*asked, *(one for one in own if one not in asked))


def planner_setting(workload: str, device: Device, *, ranks: int, in_flight: int | None) -> Settings:
    """The planner's choice for that device, to be tried first; none where it would change nothing."""
    options = PresetOptions(ranks=max(ranks, 2), in_flight=in_flight)
    controls = plan(simulated_workload(workload, device, options), device).controls
    return _settings([controls]) if controls else ()


def _candidates(*, copies: bool, free: bool, wide: bool) -> list[tuple[Control, ...]]:
    """What planning tries by itself; `copies`: nothing is added; `free`: collectives wait for no GEMM."""
    singles: list[tuple[Control, ...]] = [(CommPriority(),), (CommBlocks(8),), (Chunks(2),)]
    if free:
        singles.insert(0, (LaunchOrder(),))
    if copies:
        singles.insert(0, (CopyEngine(),))
    pairs: list[tuple[Control, ...]] = [
        (CommPriority(), CommBlocks(4)),
        (CommPriority(), CommBlocks(8)),
        (CommPriority(), CommBlocks(16)),
        (CommPriority(), Chunks(2)),
        (CommPriority(), Chunks(4)),
        (SmPartition(8),),
        (SmPartition(16),),
    ]
    return singles + (pairs if wide else [])


def _settings(found: Sequence[tuple[Control, ...]]) -> Settings:
    return tuple(Setting(name=variant_name(controls), controls=controls, threads=1) for controls in found)
