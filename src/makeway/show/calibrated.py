"""A calibrated GPU as a report: what the certificate says beside what makeway had."""

from __future__ import annotations

from makeway.act.doctor.calibrate import CalibratedDevice
from makeway.show.blocks import Cell, Column, Facts, Headline, Report, Section, Table
from makeway.show.provenance import provenance


def report(result: CalibratedDevice, *, arguments: str = "") -> Report:
    """The measured facts of one GPU."""
    rows = [(key, value, result.before[key], key in result.used) for key, value in result.measured.items()]
    table = Table(
        name="fact-table",
        caption="Facts of the certificate, and what makeway had or borrowed",
        columns=(Column("fact", "name"), Column("measured", "number"), Column("before", "number"), Column("used")),
        rows=tuple(
            (
                Cell(key),
                Cell(f"{value:.6g}", value),
                Cell("unknown" if before is None else f"{before:.6g}", before),
                Cell("yes" if used else "no: a cited peak stays"),
            )
            for key, value, before, used in rows
        ),
        origin="measured",
        brief_rows=len(rows),
    )
    return Report(
        result="calibrated",
        over="makeway calibrate",
        headline=Headline(
            sentence=f"{result.device.name}: {len(result.used)} of {len(rows)} facts taken from the certificate",
            origin="measured",
        ),
        sections=(
            Section(
                name="facts",
                title="Facts",
                blocks=(table, Facts(pairs=tuple((f"settled: {case}", text) for case, text in result.settled.items()))),
            ),
            provenance(arguments, numbers=f"measured on {result.date}; certificate {result.certificate}"),
        ),
        data={
            "device": result.device.name,
            "arch": result.device.arch,
            "date": result.date,
            "certificate": result.certificate,
            "facts": [
                {"fact": key, "measured": value, "before": before, "used": used} for key, value, before, used in rows
            ],
            "settled": dict(result.settled),
        },
        arguments=arguments,
    )
