"""One rank of test_training_loss.py: trains 20 steps in each way and prints the losses, as JSON, on rank 0."""

from __future__ import annotations

import json
import sys

import torch

from makeway.act.cpu.direct import DirectGroup
from makeway.act.measure.job import Job
from makeway.act.measure.ranks.exchange import Carrier, DirectCarrier, GlooCarrier, Recorder
from makeway.act.measure.ranks.lanes import Way
from makeway.act.measure.ranks.training import training
from makeway.act.measure.ranks.world import World, join, leave

STEPS = 20
KINDS = (("ddp", "none"), ("ddp", "fp16"), ("ddp", "powersgd"), ("fsdp2", "none"))


def losses(world: World, workload: str, compress: str, ways: dict[str, tuple[Carrier, int]]) -> dict[str, list[float]]:
    """Of every step under torch's own defaults ("stock") and in each way."""
    job = Job(workload=workload, settings=(), steps=STEPS, scale=0.25, bucket_mb=0.1, compress=compress)
    model = training(job, world)
    found = {"stock": list(model._expected)}  # type: ignore[attr-defined]
    for name, (carrier, pieces) in ways.items():
        way = Way(mode="overlap", carrier=carrier, recorder=Recorder(), pieces=pieces)
        model.prepare(way)
        model.run(way)
        found[name] = list(model._losses)  # type: ignore[attr-defined]
    return found


def main() -> None:
    torch.set_num_threads(1)
    world = join(60)
    with DirectGroup(timeout_s=60) as group:
        found = {}
        for workload, compress in KINDS:
            ways: dict[str, tuple[Carrier, int]] = {"overlap": (GlooCarrier(), 1)}
            if compress != "powersgd" and workload == "ddp":
                ways["chunks=2"] = (GlooCarrier(), 2)
            if compress == "none":
                ways["copy-engine"] = (DirectCarrier(group), 1)
            found[f"{workload} {compress}"] = losses(world, workload, compress, ways)
    if world.rank == 0:
        json.dump(found, sys.stdout)
    leave()


if __name__ == "__main__":
    main()
