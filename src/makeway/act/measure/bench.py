"""A bench on real ranks of this host: what to run, where, and the result."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from makeway.act.measure.gpus import USUAL_STEPS
from makeway.act.measure.job import Job, encode_job
from makeway.act.measure.launch import REPORT_VARIABLE, Limits, run_ranks
from makeway.act.measure.link import LOOPBACK, Rate, paced_link
from makeway.act.measure.names import family
from makeway.act.measure.outcome import Bench
from makeway.act.measure.record import bench, record_from
from makeway.act.measure.variants import Setting, candidate_settings, controlled_settings, fixed_settings
from makeway.values.control import CopyEngine
from makeway.values.errors import InputError, MissingExtraError

_TRAINING_STEPS = 2  # a step is a whole training step
_PUBLISHED_STEPS = 10  # as the preset of arXiv 2606.09200 has
_GPU_LINK = "as this host joins its GPUs"
_SILENT_TIMEOUTS = 6  # collectives that may time out one after the other before all are given up


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def job_settings(
    texts: Sequence[str], ranks: int, *, apart: bool, plan: bool, wide: bool
) -> tuple[tuple[Setting, ...], tuple[Setting, ...]]:
    """The settings to measure and the candidates to choose from.

    Named variants are measured, and are the candidates; without any, planning tries its own. `apart` says that the
    ranks stand for hosts of their own, which share no memory.
    """
    asked = controlled_settings(texts, cores(), ranks)
    if apart and any(isinstance(control, CopyEngine) for setting in asked for control in setting.controls):
        raise InputError(
            "copy-engine goes through memory that ranks share, round the link of --link; drop one of the two"
        )
    settings = (*fixed_settings(cores(), ranks), *asked)
    if not plan:
        return settings, ()
    own = candidate_settings(cores(), ranks, shared_memory=not apart and ranks > 1, wide=wide)
    return settings, asked if texts and not wide else (*asked, *(one for one in own if one not in asked))


def torchrun_ranks() -> int | None:
    """How many ranks there are where torchrun, or the like, started this process as one of them."""
    if "RANK" not in os.environ or REPORT_VARIABLE in os.environ:
        return None
    return int(os.environ.get("WORLD_SIZE", "1"))


def require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("`makeway bench` runs its ranks with torch, which is not installed", "torch")


def run_here(job: Job) -> Bench | None:
    """The bench of a job on ranks that torchrun started, of which this process is one; None but on rank 0."""
    from makeway.act.measure.ranks.main import run_as_rank

    record = run_as_rank(job)
    if record is None:
        return None
    return bench(record, workload=job.workload, link="as torchrun started the ranks, unpaced", on=job.on)


def run_bench(
    job: Job,
    ranks: int,
    *,
    rate: Rate | None = None,
    start_s: float = 60.0,
    progress: Callable[[str], None] = lambda stage: None,
) -> Bench:
    """Starts the ranks, waits for them, and returns what they measured."""
    family(job.workload)
    require_torch()
    with ExitStack() as stack:
        link = stack.enter_context(paced_link(rate)) if rate else LOOPBACK
        if link.asked:
            progress(link.words)
        limits = Limits(start_s=start_s, silence_s=_SILENT_TIMEOUTS * job.timeout_s)
        answer = run_ranks(ranks, job=encode_job(job), limits=limits, link=link, progress=progress)
    words = link.words if job.on == "cpu" else _GPU_LINK
    return bench(record_from(answer), workload=job.workload, link=words, on=job.on)


def with_usual_steps(job: Job) -> Job:
    """The job with the steps per round that its kind of workload has unless somebody says otherwise."""
    match family(job.workload):
        case "training":
            return replace(job, steps=_TRAINING_STEPS)
        case "published" if not job.workload.startswith("conccl"):
            return replace(job, steps=_PUBLISHED_STEPS)
        case _:
            return job if job.on == "cpu" else replace(job, steps=USUAL_STEPS)
