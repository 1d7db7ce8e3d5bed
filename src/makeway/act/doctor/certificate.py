"""A self-test as a document to send: the raw data of every step, and SHA-256 hashes that show later changes.

The hashes are no signature: who changes the data can compute them anew. Sign the file with a key of your own if that
matters (docs/doctor.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from makeway.act.doctor.samples import Line
from makeway.values.errors import DataFileError
from makeway.values.facts import read_file

SCHEMA = "makeway/certificate/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One measuring process: what it printed, and how it failed if it did."""

    name: str
    lines: tuple[Line, ...]
    trouble: str | None = None


def canonical(value: object) -> bytes:
    """The bytes that are hashed: JSON without blanks, keys in order."""
    return msgspec.json.encode(value, order="sorted")


def digest(value: object) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()


def hashes(document: Mapping[str, Any]) -> dict[str, str]:
    """The hash of each step, and of the whole document without its hashes."""
    by_step = {str(step["name"]): digest(step) for step in document["steps"]}
    whole = digest({key: value for key, value in document.items() if key != "hashes"})
    return {**by_step, "document": whole}


def sealed(document: Mapping[str, Any], steps: Sequence[Step]) -> dict[str, Any]:
    """The document with its steps and hashes, as plain JSON values."""
    whole = msgspec.json.decode(msgspec.json.encode({"schema": SCHEMA, **document, "steps": steps}))
    return {**whole, "hashes": hashes(whole)}


def read_certificate(path: Path) -> tuple[dict[str, Any], tuple[Step, ...]]:
    """The document and its steps; an error names what was changed since it was written."""
    content = read_file(path, "certificate")
    try:
        document = msgspec.json.decode(content, type=dict[str, Any])
        if document.get("schema") != SCHEMA:
            raise DataFileError(
                f"{path}: no certificate ({SCHEMA}); makeway doctor --self-test --out FILE on a GPU writes one"
            )
        steps = msgspec.convert(document.get("steps"), type=tuple[Step, ...], strict=False)
        written, now = document.get("hashes"), hashes(document)
    except (msgspec.MsgspecError, KeyError, TypeError, RecursionError) as error:
        raise DataFileError(f"{path}: not a certificate that can be read ({error})") from None
    if not isinstance(written, dict) or set(written) != set(now):
        raise DataFileError(f"{path}: its hashes do not name its steps; write a new certificate")
    if changed := [name for name in now if written[name] != now[name]]:
        raise DataFileError(f"{path}: {changed[0]!r} was changed after it was written; write a new certificate")
    return document, steps
