"""All published results, one part of them, or a table that the user brings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from makeway.model.validate.conccl import conccl_rows
from makeway.model.validate.dma import dma_rows, dma_summary
from makeway.model.validate.grid import cells, grid_rows, grid_summaries
from makeway.model.validate.headlines import headline_rows
from makeway.model.validate.rows import Row, Summary, parse_csv, published_csv
from makeway.values.errors import DataFileError, InputError

_GRID_COLUMNS = {"device", "grid_x", "grid_y", "time_ratio"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Rows and, where a mean makes sense, summaries."""

    rows: tuple[Row, ...]
    summaries: tuple[Summary, ...]


def _grid() -> Validation:
    table = cells(published_csv("grid_time_ratio.csv"))
    rows = grid_rows(table)
    return Validation(rows=tuple(rows), summaries=tuple(grid_summaries(table, rows)))


def _dma() -> Validation:
    rows = dma_rows(published_csv("dma_allgather_variants.csv"), status="fitted")
    return Validation(rows=tuple(rows), summaries=(dma_summary(rows),))


def _conccl() -> Validation:
    return Validation(rows=tuple(conccl_rows()), summaries=())


def _headlines() -> Validation:
    return Validation(rows=tuple(headline_rows()), summaries=())


PARTS: dict[str, Callable[[], Validation]] = {
    "grid": _grid,
    "headlines": _headlines,
    "conccl": _conccl,
    "dma": _dma,
}


def validate(names: Sequence[str] = ()) -> Validation:
    """The published results of these parts; of all when none is named."""
    found = [PARTS[name]() for name in names or PARTS]
    return Validation(
        rows=tuple(row for part in found for row in part.rows),
        summaries=tuple(summary for part in found for summary in part.summaries),
    )


def validate_table(path: Path) -> Validation:
    """A table of one's own, in the form of grid_time_ratio.csv or of dma_*_variants.csv."""
    try:
        table = parse_csv(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise DataFileError(f"cannot read {str(path)!r}: {error}") from None
    if not table:
        raise DataFileError(f"{path}: the table is empty")
    try:
        if set(table[0]) >= _GRID_COLUMNS:
            given = cells(table)
            rows = grid_rows(given)
            return Validation(rows=tuple(rows), summaries=tuple(grid_summaries(given, rows)))
        if "bytes" in table[0]:
            dma = dma_rows(table, status="predicted")
            return Validation(rows=tuple(dma), summaries=(dma_summary(dma),))
    except (ValueError, TypeError, KeyError) as error:
        raise DataFileError(f"{path}: a cell is not a number ({error})") from None
    raise InputError(
        f"{path}: columns {', '.join(table[0])}\n"
        f"Expected {', '.join(sorted(_GRID_COLUMNS))}; or bytes with DMA variants (makeway validate --help)"
    )
