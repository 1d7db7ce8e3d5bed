"""`bench`: a job measured on real ranks, or predicted on a simulated device."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from makeway.act.measure.experiment import Experiments, experiments
from makeway.act.measure.gpus import FIXED_VARIANTS, VENDORS, candidate_variants, gpu_ranks, planner_variants
from makeway.act.measure.host_forecast import forecast, in_predicted_order, with_predictions
from makeway.act.measure.job import Grid, Job, Tile, check_ranks
from makeway.act.measure.launch import REPORT_VARIABLE, Limits, run_ranks
from makeway.act.measure.link import LOOPBACK, paced_link
from makeway.act.measure.names import family
from makeway.act.measure.outcome import Bench
from makeway.act.measure.simulated import simulated_bench, simulated_experiments
from makeway.act.measure.variants import (
    TORCHRUN,
    Variant,
    candidate_controls,
    controlled_variants,
    fair_threads,
    fixed_variants,
)
from makeway.act.measure.wire import decode_bench, encode_job
from makeway.act.triton.config import OPT1
from makeway.values.control import CommPriority, CopyEngine
from makeway.values.device import load_device
from makeway.values.errors import InputError, MissingExtraError

Progress = Callable[[str], None]

DEFAULT_RANKS = 2
_GPU_LINK = "as this host connects its GPUs"
_SILENT_TIMEOUTS = 6  # collectives that may time out in a row before all ranks are ended


def bench(job: Job, *, progress: Progress | None = None) -> Bench | Experiments | None:
    """The job's bench; its experiments where it names several grids or tiles.

    Under torchrun this process is one of the ranks: rank 0 gets the bench, the others None.
    """
    report = progress or _silent
    if job.simulated:
        return simulated_experiments(job, progress=report) if job.swept else simulated_bench(job)
    return _measured_experiments(job, report) if job.swept else _measured(job, report)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("`makeway bench` runs its ranks with torch, which is not installed", "torch")


def _silent(stage: str) -> None:
    pass


# --- on ranks ----------------------------------------------------------------------------------


def run_bench(job: Job, *, progress: Progress = _silent) -> Bench:
    """Start the ranks, wait for them, and return what they measured."""
    if not job.variants:
        job = with_variants(job, job.ranks or DEFAULT_RANKS)
    assert job.ranks is not None
    require_torch()
    with ExitStack() as stack:
        link = stack.enter_context(paced_link(job.link)) if job.link else LOOPBACK
        if link.rate is not None:
            progress(link.description)
        limits = Limits(start_s=job.start_s, silence_s=_SILENT_TIMEOUTS * job.timeout_s)
        result = run_ranks(job.ranks, job=encode_job(job), limits=limits, link=link, progress=progress)
    return replace(decode_bench(result), link=link.description if job.on == "cpu" else _GPU_LINK)


def with_variants(job: Job, ranks: int) -> Job:
    """The job for so many ranks, with the variants to measure and the candidates to plan with.

    Named variants are measured and are the candidates; without any, planning tries its own.
    """
    family(job.workload)  # an unknown name is an error
    if job.on == "cpu":
        fixed = fixed_variants(cores(), ranks)
        named, own = _cpu_variants(job, ranks)
    else:
        fixed = FIXED_VARIANTS
        named, own = controlled_variants(job.controls), candidate_variants(job.workload, wide=job.wide)
    candidates = named if named and not job.wide else (*named, *own)
    if not job.plan:
        candidates = ()
    elif job.on != "cpu" and job.device and candidates:
        candidates = (*planner_variants(job, load_device(job.device), ranks), *candidates)
    return replace(job, ranks=ranks, variants=(*fixed, *named), candidates=tuple(dict.fromkeys(candidates)))


def _cpu_variants(job: Job, ranks: int) -> tuple[tuple[Variant, ...], tuple[Variant, ...]]:
    """The variants that a job names, and those that planning tries by itself."""
    if job.link and any(isinstance(control, CopyEngine) for controls in job.controls for control in controls):
        raise InputError("copy-engine moves data through shared memory and bypasses --link; drop one of the two")
    threads = fair_threads(cores(), ranks)
    compressible = job.allow_lossy and job.workload == "ddp" and job.compress == "none"
    own = candidate_controls(cores(), shared_memory=job.link is None, wide=job.wide, compressible=compressible)
    return controlled_variants(job.controls, threads), controlled_variants(own, threads)


def _measured(job: Job, progress: Progress) -> Bench | None:
    launched = _torchrun_ranks()
    if launched is not None and job.link:
        raise InputError("--link needs ranks that makeway starts itself; leave torchrun out: makeway bench --ranks N")
    job = with_variants(job, _ranks(job, launched))
    if not (job.device and job.on == "cpu"):
        return _run_here(job) if launched is not None else run_bench(job, progress=progress)
    job, predicted = forecast(job, load_device(job.device), cores=cores())
    job, notes = in_predicted_order(job, predicted)
    measured = _run_here(job) if launched is not None else run_bench(job, progress=progress)
    return measured and with_predictions(measured, job, predicted, notes)


def _run_here(job: Job) -> Bench | None:
    """The bench on ranks that torchrun started, of which this process is one; None but on rank 0."""
    from makeway.act.measure.ranks.main import run_as_rank

    result = run_as_rank(job)
    return result and replace(result, link="as torchrun started the ranks, unpaced")


def _measured_experiments(job: Job, progress: Progress) -> Experiments:
    if _torchrun_ranks() is not None:
        raise InputError("several grids start ranks of their own; leave torchrun out: makeway bench --ranks N")
    single = replace(job, controls=((CommPriority(),),), grids=(), tiles=(), plan=False)
    single = with_variants(single, _ranks(job, None))
    # Times of one experiment are compared with one another: all variants get the threads of the prioritised one.
    threads = single.variants[-1].threads
    variants = tuple(replace(variant, threads=threads) for variant in single.variants if variant.name != TORCHRUN)

    def run(grid: Grid, tile: Tile) -> Bench:
        return run_bench(replace(single, variants=variants, grids=(grid,), tiles=(tile,)))

    return experiments(job.grids, job.tiles or (OPT1,), run, progress)


def _ranks(job: Job, launched: int | None) -> int:
    wanted = None if launched is not None else job.ranks
    here = gpu_ranks(job.on, wanted) if job.on in VENDORS else wanted or DEFAULT_RANKS
    ranks = here if launched is None else launched
    check_ranks(ranks)
    return ranks


def _torchrun_ranks() -> int | None:
    """The number of ranks where torchrun, or the like, started this process as one of them."""
    if "RANK" not in os.environ or REPORT_VARIABLE in os.environ:
        return None
    return int(os.environ.get("WORLD_SIZE", "1"))
