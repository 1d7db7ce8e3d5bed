"""What became of each control of a plan, from the receipts of the launch shim, of Python processes and the launcher.

The best of a rank's receipts counts: applied, refused, no effect, not seen. A control is applied when it was applied
on every rank that left receipts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from makeway.act.launch.receipt_file import ProcessReceipts
from makeway.act.preload.receipts import LaunchReceipts, shim_receipts
from makeway.values.control import Control, SmemPad
from makeway.values.plan import Plan
from makeway.values.receipt import Receipt, Status

_ORDER: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one control: a receipt per rank."""

    control: Control
    receipts: tuple[Receipt, ...]

    @property
    def status(self) -> Status:
        """Applied only when every rank applied it; else the most telling of the others."""
        statuses = {receipt.status for receipt in self.receipts}
        return next((status for status in _ORDER[1:] if status in statuses), "applied")

    @property
    def groups(self) -> tuple[tuple[Receipt, ...], ...]:
        """Receipts that differ in nothing but their rank, together."""
        groups: dict[tuple[Status, str, str], list[Receipt]] = {}
        for receipt in self.receipts:
            groups.setdefault((receipt.status, receipt.detail, receipt.carrier), []).append(receipt)
        return tuple(map(tuple, groups.values()))


def outcomes(
    plan: Plan,
    at_start: Sequence[Receipt],
    launches: Sequence[LaunchReceipts],
    processes: Sequence[ProcessReceipts],
) -> tuple[Outcome, ...]:
    """One outcome per control, in the plan's order; processes without a rank count only where no process has one."""
    rank_of_process = {process.pid: process.rank for process in processes}
    launches = [
        replace(process, rank=rank_of_process.get(process.pid)) if process.rank is None else process
        for process in launches
    ]
    seen = [process.rank for process in launches] + [process.rank for process in processes]
    ranks: list[int | None] = [*sorted({rank for rank in seen if rank is not None})] or [None]
    by_shim = {(receipt.control, receipt.rank): receipt for receipt in shim_receipts(plan, launches)}
    return tuple(
        Outcome(
            control=start.control,
            receipts=tuple(
                _best(
                    replace(start, rank=rank),
                    by_shim.get((start.control, rank)),
                    [process for process in processes if process.rank == rank],
                )
                for rank in ranks
            ),
        )
        for start in at_start
    )


def _best(start: Receipt, by_shim: Receipt | None, processes: Sequence[ProcessReceipts]) -> Receipt:
    receipts = [] if by_shim is None else [by_shim]
    if by_shim is None or not by_shim.evidence or not isinstance(start.control, SmemPad):
        # Where the shim has seen a pad's kernels, its count stands.
        receipts += [
            receipt for process in processes for receipt in process.receipts if receipt.control == start.control
        ]
    errors = "; ".join(dict.fromkeys(process.error for process in processes if process.error))
    receipts.append(replace(start, detail=errors or start.detail))
    return min(receipts, key=lambda receipt: _ORDER.index(receipt.status))
