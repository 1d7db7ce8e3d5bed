"""What a bench on GPUs runs: how many ranks, which variants, which candidates. Not yet run on hardware."""

from __future__ import annotations

from typing import Literal

from makeway.act.cuda.machine import look
from makeway.act.measure.job import Job
from makeway.act.measure.names import pair_collective
from makeway.act.measure.simulated import simulated_workload
from makeway.act.measure.variants import COMM, COMPUTE, OVERLAP, SEQUENTIAL, Controls, Variant, controlled_variants
from makeway.decide.planning.planner import plan as make_plan
from makeway.model.presets import PresetOptions
from makeway.values.collective import ADDING
from makeway.values.control import Chunks, CommBlocks, CommPriority, CopyEngine, LaunchOrder, SmPartition
from makeway.values.device import Device
from makeway.values.errors import InputError, UnsupportedError

Vendor = Literal["nvidia", "amd"]

VENDORS: dict[str, Vendor] = {"cuda": "nvidia", "rocm": "amd"}
FIXED_VARIANTS = (
    Variant(name=COMPUTE, mode="compute"),
    Variant(name=COMM, mode="comm"),
    Variant(name=SEQUENTIAL, mode="sequential"),
    Variant(name=OVERLAP),
)


def gpu_ranks(on: str, wanted: int | None) -> int:
    """One rank for each GPU of this host, or as many as wanted; an error where there are not so many GPUs."""
    machine = look(VENDORS[on])
    if machine.missing is not None:
        raise UnsupportedError(
            f"--on {on}: {machine.missing}; measure on this host with --on cpu, or predict with --on sim:DEVICE "
            "(`makeway devices` lists them)"
        )
    if wanted is not None and wanted > machine.devices:
        raise InputError(
            f"--ranks {wanted} on {machine.devices} GPUs: each rank needs one of its own; start several hosts with "
            "torchrun"
        )
    return machine.devices if wanted is None else wanted


def planner_variants(job: Job, device: Device, ranks: int) -> tuple[Variant, ...]:
    """The planner's choice for that device, to be tried first; none where it would change nothing."""
    options = PresetOptions(ranks=ranks, in_flight=job.in_flight)
    controls = make_plan(simulated_workload(job.workload, device, options), device).controls
    return controlled_variants([controls]) if controls else ()


def candidate_variants(workload: str, *, wide: bool) -> tuple[Variant, ...]:
    """What planning tries by itself; `wide` adds pairs of controls. An error for workloads that are not a pair."""
    copies = pair_collective(workload) not in ADDING  # copy engines cannot add
    singles: list[Controls] = [(CommPriority(),), (CommBlocks(8),), (Chunks(2),)]
    if workload.startswith("conccl"):  # its collectives wait for no GEMM
        singles.insert(0, (LaunchOrder(),))
    if copies:
        singles.insert(0, (CopyEngine(),))
    pairs: list[Controls] = [
        (CommPriority(), CommBlocks(4)),
        (CommPriority(), CommBlocks(8)),
        (CommPriority(), CommBlocks(16)),
        (CommPriority(), Chunks(2)),
        (CommPriority(), Chunks(4)),
        (SmPartition(8),),
        (SmPartition(16),),
    ]
    return controlled_variants(singles + (pairs if wide else []))
