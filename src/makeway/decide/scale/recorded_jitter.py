"""How much the GPUs of a recorded job vary: from step to step, and from one to another."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev, variance

from makeway.decide.analysis.recorded_steps import rank_steps
from makeway.read.traces.classify import load_comm_names
from makeway.read.traces.ranks import Progress, map_traces
from makeway.read.traces.read import find_traces
from makeway.values.cluster import Jitter
from makeway.values.errors import InputError

LEAST_STEPS = 3  # of a rank


def recorded_jitter(path: Path | str, *, jobs: int | None = None, progress: Progress | None = None) -> Jitter:
    """The spread of compute in the steps of a recording: a directory with a file per rank.

    Compute is the time in which a rank's kernels run; waiting for others is no part of it. Two ranks differ for good as
    far as the means of their steps differ by more than the spread from step to step explains.
    """
    traces = find_traces([Path(path)])
    read = map_traces(traces.files, rank_steps, comm=load_comm_names(None), jobs=jobs, progress=progress)
    every = [rank.lines.get("compute", ()) for ranks in read for rank in ranks if rank.marked]
    steps = [times for times in every if len(times) >= LEAST_STEPS and any(times)]
    if len(steps) < 2:
        raise InputError(
            f"{path}: {len(steps)} ranks with {LEAST_STEPS} marked steps or more; to see how GPUs vary takes 2 ranks\n"
            "Record some with `makeway record --out DIR -- COMMAND`, or leave --jitter-from out: published runs count."
        )
    return jitter_of(steps, source=f"{len(steps)} recorded ranks, {sum(map(len, steps))} steps")


def jitter_of(steps: list[tuple[int, ...]], *, source: str) -> Jitter:
    """Of the compute times of ranks, step by step."""
    means = [fmean(times) for times in steps]
    mean = fmean(means)
    transient = fmean(variance(times) for times in steps)  # of one step
    left_over = fmean(variance(times) / len(times) for times in steps)  # of it in a rank's mean
    persistent = max(0.0, stdev(means) ** 2 - left_over)
    return Jitter(
        transient=min(transient**0.5 / mean, 0.99), persistent=min(persistent**0.5 / mean, 0.99), source=source
    )
