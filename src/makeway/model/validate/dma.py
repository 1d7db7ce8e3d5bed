"""Collectives on MI300X's copy engines, by size: speed-up of each variant over one copy per peer (AMD-DMA-Latte)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from makeway.model.simulate.dma import dma_cost
from makeway.model.validate.rows import Row, Summary
from makeway.values.collective import Collective
from makeway.values.control import DmaVariant
from makeway.values.device import load_device
from makeway.values.errors import InputError

SOURCE = "AMDResearch/AMD-DMA-Latte"
RANKS = 8
LARGE_BYTES = 16 * 2**20
_VARIANTS: dict[str, DmaVariant] = {
    "parallel_copy": "parallel-copy",
    "broadcast": "broadcast",
    "one_engine": "one-engine",
    "swap": "swap",
}


def dma_rows(table: Sequence[Mapping[str, str]], *, status: str) -> list[Row]:
    """Every cell of a table with a bytes column and one column per variant (with or without _prelaunch).

    A table with a swap column is about all-to-all, the only collective that a swap makes sense for.
    """
    columns = [column for column in table[0] if column != "bytes"] if table else []
    kind = "all-to-all" if any(column.startswith("swap") for column in columns) else "all-gather"
    device = load_device("MI300X")
    rows = []
    for line in table:
        exchange = Collective(kind=kind, size_bytes=int(line["bytes"]), ranks=RANKS)  # type: ignore[arg-type]
        plain = dma_cost(device, exchange).total_ns
        for column in columns:
            base = column.removesuffix("_prelaunch")
            if base not in _VARIANTS:
                raise InputError(
                    f"unknown column {column!r}; known: bytes, {', '.join(_VARIANTS)}, each also with _prelaunch"
                )
            cost = dma_cost(device, exchange, variant=_VARIANTS[base], prelaunch=column.endswith("_prelaunch"))
            rows.append(
                Row(
                    source=f"{SOURCE} {kind}",
                    device="MI300X",
                    case=f"{column.replace('_', ' ')} at {exchange.size_bytes:,} B",
                    size_bytes=exchange.size_bytes,
                    published=float(line[column]),
                    predicted=plain / cost.total_ns,
                    unit="x",
                    status=status,
                    assumed=("six constants, two of them fitted to the all-gather table",),
                )
            )
    return rows


def dma_summary(rows: Sequence[Row]) -> Summary:
    """Errors relative to the published speed-up: over all sizes, and at 16 MiB and above."""
    relative = [abs(row.error) / row.published for row in rows]
    large = [abs(row.error) / row.published for row in rows if (row.size_bytes or 0) >= LARGE_BYTES]
    same = [abs(1.0 - row.published) / row.published for row in rows]
    return Summary(
        source=rows[0].source,
        device="MI300X",
        rows=len(rows),
        mae=sum(relative) / len(relative),
        largest=max(relative),
        baselines={
            "all variants alike": sum(same) / len(same),
            "ours, largest at 16 MiB and above": max(large, default=0.0),
        },
        note="errors relative to the published speed-up",
    )
