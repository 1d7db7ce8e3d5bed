"""A table of referee runs as a report: every scenario beside its prediction, and what each mechanism is worth."""

from __future__ import annotations

from typing import Any

from makeway.model.validate.referee import Errors, Referee, RefereeRow, RefereeSummary
from makeway.show.blocks import Cell, Column, Headline, Notes, Report, Section, Table
from makeway.show.data import record
from makeway.show.numbers import count, number, percent
from makeway.show.provenance import provenance

TARGETS = {"total": (0.03, 0.08), "comm": (0.05, 0.12), "start": (0.02, 0.04)}  # mean and worst
_DIGITS = 6
_NOTES = (
    "Each scenario is predicted from the runs of its kernels alone; nothing of an overlap run but its launch is used",
    "Published figures are medians over replicas, in core cycles; the start's error is relative to the total",
    "An effect is a change of one kernel's launch; it counts when it is larger than its replicas' spread",
)


def referee_report(referee: Referee, *, arguments: str = "") -> Report:
    """Every scenario beside its prediction."""
    notes = (*(f"{row.id} is not covered: {row.reason}" for row in referee.rows if not row.covered), *_NOTES)
    return Report(
        result="validation",
        over="makeway validate",
        headline=Headline(sentence=_sentence(referee), origin="predicted", value=sum(r.covered for r in referee.rows)),
        sections=(
            Section(name="rows", title="Published and predicted", blocks=(_rows(referee), Notes(sentences=notes))),
            *_error_sections(referee),
            provenance(arguments, numbers="predicted by simulation, beside those of another simulator"),
        ),
        data=_rounded(
            record(referee) | {"targets": {name: {"mean": m, "worst": w} for name, (m, w) in TARGETS.items()}}
        ),
        arguments=arguments,
    )


def _sentence(referee: Referee) -> str:
    covered, scenarios = sum(row.covered for row in referee.rows), count(len(referee.rows), "scenario")
    if referee.summary is None:
        return f"None of {scenarios} could be predicted from the runs of kernels alone"
    total = referee.summary.total
    return (
        f"{covered} of {scenarios} predicted from kernels alone: totals within {percent(100 * total.mean, '.1f')} on "
        f"average and {percent(100 * total.worst, '.1f')} at worst"
    )


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return round(value, _DIGITS)
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
        case list():
            return [_rounded(item) for item in value]
        case _:
            return value


def _rows(referee: Referee) -> Table:
    return Table(
        name="scenarios",
        caption="Total, communication (first start to last end) and its start, in cycles",
        columns=(
            Column("scenario", "wide"),
            Column("total", "number"),
            Column("predicted", "number", origin="predicted"),
            Column("error", "number"),
            Column("comm", "number"),
            Column("predicted", "number", origin="predicted", brief=False),
            Column("error", "number"),
            Column("start", "number", brief=False),
            Column("predicted", "number", origin="predicted", brief=False),
            Column("start error", "number"),
            Column("reason", "wide", brief=False),
        ),
        rows=tuple(_cells(row) for row in referee.rows),
        filtered=len(referee.rows) > 20,
    )


def _cells(row: RefereeRow) -> tuple[Cell, ...]:
    return (
        Cell(row.id),
        number(row.published, 0),
        number(row.predicted, 0),
        _share(row.error),
        number(row.published_comm, 0),
        number(row.predicted_comm, 0),
        _share(row.comm_error),
        number(row.published_start, 0),
        number(row.predicted_start, 0),
        _share(row.start_error),
        Cell(row.reason),
    )


def _share(value: float | None) -> Cell:
    return Cell("–", None) if value is None else Cell(percent(100 * value, "+.1f"), value)


def _error_sections(referee: Referee) -> tuple[Section, ...]:
    if referee.summary is None:
        return ()
    return (
        Section(
            name="summary",
            title="Errors, and what each mechanism is worth",
            blocks=(_targets(referee.summary, referee), _ablation(referee), Notes(sentences=_sign_notes(referee))),
        ),
        Section(name="effects", title="Effects", blocks=(_effects(referee),), detail=True),
    )


def _pair(errors: Errors | None) -> Cell:
    if errors is None:
        return Cell("–", None)
    return Cell(f"{percent(100 * errors.mean, '.1f')} / {percent(100 * errors.worst, '.1f')}", errors.mean)


def _targets(summary: RefereeSummary, referee: Referee) -> Table:
    targets = [f"{percent(100 * mean)} / {percent(100 * worst)}" for mean, worst in TARGETS.values()]
    baselines = [
        (Cell(f"total by the {name}"), _pair(errors), Cell("–", None), Cell("–", None))
        for name, errors in (referee.baselines or {}).items()
    ]
    by_run = [_pair(summary.runs.get(name)) for name in TARGETS]
    return Table(
        name="errors",
        caption="Mean and worst error",
        columns=(Column("", "wide"), Column("total"), Column("communication"), Column("its start")),
        rows=(
            (Cell("target"), *(Cell(target) for target in targets)),
            (Cell("medians over replicas"), _pair(summary.total), _pair(summary.comm), _pair(summary.start)),
            (Cell("single runs"), *by_run),
            *baselines,
        ),
        origin="predicted",
    )


def _ablation(referee: Referee) -> Table:
    assert referee.summary is not None
    return Table(
        name="ablation",
        caption="Mean and worst error without each mechanism",
        columns=(
            Column("setting", "wide"),
            Column("total"),
            Column("communication"),
            Column("its start"),
            Column("wrong signs"),
        ),
        rows=tuple(
            (
                Cell(summary.setting),
                _pair(summary.total),
                _pair(summary.comm),
                _pair(summary.start),
                Cell(f"{len(summary.wrong_signs)} of {summary.signs}", len(summary.wrong_signs)),
            )
            for summary in (referee.summary, *referee.ablation)
        ),
        origin="predicted",
    )


def _sign_notes(referee: Referee) -> tuple[str, ...]:
    assert referee.summary is not None
    wrong = referee.summary.wrong_signs
    right = referee.summary.signs - len(wrong)
    return (
        f"{right} of {count(referee.summary.signs, 'effect')} beyond the replicas' spread have the right sign",
        *(f"wrong sign: {effect}" for effect in wrong),
    )


def _effects(referee: Referee) -> Table:
    return Table(
        name="changes",
        caption="What one change does to the total",
        columns=(
            Column("scenario", "wide"),
            Column("against", "wide"),
            Column("published", "number"),
            Column("predicted", "number", origin="predicted"),
            Column("spread", "number"),
        ),
        rows=tuple(
            (
                Cell(effect.of),
                Cell(effect.against),
                _share(effect.published),
                _share(effect.predicted),
                _share(effect.spread),
            )
            for effect in referee.effects
        ),
        filtered=len(referee.effects) > 20,
    )
