"""The pair of a workload on CPU ranks, and the depth that makes GEMM and exchange about equally long."""

from __future__ import annotations

import time

from makeway.act.measure.job import Job
from makeway.act.measure.names import family, pair_collective
from makeway.act.measure.ranks.exchange import GlooTransport, Recorder
from makeway.act.measure.ranks.lanes import Schedule
from makeway.act.measure.ranks.pairs import Pairs, published_shape, result_shape
from makeway.act.measure.ranks.world import World
from makeway.act.measure.sizes import DEFAULT_BYTES, DEFAULT_SCALE, UNIT_DEPTH, depth_at, rounded_depth
from makeway.act.measure.variants import Mode
from makeway.values.collective import CollectiveKind
from makeway.values.units import ceil_to

_TRIALS = 8


def pairs(job: Job, world: World) -> Pairs:
    """The pair of a job."""
    steps = job.round_steps
    if family(job.workload) == "published":
        in_turn = not job.workload.startswith("conccl")
        shape = published_shape(job.workload, job.scale or DEFAULT_SCALE, world.ranks)
        return Pairs(world, shape, steps if in_turn else ceil_to(steps, 2), steady=not in_turn, seed=job.seed)
    kind, size = pair_collective(job.workload), job.size_bytes or DEFAULT_BYTES
    depth = depth_at(job.scale) if job.scale is not None else _balanced_depth(kind, size, world)
    return Pairs(world, result_shape(kind, size, depth, world.ranks), ceil_to(steps, 2), steady=True, seed=job.seed)


def _balanced_depth(kind: CollectiveKind, size_bytes: int, world: World) -> int:
    """K of a GEMM that takes as long as the collective of its result, each alone.

    Measured twice, the second time at the depth the first one gave, since a GEMM's speed depends on its depth.
    """
    depth = UNIT_DEPTH
    for _ in range(2):
        trial = Pairs(world, result_shape(kind, size_bytes, depth, world.ranks), 2, steady=True)
        fastest: dict[Mode, int] = {}
        for mode in ("compute", "comm") * _TRIALS:
            time_ns = _alone_ns(trial, mode, world)
            fastest[mode] = min(time_ns, fastest.get(mode, time_ns))  # others on this host only ever add time
        balanced = rounded_depth(depth * fastest["comm"] / fastest["compute"])
        depth = world.broadcast(lambda: balanced, int)  # noqa: B023  # runs at once
    return depth


def _alone_ns(trial: Pairs, mode: Mode, world: World) -> int:
    schedule = Schedule(mode=mode, transport=GlooTransport(), recorder=Recorder())
    trial.prepare(schedule)
    world.barrier()
    start = time.perf_counter_ns()
    trial.run(schedule)
    return time.perf_counter_ns() - start
