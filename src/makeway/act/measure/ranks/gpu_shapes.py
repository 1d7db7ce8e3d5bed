"""The pair of a workload on a GPU, and the depth of its GEMM. Not yet run on hardware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from makeway.act.cuda.library_gemm import library_gemm
from makeway.act.cuda.overlap import run_comm, run_compute, timed_ns
from makeway.act.measure.job import Job
from makeway.act.measure.names import family, pair_collective
from makeway.act.measure.ranks.gpu_pairs import GpuPairs, Multiply
from makeway.act.measure.ranks.pairs import PairShape, published_shape, result_shape
from makeway.act.measure.ranks.rounds import Peers
from makeway.act.triton.config import OPT1, GemmConfig
from makeway.values.units import MIB, ceil_to

OwnType = Literal["fp32", "tf32"]  # of our own kernel in a bench

DEFAULT_BYTES = 64 * MIB
_TRIAL_DEPTH, _LEAST_DEPTH, _MOST_DEPTH, _DEPTH_STEP = 1024, 64, 1 << 16, 64
_TRIALS = 4


def gpu_pairs(torch: Any, job: Job, world: Peers, arch: str, multiply: Multiply) -> GpuPairs:
    """The pair of a job, at its published size unless `scale` says otherwise."""

    own_type = gemm_type(job.workload, arch)

    def made(shape: PairShape, steps: int) -> GpuPairs:
        library = None
        if job.kernel == "torch":
            library = library_gemm(torch, job.number_type or own_type, arch, n=shape.n, k=shape.k)
        return GpuPairs(
            torch=torch,
            peers=world,
            shape=shape,
            steps=steps,
            config=GemmConfig(tile=job.tile or OPT1, grid=job.grid, dtype=_own_type(job, own_type)),
            multiply=library or multiply,
            library=library,
            in_flight=job.in_flight or 1,
            dependent=not job.workload.startswith("conccl"),
            seed=job.seed,
        )

    if family(job.workload) == "published":
        return made(published_shape(job.workload, job.scale or 1.0, world.ranks), job.round_steps)
    kind, size = pair_collective(job.workload), job.size_bytes or DEFAULT_BYTES
    depth = max(round((job.scale or 1.0) * _TRIAL_DEPTH), 1)
    if job.scale is None:
        depth = _balanced_depth(torch, world, lambda k: made(result_shape(kind, size, k, world.ranks), 2))
    return made(result_shape(kind, size, depth, world.ranks), job.round_steps)


def _own_type(job: Job, usual: OwnType) -> OwnType:
    match job.number_type:
        case "fp32" | "tf32":
            return job.number_type
        case _:  # the type is the library's
            return usual


def gemm_type(workload: str, arch: str) -> OwnType:
    """fp32 for the loop of arXiv 2606.09200, as the preset has it; else tf32 where the tensor cores multiply it."""
    has_tf32 = arch == "gfx942" or (arch.startswith("sm_") and int(arch.removeprefix("sm_")) >= 80)
    return "tf32" if has_tf32 and not workload.startswith(("cb-", "mb-")) else "fp32"


def _balanced_depth(torch: Any, world: Peers, made: Callable[[int], GpuPairs]) -> int:
    """K of a GEMM that takes as long as the collective of its result, each alone; measured twice."""
    depth = _TRIAL_DEPTH
    for _ in range(2):
        trial = made(depth)
        loop = trial.loop(None)
        run_compute(torch, loop)  # the first launch compiles
        run_comm(loop)
        compute_ns, comm_ns = [], []
        for _ in range(_TRIALS):
            trial.prepare(trial.buffers(None), "comm")
            world.barrier()
            comm_ns.append(timed_ns(torch, lambda loop=loop: run_comm(loop)))  # type: ignore[misc]
            compute_ns.append(timed_ns(torch, lambda loop=loop: run_compute(torch, loop)))  # type: ignore[misc]
        wanted = ceil_to(max(round(depth * min(comm_ns) / min(compute_ns)), 1), _DEPTH_STEP)
        depth = world.broadcast(lambda: min(max(wanted, _LEAST_DEPTH), _MOST_DEPTH), int)  # noqa: B023  # runs at once
    return depth
