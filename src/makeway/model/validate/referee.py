"""Runs of a cycle-level GPU simulator, predicted from its runs of each kernel alone.

A table has one row per run. Rows with role `alone` are the inputs: one kernel by itself. Rows with role `overlap` are
what the model must say, and nothing of them but the launch is read before the prediction is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean, median
from typing import ClassVar

from makeway.model.validate.referee_model import ALL, Alone, Launch, Mechanisms, Times, predict
from makeway.values.errors import InputError

COLUMNS = {"scenario", "role", "total_cycles", "k1_name", "k1_grid_blocks", "k1_end"}
_MOST_KERNELS = 9
_Line = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the referee: what was launched, and its times in core cycles."""

    scenario: str
    replica: str
    launches: tuple[Launch, ...]
    times: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One replica of a scenario, and the errors of the scenario's prediction for it."""

    replica: str
    total: float
    comm: float | None
    start: float | None
    error: float | None = None
    comm_error: float | None = None
    start_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefereeRow:
    """One overlap scenario: medians over its replicas, beside the prediction."""

    id: str
    replicas: int
    spread: float  # (largest - smallest) / median of the total
    published: float  # total cycles
    predicted: float | None
    covered: bool
    reason: str = ""  # why not covered, or what was assumed
    published_comm: float | None = None  # first start to last end of the first communication kernel
    predicted_comm: float | None = None
    published_start: float | None = None
    predicted_start: float | None = None
    sum_alone: float | None = None
    max_alone: float | None = None
    runs: tuple[RunRow, ...] = ()  # each replica beside the same prediction

    SHOWN: ClassVar = ("error", "comm_error", "start_error")

    @property
    def error(self) -> float | None:
        """Of the total, relative."""
        return _relative(self.predicted, self.published)

    @property
    def comm_error(self) -> float | None:
        """Of the communication time, relative."""
        return _relative(self.predicted_comm, self.published_comm)

    @property
    def start_error(self) -> float | None:
        """Of the start of communication, relative to the total."""
        return _part(self.predicted_start, self.published_start, self.published)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Mean and worst absolute error over the covered scenarios."""

    mean: float
    worst: float
    worst_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one change of a scenario does to the total: two scenarios that differ in one kernel's launch."""

    of: str
    against: str
    published: float  # relative change of the total
    predicted: float
    spread: float  # of the two scenarios' replicas

    SHOWN: ClassVar = ("beyond_spread", "right")

    @property
    def beyond_spread(self) -> bool:
        return abs(self.published) > self.spread

    @property
    def right(self) -> bool:
        return self.published * self.predicted > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefereeSummary:
    """Errors of one set of mechanisms over all covered scenarios."""

    setting: str
    covered: int
    total: Errors
    comm: Errors | None
    start: Errors | None
    runs: dict[str, Errors]  # the same three over single runs in place of medians
    signs: int  # effects beyond their replicas' spread
    wrong_signs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Referee:
    """A table of referee runs beside the model's predictions."""

    rows: tuple[RefereeRow, ...]
    summary: RefereeSummary | None  # None: no scenario is covered
    effects: tuple[Effect, ...] = ()
    baselines: Mapping[str, Errors] | None = None
    ablation: tuple[RefereeSummary, ...] = ()  # each mechanism off, and all of them


def _relative(predicted: float | None, published: float | None) -> float | None:
    return None if predicted is None or not published else predicted / published - 1.0


def _part(predicted: float | None, published: float | None, total: float) -> float | None:
    return None if predicted is None or published is None else (predicted - published) / total


def referee(table: Sequence[_Line], *, ablation: bool = True) -> Referee:
    """Every overlap scenario of a table, predicted from the table's runs of each kernel alone."""
    alone = alone_kernels([line for line in table if line["role"] == "alone"])
    scenarios = _scenarios([_run(line) for line in table if line["role"] != "alone"])
    rows = _rows(scenarios, alone, ALL)
    effects = _effects(rows, scenarios)
    return Referee(
        rows=rows,
        summary=_summary("all mechanisms", rows, effects),
        effects=effects,
        baselines=_baselines(rows),
        ablation=_ablation(scenarios, alone) if ablation else (),
    )


# --- reading -----------------------------------------------------------------------------------


def _number(line: _Line, column: str) -> float | None:
    text = line.get(column) or ""
    return float(text) if text else None


def _required(line: _Line, column: str) -> float:
    value = _number(line, column)
    if value is None:
        raise ValueError(f"{line.get('scenario')}: {column} is empty")
    return value


def _launches(line: _Line) -> tuple[Launch, ...]:
    return tuple(_launch(line, f"k{index}_") for index in range(1, _MOST_KERNELS) if line.get(f"k{index}_name"))


def _launch(line: _Line, k: str) -> Launch:
    return Launch(
        name=line[k + "name"],
        stream=line.get(k + "stream") or k,
        blocks=int(_required(line, k + "grid_blocks")),
        threads=int(_required(line, k + "threads")),
        registers=int(_required(line, k + "registers")),
        smem_bytes=int(_required(line, k + "smem_bytes")),
        args=line.get(k + "args") or "",
        sms=int(_required(line, "sms")),
        dram_mhz=_required(line, "dram_clock_mhz"),
        l2_at_start=line.get("l2_at_start") or "",
    )


def _run(line: _Line) -> Run:
    launches = _launches(line)
    comm = next((f"k{index + 1}_" for index, launch in enumerate(launches) if launch.is_comm), None)
    start = _required(line, comm + "first_start") if comm else None
    return Run(
        scenario=line["scenario"],
        replica=line.get("replica") or "",
        launches=launches,
        times=Times(
            total=_required(line, "total_cycles"),
            start=start,
            comm=None if comm is None or start is None else _required(line, comm + "end") - start,
        ),
    )


def alone_kernels(lines: Sequence[_Line]) -> tuple[Alone, ...]:
    """Medians over the replicas of every kernel that ran alone."""
    groups: dict[tuple[str, Launch], list[_Line]] = {}
    for line in lines:
        launches = _launches(line)
        if len(launches) == 1:
            groups.setdefault((line["scenario"], launches[0]), []).append(line)

    def middle(group: list[_Line], column: str) -> float:
        return median(_required(line, column) for line in group)

    return tuple(
        Alone(
            scenario=scenario,
            launch=launch,
            total=middle(group, "total_cycles"),
            block_mean=middle(group, "k1_block_mean"),
            block_spread=median(_required(line, "k1_block_sd") / _required(line, "k1_block_mean") for line in group),
            dram_bytes=median(
                _required(line, "dram_read_bytes") + _required(line, "dram_written_bytes") for line in group
            ),
        )
        for (scenario, launch), group in groups.items()
    )


def _scenarios(runs: Sequence[Run]) -> dict[str, list[Run]]:
    scenarios: dict[str, list[Run]] = {}
    for run in runs:
        scenarios.setdefault(run.scenario, []).append(run)
    return scenarios


# --- predicting --------------------------------------------------------------------------------


def _rows(
    scenarios: Mapping[str, list[Run]], alone: tuple[Alone, ...], mechanisms: Mechanisms
) -> tuple[RefereeRow, ...]:
    return tuple(_row(name, runs, alone, mechanisms) for name, runs in scenarios.items())


def _row(name: str, runs: Sequence[Run], alone: tuple[Alone, ...], mechanisms: Mechanisms) -> RefereeRow:
    totals = [run.times.total for run in runs]
    row = RefereeRow(
        id=name,
        replicas=len(runs),
        spread=(max(totals) - min(totals)) / median(totals),
        published=median(totals),
        predicted=None,
        covered=False,
        published_comm=_median([run.times.comm for run in runs]),
        published_start=_median([run.times.start for run in runs]),
    )
    try:
        prediction = predict(runs[0].launches, alone, mechanisms)
    except InputError as error:
        return replace(row, reason=str(error))
    return replace(
        row,
        covered=True,
        reason="; ".join(prediction.assumed),
        predicted=prediction.times.total,
        predicted_comm=prediction.times.comm,
        predicted_start=prediction.times.start,
        sum_alone=sum(prediction.alone),
        max_alone=max(prediction.alone),
        runs=tuple(_run_row(run, prediction.times) for run in runs),
    )


def _run_row(run: Run, predicted: Times) -> RunRow:
    times = run.times
    return RunRow(
        replica=run.replica,
        total=times.total,
        comm=times.comm,
        start=times.start,
        error=_relative(predicted.total, times.total),
        comm_error=_relative(predicted.comm, times.comm),
        start_error=_part(predicted.start, times.start, times.total),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


# --- errors ------------------------------------------------------------------------------------


def _errors(values: Mapping[str, float | None]) -> Errors | None:
    known = {name: abs(value) for name, value in values.items() if value is not None}
    if not known:
        return None
    worst = max(known, key=known.__getitem__)
    return Errors(mean=fmean(known.values()), worst=known[worst], worst_at=worst)


def _summary(setting: str, rows: Sequence[RefereeRow], effects: Sequence[Effect]) -> RefereeSummary | None:
    total = _errors({row.id: row.error for row in rows})
    if total is None:
        return None
    runs = {f"{row.id}/{run.replica}": run for row in rows for run in row.runs}
    by_run = {
        "total": _errors({name: run.error for name, run in runs.items()}),
        "comm": _errors({name: run.comm_error for name, run in runs.items()}),
        "start": _errors({name: run.start_error for name, run in runs.items()}),
    }
    beyond = [effect for effect in effects if effect.beyond_spread]
    return RefereeSummary(
        setting=setting,
        covered=sum(row.covered for row in rows),
        total=total,
        comm=_errors({row.id: row.comm_error for row in rows}),
        start=_errors({row.id: row.start_error for row in rows}),
        runs={name: errors for name, errors in by_run.items() if errors},
        signs=len(beyond),
        wrong_signs=tuple(f"{effect.of} against {effect.against}" for effect in beyond if not effect.right),
    )


def _effects(rows: Sequence[RefereeRow], scenarios: Mapping[str, list[Run]]) -> tuple[Effect, ...]:
    """Every pair of covered scenarios with the same order of kernels whose launches differ in one kernel only."""
    covered = [row for row in rows if row.predicted is not None]
    effects = []
    for index, base in enumerate(covered):
        for row in covered[index + 1 :]:
            before, after = scenarios[base.id][0].launches, scenarios[row.id][0].launches
            if len(before) != len(after) or sum(a != b for a, b in zip(before, after, strict=True)) != 1:
                continue
            assert base.predicted is not None
            assert row.predicted is not None
            effects.append(
                Effect(
                    of=row.id,
                    against=base.id,
                    published=row.published / base.published - 1.0,
                    predicted=row.predicted / base.predicted - 1.0,
                    spread=max(row.spread, base.spread),
                )
            )
    return tuple(effects)


def _baselines(rows: Sequence[RefereeRow]) -> dict[str, Errors]:
    """Errors of the total without a model: kernels one by one, and the longest alone."""
    guesses = {
        "sum of alone times": {row.id: _relative(row.sum_alone, row.published) for row in rows},
        "longest alone time": {row.id: _relative(row.max_alone, row.published) for row in rows},
    }
    return {name: errors for name, values in guesses.items() if (errors := _errors(values))}


def _ablation(scenarios: Mapping[str, list[Run]], alone: tuple[Alone, ...]) -> tuple[RefereeSummary, ...]:
    """The errors with each mechanism off, then with all of them off."""
    names = [field.name for field in fields(Mechanisms)]
    settings = {f"without {name.replace('_', ' ')}": replace(ALL, **{name: False}) for name in names}
    settings["none of them"] = Mechanisms(**dict.fromkeys(names, False))
    summaries = []
    for setting, mechanisms in settings.items():
        rows = _rows(scenarios, alone, mechanisms)
        if summary := _summary(setting, rows, _effects(rows, scenarios)):
            summaries.append(summary)
    return tuple(summaries)
