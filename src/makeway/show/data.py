"""A result as plain data for JSON: fields become keys, times become milliseconds, controls their one name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

from makeway.values.control import Control, control_word

_CONTROLS = get_args(Control)
_DIGITS = 6  # of milliseconds and shares: nanoseconds, and the same digits on every machine


def plain(value: object) -> Any:
    """`value` as JSON can hold it.

    A dataclass becomes an object of its fields and of the properties that its `SHOWN` names.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, _CONTROLS):
        return control_word(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return record(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def record(value: Any, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a dataclass and the properties in its `SHOWN`, as plain data; `..._ns` becomes `..._ms`."""
    names = [field.name for field in fields(value)] + list(getattr(type(value), "SHOWN", ()))
    return dict(_entry(name, getattr(value, name)) for name in names if name not in without)


def milliseconds(time_ns: float | None) -> float | None:
    """A time as JSON shows it."""
    return None if time_ns is None else round(time_ns / 1e6, _DIGITS)


def rounded(value: float | None) -> float | None:
    """A share or a ratio as JSON shows it."""
    return None if value is None else round(value, _DIGITS)


def _entry(name: str, value: object) -> tuple[str, Any]:
    if name.endswith("_ns") and (value is None or isinstance(value, int | float)):
        return name.removesuffix("_ns") + "_ms", milliseconds(value)
    return name, plain(value)
