"""A report as one JSON document: the result's figures under stable keys (docs/reports.md)."""

from __future__ import annotations

import msgspec

from makeway import __version__
from makeway.show.blocks import Report

SCHEMA_VERSION = 1


def json(report: Report, *, indent: int = 2) -> str:
    """The document, with its schema and its verdict first."""
    document = {
        "schema": f"makeway/{report.result}/{SCHEMA_VERSION}",
        "makeway": __version__,
        "verdict": report.headline.sentence.removesuffix("."),
        "notes": list(report.notes),
        **report.data,
    }
    encoded = msgspec.json.format(msgspec.json.encode(document), indent=indent).decode()
    return encoded.replace("\N{NO-BREAK SPACE}", " ") + "\n"
