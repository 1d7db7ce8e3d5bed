"""One rank of test_training_loss.py: trains 20 steps in each schedule and prints the losses, as JSON, on rank 0."""

from __future__ import annotations

import json
import sys

import torch

from makeway.act.cpu.direct import DirectGroup
from makeway.act.measure.job import Job
from makeway.act.measure.ranks.exchange import DirectTransport, GlooTransport, Recorder, Transport
from makeway.act.measure.ranks.lanes import Schedule
from makeway.act.measure.ranks.training import training
from makeway.act.measure.ranks.world import World, join, leave

STEPS = 20
KINDS = (("ddp", "none"), ("ddp", "fp16"), ("ddp", "powersgd"), ("fsdp2", "none"))


def losses(
    world: World, workload: str, compress: str, schedules: dict[str, tuple[Transport, int]]
) -> dict[str, list[float]]:
    """Of every step under torch's own defaults ("stock") and in each schedule."""
    job = Job(workload=workload, variants=(), steps=STEPS, scale=0.25, bucket_mb=0.1, compress=compress)
    model = training(job, world)
    found = {"stock": list(model._expected)}  # type: ignore[attr-defined]
    for name, (transport, pieces) in schedules.items():
        schedule = Schedule(mode="overlap", transport=transport, recorder=Recorder(), pieces=pieces)
        model.prepare(schedule)
        model.run(schedule)
        found[name] = list(model._losses)  # type: ignore[attr-defined]
    return found


def main() -> None:
    torch.set_num_threads(1)
    world = join(60)
    with DirectGroup(timeout_s=60) as group:
        found = {}
        for workload, compress in KINDS:
            schedules: dict[str, tuple[Transport, int]] = {"overlap": (GlooTransport(), 1)}
            if compress != "powersgd" and workload == "ddp":
                schedules["chunks=2"] = (GlooTransport(), 2)
            if compress == "none":
                schedules["copy-engine"] = (DirectTransport(group), 1)
            found[f"{workload} {compress}"] = losses(world, workload, compress, schedules)
    if world.rank == 0:
        json.dump(found, sys.stdout)
    leave()


if __name__ == "__main__":
    main()
