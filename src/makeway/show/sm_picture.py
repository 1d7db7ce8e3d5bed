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
_WIDTH = 48


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
    one = need(sm, compute)
    other = need(sm, comm) if comm else None
    held = one.warps * one.registers_per_warp
    wanted = other.warps * other.registers_per_warp if other else 0
    return [
        _Bar("registers", sm.registers, (held,) * blocks, wanted, ""),
        _Bar("shared memory", sm.smem_bytes, (one.smem_bytes,) * blocks, other.smem_bytes if other else 0, "bytes"),
        _Bar("warps", sm.max_warps, (one.warps,) * blocks, other.warps if other else 0, ""),
        _Bar("block slots", sm.max_blocks, (1,) * blocks, 1 if other else 0, ""),
    ]


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
        drawn.append("X" * min(max(column(end) - _WIDTH, 1), _WIDTH // 2), _MISSING)
    drawn.append("·" * (_WIDTH - column(min(end, bar.total))), _FREE)
    return drawn


def _figures(bar: _Bar) -> str:
    def show(amount: int) -> str:
        return format_bytes(amount) if bar.unit == "bytes" else f"{amount:,}"

    used, left = sum(bar.compute), bar.total - sum(bar.compute) - bar.comm
    rest = f"{show(left)} free" if left >= 0 else f"{show(-left)} short"
    return f"{show(used)} + {show(bar.comm)} of {show(bar.total)}, {rest}"
