"""Exports as reports: which controls the target carries, by which settings, and which it does not."""

from __future__ import annotations

from typing import Any

from makeway.act.export.values import Entry, Export, setting_word
from makeway.show.blocks import Cell, Column, Headline, Paragraph, Report, Section, Table
from makeway.show.provenance import provenance
from makeway.values.control import control_word


def report(export: Export, *, arguments: str = "") -> Report:
    """The verdict, and one row per control."""
    table = Table(
        name="controls",
        caption=f"Controls in the settings of {export.carrier}",
        columns=(Column("control", "name"), Column("status"), Column("settings", "wide"), Column("needs", "wide")),
        rows=tuple(
            (Cell(control_word(entry.control)), Cell(receipt.status), Cell(receipt.detail), Cell(entry.note))
            for entry, receipt in zip(export.entries, export.receipts, strict=True)
        ),
        nothing="The plan has no controls: there is nothing to set.",
    )
    seen = Paragraph(text='"not seen": an export writes settings and cannot know whether they act.')
    return Report(
        result="export",
        over=f"makeway export, {export.target}",
        headline=Headline(sentence=verdict(export), origin="read from documentation"),
        sections=(
            Section(name="controls-carried", title="Controls", blocks=(table, *((seen,) if export.carried else ()))),
            provenance(arguments, numbers="settings as the target's documentation names them, not run on a GPU"),
        ),
        data=_data(export),
        arguments=arguments,
    )


def verdict(export: Export) -> str:
    """How many of the plan's controls the target carries."""
    if not export.entries:
        return f"The plan has no controls, so {export.target} has nothing to set"
    carried, total = len(export.carried), len(export.entries)
    if total == 1:
        return f"{export.target} {'carries' if carried else 'does not carry'} the plan's one control"
    return f"{export.target} carries {carried or 'none'} of the plan's {total} controls"


def _data(export: Export) -> dict[str, Any]:
    return {
        "target": export.target,
        "carrier": export.carrier,
        "text": export.text,
        "carried": [_carried(entry) for entry in export.carried],
        "not_carried": [{"control": control_word(entry.control), "reason": entry.refusal} for entry in export.refused],
    }


def _carried(entry: Entry) -> dict[str, Any]:
    settings = [setting_word(*setting) for setting in entry.settings]
    return {"control": control_word(entry.control), "settings": settings, "note": entry.note or None}
