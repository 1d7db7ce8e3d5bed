"""Published training steps beside predicted ones, as a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from makeway.decide.scale.validate import CLOSE, SWEEP_TOP, ScaleSummary, ScaleValidation
from makeway.show.blocks import Cell, Column, Headline, Notes, Report, Section, Table
from makeway.show.data import record
from makeway.show.numbers import count, number, percent
from makeway.show.provenance import provenance

_DIGITS = 6
_NOTES = (
    "calibration: the row helped to choose numbers of its software generation; test: it did not",
    "Errors are relative to the published figure; what a row leaves open is assumed, and the row says so",
)


def report(validation: ScaleValidation, *, arguments: str = "") -> Report:
    """Every row beside its prediction, the worst misses first."""
    return Report(
        result="scale-validation",
        over="makeway validate scale",
        headline=Headline(sentence=_sentence(validation), origin="predicted", value=validation.covered_rows),
        sections=(
            Section(name="summary", title="Errors", blocks=_summary_blocks(validation)),
            Section(name="rows", title="Published and predicted", blocks=(_rows(validation), Notes(sentences=_NOTES))),
            *_uncovered(validation.uncovered),
            provenance(arguments, numbers="predicted, beside published ones"),
        ),
        data=_rounded(record(validation)),
        arguments=arguments,
    )


def _sentence(validation: ScaleValidation) -> str:
    covered = validation.covered_rows
    rows = count(len(validation.rows), "published step")
    test = next((item for item in validation.summary if item.name == "dense NVIDIA rows, test"), None)
    if test is None:
        return f"{covered} of {rows} are covered"
    return (
        f"{covered} of {rows} are covered; {test.rows} dense NVIDIA rows that nothing was fitted to are "
        f"{percent(100 * test.mean_error, '.1f')} off on average, {percent(100 * test.close, '.0f')} of them within "
        f"{percent(100 * CLOSE, '.0f')}"
    )


def _rounded(value: object) -> dict[str, object]:
    rounded = _digits(value)
    assert isinstance(rounded, dict)
    return rounded


def _digits(value: object) -> object:
    match value:
        case float():
            return round(value, _DIGITS)
        case dict():
            return {key: _digits(item) for key, item in value.items()}
        case list():
            return [_digits(item) for item in value]
        case _:
            return value


def _share(value: float, form: str = ".1f") -> Cell:
    return Cell(f"{100 * value:{form}} %", round(value, _DIGITS))


def _errors(name: str, caption: str, groups: Sequence[ScaleSummary], nothing: str = "No rows are covered.") -> Table:
    return Table(
        name=name,
        caption=f"{caption}; the last column is the share of rows within {CLOSE:.0%}",
        columns=(
            Column("group", "wide"),
            Column("rows", "number"),
            Column("mean error", "number"),
            Column("bias", "number"),
            Column("largest", "number", brief=False),
            Column("close", "number"),
        ),
        rows=tuple(
            (
                Cell(item.name),
                number(item.rows, 0),
                _share(item.mean_error),
                _share(item.bias, "+.1f"),
                _share(item.largest, "+.1f"),
                _share(item.close, ".0f"),
            )
            for item in groups
        ),
        origin="predicted",
        brief_rows=40,
        nothing=nothing,
    )


def _memory(validation: ScaleValidation) -> Table:
    return Table(
        name="memory",
        caption="Memory of one GPU that rows publish besides their time",
        columns=(
            Column("id"),
            Column("metric"),
            Column("published", "number"),
            Column("predicted", "number", origin="predicted"),
            Column("error", "number"),
        ),
        rows=tuple(
            (
                Cell(item.id),
                Cell(item.metric),
                Cell(f"{item.published:.4g}", item.published),
                Cell(f"{item.predicted:.4g}", item.predicted),
                _share(item.error, "+.1f"),
            )
            for item in sorted(validation.memory, key=lambda item: -abs(item.error))
        ),
        brief_rows=5,
        nothing="No row publishes memory besides its time.",
    )


def _summary_blocks(validation: ScaleValidation) -> tuple[Table, ...]:
    errors = _errors("errors", "Relative errors by group", validation.summary)
    unseen = _errors(
        "unseen",
        "Software as if never seen: rows of each generation, predicted with another one's numbers",
        validation.unseen,
        "No row is of a software that was calibrated.",
    )
    sweeps = Table(
        name="sweeps",
        caption=f"Layouts of one model: the measured rank of the predicted best; good is {SWEEP_TOP} or better",
        columns=(
            Column("sweep", "wide"),
            Column("layouts", "number"),
            Column("rank", "number"),
            Column("slower than the best", "number"),
            Column("predicted best", brief=False),
        ),
        rows=tuple(
            (
                Cell(item.name),
                number(item.layouts, 0),
                number(item.rank, 0),
                _share(item.loss),
                Cell(item.best),
            )
            for item in validation.sweeps
        ),
        origin="predicted",
        nothing="No table has ten layouts of one model on as many GPUs.",
    )
    peers = Table(
        name="peers",
        caption="Other tools on the same rows: mean error, and processor time per configuration",
        columns=(
            Column("tool and rows", "wide"),
            Column("rows", "number"),
            Column("its error", "number"),
            Column("makeway", "number"),
            Column("test rows", "number"),
            Column("makeway there", "number"),
            Column("its ms", "number"),
            Column("makeway ms", "number"),
            Column("its numbers saw the rows", "wide", brief=False),
            Column("source", "wide", brief=False),
        ),
        rows=tuple(
            (
                Cell(item.name),
                number(item.rows, 0),
                _share(item.peer_error),
                _share(item.error),
                number(item.test_rows, 0),
                Cell("") if item.test_error is None else _share(item.test_error),
                Cell("") if item.peer_ms is None else number(item.peer_ms, 1),
                number(item.ms, 1),
                Cell(item.calibrated),
                Cell(item.source),
            )
            for item in validation.peers
        ),
        nothing="No row has another tool's prediction.",
    )
    return errors, unseen, _memory(validation), sweeps, peers


def _rows(validation: ScaleValidation) -> Table:
    covered = [row for row in validation.rows if row.covered]
    return Table(
        name="steps",
        caption="Rows that the model covers, the largest errors first",
        columns=(
            Column("id", brief=False),
            Column("case", "wide"),
            Column("device"),
            Column("metric", brief=False),
            Column("published", "number"),
            Column("predicted", "number", origin="predicted"),
            Column("error", "number"),
            Column("status"),
            Column("generation", brief=False),
            Column("assumed", "wide", brief=False),
        ),
        rows=tuple(
            (
                Cell(row.id),
                Cell(row.case),
                Cell(row.device),
                Cell(row.metric),
                Cell(f"{row.published or 0:.4g}", row.published),
                Cell(f"{row.predicted or 0:.4g}", row.predicted),
                _share(row.error or 0.0, "+.1f"),
                Cell(row.status),
                Cell(row.generation),
                Cell("; ".join(row.assumed)),
            )
            for row in sorted(covered, key=lambda row: -abs(row.error or 0.0))
        ),
        filtered=len(covered) > 20,
    )


def _uncovered(tables: Mapping[str, Mapping[str, int]]) -> tuple[Section, ...]:
    if not tables:
        return ()
    table = Table(
        name="uncovered",
        caption="Rows that the model does not cover, by reason",
        columns=(Column("table"), Column("rows", "number"), Column("reason", "wide")),
        rows=tuple(
            (Cell(name), number(rows, 0), Cell(reason))
            for name, reasons in tables.items()
            for reason, rows in reasons.items()
        ),
        brief_rows=40,
    )
    return (Section(name="not-predicted", title="Not predicted", blocks=(table,)),)
