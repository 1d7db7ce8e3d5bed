"""Collectives on MI300X's copy engines, by size: speed-up of each variant over one copy per peer (AMD-DMA-Latte)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from makeway.model.simulate.dma import dma_cost
from makeway.model.validate.rows import Row, Summary, Uncovered
from makeway.values.collective import Collective, CollectiveKind
from makeway.values.control import DmaVariant
from makeway.values.device import Device, load_device
from makeway.values.errors import InputError, MakewayError

SOURCE = "AMDResearch/AMD-DMA-Latte"
RANKS = 8
_NO_FIGURES = ("bytes", "device")
LARGE_BYTES = 16 * 2**20
_VARIANTS: dict[str, DmaVariant] = {
    "parallel_copy": "parallel-copy",
    "broadcast": "broadcast",
    "one_engine": "one-engine",
    "swap": "swap",
}


def dma_rows(table: Sequence[Mapping[str, str]], *, status: str) -> tuple[list[Row], list[Uncovered]]:
    """Every cell of a table with a bytes column and one column per variant (with or without _prelaunch).

    A table with a swap column is about all-to-all, the only collective that a swap makes sense for. A device column
    names other devices than MI300X. Numbers in other columns, and devices that are not known, are not covered.
    """
    columns = [column for column in table[0] if column not in _NO_FIGURES] if table else []
    kind: CollectiveKind = "all-to-all" if any(column.startswith("swap") for column in columns) else "all-gather"
    rows: list[Row] = []
    uncovered: list[Uncovered] = []
    for line in table:
        exchange = Collective(kind=kind, size_bytes=int(line["bytes"]), ranks=RANKS)
        name = line.get("device") or "MI300X"
        for column in columns:
            case = f"{column.replace('_', ' ')} at {exchange.size_bytes:,} B"
            published = _number(line[column], known=_variant(column) is not None)
            if published is None:
                continue
            try:
                predicted = _speed_up(load_device(name), exchange, column)
            except MakewayError as error:
                reason = " ".join(str(error).split())
                uncovered.append(Uncovered(f"{SOURCE} {kind}", name, case, published, reason))
                continue
            rows.append(
                Row(
                    source=f"{SOURCE} {kind}",
                    device=name,
                    case=case,
                    size_bytes=exchange.size_bytes,
                    published=published,
                    predicted=predicted,
                    unit="x",
                    status=status,
                    assumed=("six constants, two of them fitted to the all-gather table",),
                )
            )
    return rows, uncovered


def _variant(column: str) -> DmaVariant | None:
    return _VARIANTS.get(column.removesuffix("_prelaunch"))


def _number(cell: str, *, known: bool) -> float | None:
    """The figure in a cell; None for a word in a column that the model does not know."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        if known:
            raise
        return None


def _speed_up(device: Device, exchange: Collective, column: str) -> float:
    """How much faster a variant is than one copy per peer."""
    variant = _variant(column)
    if variant is None:
        raise InputError(f"unknown column {column!r}; known: bytes, {', '.join(_VARIANTS)}, each also with _prelaunch")
    cost = dma_cost(device, exchange, variant=variant, prelaunch=column.endswith("_prelaunch"))
    return dma_cost(device, exchange).total_ns / cost.total_ns


def dma_summary(rows: Sequence[Row]) -> Summary:
    """Errors relative to the published speed-up: over all sizes, and at 16 MiB and above."""
    relative = [abs(row.error) / row.published for row in rows]
    large = [abs(row.error) / row.published for row in rows if (row.size_bytes or 0) >= LARGE_BYTES]
    same = [abs(1.0 - row.published) / row.published for row in rows]
    return Summary(
        source=rows[0].source,
        device=", ".join(dict.fromkeys(row.device for row in rows)),
        rows=len(rows),
        mae=sum(relative) / len(relative),
        largest=max(relative),
        baselines={
            "all variants alike": sum(same) / len(same),
            "ours, largest at 16 MiB and above": max(large, default=0.0),
        },
        note="errors relative to the published speed-up",
    )
