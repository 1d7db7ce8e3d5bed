"""A validation as a report: published figures beside the model's, the worst misses first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from makeway.model.simulate.mechanisms import switch
from makeway.model.validate.interference import Ablation
from makeway.model.validate.rows import Row, Summary, Uncovered
from makeway.model.validate.run import CLOSE, Validation
from makeway.show.blocks import Cell, Column, Headline, Notes, Report, Section, Table
from makeway.show.data import record
from makeway.show.numbers import number, percent
from makeway.show.provenance import provenance
from makeway.show.referee import referee_report

_STATUS = (
    "fitted: this figure helped to choose a number of the model; calibration: all of the group did",
    "borrowed: the device has no fitted numbers and takes another's; predicted: nothing was fitted to the figure",
)


def report(validation: Validation, *, arguments: str = "") -> Report:
    """Every published figure beside the model's, misses included."""
    if validation.referee is not None:
        return referee_report(validation.referee, arguments=arguments)
    every, honest = validation.all, validation.predicted
    sources = dict.fromkeys(row.source for row in validation.rows)
    tables = tuple(
        _rows_table(index, source, [row for row in validation.rows if row.source == source])
        for index, source in enumerate(sources)
    )
    return Report(
        result="validation",
        over="makeway validate",
        headline=Headline(
            sentence=f"The model is within {percent(100 * CLOSE)} of {every.close} of {every.rows} published figures"
            + (f", and of {honest.close} of the {honest.rows} that nothing was fitted to" if honest.rows else ""),
            origin="predicted",
            value=every.close,
        ),
        sections=(
            *_summary_section(validation.summary),
            Section(name="rows", title="Published and predicted", blocks=(*tables, Notes(sentences=_STATUS))),
            *_uncovered_section(validation.uncovered),
            *_ablation_section(validation.ablation),
            provenance(arguments, numbers="predicted by simulation, beside published ones"),
        ),
        data=record(validation, without=("rows", "summary", "ablation", "uncovered"))
        | {
            "rows": [
                *(_row_data(row) for row in validation.rows),
                *(record(row) | {"predicted": None, "covered": False} for row in validation.uncovered),
            ],
            "summary": [_summary_data(summary) for summary in validation.summary],
            "ablation": [_ablation_data(ablation) for ablation in validation.ablation],
        },
        arguments=arguments,
    )


def _row_data(row: Row) -> dict[str, Any]:
    return record(row) | {
        "predicted": round(row.predicted, 6),
        "error": round(row.error, 6),
        "covered": True,
        "reason": "; ".join(row.assumed),
    }


def _summary_data(summary: Summary) -> dict[str, Any]:
    return record(summary) | {
        "mae": round(summary.mae, 6),
        "largest": round(summary.largest, 6),
        "baselines": {name: round(value, 6) for name, value in summary.baselines.items()},
    }


def _ablation_data(ablation: Ablation) -> dict[str, Any]:
    return record(ablation) | {
        "predicted": round(ablation.predicted, 6),
        "flipped": {name: round(value, 6) for name, value in ablation.flipped.items()},
        "none": round(ablation.none, 6),
    }


def _ablation_section(ablations: Sequence[Ablation]) -> tuple[Section, ...]:
    """Each figure that interference decides, with one mechanism at a time switched."""
    if not ablations:
        return ()
    names = tuple(ablations[0].flipped)
    table = Table(
        name="switched",
        caption="Predictions with the mechanisms in use, with one at a time switched, and with none",
        columns=(
            Column("case", "wide"),
            Column("published", "number"),
            Column("predicted", "number", origin="predicted"),
            *(Column(switch(name), "number") for name in names),
            Column("none", "number"),
        ),
        rows=tuple(
            (
                Cell(f"{ablation.device}: {ablation.case}"),
                *(
                    Cell(f"{value:.3g}", round(value, 6))
                    for value in (ablation.published, ablation.predicted, *ablation.flipped.values(), ablation.none)
                ),
            )
            for ablation in ablations
        ),
        origin="predicted",
    )
    return (Section(name="ablation", title="Without each mechanism", blocks=(table,)),)


def _summary_section(summaries: Sequence[Summary]) -> tuple[Section, ...]:
    if not summaries:
        return ()
    errors = Table(
        name="errors",
        caption="Mean absolute error of each group",
        columns=(
            Column("source", "wide"),
            Column("device"),
            Column("cells", "number"),
            Column("mean error", "number"),
            Column("largest", "number"),
            Column("note", "wide", brief=False),
        ),
        rows=tuple(
            (
                Cell(summary.source),
                Cell(summary.device),
                number(summary.rows, 0),
                number(summary.mae, 4),
                number(summary.largest),
                Cell(summary.note),
            )
            for summary in summaries
        ),
        origin="predicted",
    )
    baselines = Table(
        name="baselines",
        caption="The same errors for simpler predictors",
        columns=(Column("device"), Column("predictor", "wide"), Column("mean error", "number")),
        rows=tuple(
            (Cell(summary.device), Cell(name), number(error, 4))
            for summary in summaries
            for name, error in summary.baselines.items()
        ),
        brief_rows=30,
    )
    notes = Notes(sentences=tuple(dict.fromkeys(summary.note for summary in summaries if summary.note)))
    return (Section(name="summary", title="Errors", blocks=(errors, baselines, notes)),)


def _uncovered_section(rows: Sequence[Uncovered]) -> tuple[Section, ...]:
    if not rows:
        return ()
    table = Table(
        name="uncovered",
        caption="Rows of the table that the model cannot predict",
        columns=(Column("device"), Column("case"), Column("published", "number"), Column("reason", "wide")),
        rows=tuple(
            (Cell(row.device), Cell(row.case), Cell(f"{row.published:.3g}", row.published), Cell(row.reason))
            for row in rows
        ),
        filtered=len(rows) > 20,
    )
    return (Section(name="not-predicted", title="Not predicted", blocks=(table,)),)


def _rows_table(index: int, source: str, rows: Sequence[Row]) -> Table:
    return Table(
        name=f"rows-{index}",
        caption=source,
        columns=(
            Column("device"),
            Column("case", "wide"),
            Column("published", "number"),
            Column("predicted", "number", origin="predicted"),
            Column("error", "number"),
            Column("status"),
            Column("calibrated on", "wide", brief=False),
            Column("assumed", "wide", brief=False),
        ),
        rows=tuple(
            (
                Cell(row.device),
                Cell(row.case),
                Cell(f"{row.published:.3g} {row.unit}".rstrip(), row.published),
                Cell(f"{row.predicted:.3g} {row.unit}".rstrip(), row.predicted),
                Cell(f"{round(row.error, 6):+.3g}", row.error),
                Cell(row.status),
                Cell(row.calibrated_on),
                Cell("; ".join(row.assumed)),
            )
            for row in sorted(rows, key=lambda row: -abs(row.error))
        ),
        filtered=len(rows) > 20,
    )
