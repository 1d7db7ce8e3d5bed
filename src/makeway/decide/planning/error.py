"""How far the model is off when it compares two settings: smaller gains count as none."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from makeway.values.device import Device
from makeway.values.errors import DataFileError
from makeway.values.facts import data_files, parse_toml, refuse_unknown, text

_FILE = "model-error.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorOfDifference:
    """The mean absolute error, out of sample, of a difference between two settings, and what it was computed from."""

    value: float  # part of the sequential time
    basis: str


def error_of_difference(device: Device) -> ErrorOfDifference:
    """The error for a device: that of its architecture, or the widest of all."""
    errors = _errors()
    if device.arch in errors:
        return errors[device.arch]
    widest = max(errors.values(), key=lambda error: error.value)
    return ErrorOfDifference(
        value=widest.value,
        basis=f"nothing published for {device.name}: the widest error of any device ({widest.basis})",
    )


@cache
def _errors() -> dict[str, ErrorOfDifference]:
    document = parse_toml(data_files("").joinpath(_FILE).read_bytes(), where=_FILE)
    refuse_unknown(document, ("errors",), where=_FILE)
    rows: dict[str, ErrorOfDifference] = {}
    for arch, row in document["errors"].items():
        where = f"{_FILE}: {arch}"
        refuse_unknown(row, ("value", "basis"), where=where)
        value = row.get("value")
        if type(value) is not float or not 0 < value < 1:
            raise DataFileError(f"{where}: value must be a part of the sequential time, got {value!r}")
        rows[arch] = ErrorOfDifference(value=value, basis=text(row, "basis", where=where))
    return rows
