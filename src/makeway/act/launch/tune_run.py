"""`makeway run --tune`: the fastest controls of a job, found by measuring inside the job itself; no plan is needed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from makeway.act.doctor.gpus import gpu_platform
from makeway.act.launch.candidates import OVER_NETWORK, candidate_sets, default_channels, gpu_candidate_sets
from makeway.act.launch.run import Warn, run
from makeway.act.launch.step_files import SHARE, WARM_UP, AtSteps, StepSettings, control_words
from makeway.act.launch.supervise import end_kept
from makeway.act.plans import PlanLike, plan_of
from makeway.values.control import Control, refuse_lossy
from makeway.values.errors import InputError
from makeway.values.plan import Plan
from makeway.values.support import Platform

if TYPE_CHECKING:  # loaded while the program starts, which would wait for it
    from makeway.act.launch.tuned import RunTuning

MOST_SHARE = 0.5


def tune_run(
    command: Sequence[str],
    plan: PlanLike | None = None,
    *,
    share: float = SHARE,
    job_steps: int | None = None,
    seed: int = 0,
    warm_up: int = WARM_UP,
    step_marker: str | None = None,
    allow_lossy: bool = False,
    environ: Mapping[str, str] = os.environ,
    force: bool = False,
    receipts: Path | None = None,
    stdout: int | None = None,
    platform: Platform | None = None,
    warn: Warn = lambda message: None,
    meanwhile: Callable[[], None] | None = None,
    since_ns: int | None = None,
) -> RunTuning:
    """Run the command once, and try candidates in it; `plan`, if any, is one of them.

    At most `share` of the job's steps go to candidates: of `job_steps`, or else of the steps so far. Results stay the
    same unless `allow_lossy`, which also tries controls that change them. `platform` is that of the GPUs, by default of
    those that this machine has. `meanwhile` is called while the program starts. `since_ns`: the processor time of
    this process when the work for the run began, by default now; what it takes until the program starts is a cost of
    tuning. Call it from the main thread of a process without other children.
    """
    since_ns = time.process_time_ns() if since_ns is None else since_ns
    platform = platform or gpu_platform()
    settings = tune_settings(
        plan,
        share=share,
        job_steps=job_steps,
        seed=seed,
        warm_up=warm_up,
        step_marker=step_marker,
        allow_lossy=allow_lossy,
        platform=platform,
    )
    at_steps = AtSteps(settings, since_ns=since_ns)

    def load() -> None:
        import_module("makeway.act.launch.tuned")
        if meanwhile is not None:
            meanwhile()

    ran = run(
        command,
        Plan(controls=every_control(settings.controls)),
        environ=environ,
        force=force,
        receipts=receipts,
        stdout=stdout,
        platform=platform,
        warn=warn,
        at_steps=at_steps,
        meanwhile=load,
    )
    with end_kept(ran.exit_code, ran.killed_by):
        from makeway.act.launch.tuned import tuned_job

        return tuned_job(ran, at_steps.logs, settings, platform=platform)


def tune_settings(
    plan: PlanLike | None = None,
    *,
    share: float = SHARE,
    job_steps: int | None = None,
    seed: int = 0,
    warm_up: int = WARM_UP,
    step_marker: str | None = None,
    allow_lossy: bool = False,
    platform: Platform | None = None,
) -> StepSettings:
    """What a tuned job does at its steps; its first setting is the program as it is. `platform`: that of the GPUs."""
    first = plan_of(plan).controls if plan is not None else ()
    refuse_lossy(first, allowed=allow_lossy)
    if not 0 < share <= MOST_SHARE:
        raise InputError(f"--tune-share takes a share above 0 up to {MOST_SHARE:g}, got {share:g}")
    if job_steps is not None and job_steps < 1:
        raise InputError(f"--job-steps takes 1 or more, got {job_steps}")
    if warm_up < 1:
        raise InputError(f"--warm-up takes 1 or more steps, got {warm_up}")
    if platform is None:
        tried = candidate_sets(len(os.sched_getaffinity(0)), first, allow_lossy=allow_lossy)
    else:
        tried = gpu_candidate_sets(platform, first, blocks=default_channels(platform), allow_lossy=allow_lossy)
    sets = ((), *tried)
    return StepSettings(
        kind="tune",
        steps=job_steps or 0,
        warm_up=warm_up,
        settings=tuple(map(control_words, sets)),
        over_network=tuple(
            number for number, controls in enumerate(sets) if controls in OVER_NETWORK and controls != first
        ),
        seed=seed,
        marker=step_marker,
        options={"share": share} | ({"job_steps": float(job_steps)} if job_steps is not None else {}),
    )


def every_control(sets: Sequence[Sequence[Control]]) -> tuple[Control, ...]:
    """One control of each kind that some set has; of several the one of the first set."""
    return tuple({type(control): control for controls in reversed(sets) for control in controls}.values())
