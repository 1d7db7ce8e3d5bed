"""Runs and dry runs as reports: what became of each control on every rank, or what would be set."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from makeway.act.launch.outcome import Outcome
from makeway.act.launch.run import DryRun, Run
from makeway.show.blocks import Cell, Column, Headline, Notes, Paragraph, Report, Section, Table
from makeway.show.data import plain, record
from makeway.show.numbers import count, number
from makeway.show.provenance import provenance
from makeway.values.control import control_word, describe
from makeway.values.receipt import Receipt


def report(result: Run | DryRun, *, arguments: str = "") -> Report:
    """A program that ran under a plan, or would."""
    return _dry_run_report(result, arguments) if isinstance(result, DryRun) else _run_report(result, arguments)


def receipt_data(receipt: Receipt) -> dict[str, Any]:
    """A receipt as plain data."""
    return record(receipt, without=("evidence",)) | {"evidence": dict(receipt.evidence)}


# --- a run ---------------------------------------------------------------------------------------


def _run_report(run: Run, arguments: str) -> Report:
    where = "" if run.rank is None else f" (rank {run.rank})"
    applied = f"{run.applied} of {count(len(run.controls), 'control')} applied" if run.controls else "no controls"
    end = end_text(run.exit_code, run.killed_by)
    return Report(
        result="run",
        over="makeway run",
        headline=Headline(
            sentence=f"makeway run{where}: {end}; {applied}",
            origin="measured",
            value=float(run.applied),
            unit="controls",
        ),
        sections=(
            Section(name="controls", title="Controls", blocks=(outcome_table(run.controls),)),
            Section(name="by-rank", title="Ranks", blocks=(_rank_table(run.controls),), detail=True),
            Section(
                name="variables",
                title="Environment",
                blocks=(Notes(sentences=tuple(variable.summary for variable in run.variables)),),
            ),
            provenance(
                arguments,
                numbers="read back from the system, or counted",
                facts=(("program", shlex.join(run.program)),),
                notes=run.notes,
            ),
        ),
        data=record(run, without=("controls", "notes"))
        | {
            "all_applied": run.all_applied,
            "applied": run.applied,
            "controls": outcome_data(run.controls),
        },
        notes=run.notes,
        arguments=arguments,
    )


def measured_in_job(program: Sequence[str], notes: Sequence[str], arguments: str) -> Section:
    """The provenance of figures that a job's own steps gave."""
    return provenance(
        arguments,
        numbers="measured in the job itself",
        facts=(("program", shlex.join(program)),),
        notes=(*notes, "What each number means: makeway's docs/numbers.md."),
    )


def end_text(exit_code: int | None, killed_by: int | None) -> str:
    """How a program ended."""
    if exit_code is None and killed_by is None:
        return "the program still runs"
    return f"exit code {exit_code}" if killed_by is None else f"killed by {signal.Signals(killed_by).name}"


def outcome_data(controls: Sequence[Outcome]) -> list[dict[str, Any]]:
    """What became of each control, as plain data."""
    return [
        {
            "control": control_word(outcome.control),
            "status": outcome.status,
            "receipts": [receipt_data(receipt) for receipt in outcome.receipts],
        }
        for outcome in controls
    ]


def outcome_table(controls: Sequence[Outcome]) -> Table:
    """What became of each control, ranks with the same receipt together."""
    return Table(
        name="outcomes",
        caption="What became of each control",
        origin="measured",
        columns=(
            Column("control", "name"),
            Column("outcome"),
            Column("ranks"),
            Column("carrier", brief=False),
            Column("detail", "wide"),
        ),
        rows=tuple(row for outcome in controls for row in _outcome_rows(outcome)),
        nothing="The plan has no controls.",
        brief_rows=24,
    )


def _outcome_rows(outcome: Outcome) -> Iterator[tuple[Cell, ...]]:
    """One row for all ranks with the same receipt; the first names the control."""
    name = Cell(control_word(outcome.control), hint=describe(outcome.control))
    for group in outcome.groups:
        ranks = rank_ranges([receipt.rank for receipt in group])
        yield (name, Cell(group[0].status), Cell(ranks), Cell(group[0].carrier), Cell(group[0].detail))
        name = Cell("")


def rank_ranges(ranks: Sequence[int | None]) -> str:
    """Ascending ranks as ranges: "0-3,5"; "-" without ranks."""
    ranges: list[list[int]] = []
    for rank in ranks:
        if rank is None:
            return "-"
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def _rank_table(controls: Sequence[Outcome]) -> Table:
    receipts = [receipt for outcome in controls for receipt in outcome.receipts]
    counted = tuple(dict.fromkeys(name for receipt in receipts for name, _ in receipt.evidence))
    return Table(
        name="receipts",
        caption="Every rank, with what was counted there",
        origin="measured",
        columns=(
            Column("control", "name"),
            Column("rank", "number"),
            Column("outcome"),
            *(Column(name, "number") for name in counted),
            Column("detail", "wide"),
        ),
        rows=tuple(
            (
                Cell(control_word(receipt.control)),
                number(receipt.rank, 0),
                Cell(receipt.status),
                *(number(dict(receipt.evidence).get(name), 0) for name in counted),
                Cell(receipt.detail),
            )
            for receipt in receipts
        ),
        nothing="The plan has no controls.",
        filtered=True,
    )


# --- a dry run -----------------------------------------------------------------------------------


def _dry_run_report(dry: DryRun, arguments: str) -> Report:
    needs = dry.needs
    settings = count(len(needs.settings), "variable")
    hook = "PYTHONPATH gets the start hook, which applies what it can in processes that use torch.distributed."
    return Report(
        result="dry-run",
        over="makeway run --dry-run",
        headline=Headline(sentence=f"would run {shlex.join(dry.program)} with {settings} set", origin="not started"),
        sections=(
            Section(
                name="controls",
                title="Controls",
                blocks=(
                    Table(
                        name="steps",
                        caption="How each control would reach the program",
                        columns=(Column("control", "name"), Column("route"), Column("what", "wide")),
                        rows=tuple(_steps(dry)),
                        nothing="The plan has no controls: nothing to set.",
                        brief_rows=24,
                    ),
                    *([Paragraph(text=hook)] if dry.controls else []),
                ),
            ),
            provenance(arguments, numbers="none: nothing was started"),
        ),
        data={"program": list(dry.program), **plain(needs)},
        arguments=arguments,
    )


def _steps(dry: DryRun) -> Iterator[tuple[Cell, ...]]:
    needs = dry.needs
    for control in dry.controls:
        steps = [("environment", variable.summary) for variable in needs.variables if variable.control == control]
        if control in needs.launch_shim:
            steps.append(("launch shim", "LD_PRELOAD gets the launch shim"))
        if control in needs.tuner_plugin:
            steps.append(("tuner plugin", "NCCL_TUNER_PLUGIN names the tuner plugin, which counts what NCCL asks"))
        steps += [("", f"refused: {remark.text}") for remark in needs.refused if remark.control == control]
        steps += [("", remark.text) for remark in needs.conditions if remark.control == control]
        if control not in needs.launch_shim:
            reasons = [remark.text for remark in needs.no_variable if remark.control == control]
            steps += [("", f"no variable carries it: {reason}") for reason in reasons]
        name = Cell(control_word(control), hint=describe(control))
        for route, what in steps or [("", "")]:
            yield (name, Cell(route), Cell(what))
            name = Cell("")
