"""Which pair a name asks for, and the depth of its GEMM that makes compute and exchange about equally long."""

from __future__ import annotations

import time
from functools import partial

from makeway.act.measure.job import Job
from makeway.act.measure.ranks.exchange import GlooCarrier, Recorder
from makeway.act.measure.ranks.lanes import Way
from makeway.act.measure.ranks.pairs import Pairs, PairShape, result_shape, scaled_shape
from makeway.act.measure.ranks.world import World
from makeway.act.measure.variants import Mode
from makeway.model.presets import load_preset
from makeway.values.collective import CollectiveKind
from makeway.values.device import load_device
from makeway.values.units import MIB, ceil_to
from makeway.values.workload import Gemm

KINDS: dict[str, CollectiveKind] = {"gemm-ar": "all-reduce", "gemm-ag": "all-gather", "gemm-a2a": "all-to-all"}
DEFAULT_BYTES = 8 * MIB
DEFAULT_SCALE = 1 / 16
_ANY_DEVICE = "A100-SXM4-80GB"  # shapes and sizes of a preset are the same for every device
_TRIAL_DEPTH, _LEAST_DEPTH, _MOST_DEPTH, _DEPTH_STEP = 256, 16, 1 << 14, 16
_TRIALS = 8


def pairs(job: Job, world: World) -> Pairs:
    """The pair that a job asks for."""
    even_steps = ceil_to(job.steps, 2)
    if job.workload not in KINDS:
        in_turn = not job.workload.startswith("conccl")
        shape = _published(job.workload, job.scale or DEFAULT_SCALE, world.ranks)
        return Pairs(world, shape, job.steps if in_turn else even_steps, steady=not in_turn, seed=job.seed)
    kind, size = KINDS[job.workload], job.size_bytes or DEFAULT_BYTES
    if job.scale is not None:
        shape = result_shape(kind, size, max(round(job.scale * _TRIAL_DEPTH), 1), world.ranks)
    else:
        shape = result_shape(kind, size, _balanced_depth(kind, size, world), world.ranks)
    return Pairs(world, shape, even_steps, steady=True, seed=job.seed)


def _published(name: str, scale: float, ranks: int) -> PairShape:
    workload = load_preset(name, load_device(_ANY_DEVICE))
    work = next(kernel.work for kernel in workload.kernels if isinstance(kernel.work, Gemm))
    moved = workload.collectives[0].collective
    return scaled_shape(work.m, work.n, work.k, moved.kind, moved.size_bytes, scale=scale, ranks=ranks)


def _balanced_depth(kind: CollectiveKind, size_bytes: int, world: World) -> int:
    """K of a GEMM that takes as long as the collective of its result, each alone.

    Measured twice, the second time at the depth the first one gave, since a GEMM's speed depends on its depth.
    """
    depth = _TRIAL_DEPTH
    for _ in range(2):
        trial = Pairs(world, result_shape(kind, size_bytes, depth, world.ranks), 2, steady=True)
        fastest: dict[Mode, int] = {}
        for mode in ("compute", "comm") * _TRIALS:
            time_ns = _alone_ns(trial, mode, world)
            fastest[mode] = min(time_ns, fastest.get(mode, time_ns))  # others on this host only ever add time
        wanted = ceil_to(max(round(depth * fastest["comm"] / fastest["compute"]), 1), _DEPTH_STEP)
        depth = world.told(partial(_within, wanted))
    return depth


def _within(depth: int) -> int:
    return min(max(depth, _LEAST_DEPTH), _MOST_DEPTH)


def _alone_ns(trial: Pairs, mode: Mode, world: World) -> int:
    way = Way(mode=mode, carrier=GlooCarrier(), recorder=Recorder())
    trial.prepare(way)
    world.barrier()
    start = time.perf_counter_ns()
    trial.run(way)
    return time.perf_counter_ns() - start
