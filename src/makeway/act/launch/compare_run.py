"""`makeway run --compare`: the same job with and without a plan, and whether a step takes less time.

Inside one job the ranks alternate in blocks of steps. Controls that a running process cannot switch, such as variables
of NCCL, need whole runs that alternate (`runs`).
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Literal

import msgspec

from makeway.act.doctor.gpus import gpu_platform
from makeway.act.launch.directors import PAIRED, WITH, WITHOUT, Comparing, director_of, of_blocks
from makeway.act.launch.outcome import Outcome
from makeway.act.launch.run import Run, Warn, run
from makeway.act.launch.step_files import SLEEP, WARM_UP, AtSteps, StepLog, StepSettings, control_words, no_steps
from makeway.act.launch.supervise import end_kept
from makeway.act.plans import PlanLike, plan_of
from makeway.act.switching import nothing_to_switch
from makeway.decide.analysis.alternation import FIRST_LOOK, log_time
from makeway.decide.analysis.compare import ComparisonLimit, limit_holds, parse_limit
from makeway.decide.analysis.difference import LEVEL, RUN_SPREAD, Difference, Verdict, difference, percent, verdict_of
from makeway.values.errors import InputError, UnsupportedError
from makeway.values.plan import Plan
from makeway.values.support import Platform

STEPS = 2000  # at most to spend on a comparison: what 10 % takes where steps of 8 ms spread by a third
BUSY_PCT = 5.0  # blocks without the plan that differ by more hide small gains
OF_RANK_0 = "the comparison is with rank 0: the makeway that started it reports it"
Side = Literal["without", "with"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBlock:
    """Steps of the job under one setting: a block, or a whole run."""

    number: int
    side: Side
    noise: bool  # of the check that came first, without the plan on both sides
    times_ns: tuple[int, ...]  # measured, without those that settle
    step_ns: float  # their median
    spread_ns: float | None  # from the least to the longest


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Steps of a job with a plan against steps without it."""

    program: tuple[str, ...]
    by: Literal["blocks", "runs"]
    verdict: Verdict
    difference_pct: float | None  # of the step time with the plan; below 0 is faster; None: nothing was measured
    interval_pct: tuple[float, float] | None
    level_pct: float | None  # None: nothing was measured
    without_step_ns: float | None  # a typical step; the ratio of the two is the difference
    with_step_ns: float | None
    steps: int  # measured, with and without
    pairs: int
    noise_pct: float | None  # by how much blocks without the plan differ
    left: Side | None  # in which setting the rest of the job ran; None: it ended before
    blocks: tuple[StepBlock, ...]
    controls: tuple[Outcome, ...]
    exit_code: int | None
    killed_by: int | None
    problem: str | None = None  # why there is no verdict
    limit: ComparisonLimit | None = None
    missed: bool = False  # the limit holds
    notes: tuple[str, ...] = ()

    @property
    def unchecked(self) -> bool:
        """Whether nothing was measured that the limit could be checked against."""
        return self.limit is not None and self.difference_pct is None

    @property
    def all_applied(self) -> bool:
        return all(outcome.status == "applied" for outcome in self.controls)


def compare_run(
    command: Sequence[str],
    plan: PlanLike,
    *,
    steps: int = STEPS,
    runs: int | None = None,
    seed: int = 0,
    warm_up: int = WARM_UP,
    step_marker: str | None = None,
    fail_if: str | None = None,
    environ: Mapping[str, str] = os.environ,
    force: bool = False,
    receipts: Path | None = None,
    stdout: int | None = None,
    platform: Platform | None = None,
    warn: Warn = lambda message: None,
) -> RunComparison:
    """Run the command once and compare its steps with and without the plan, at most `steps` of them.

    With `runs`, run it so often with the plan and as often without it. `platform` is that of the GPUs, by default of
    those that this machine has. Call it from the main thread of a process without other children.
    """
    plan = plan_of(plan)
    limit = parse_limit(fail_if) if fail_if is not None else None
    if not plan.controls and SLEEP not in environ:
        raise InputError("the plan has no controls: there is nothing to compare; `makeway run --tune` finds some")
    if runs is not None and runs < 2:
        raise InputError(f"--compare-runs takes 2 or more, got {runs}: a single run of each side shows no spread")
    if warm_up < 1:
        raise InputError(f"--warm-up takes 1 or more steps, got {warm_up}")

    settings = StepSettings(
        kind="compare",
        steps=steps,
        warm_up=warm_up,
        settings=((), control_words(plan.controls)),
        seed=seed,
        marker=step_marker,
    )
    if runs is None and (platform or gpu_platform()) is None and (why := nothing_to_switch(plan.controls)):
        raise UnsupportedError(why)
    if runs is None and most_pairs(settings) < FIRST_LOOK:
        raise InputError(f"--compare-steps {steps} is too few to compare; give {_least_steps(settings)} or more")

    def once(kind: Literal["measure", "compare"], of: Plan, into: Path | None) -> tuple[Run, tuple[StepLog, ...]]:
        at_steps = AtSteps(msgspec.structs.replace(settings, kind=kind))
        ran = run(
            command,
            of,
            environ=environ,
            force=force,
            receipts=into,
            stdout=stdout,
            platform=platform,
            warn=warn,
            at_steps=at_steps,
        )
        return ran, at_steps.logs

    if runs is None:
        ran, logs = once("compare", plan, receipts)
        with end_kept(ran.exit_code, ran.killed_by):
            return _of_one_job(ran, logs, most=most_pairs(settings), limit=limit, marker=step_marker)
    sides = [side for pair in range(runs) for side in _order(seed, pair)]
    done: list[tuple[Side, Run, tuple[StepLog, ...]]] = []
    for number, side in enumerate(sides):
        into = receipts / f"run-{number}-{side}" if receipts is not None else None
        ran, logs = once("measure", plan if side == "with" else Plan(controls=()), into)
        done.append((side, ran, logs))
        if ran.exit_code != 0:
            break
    with end_kept(ran.exit_code, ran.killed_by):
        return _of_runs(done, limit=limit, marker=step_marker)


def most_pairs(settings: StepSettings) -> int:
    """Pairs of blocks that a comparison has steps for."""
    director = director_of(settings)
    assert isinstance(director, Comparing)
    return director.most_pairs


def _least_steps(settings: StepSettings) -> int:
    enough = (msgspec.structs.replace(settings, steps=steps) for steps in range(1, STEPS))
    return next(given.steps for given in enough if most_pairs(given) >= FIRST_LOOK)


def _order(seed: int, pair: int) -> tuple[Side, Side]:
    with_first = random.Random(f"{seed}/{pair}").random() < 0.5
    return ("with", "without") if with_first else ("without", "with")


# --- inside one job ------------------------------------------------------------------------------


def _of_one_job(
    ran: Run, logs: Sequence[StepLog], *, most: int, limit: ComparisonLimit | None, marker: str | None
) -> RunComparison:
    """From the log of rank 0; of several attempts, after a restart, the last one that compared anything."""
    leaders = [log for log in logs if log.rank == 0]
    log = next((log for log in reversed(leaders) if log.blocks), leaders[-1] if leaders else None)
    seen = of_blocks(log.blocks if log is not None else (), most_pairs=most, ended=True)
    notes = list(ran.notes)
    problem = None
    if log is None and logs:
        problem = OF_RANK_0
    elif log is None or log.steps == 0:
        problem = f"no comparison: {no_steps(ran.exit_code, marker)}"
    elif log.error is not None:
        problem = log.error
    elif log.final is None and seen.verdict == "no difference shown":
        problem = f"the program ended after {log.steps} steps, before the comparison did"
    if len(leaders) > 1:
        notes.append(f"the job was restarted: its {len(leaders)} attempts are not added up, the last one counts")
    if seen.noise_pct is not None and seen.noise_pct >= BUSY_PCT:
        notes.append(
            f"this machine is busy: blocks of steps without the plan differ by {seen.noise_pct:.1f} % among themselves"
        )
    blocks = tuple(_blocks(log)) if log is not None else ()
    final = log.final if log is not None else None
    return _comparison(
        ran,
        by="blocks",
        verdict=seen.verdict,
        shown=seen.difference if seen.pairs else None,
        step_ns=seen.step_ns,
        level=seen.level,
        pairs=len(seen.pairs),
        noise_pct=seen.noise_pct,
        left=None if final is None else ("with" if final == WITH else "without"),
        blocks=blocks,
        problem=problem,
        limit=limit,
        notes=notes,
    )


def _blocks(log: StepLog) -> Iterator[StepBlock]:
    for number, block in enumerate(log.blocks):
        side: Side = "without" if block.setting == WITHOUT else "with"
        yield _block(number, side, block.measured_ns, noise=block.tag != PAIRED)


def _block(number: int, side: Side, times_ns: Sequence[int], *, noise: bool = False) -> StepBlock:
    return StepBlock(
        number=number,
        side=side,
        noise=noise,
        times_ns=tuple(times_ns),
        step_ns=median(times_ns),
        spread_ns=max(times_ns) - min(times_ns) if len(times_ns) > 1 else None,
    )


def _comparison(
    ran: Run,
    *,
    by: Literal["blocks", "runs"],
    verdict: Verdict,
    shown: Difference | None,
    step_ns: tuple[float, float] | None,
    level: float,
    pairs: int,
    noise_pct: float | None,
    left: Side | None,
    blocks: tuple[StepBlock, ...],
    problem: str | None,
    limit: ComparisonLimit | None,
    notes: Sequence[str],
) -> RunComparison:
    interval = None
    if shown is not None and shown.low is not None and shown.high is not None:
        interval = (percent(shown.low), percent(shown.high))
    difference_pct = percent(shown.estimate) if shown is not None else None
    return RunComparison(
        program=ran.program,
        by=by,
        verdict=verdict,
        difference_pct=difference_pct,
        interval_pct=interval,
        level_pct=round(100 * level, 3) if shown is not None else None,
        without_step_ns=step_ns[0] if step_ns is not None else None,
        with_step_ns=step_ns[1] if step_ns is not None else None,
        steps=sum(len(block.times_ns) for block in blocks if not block.noise),
        pairs=pairs,
        noise_pct=noise_pct,
        left=left,
        blocks=blocks,
        controls=ran.controls,
        exit_code=ran.exit_code,
        killed_by=ran.killed_by,
        problem=problem,
        limit=limit,
        missed=limit is not None and difference_pct is not None and limit_holds(limit, verdict, difference_pct),
        notes=tuple(dict.fromkeys(notes)),
    )


# --- whole runs ----------------------------------------------------------------------------------


def _of_runs(
    done: Sequence[tuple[Side, Run, tuple[StepLog, ...]]], *, limit: ComparisonLimit | None, marker: str | None
) -> RunComparison:
    """As `makeway compare` does with several recordings of each side."""
    blocks = tuple(
        _block(number, side, times) for number, (side, _, logs) in enumerate(done) if (times := _run_times(logs))
    )
    sides = {side: [block.times_ns for block in blocks if block.side == side] for side in ("without", "with")}
    shown, step_ns = None, None
    if all(len(runs) > 1 for runs in sides.values()):
        shown = difference(_logarithms(sides["without"]), _logarithms(sides["with"]), run_spread=RUN_SPREAD)
        step_ns = _typical_ns(sides["without"]), _typical_ns(sides["with"])
    ended = done[-1][1]
    problem = None
    if not blocks:
        problem = f"no comparison: {no_steps(ended.exit_code, marker)}"
    elif shown is None:
        problem = f"{len(blocks)} runs left step times, and each side needs two"
    without = sides["without"]
    apart = [abs(log_time(second) - log_time(first)) for first, second in pairwise(without)]
    under = next((ran for side, ran, _ in reversed(done) if side == "with"), ended)
    return _comparison(
        replace(ended, controls=under.controls),
        by="runs",
        verdict=verdict_of(shown) if shown is not None else "no difference shown",
        shown=shown,
        step_ns=step_ns,
        level=LEVEL,
        pairs=min(map(len, sides.values())),
        noise_pct=percent(median(apart)) if apart else None,
        left=None,
        blocks=blocks,
        problem=problem,
        limit=limit,
        notes=[note for _, ran, _ in done for note in ran.notes],
    )


def _logarithms(runs: Sequence[Sequence[int]]) -> list[list[float]]:
    return [[math.log(time) for time in times] for times in runs]


def _typical_ns(runs: Sequence[Sequence[int]]) -> float:
    """The step of a side as `difference` takes it: the mean over runs of a run's trimmed mean."""
    return math.exp(fmean(map(log_time, runs)))


def _run_times(logs: Sequence[StepLog]) -> tuple[int, ...]:
    """The steps of a run, of each the median over the ranks; of several attempts the last."""
    latest = {log.rank: log.plain_ns for log in logs if log.plain_ns}
    steps = min(map(len, latest.values()), default=0)
    return tuple(int(median(times[step] for times in latest.values())) for step in range(steps))
