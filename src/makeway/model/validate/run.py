"""`validate`: all published results, some of them, or a table of the user's own, beside the model's."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from makeway.model.validate.conccl import conccl_rows
from makeway.model.validate.dma import dma_rows, dma_summary
from makeway.model.validate.grid import cells, grid_rows
from makeway.model.validate.grid_errors import grid_summaries
from makeway.model.validate.headlines import headline_rows
from makeway.model.validate.interference import Ablation, interference
from makeway.model.validate.referee import COLUMNS as REFEREE_COLUMNS
from makeway.model.validate.referee import Referee, referee
from makeway.model.validate.rows import Row, Summary, Uncovered, parse_csv, published_csv
from makeway.model.validate.tiles import tile_rows
from makeway.values.errors import DataFileError, InputError, UnknownNameError, suggestion
from makeway.values.facts import read_file

CLOSE = 0.1  # a prediction within a tenth of the published figure
_GRID_COLUMNS = {"device", "grid_x", "grid_y", "time_ratio"}
_Table = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Count:
    """How many rows there are, and how many of them the model comes close to."""

    rows: int
    close: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Published figures beside the model's and, where a mean makes sense, a summary of each group."""

    SHOWN: ClassVar = ("all", "predicted")

    rows: tuple[Row, ...]
    summary: tuple[Summary, ...] = ()
    uncovered: tuple[Uncovered, ...] = ()  # of a table of the user's own
    ablation: tuple[Ablation, ...] = ()  # figures that interference decides, without each mechanism
    referee: Referee | None = None  # a table of referee runs instead of published figures

    @property
    def all(self) -> Count:
        return _count(self.rows)

    @property
    def predicted(self) -> Count:
        """Only the rows that no number of the model was fitted to."""
        return _count([row for row in self.rows if row.status == "predicted"])


def _count(rows: Sequence[Row]) -> Count:
    return Count(len(rows), sum(abs(row.error) <= CLOSE * abs(row.published) for row in rows))


def validate(names: Sequence[str] | None = None, *, data: Path | None = None) -> Validation:
    """Published results beside the model's: the named parts, all parts, or the table in the file `data`.

    A table has the columns of grid_time_ratio.csv or of dma_allgather_variants.csv in data/validation, or
    holds runs of a cycle-level simulator: each kernel alone, and several together.
    """
    if data is not None:
        if names:
            raise InputError("choose parts of the published results or a table of your own, not both")
        return _validate_file(data)
    for name in names or ():
        if name not in PARTS:
            raise UnknownNameError(f"no part {name!r}{suggestion(name, PARTS)}\nKnown: {', '.join(PARTS)}")
    parts = [PARTS[name]() for name in names or PARTS]
    return Validation(
        rows=tuple(row for part in parts for row in part.rows),
        summary=tuple(summary for part in parts for summary in part.summary),
        ablation=tuple(ablation for part in parts for ablation in part.ablation),
    )


def _grid(table: _Table) -> Validation:
    given = cells(table)
    rows, uncovered = grid_rows(given)
    summary = grid_summaries(given, rows, cells(published_csv("grid_time_ratio.csv")))
    return Validation(rows=tuple(rows), summary=tuple(summary), uncovered=tuple(uncovered))


def _dma(table: _Table, *, status: str) -> Validation:
    rows, uncovered = dma_rows(table, status=status)
    return Validation(rows=tuple(rows), summary=(dma_summary(rows),) if rows else (), uncovered=tuple(uncovered))


def _interference() -> Validation:
    found = interference()
    return Validation(rows=found.rows, summary=(found.summary,), ablation=found.ablations)


PARTS: dict[str, Callable[[], Validation]] = {
    "grid": lambda: _grid(published_csv("grid_time_ratio.csv")),
    "tiles": lambda: Validation(rows=tuple(tile_rows())),
    "headlines": lambda: Validation(rows=tuple(headline_rows())),
    "interference": _interference,
    "conccl": lambda: Validation(rows=tuple(conccl_rows())),
    "dma": lambda: _dma(published_csv("dma_allgather_variants.csv"), status="fitted"),
}


def _validate_file(path: Path) -> Validation:
    try:
        table = parse_csv(read_file(path, "table").decode())
        if not table:
            raise DataFileError(f"{path}: the table is empty")
        if set(table[0]) >= _GRID_COLUMNS:
            return _grid(table)
        if set(table[0]) >= REFEREE_COLUMNS:
            return Validation(rows=(), referee=referee(table))
        if "bytes" in table[0]:
            return _dma(table, status="predicted")
    except UnicodeDecodeError as error:
        raise DataFileError(f"cannot read {str(path)!r}: {error}") from None
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        raise DataFileError(f"{path}: a cell is not a number ({error})") from None
    raise InputError(
        f"{path} has the columns {', '.join(table[0])}\n"
        f"Expected {', '.join(sorted(_GRID_COLUMNS))}; or bytes with DMA variants; "
        f"or {', '.join(sorted(REFEREE_COLUMNS))} of simulator runs (makeway validate --help)"
    )
