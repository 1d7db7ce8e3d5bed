"""One SM as a text picture: registers, shared memory, warps and block slots, by who holds them."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from makeway.model.residency import need
from makeway.values.device import SmLimits
from makeway.values.kernel import KernelResources
from makeway.values.units import format_bytes

_COMPUTE, _COMM, _MISSING, _FREE = "cyan", "green", "red", "bright_black"
_WIDTH = 30  # of the bar: with its label, its overflow and its figures a line fits 80 columns
_MOST_MISSING = 8


@dataclass(frozen=True, slots=True)
class _Bar:
    label: str
    total: int
    compute: tuple[int, ...]  # one amount per block
    comm: int
    unit: str  # "bytes" or ""


def sm_picture(sm: SmLimits, compute: KernelResources, blocks: int, comm: KernelResources | None) -> Table:
    """An SM with `blocks` compute blocks and, beside them, the collective's block.

    What of it does not fit runs past the end of the bar, in red.
    """
    table = Table.grid(padding=(0, 1))
    for bar in _bars(sm, compute, blocks, comm):
        table.add_row(bar.label, _drawn(bar), _figures(bar))
    return table


def legend() -> Text:
    """What the colours and letters of the picture mean."""
    return Text.assemble(
        ("1 2 …", _COMPUTE), " compute blocks   ", ("C", _COMM), " the collective's block   ",
        ("X", _MISSING), " what it lacks   ", ("·", _FREE), " free",
    )  # fmt: skip


def _bars(sm: SmLimits, compute: KernelResources, blocks: int, comm: KernelResources | None) -> list[_Bar]:
    held, added = _amounts(sm, compute), _amounts(sm, comm) if comm else (0, 0, 0, 0)
    totals = (sm.registers, sm.smem_bytes, sm.max_warps, sm.max_blocks)
    labels = ("registers", "shared memory", "warps", "block slots")
    return [
        _Bar(label, total, (each,) * blocks, comm_amount, "bytes" if label == "shared memory" else "")
        for label, total, each, comm_amount in zip(labels, totals, held, added, strict=True)
    ]


def _amounts(sm: SmLimits, kernel: KernelResources) -> tuple[int, int, int, int]:
    """Registers, shared memory, warps and slots that one block takes."""
    block = need(sm, kernel)
    return block.warps * block.registers_per_warp, block.smem_bytes, block.warps, 1


def _drawn(bar: _Bar) -> Text:
    def column(amount: int) -> int:
        return round(amount * _WIDTH / bar.total)

    drawn, at = Text(), 0
    for index, amount in enumerate(bar.compute):
        end = column(sum(bar.compute[: index + 1]))
        drawn.append(str((index + 1) % 10) * (end - column(at)), _COMPUTE)
        at += amount
    end = at + bar.comm
    inside = column(min(end, bar.total)) - column(at)
    drawn.append("C" * max(inside, 0), _COMM)
    if end > bar.total:
        drawn.append("X" * min(max(column(end) - _WIDTH, 1), _MOST_MISSING), _MISSING)
    drawn.append("·" * (_WIDTH - column(min(end, bar.total))), _FREE)
    return drawn


def _figures(bar: _Bar) -> str:
    def show(amount: int) -> str:
        return format_bytes(amount) if bar.unit == "bytes" else f"{amount:,}"

    left = bar.total - sum(bar.compute) - bar.comm
    return f"{show(abs(left))} of {show(bar.total)} {'free' if left >= 0 else 'short'}"
