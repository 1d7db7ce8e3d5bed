"""What became of each control of a plan: receipts of the launch shim, of Python processes, and what is known without.

Of what is said about a control on one rank the best counts: applied, refused, no effect, not seen. A control is
applied when every rank that was heard of has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from makeway.act.launch.environment import AtStart
from makeway.values.control import CommPriority, Control, SmemPad, control_word
from makeway.values.plan import Plan

if TYPE_CHECKING:
    from makeway.act.preload.receipts import KernelCounts, LaunchReceipts

Outcome = Literal["applied", "refused", "no effect", "not seen"]
_ORDER: tuple[Outcome, ...] = get_args(Outcome)
_CODE = "code:"


class TorchReceipt(msgspec.Struct, frozen=True):
    """One control in the receipts of a Python process."""

    control: str
    status: Outcome
    detail: str


class TorchReceipts(msgspec.Struct, frozen=True):
    """The receipts file of one Python process; `error`: why it could apply nothing (more)."""

    pid: int
    rank: int | None = None
    backend: str | None = None
    error: str | None = None
    receipts: tuple[TorchReceipt, ...] = ()


def read_torch_receipts(directory: Path) -> tuple[TorchReceipts, ...]:
    """What Python processes left; a file that cannot be read becomes an error of its process."""
    found = []
    for path in sorted(directory.glob("torch-*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=TorchReceipts))
        except (OSError, msgspec.DecodeError) as error:
            pid = path.stem.removeprefix("torch-")
            words = f"the receipts in {path.name} cannot be read: {error}"
            found.append(TorchReceipts(pid=int(pid) if pid.isdigit() else 0, error=words))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Launches of the kernels that a control is about, as the launch shim saw them."""

    seen: int = 0
    changed: int = 0  # padded, or raised in priority
    refused: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            seen=self.seen + other.seen,
            changed=self.changed + other.changed,
            refused=self.refused + other.refused,
            skipped=self.skipped + other.skipped,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OnRank:
    """What became of one control on one rank; rank None: processes without a rank, or none at all."""

    rank: int | None
    status: Outcome
    detail: str
    launches: Counts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOutcome:
    """What became of one control; applied only when it was on every rank."""

    control: Control
    ranks: tuple[OnRank, ...]

    @property
    def status(self) -> Outcome:
        found = {one.status for one in self.ranks}
        return next((status for status in _ORDER[1:] if status in found), "applied")


def outcomes(
    plan: Plan,
    start: Sequence[AtStart],
    launches: Sequence[LaunchReceipts],
    processes: Sequence[TorchReceipts],
) -> tuple[ControlOutcome, ...]:
    """One outcome per control, in the plan's order; processes without a rank count only where no rank was heard of."""
    by_process = {one.pid: one.rank for one in processes}
    shims = [(one.rank if one.rank is not None else by_process.get(one.pid), one.kernels) for one in launches]
    heard = {rank for rank, _ in shims} | {one.rank for one in processes}
    ranks: list[int | None] = [*sorted(rank for rank in heard if rank is not None)] or [None]
    owners = _owners(plan, launches)
    return tuple(
        ControlOutcome(
            control=control,
            ranks=tuple(
                _on_rank(
                    control,
                    rank,
                    known,
                    [kernel for where, kernels in shims if where == rank for kernel in kernels],
                    [one for one in processes if one.rank == rank],
                    owners,
                )
                for rank in ranks
            ),
        )
        for control, known in zip(plan.controls, start, strict=True)
    )


def _on_rank(
    control: Control,
    rank: int | None,
    start: AtStart,
    kernels: Sequence[KernelCounts],
    processes: Sequence[TorchReceipts],
    owners: dict[str, Control],
) -> OnRank:
    by_shim = _by_shim(control, rank, kernels, owners)
    said = [by_shim] if by_shim is not None else []
    if not (by_shim is not None and by_shim.launches and isinstance(control, SmemPad)):
        # Pads are the shim's: where it has seen the kernels, nobody knows better.
        word = control_word(control)
        said += [
            OnRank(rank=rank, status=receipt.status, detail=receipt.detail)
            for process in processes
            for receipt in process.receipts
            if receipt.control == word
        ]
    errors = "; ".join(dict.fromkeys(process.error for process in processes if process.error))
    said.append(OnRank(rank=rank, status=start.status, detail=errors or start.detail))
    return min(said, key=lambda one: _ORDER.index(one.status))


# --- what the launch shim counted ---------------------------------------------------------------


def _owners(plan: Plan, launches: Sequence[LaunchReceipts]) -> dict[str, Control]:
    """The pad of each compute kernel: the first whose pattern matches, as the shim decides it."""
    pads = [control for control in plan.controls if isinstance(control, SmemPad)]
    by_code = [pad for pad in pads if pad.kernel.startswith(_CODE)]
    found: dict[str, Control] = {}
    for kernel in (kernel for one in launches for kernel in one.kernels if not kernel.comm):
        named = next((pad for pad in pads if fnmatchcase(kernel.kernel, pad.kernel)), None)
        if named is None and by_code and kernel.padded + kernel.refused:
            named = by_code[0]  # the shim tells names, not images; only a pad by image is left
        if named is not None:
            found[kernel.kernel] = named
    return found


def _by_shim(
    control: Control, rank: int | None, kernels: Sequence[KernelCounts], owners: dict[str, Control]
) -> OnRank | None:
    if not kernels:
        return None
    if isinstance(control, SmemPad):
        mine = [kernel for kernel in kernels if not kernel.comm and owners.get(kernel.kernel) == control]
        done, what = "padded", f"no kernel named {control.kernel} was launched"
    elif isinstance(control, CommPriority):
        mine = [kernel for kernel in kernels if kernel.comm]
        done, what = "raised in priority", "no communication kernel was launched"
    else:
        return None
    if not mine:
        return OnRank(rank=rank, status="not seen", detail=what)
    counts = sum((_counts(kernel) for kernel in mine), Counts())
    detail = f"{counts.changed:,} of {counts.seen:,} launches {done}"
    detail += f", {counts.refused:,} refused" if counts.refused else ""
    detail += f", {counts.skipped:,} left alone" if counts.skipped else ""
    if reasons := _reasons(mine):
        detail += f": {reasons}"
    return OnRank(rank=rank, status=_status(counts), detail=detail, launches=counts)


def _counts(kernel: KernelCounts) -> Counts:
    changed = kernel.prioritised if kernel.comm else kernel.padded
    return Counts(seen=kernel.seen, changed=changed, refused=kernel.refused, skipped=kernel.skipped)


def _status(counts: Counts) -> Outcome:
    """Refused as soon as one launch was: the shim leaves that kernel alone from then on."""
    if counts.refused:
        return "refused"
    return "applied" if counts.changed else "no effect"


def _reasons(kernels: Iterable[KernelCounts]) -> str:
    return "; ".join(dict.fromkeys(kernel.reason for kernel in kernels if kernel.reason))
