"""Published numbers beside the model's: one row each, misses included."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import ClassVar

from makeway.values.facts import data_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published number, what the model says, and what the model assumes."""

    SHOWN: ClassVar = ("error",)

    source: str
    device: str
    case: str
    published: float
    predicted: float
    unit: str = ""
    size_bytes: int | None = None  # of the collective, where the table goes by size
    status: str = "predicted"  # fitted: this number helped to choose the model's; calibration; predicted; borrowed
    calibrated_on: str = ""  # what the numbers behind a prediction were chosen on; empty: see status
    assumed: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        return self.predicted - self.published


@dataclass(frozen=True, slots=True)
class Uncovered:
    """A row of a table that the model cannot predict, and why."""

    source: str
    device: str
    case: str
    published: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Mean absolute error of a group of rows, beside the errors of simpler predictors."""

    source: str
    device: str
    rows: int
    mae: float
    largest: float
    baselines: dict[str, float] = field(default_factory=dict)
    note: str = ""


def mean_absolute_error(rows: Sequence[Row]) -> float:
    return fmean(abs(row.error) for row in rows)


def published_csv(name: str) -> list[dict[str, str]]:
    """A published table of the package."""
    return parse_csv(data_files("validation").joinpath(name).read_text())


def parse_csv(text: str) -> list[dict[str, str]]:
    """The rows of a table; lines that start with # are comments."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return list(csv.DictReader(io.StringIO("\n".join(lines))))
