"""The first act of `demo`: a small training job on this machine, recorded, analysed, tuned and compared."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from statistics import quantiles

from makeway.act.launch.compare_run import RunComparison, Side, compare_run
from makeway.act.launch.record import Recording, record
from makeway.act.launch.tune_run import tune_run
from makeway.act.launch.tuned import RunTuning
from makeway.decide.analysis.analyze import Analysis, analyze
from makeway.values.control import Control
from makeway.values.errors import MakewayError
from makeway.values.plan import Plan

TUNING_S, COMPARING_S = 35.0, 30.0  # of steps, beside a few seconds to start the ranks
TUNE_SHARE = 0.5  # of the steps for trials: the job is run to be tuned
RANKS = 2
_FEWEST_STEPS, _MOST_STEPS = 160, 4000  # fewer decide nothing
_RECORDED_STEPS = 24  # warm-up, as many timed as recorded, and some to spare
_STEP_NS = 50e6  # where the recording has no step time


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStory:
    """What makeway found out about the job, as far as it got."""

    program: tuple[str, ...]  # as a reader would type it
    recording: Recording | None = None
    analysis: Analysis | None = None
    tuning: RunTuning | None = None
    comparison: RunComparison | None = None
    compared: tuple[Control, ...] = ()  # the plan that tuning ended with, or else the candidate that looked best
    why_not: str | None = None  # why the story ends early

    @property
    def adopted(self) -> bool:
        """Whether tuning ended with controls."""
        return self.tuning is not None and bool(self.tuning.plan)

    def spread_ns(self, side: Side) -> float | None:
        """Interquartile range of the compared steps of one side."""
        times = self._times(side)
        if len(times) < 2:
            return None
        low, _, high = quantiles(times, n=4)
        return high - low

    def samples(self, side: Side) -> int:
        return len(self._times(side))

    def _times(self, side: Side) -> list[int]:
        blocks = self.comparison.blocks if self.comparison else ()
        return [time for block in blocks if block.side == side and not block.noise for time in block.times_ns]


def train_script() -> Path:
    """The job: a torch program that knows nothing of makeway."""
    return Path(str(files("makeway") / "data" / "demo" / "train.py"))


def job_story(report: Callable[[str, float], None]) -> JobStory:
    """Record, analyse, tune and compare the job; `report` hears what comes next and about how many seconds it takes."""
    shown = ("torchrun", "--nproc-per-node", str(RANKS), train_script().name)
    if (why_not := _cannot()) is not None:
        return JobStory(program=shown, why_not=why_not)
    try:
        with tempfile.TemporaryDirectory(prefix="makeway-demo-") as folder:
            return _story(shown, Path(folder), report)
    except MakewayError as error:
        return JobStory(program=shown, why_not=str(error).partition("\n")[0])


def _cannot() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed (pip install 'makeway[torch]')"
    cores = len(os.sched_getaffinity(0))
    return None if cores >= RANKS else f"{RANKS} ranks need {RANKS} cores to overlap anything, and {cores} is here"


def _story(shown: tuple[str, ...], folder: Path, report: Callable[[str, float], None]) -> JobStory:
    # torchrun would set the threads, and say so; torch warns where numpy is not installed, which the job does not need.
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore:Failed to initialize NumPy"}
    with (folder / "stdout").open("w") as out:
        report("your job: recording five steps of a small DDP job on two ranks", 10)
        recording = record(_command(_RECORDED_STEPS), out=folder / "recording", environ=environ, stdout=out.fileno())
        if recording.problem is not None:
            return JobStory(program=shown, recording=recording, why_not=recording.problem)
        analysis = analyze([recording.directory], jobs=1, what_if=False, keep_spans=True)
        story = JobStory(program=shown, recording=recording, analysis=analysis)
        step_ns = min((rank.plain_step_ns for rank in recording.ranks if rank.plain_step_ns), default=_STEP_NS)
        steps = _steps(TUNING_S, step_ns)
        report(f"your job: trying controls inside the job, over {steps:,} steps", 8 + steps * step_ns / 1e9)
        try:
            tuning = tune_run(_command(steps), share=TUNE_SHARE, job_steps=steps, environ=environ, stdout=out.fileno())
        except MakewayError as error:  # the story goes on without it
            return replace(story, why_not=str(error).partition("\n")[0])
        compared = tuning.plan or _best_tried(tuning)
        if not compared:
            return replace(story, tuning=tuning, why_not=tuning.problem or "no control was tried")
        steps = _steps(COMPARING_S, step_ns)
        report(f"your job: with against without, in turns, over up to {steps:,} steps", 8 + steps * step_ns / 1e9)
        comparison = compare_run(
            _command(steps + _RECORDED_STEPS),
            Plan(controls=compared),
            steps=steps,
            environ=environ,
            stdout=out.fileno(),
        )
        return replace(story, tuning=tuning, comparison=comparison, compared=compared, why_not=comparison.problem)


def _best_tried(tuning: RunTuning) -> tuple[Control, ...]:
    """The candidate whose last trial looked best, though it was not shown to be faster."""
    last = {item.controls: item.difference_pct for item in tuning.tried if item.controls}
    return min(last, key=lambda controls: last[controls], default=())


def _steps(seconds: float, step_ns: float) -> int:
    """As many steps as fit the time, within reason."""
    return int(min(max(seconds * 1e9 / step_ns, _FEWEST_STEPS), _MOST_STEPS))


def _command(steps: int) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return [*launcher, str(train_script()), "--steps", str(steps)]
