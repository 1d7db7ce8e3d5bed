"""A report as one JSON document: the result's figures under stable keys (docs/reports.md)."""

from __future__ import annotations

import re
from json import dumps
from typing import Any

import msgspec

from makeway import __version__
from makeway.show.blocks import Report

SCHEMA_VERSION = 1
_STRANGE = re.compile(r"[^ -~\n]")


def json(report: Report, *, indent: int = 2) -> str:
    """The document, with its schema and its verdict first."""
    document = {
        "schema": f"makeway/{report.result}/{SCHEMA_VERSION}",
        "makeway": __version__,
        "verdict": report.headline.sentence.removesuffix("."),
        "notes": list(report.notes),
        **report.data,
    }
    return _STRANGE.sub(_escaped, _encoded(document, indent).replace("\N{NO-BREAK SPACE}", " ")) + "\n"


def _encoded(document: dict[str, Any], indent: int) -> str:
    try:
        return msgspec.json.format(msgspec.json.encode(document), indent=indent).decode()
    except UnicodeEncodeError:  # the name of a file need not be text
        return dumps(document, indent=indent)


def _escaped(match: re.Match[str]) -> str:
    """A character that a terminal would obey as JSON's own escape sequence."""
    return match[0] if match[0].isprintable() else dumps(match[0])[1:-1]
