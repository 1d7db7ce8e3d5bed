"""What `makeway run` has to say, as a report: what became of each control on every rank."""

from __future__ import annotations

from collections.abc import Sequence

from makeway.act.launch.launch import Run
from makeway.act.launch.outcome import ControlOutcome
from makeway.show.blocks import Block, Cell, Column, Facts, Headline, Notes, Report, Section, Table, Words
from makeway.show.numbers import count, number
from makeway.values.control import control_word, describe


def run_report(run: Run, program: Sequence[str], *, arguments: str, version: str) -> Report:
    """The outcome of every control; all of it was read back from the system or counted."""
    applied = sum(one.status == "applied" for one in run.controls)
    words = f"{applied} of {count(len(run.controls), 'control')} applied; {run.ended.words}"
    return Report(
        result="run",
        over="makeway run",
        headline=Headline(sentence=words, origin="measured", value=float(applied), unit="controls"),
        lead=(Words(text=f"Program: {' '.join(program)}"),),
        sections=(
            Section(
                name="controls", title="Controls", blocks=(_control_table(run.controls), _rank_table(run.controls))
            ),
            Section(name="variables", title="Environment", blocks=_variable_blocks(run)),
            Section(
                name="provenance",
                title="Provenance",
                blocks=(
                    Facts(pairs=(("command", arguments), ("makeway", version)), code=("command",)),
                    Notes(sentences=run.notes),
                ),
            ),
        ),
        arguments=arguments,
    )


def _control_table(controls: Sequence[ControlOutcome]) -> Table:
    return Table(
        name="outcomes",
        caption="Applied on every rank that was heard of, or what stood against it.",
        origin="measured",
        columns=(Column("control", "wide"), Column("as typed", "name"), Column("outcome"), Column("ranks", "number")),
        rows=tuple(
            (
                Cell(describe(one.control)),
                Cell(control_word(one.control)),
                Cell(one.status),
                number(sum(rank.rank is not None for rank in one.ranks), 0),
            )
            for one in controls
        ),
        nothing="The plan has no controls.",
    )


def _rank_table(controls: Sequence[ControlOutcome]) -> Table:
    return Table(
        name="by-rank",
        caption="Rank by rank, with the launches that the launch shim counted.",
        origin="measured",
        columns=(
            Column("control", "name"),
            Column("rank", "number"),
            Column("outcome"),
            Column("seen", "number", None, "launches of the kernels that the control is about"),
            Column("changed", "number"),
            Column("refused", "number"),
            Column("skipped", "number"),
            Column("what", "wide"),
        ),
        rows=tuple(
            (
                Cell(control_word(one.control)),
                number(rank.rank, 0),
                Cell(rank.status),
                *(number(getattr(rank.launches, name, None), 0) for name in ("seen", "changed", "refused", "skipped")),
                Cell(rank.detail),
            )
            for one in controls
            for rank in one.ranks
        ),
        nothing="No rank was heard of.",
        filtered=True,
    )


def _variable_blocks(run: Run) -> tuple[Block, ...]:
    sentences = tuple(variable.words for variable in run.needs.variables)
    return (Notes(sentences=sentences),) if sentences else (Words(text="No variable was set."),)
