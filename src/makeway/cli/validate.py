"""Show every published result beside the model's, with the assumptions used, misses included."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.table import Table

from makeway.cli.output import console, print_json
from makeway.model.validate import PARTS, Row, Summary, Validation, validate, validate_table

EXAMPLES = """\
examples:
  makeway validate
  makeway validate --only grid
  makeway validate --data my_heat_map.csv --json

--data takes a table with columns device, grid_y, grid_x, time_ratio (t_overlap / t_sequential), or bytes and
columns parallel_copy, broadcast, one_engine, swap, each also with _prelaunch (speed-up over parallel_copy): so
anyone can hold the model to results it has never seen.

status: fitted = this number helped to choose a number of the model; calibration = all of the group did;
borrowed = the device has no fitted numbers, another's were taken; predicted = nothing was fitted to it.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", action="append", choices=tuple(PARTS), help="only this part; may be repeated")
    parser.add_argument("--data", type=Path, metavar="FILE.csv", help="check a table of your own instead")
    parser.add_argument("--rows", action="store_true", help="show every row of the large tables, not the worst ten")


def run(options: argparse.Namespace) -> int:
    if options.data:
        found = validate_table(options.data)
    else:
        print("simulating the published set-ups (all of them: some 15 s) ...", file=sys.stderr)
        found = validate(options.only or ())
    if options.json:
        print_json(document(found))
    else:
        _show(found, every=options.rows)
    return 0


def document(found: Validation) -> dict[str, Any]:
    """A validation as data."""
    return {
        "rows": [
            {
                "source": row.source,
                "device": row.device,
                "case": row.case,
                "published": row.published,
                "predicted": round(row.predicted, 6),
                "error": round(row.error, 6),
                "unit": row.unit,
                "status": row.status,
                "assumed": row.assumed,
            }
            for row in found.rows
        ],
        "summary": [
            {
                "source": summary.source,
                "device": summary.device,
                "rows": summary.rows,
                "mae": round(summary.mae, 6),
                "largest": round(summary.largest, 6),
                "baselines": {name: round(value, 6) for name, value in summary.baselines.items()},
                "note": summary.note,
            }
            for summary in found.summaries
        ],
    }


def _show(found: Validation, *, every: bool) -> None:
    out = console()
    summarised = {(summary.source, summary.device) for summary in found.summaries}
    for summary in found.summaries:
        rows = [row for row in found.rows if (row.source, row.device) == (summary.source, summary.device)]
        _show_summary(summary, rows, every=every)
    rest = [row for row in found.rows if (row.source, row.device) not in summarised]
    if rest:
        out.print(_table(rest, with_source=True))


def _show_summary(summary: Summary, rows: list[Row], *, every: bool) -> None:
    out = console()
    out.print(
        f"{summary.source}, {summary.device}: mean absolute error {summary.mae:.4f} over {summary.rows} cells, "
        f"largest {summary.largest:.3f} ({rows[0].status})",
        style="bold",
    )
    for name, value in summary.baselines.items():
        out.print(f"  {name}: {value:.4f}")
    if summary.note:
        out.print(f"  {summary.note}")
    worst = rows if every else sorted(rows, key=lambda row: -abs(row.error))[:10]
    out.print(_table(worst, with_source=False))
    out.print()


def _table(rows: list[Row], *, with_source: bool) -> Table:
    headings = ["source", "device"] if with_source else []
    table = Table(*headings, "case", "published", "predicted", "error", "status", *(["assumed"] if with_source else []))
    table.box, table.pad_edge = None, False
    for row in rows:
        unit = f" {row.unit}" if row.unit else ""
        cells = [row.case, f"{row.published:.3g}{unit}", f"{row.predicted:.3g}{unit}", f"{row.error:+.3g}", row.status]
        lead = [row.source, row.device] if with_source else []
        table.add_row(*lead, *cells, *(["; ".join(row.assumed)] if with_source else []))
    return table
