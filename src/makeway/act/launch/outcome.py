"""What became of each control of a plan, from the receipts of launch shim, tuner plugin, Python processes and launcher.

The best of a rank's receipts counts: applied, refused, no effect, not seen. A control is applied when it was applied
on every rank that left receipts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import get_args

from makeway.act.launch.receipt_file import ProcessReceipts, read_receipt_files
from makeway.act.preload.receipts import LaunchReceipts, read_receipts, shim_receipts
from makeway.act.tuner.nccl_log import NcclLog, Wanted, log_receipts, read_nccl_logs
from makeway.act.tuner.tally import Tally, read_tallies, tuner_receipts
from makeway.values.control import CommBlocks, Control, SmemPad
from makeway.values.plan import Plan
from makeway.values.receipt import Receipt, Status

_BY_OPTIONS = ("torch on CUDA", "torch on ROCm")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What the processes of a program left behind: receipts, counts, logs."""

    launches: tuple[LaunchReceipts, ...]
    processes: tuple[ProcessReceipts, ...]
    tallies: tuple[Tally, ...]
    logs: tuple[NcclLog, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        launches = [note for process in self.launches for note in process.notes]
        return (*launches, *(note for tally in self.tallies for note in tally.notes))


def read_left(directory: Path) -> Left:
    """What lies in the directory of receipts when the program has ended."""
    return Left(
        launches=tuple(read_receipts(directory)),
        processes=tuple(read_receipt_files(directory)),
        tallies=tuple(read_tallies(directory)),
        logs=tuple(read_nccl_logs(directory)),
    )


def outcomes(
    plan: Plan,
    at_start: Sequence[Receipt],
    launches: Sequence[LaunchReceipts],
    processes: Sequence[ProcessReceipts],
    tallies: Sequence[Tally] = (),
    *,
    tuned: Sequence[Control] = (),
    logs: Sequence[NcclLog] = (),
    wanted: Wanted = MappingProxyType({}),
    trial: Sequence[Sequence[Control]] = (),
) -> tuple[Outcome, ...]:
    """One outcome per control, in the plan's order; processes without a rank count only where no process has one.

    `tuned` are the controls for which the program was given the tuner plugin; `logs` are NCCL's own, and `wanted` the
    variables that it should have read. `trial`: the sets of controls among which the job alternated.
    """
    rank_of_process = {process.pid: process.rank for process in processes}
    launches = [
        replace(process, rank=rank_of_process.get(process.pid)) if process.rank is None else process
        for process in launches
    ]
    tallies = [
        replace(tally, rank=rank_of_process.get(tally.pid)) if tally.rank is None else tally for tally in tallies
    ]
    rank_of_process |= {process.pid: process.rank for process in launches if process.rank is not None}
    rank_of_process |= {tally.pid: tally.rank for tally in tallies if tally.rank is not None}
    logs = [replace(log, rank=rank_of_process.get(log.pid)) for log in logs]
    seen = [process.rank for process in launches]
    seen += [process.rank for process in processes] + [tally.rank for tally in tallies]
    ranks: list[int | None] = [*sorted({rank for rank in seen if rank is not None})] or [None]
    sets = trial or (plan.controls,)
    counted = {
        (receipt.control, receipt.rank): receipt
        for receipt in (
            *shim_receipts(sets, launches),
            # A trial's channels change a step after its launch rules, so grids do not tell one setting from another.
            *tuner_receipts(dict.fromkeys(chain.from_iterable(sets)), tallies, () if trial else launches),
        )
    }
    logged = {(receipt.control, receipt.rank): receipt for receipt in log_receipts(wanted, logs)}
    return tuple(
        Outcome(
            control=start.control,
            receipts=tuple(
                _best(
                    replace(start, rank=rank),
                    counted.get((start.control, rank)),
                    logged.get((start.control, rank)),
                    [process for process in processes if process.rank == rank],
                    tuned=start.control in tuned,
                )
                for rank in ranks
            ),
        )
        for start in at_start
    )


def _best(
    start: Receipt,
    counted: Receipt | None,
    logged: Receipt | None,
    processes: Sequence[ProcessReceipts],
    *,
    tuned: bool,
) -> Receipt:
    receipts = [] if counted is None else [counted]
    if counted is None or not counted.evidence or not isinstance(start.control, SmemPad | CommBlocks):
        # Where the shim has seen a pad's kernels, or NCCL has asked the plugin, their count stands.
        receipts += [
            _unconfirmed(receipt) if tuned and receipt.carrier in _BY_OPTIONS else receipt
            for process in processes
            for receipt in process.receipts
            if receipt.control == start.control
        ]
        receipts += [] if logged is None else [logged]
    errors = "; ".join(dict.fromkeys(process.error for process in processes if process.error))
    receipts.append(replace(start, detail=errors or start.detail))
    best = min(receipts, key=lambda receipt: _ORDER.index(receipt.status))
    return best if logged is None or best is logged else _with_log(best, logged)


def _with_log(receipt: Receipt, logged: Receipt) -> Receipt:
    """A receipt that NCCL's log adds to; a complaint of NCCL's outweighs what was read back from options."""
    if logged.status == "no effect" and receipt.carrier in _BY_OPTIONS:
        return logged
    detail = f"{receipt.detail}; {logged.detail}"
    return replace(receipt, detail=detail, evidence=(*receipt.evidence, *logged.evidence))


def _unconfirmed(receipt: Receipt) -> Receipt:
    """Options of a process group say what was asked for; without the plugin's count nothing says what NCCL did."""
    if receipt.status != "applied":
        return receipt
    detail = f"{receipt.detail}; NCCL did not load the tuner plugin, which would have counted it"
    return replace(receipt, status="not seen", detail=detail)
