"""A bench, and the published experiment, as text: the collective as nccl-tests shows it, the variants, heat maps."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from makeway.act.measure.experiment import Experiment, Sweep, grid_text, heat_map, table
from makeway.act.measure.outcome import SEQUENTIAL, Bench, VariantResult
from makeway.act.measure.statistics import summary

VERIFIED = "every result verified"
_CELL_COLUMNS = {  # of experiment.table; times first
    "grid": "grid",
    "sequential_ms": "t_seq ms",
    "overlap_ms": "t_overlap ms",
    "priority_ms": "t_priority ms",
    "time_ratio": "TimeRatio",
    "normalised_time": "normalised",
    "overlap_rate": "overlap rate",
    "overlap_rate_priority": "with priority",
}


def print_bench(out: Console, found: Bench) -> None:
    """The result as tables: the collective, then the variants, then what was chosen and what to know."""
    out.print(f"{found.workload} on {found.on}, {found.ranks} ranks, {found.origin}: {found.link}", style="bold")
    out.print(_nccl_table(found))
    out.print()
    out.print(_variant_table(found))
    compute, comm = summary(found.compute_ns), summary(found.comm_ns)
    out.print(
        f"alone: compute {compute.median_ns / 1e6:.3f} ms, communication {comm.median_ns / 1e6:.3f} ms; "
        f"ideal {found.ideal_ns / 1e6:.3f} ms"
    )
    if found.choice:
        out.print(f"planned: {found.choice}")
    if found.origin == "measured":
        out.print(VERIFIED if found.verified else "RESULTS DIFFER: see the column `wrong`")
    for note in found.notes:
        out.print(f"note: {note}", style="bright_black")


def print_sweep(out: Console, found: Sweep) -> None:
    """Each tile's table and maps, then the ratios of the tiles."""
    for experiment in found.experiments:
        _print_experiment(out, experiment)
    first = _by(found.experiments[0].tile)
    for tile, ratios in found.tile_ratios.items():
        title = f"normalised time of tile {_by(tile)} over {first}, with priority where both ran it"
        out.print(grid_text(ratios, title=title))
        out.print()
    for note in dict.fromkeys(note for experiment in found.experiments for note in experiment.notes):
        out.print(f"note: {note}", style="bright_black")


def _print_experiment(out: Console, experiment: Experiment) -> None:
    out.print(
        f"{experiment.workload} on {experiment.on}, tile {_by(experiment.tile)}, {experiment.origin}, n = "
        f"{experiment.n} for each grid",
        style="bold",
    )
    rows = _right_aligned(Table(*_CELL_COLUMNS.values(), box=None, pad_edge=False))
    for row in table(experiment):
        cells = {"grid": f"{row['grid_x']}x{row['grid_y']}"} | {
            key: _number(row[key]) for key in list(_CELL_COLUMNS)[1:]
        }
        rows.add_row(*(cells[key] for key in _CELL_COLUMNS))
    out.print(rows)
    out.print()
    for metric in experiment.metrics:
        out.print(heat_map(experiment, metric), markup=False)
        out.print()
    if experiment.verified is not None:
        out.print(VERIFIED if experiment.verified else "RESULTS DIFFER: see the notes")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _right_aligned(made: Table) -> Table:
    for column in made.columns:
        column.justify = "right"
    return made


# --- one bench ---------------------------------------------------------------------------------


def _nccl_table(found: Bench) -> Table:
    columns = ("size", "type", "time", "algbw", "busbw", "t_seq", "t_naive", "t_ctrl", "%ideal")
    made = _right_aligned(Table(*(f"#{columns[0]}", *columns[1:]), box=None, pad_edge=False, header_style=""))
    naive, best = found.better_baseline, found.controlled
    share = found.share_of_ideal(best.name) if best else None
    bandwidths = found.bandwidths
    made.add_row("(B)", "", "(us)", "(GB/s)", "(GB/s)", "(ms)", "(ms)", "(ms)", "")
    made.add_row(
        str(found.exchange.size_bytes) if found.exchange else "-",
        found.exchange.kind if found.exchange else "several",
        f"{summary(found.comm_ns).median_ns / 1e3 / found.exchanges:.1f}",
        f"{bandwidths[0] / 1e9:.2f}" if bandwidths else "-",
        f"{bandwidths[1] / 1e9:.2f}" if bandwidths else "-",
        _ms(found, SEQUENTIAL),
        _ms(found, naive.name) if naive else "-",
        _ms(found, best.name) if best else "-",
        "-" if share is None else f"{share:.0%}",
    )
    return made


def _ms(found: Bench, name: str) -> str:
    return f"{found.variant(name).summary.median_ns / 1e6:.3f}"


def _variant_table(found: Bench) -> Table:
    predicted = any(variant.predicted_ns is not None for variant in found.variants)
    columns = ["variant", "threads", "median ms", "spread ms", "n", "far out", "of ideal", "beside compute", "wrong"]
    if predicted:
        columns.insert(3, "predicted ms")
    made = Table(*columns, box=None, pad_edge=False)
    for column in made.columns[1:-1]:
        column.justify = "right"
    for variant in found.variants:
        made.add_row(*_variant_row(found, variant, predicted=predicted))
    return made


def _variant_row(found: Bench, variant: VariantResult, *, predicted: bool) -> list[str]:
    numbers, share = variant.summary, found.share_of_ideal(variant.name)
    row = [
        variant.name,
        "-" if variant.threads is None else str(variant.threads),
        f"{numbers.median_ns / 1e6:.3f}",
        f"{numbers.spread_ns / 1e6:.3f}",
        str(numbers.n),
        str(numbers.outliers),
        "-" if share is None else f"{share:.0%}",
        "-" if variant.overlap_rate is None else f"{variant.overlap_rate:.0%}",
        variant.wrong or "",
    ]
    if predicted:
        row.insert(3, "-" if variant.predicted_ns is None else f"{variant.predicted_ns / 1e6:.3f}")
    return row
