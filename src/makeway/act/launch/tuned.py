"""What a tuned job tried, what each set of controls showed, and the controls it ended with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from makeway.act.launch.directors import director_of
from makeway.act.launch.outcome import Outcome
from makeway.act.launch.run import Run
from makeway.act.launch.step_files import Block, StepLog, StepSettings, no_steps
from makeway.act.launch.tuning import TRIAL, Event, Tuning, What
from makeway.decide.analysis.difference import Verdict, percent
from makeway.values.control import Control, lossy
from makeway.values.plan import CPU_RANKS, MadeFor, Plan
from makeway.values.support import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What a set of controls showed, and what became of it."""

    step: int  # of the job
    controls: tuple[Control, ...]  # none: the program as it is
    what: What
    rounds: int  # in which it was measured beside the controls in force
    difference_pct: float  # of the step time against the controls in force then; of a drift, against the time before
    interval_pct: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A set of controls that could not be tried in this job."""

    controls: tuple[Control, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LossChange:
    """The loss under a lossy set of controls beside that without, in pairs of blocks of steps near each other.

    Blocks train on different batches: the spread says how much of a difference that alone may make. What compression
    does to the loss after many steps, short blocks cannot show.
    """

    controls: tuple[Control, ...]
    pairs: int
    loss_without: float  # medians of the blocks' means
    loss_with: float
    difference: float  # median over the pairs
    spread: tuple[float, float]  # least and largest


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTuning:
    """A job that was tuned as it ran: the controls it ended with, and all that was tried."""

    program: tuple[str, ...]
    plan: tuple[Control, ...]
    difference_pct: (
        float | None
    )  # of the step time when the controls were adopted, against those before; None: as it is
    interval_pct: tuple[float, float] | None
    tried: tuple[Tried, ...]
    candidates: tuple[tuple[Control, ...], ...]
    refused: tuple[Refused, ...]  # of the candidates
    steps: int  # of the job, after the warm-up
    explored_steps: int
    explored_share: float | None  # of the steps
    share_limit: float
    lost_share: float | None  # of the job's time, that candidates took beyond the controls in force
    lost_limit: float | None  # beyond which trials end: less in a short job, whose start costs more of it
    start_s: float | None  # what tuning took before the first step
    controls: tuple[Outcome, ...]
    allow_lossy: bool
    losses: tuple[LossChange, ...]  # of lossy candidates
    exit_code: int | None
    killed_by: int | None
    problem: str | None = None  # why tuning ended early
    notes: tuple[str, ...] = ()
    platform: Platform | None = None  # of the GPUs; None: CPU ranks

    @property
    def verdict(self) -> Verdict:
        """Whether the controls that the job ended with were shown to be faster when they were adopted."""
        return "faster" if self.plan and self.difference_pct is not None else "no difference shown"

    @property
    def as_plan(self) -> Plan:
        """The plan to write: `makeway run --plan` applies it from the start."""
        reason = "" if self.difference_pct is None else f"measured in the job: {self.difference_pct:+.1f} % per step"
        made_for = MadeFor(device=CPU_RANKS) if self.platform in (None, "cpu") else None
        return Plan(controls=self.plan, reasons=(reason,) * len(self.plan), made_for=made_for)


def tuned_job(
    ran: Run, logs: Sequence[StepLog], settings: StepSettings, *, platform: Platform | None = None
) -> RunTuning:
    """What the logs of a job say that has ended: of several attempts, after a restart, the last that tried anything."""
    leaders = [log for log in logs if log.rank == 0]
    log = next((log for log in reversed(leaders) if log.blocks), leaders[-1] if leaders else None)
    notes = list(ran.notes)
    if len(leaders) > 1:
        notes.append(
            f"the job was restarted: tuning began anew in each of its {len(leaders)} attempts, the last counts"
        )
    return tuning_of(
        log,
        settings,
        program=ran.program,
        controls=ran.controls,
        exit_code=ran.exit_code,
        killed_by=ran.killed_by,
        notes=notes,
        platform=platform,
    )


def tuning_of(
    log: StepLog | None,
    settings: StepSettings,
    *,
    program: Sequence[str],
    controls: Sequence[Outcome],
    exit_code: int | None,
    killed_by: int | None,
    problem: str | None = None,
    notes: Sequence[str] = (),
    platform: Platform | None = None,
) -> RunTuning:
    """What the log of rank 0 says about a tuned job; `problem`: why there was no tuning; `platform`: of the GPUs."""
    director = director_of(settings)
    assert isinstance(director, Tuning)
    refused = log.refused if log is not None else {}
    director.prepare(refused=refused, start_ns=log.start_ns if log is not None else 0)
    _replay(log, director)
    sets = settings.controls
    final = sets[director.incumbent]
    steps = max(director.steps, (log.steps if log is not None else 0) - settings.warm_up)  # the last block may be cut
    tried = tuple(_tried([*director.events, *director.unfinished()], sets))
    adopted = next((item for item in reversed(tried) if item.what == "adopted"), None)
    return RunTuning(
        program=tuple(program),
        plan=final,
        difference_pct=adopted.difference_pct if adopted is not None and final else None,
        interval_pct=adopted.interval_pct if adopted is not None and final else None,
        tried=tried,
        candidates=sets[1:],
        refused=tuple(Refused(controls=sets[number], reason=reason) for number, reason in sorted(refused.items())),
        steps=steps,
        explored_steps=director.explored,
        explored_share=round(director.explored / steps, 6) if director.steps else None,
        share_limit=director.share,
        lost_share=round(director.lost_ns / director.spent_ns, 6) if director.spent_ns else None,
        lost_limit=round(director.lost_limit, 6) if director.steps else None,
        start_s=round(director.start_ns / 1e9, 6) if director.steps else None,
        controls=tuple(outcome for outcome in controls if outcome.control in final),
        allow_lossy=any(lossy(control) for controls in sets for control in controls),
        losses=tuple(loss_changes(log.blocks if log is not None else [], sets)),
        exit_code=exit_code,
        killed_by=killed_by,
        problem=problem
        or (
            f"nothing was tried: {no_steps(exit_code, settings.marker)}" if log is None or log.steps == 0 else log.error
        ),
        notes=tuple(dict.fromkeys(notes)),
        platform=platform,
    )


def loss_changes(blocks: Sequence[Block], sets: Sequence[tuple[Control, ...]]) -> Iterator[LossChange]:
    """What each lossy set did to the loss: its blocks beside the nearest lossless ones, before and after."""
    trials = [block for block in blocks if block.tag == TRIAL and block.losses]
    means = [fmean(block.losses[block.dropped :]) for block in trials]
    lossless = [number for number, block in enumerate(trials) if not any(map(lossy, sets[block.setting]))]
    pairs: dict[int, list[tuple[float, float]]] = {}
    for number, under in enumerate(trials):
        before = [means[other] for other in lossless if other < number][-1:]
        after = [means[other] for other in lossless if other > number][:1]
        if number not in lossless and (before or after):
            pairs.setdefault(under.setting, []).append((fmean(before + after), means[number]))
    for setting, losses in sorted(pairs.items()):
        differences = [under - without for without, under in losses]
        yield LossChange(
            controls=sets[setting],
            pairs=len(losses),
            loss_without=median(without for without, _ in losses),
            loss_with=median(under for _, under in losses),
            difference=median(differences),
            spread=(min(differences), max(differences)),
        )


def _replay(log: StepLog | None, director: Tuning) -> None:
    """Bring the director to where it was in the job: the same blocks give the same decisions."""
    blocks = log.blocks if log is not None else []
    for count in range(len(blocks) + 1):
        director.next(blocks[:count])


def _tried(events: Sequence[Event], sets: Sequence[tuple[Control, ...]]) -> Iterator[Tried]:
    for event in events:
        interval = None
        if event.low is not None and event.high is not None:
            interval = (percent(event.low), percent(event.high))
        yield Tried(
            step=event.step,
            controls=sets[event.setting],
            what=event.what,
            rounds=event.rounds,
            difference_pct=percent(event.difference),
            interval_pct=interval,
        )
