"""`compare`: what changed between two recordings of a program, with spread, an interval and a verdict."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import ClassVar

from makeway.decide.analysis.difference import LEVEL, RUN_SPREAD, Difference, Verdict, difference, percent, verdict_of
from makeway.decide.analysis.ledger import IDLE, LineKind
from makeway.decide.analysis.recorded_steps import Name, RankSteps, Repeated, rank_steps
from makeway.decide.analysis.wording import Wording, wording_for
from makeway.read.traces.classify import CommNames, load_comm_names
from makeway.read.traces.ranks import Progress, map_traces
from makeway.read.traces.read import find_traces
from makeway.values.errors import InputError, TraceError

WORTH = 0.002  # of the step: a kernel or collective that changed by less is not listed
ALIKE = 0.5  # of the step's own change (as logarithms): kernels that changed by at least this much changed with it
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {">": operator.gt, ">=": operator.ge}
_AFTER_EXPOSED: tuple[LineKind, ...] = ("copies", *IDLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two: its runs, ranks and steps."""

    path: str
    origin: str
    devices: tuple[str, ...]
    runs: int
    ranks: int
    steps: int  # of all runs
    step_ns: float  # median of all steps; of each step the median over the ranks
    spread_ns: float | None  # interquartile range over the steps; None for a single step


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One line of the ledger, kernel or collective, in a step of each side: medians over steps, means over ranks."""

    SHOWN: ClassVar = ("difference_ns",)

    name: str
    size_bytes: int | None = None  # of a collective: what each rank gives
    before_ns: float
    after_ns: float
    before_spread_ns: float | None  # interquartile range over the steps
    after_spread_ns: float | None
    before_count: float | None = None  # launches per step
    after_count: float | None = None
    interval_ns: tuple[float, float] | None  # of the difference; None: too few steps
    clear: bool = False  # whether the interval leaves no doubt about the sign

    @property
    def difference_ns(self) -> float:
        return self.after_ns - self.before_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonLimit:
    """A result that must not be: a verdict, or a difference above a percentage."""

    verdict: Verdict | None = None
    comparison: str = ">"
    percent: float = 0.0

    def __str__(self) -> str:
        return self.verdict or f"difference{self.comparison}{self.percent:g}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What changed from one recording to another."""

    before: Side
    after: Side
    verdict: Verdict
    difference_pct: float  # of the step time; above 0 is slower
    interval_pct: tuple[float, float] | None
    level_pct: float = 100 * LEVEL
    no_interval: str | None = None  # why there is none
    lines: tuple[Change, ...] = ()  # of the step's ledger; their differences add up to the step's, but for medians
    kernels: tuple[Change, ...] = ()  # that changed, the largest change first
    collectives: tuple[Change, ...] = ()
    limit: ComparisonLimit | None = None
    missed: bool = False  # the limit holds
    notes: tuple[str, ...] = ()

    @property
    def wording(self) -> Wording:
        """How to speak of the hardware of both sides."""
        return wording_for((*self.before.devices, *self.after.devices))


def compare(
    before: Path | str,
    after: Path | str,
    *,
    fail_if: str | None = None,
    comm_names: Path | str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two recordings of a program: files, or directories with a file per rank.

    Directories below, each with the files of one run, are several runs of that side. `fail_if` is a limit such as
    "slower" or "difference>5%".
    """
    limit = parse_limit(fail_if) if fail_if is not None else None
    names = load_comm_names(comm_names)
    first, second = (_read(Path(path), names, jobs, progress) for path in (before, after))
    steps = difference(
        [[math.log(time) for time in run.times_ns] for run in first.runs],
        [[math.log(time) for time in run.times_ns] for run in second.runs],
        run_spread=RUN_SPREAD,
    )
    verdict = verdict_of(steps)
    difference_pct = percent(steps.estimate)
    return Comparison(
        before=first.side,
        after=second.side,
        verdict=verdict,
        difference_pct=difference_pct,
        interval_pct=None if steps.low is None or steps.high is None else (percent(steps.low), percent(steps.high)),
        no_interval=_no_interval(first, second) if steps.low is None else None,
        lines=_lines(first, second),
        kernels=_changes(first, second, lambda run: run.kernels),
        collectives=_changes(first, second, lambda run: run.collectives),
        limit=limit,
        missed=limit is not None and limit_holds(limit, verdict, difference_pct),
        notes=(*first.notes, *second.notes, *_cautions(first, second, steps)),
    )


def parse_limit(text: str) -> ComparisonLimit:
    """The limit that `text` describes."""
    if text.strip() in ("slower", "faster"):
        return ComparisonLimit(verdict="slower" if text.strip() == "slower" else "faster")
    match = re.fullmatch(r"\s*difference\s*(>=|>)\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*", text)
    if not match:
        raise InputError(f"cannot read limit {text!r}; write 'slower', 'faster' or for example 'difference>5%'")
    return ComparisonLimit(comparison=match[1], percent=float(match[2]))


def limit_holds(limit: ComparisonLimit, verdict: Verdict, difference_pct: float) -> bool:
    """A difference counts only where it is shown to be slower: noise must not fail a build."""
    if limit.verdict is not None:
        return verdict == limit.verdict
    return verdict == "slower" and _COMPARISONS[limit.comparison](difference_pct, limit.percent)


# --- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The ranks of one run, step by step: of times the median over the ranks, of parts the mean."""

    ranks: tuple[RankSteps, ...]
    times_ns: tuple[float, ...]
    lines: dict[str, tuple[float, ...]]
    kernels: dict[Name, Repeated]
    collectives: dict[Name, Repeated]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    side: Side
    runs: tuple[_Run, ...]
    notes: tuple[str, ...]


def _read(path: Path, comm: CommNames, jobs: int | None, progress: Progress | None) -> _Recorded:
    traces = find_traces([path])
    read = map_traces(traces.files, rank_steps, comm=comm, jobs=jobs, progress=progress)
    of_files = sorted(zip(traces.files, read, strict=True), key=lambda item: str(item[0].parent))
    runs = tuple(
        _run([rank for _, ranks in own for rank in ranks], parent)
        for parent, own in groupby(of_files, key=lambda item: item[0].parent)
    )
    times = [time for run in runs for time in run.times_ns]
    every = [rank for run in runs for rank in run.ranks]
    notes = list(traces.notes)
    if not all(rank.marked for rank in every):
        notes.append(f"{path} marks no steps: each recording counts as one step")
    if len({len(rank.times_ns) for rank in every}) > 1:
        notes.append(f"the ranks of {path} record different numbers of steps: the first that all have are compared")
    side = Side(
        path=str(path),
        origin=" and ".join(sorted({rank.origin for rank in every})),
        devices=tuple(sorted({rank.device for rank in every if rank.device})),
        runs=len(runs),
        ranks=max(len(run.ranks) for run in runs),
        steps=len(times),
        step_ns=median(times),
        spread_ns=_spread(times),
    )
    return _Recorded(side=side, runs=runs, notes=tuple(notes))


def _run(ranks: Sequence[RankSteps], where: Path) -> _Run:
    if not ranks:
        raise TraceError(f"no rank in {where} holds kernels or collectives: there is nothing to compare")
    seen: dict[int, str] = {}
    for rank in ranks:
        if rank.rank in seen:
            raise TraceError(
                f"{seen[rank.rank]} and {rank.source} both say they are rank {rank.rank}: "
                "put each run into a directory of its own"
            )
        seen[rank.rank] = rank.source
    steps = min(len(rank.times_ns) for rank in ranks)
    kinds = {kind for rank in ranks for kind in rank.lines}
    return _Run(
        ranks=tuple(ranks),
        times_ns=tuple(median(rank.times_ns[step] for rank in ranks) for step in range(steps)),
        lines={
            kind: tuple(
                fmean(rank.lines[kind][step] if kind in rank.lines else 0 for rank in ranks) for step in range(steps)
            )
            for kind in kinds
        },
        kernels=_added([rank.kernels for rank in ranks], steps),
        collectives=_added([rank.collectives for rank in ranks], steps),
    )


def _added(ranks: Sequence[Mapping[Name, Repeated]], steps: int) -> dict[Name, Repeated]:
    """Launches of all ranks together."""
    added: dict[Name, tuple[list[int], list[int]]] = {}
    for own in ranks:
        for name, repeated in own.items():
            counts, times = added.setdefault(name, ([0] * steps, [0] * steps))
            for step in range(steps):
                counts[step] += repeated.counts[step]
                times[step] += repeated.times_ns[step]
    return {name: Repeated(counts=tuple(counts), times_ns=tuple(times)) for name, (counts, times) in added.items()}


def _spread(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    low, _, high = quantiles(values, n=4, method="inclusive")
    return high - low


# --- what changed --------------------------------------------------------------------------------


def _lines(first: _Recorded, second: _Recorded) -> tuple[Change, ...]:
    kinds = {kind for side in (first, second) for run in side.runs for kind in run.lines}
    wording = wording_for((*first.side.devices, *second.side.devices))
    titles = {"compute": wording.lines["compute"], "exposed": "exposed communication"}
    titles |= {str(kind): wording.lines[kind] for kind in _AFTER_EXPOSED}
    return tuple(
        _change(
            title,
            None,
            *([run.lines.get(kind, (0.0,) * len(run.times_ns)) for run in side.runs] for side in (first, second)),
            level=LEVEL,
        )
        for kind, title in titles.items()
        if kind in kinds
    )


def _changes(first: _Recorded, second: _Recorded, of: Callable[[_Run], dict[Name, Repeated]]) -> tuple[Change, ...]:
    """Kernels or collectives that changed by more than their spread, the largest change first.

    Many names are tried, so each needs stronger evidence than the step alone (Bonferroni).
    """
    names = {name for side in (first, second) for run in side.runs for name in of(run)}
    level = 1 - (1 - LEVEL) / max(1, len(names))
    worth = WORTH * max(first.side.step_ns, second.side.step_ns)
    changes = []
    for name in sorted(names, key=str):
        series = [[_per_rank(run, of(run).get(name)) for run in side.runs] for side in (first, second)]
        counts = [[_counts(run, of(run).get(name)) for run in side.runs] for side in (first, second)]
        change = _change(*name, *series, level=level, counts=counts)
        gone = not change.before_count or not change.after_count
        if abs(change.difference_ns) >= worth and (change.clear or gone):
            changes.append(change)
    return tuple(sorted(changes, key=lambda change: -abs(change.difference_ns)))


def _per_rank(run: _Run, repeated: Repeated | None) -> tuple[float, ...]:
    times = repeated.times_ns if repeated else (0,) * len(run.times_ns)
    return tuple(time / len(run.ranks) for time in times)


def _counts(run: _Run, repeated: Repeated | None) -> tuple[float, ...]:
    counts = repeated.counts if repeated else (0,) * len(run.times_ns)
    return tuple(count / len(run.ranks) for count in counts)


def _change(
    name: str,
    size_bytes: int | None,
    before: Sequence[Sequence[float]],
    after: Sequence[Sequence[float]],
    *,
    level: float,
    counts: Sequence[Sequence[Sequence[float]]] | None = None,
) -> Change:
    sides = [[value for run in side for value in run] for side in (before, after)]
    medians = [median(side) for side in sides]
    shown = difference(before, after, run_spread=RUN_SPREAD * max(medians), level=level)
    each = [median(value for run in side for value in run) for side in counts] if counts else [None, None]
    return Change(
        name=name,
        size_bytes=size_bytes,
        before_ns=medians[0],
        after_ns=medians[1],
        before_spread_ns=_spread(sides[0]),
        after_spread_ns=_spread(sides[1]),
        before_count=each[0],
        after_count=each[1],
        interval_ns=None if shown.low is None or shown.high is None else (shown.low, shown.high),
        clear=shown.shown,
    )


def _no_interval(first: _Recorded, second: _Recorded) -> str:
    short = [side.side.path for side in (first, second) if any(len(run.times_ns) < 2 for run in side.runs)]
    return f"{' and '.join(short)} has a single step in a run, which shows no spread: record several steps"


def _cautions(first: _Recorded, second: _Recorded, steps: Difference) -> Iterable[str]:
    if first.side.ranks != second.side.ranks:
        yield f"{first.side.ranks} ranks before and {second.side.ranks} after: the steps may hold different work"
    if first.side.devices != second.side.devices:
        yield (
            f"recorded on {', '.join(first.side.devices) or 'an unnamed device'} before and "
            f"{', '.join(second.side.devices) or 'an unnamed device'} after"
        )
    if first.side.runs == second.side.runs == 1 and steps.low is not None:
        yield (
            "one run of each side: runs are taken to differ by as much as steps do, and by 2 % at least; several runs, "
            "each in a directory of its own, show by how much"
        )
    ratio = _common_ratio(first, second)
    if steps.shown and ratio is not None and ratio / steps.estimate >= ALIKE:
        yield (
            f"compute kernels that both recordings have changed alike, by a factor of {math.exp(ratio):.2f} in the "
            "median: load on the host or clocks may have changed, not the program"
        )


def _common_ratio(first: _Recorded, second: _Recorded) -> float | None:
    """The logarithm of after over before of the median kernel, by time; None where few kernels are in both."""
    ratios = []
    for name in {name for run in first.runs for name in run.kernels}:
        before, after = (
            [
                time / count
                for run in side.runs
                if name in run.kernels
                for time, count in zip(run.kernels[name].times_ns, run.kernels[name].counts, strict=True)
                if count and time
            ]
            for side in (first, second)
        )
        if before and after:
            total = sum(sum(run.kernels[name].times_ns) for run in first.runs if name in run.kernels)
            ratios.append((math.log(median(after) / median(before)), total))
    if len(ratios) < 3:
        return None
    ratios.sort()
    half, below = sum(weight for _, weight in ratios) / 2, 0
    for ratio, weight in ratios:
        below += weight
        if below >= half:
            return ratio
    return None
