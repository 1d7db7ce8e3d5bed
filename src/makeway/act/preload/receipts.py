"""What the launch shim counted, one file per process in the layout of receipts.c, and the receipts that follow from it.

A process may still run, or may have died during a write: unreadable entries are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from makeway.values.control import CommPriority, Control, SmemPad
from makeway.values.receipt import Receipt, Status

CARRIER = "launch shim"
MAGIC = b"MKWRCPTS"
VERSION = 2
SLOTS = 2047
OVERFLOW_NAME = "(kernels beyond the table)"

_HEADER = struct.Struct("<8sIIiIIIQ24x")
_SLOT = struct.Struct("<5QQIHHII")
_TEXT = struct.Struct("<II")
_NO_RANK = -1
_LONGEST_TEXT = 4096
_BY_CODE = "code:"  # a pad that names its kernels by their code object


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCounts:
    """The launches of one kernel under one rule set, by outcome: padded, refused, skipped, prioritised or left alone.

    `asked_bytes` and `given_bytes` are those of the last padded launch, 0 when there was none. A refused launch was
    repeated unchanged. `most_blocks` is the largest grid of a communication kernel that was raised in priority, 0 where
    none was.
    """

    kernel: str
    comm: bool
    seen: int
    padded: int
    refused: int
    skipped: int
    prioritised: int
    asked_bytes: int
    given_bytes: int
    reason: str  # why launches were skipped or refused; "": none was
    most_blocks: int = 0
    rule_set: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReceipts:
    """What the shim did in one process."""

    pid: int
    rank: int | None
    notes: tuple[str, ...]
    kernels: tuple[KernelCounts, ...]  # in the order of their first launch
    graph_launches: int = 0  # of whole graphs, whose nodes count above, once each, when they are made


def read_receipts(directory: Path) -> tuple[LaunchReceipts, ...]:
    """The counts of every process that left some, by rank and process id."""
    processes = [launches for path in directory.glob("launch-*") if (launches := _read(_content(path))) is not None]
    return tuple(sorted(processes, key=lambda each: (each.rank is None, each.rank or 0, each.pid)))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _read(data: bytes) -> LaunchReceipts | None:
    if len(data) < _HEADER.size or not data.startswith(MAGIC):
        return None
    _, version, pid, rank, slots, _, notes, graph_launches = _HEADER.unpack_from(data)
    if version != VERSION:
        return None
    return LaunchReceipts(
        pid=pid,
        rank=None if rank == _NO_RANK else rank,
        notes=_texts(data, notes),
        graph_launches=graph_launches,
        kernels=tuple(
            counts for slot in (*range(1, min(slots, SLOTS)), 0) if (counts := _kernel(data, slot)) is not None
        ),
    )


def _kernel(data: bytes, slot: int) -> KernelCounts | None:
    at = _HEADER.size + slot * _SLOT.size
    if at + _SLOT.size > len(data):
        return None
    plain, padded, refused, skipped, prioritised, both, name, comm, rule_set, reasons, _ = _SLOT.unpack_from(data, at)
    seen = plain + padded + refused + skipped + prioritised
    kernel = OVERFLOW_NAME if slot == 0 else "".join(_texts(data, name))
    if not seen or not kernel:
        return None
    return KernelCounts(
        kernel=kernel,
        comm=bool(comm),
        seen=seen,
        padded=padded,
        refused=refused,
        skipped=skipped,
        prioritised=prioritised,
        asked_bytes=0 if comm else both >> 32,
        given_bytes=0 if comm else both & 0xFFFFFFFF,
        most_blocks=both >> 32 if comm else 0,
        rule_set=rule_set,
        reason="; ".join(_texts(data, reasons)) if refused or skipped else "",
    )


def _texts(data: bytes, at: int) -> tuple[str, ...]:
    """A linked list of texts, the oldest first. Offsets only ever point back, so it ends."""
    texts: list[str] = []
    while _HEADER.size <= at <= len(data) - _TEXT.size:
        before, length = _TEXT.unpack_from(data, at)
        start = at + _TEXT.size
        if length > _LONGEST_TEXT or start + length > len(data):
            break
        texts.append(data[start : start + length].decode(errors="replace"))
        if before >= at:
            break
        at = before
    return tuple(reversed(texts))


# --- receipts -----------------------------------------------------------------------------------


def shim_receipts(sets: Sequence[Sequence[Control]], launches: Sequence[LaunchReceipts]) -> tuple[Receipt, ...]:
    """A receipt for each pad and for the priority on every rank where kernels were launched.

    `sets` are the controls under each rule set: a plan's alone, or those among which a job alternated. Launches count
    for a control where its set was in force.
    """
    kernels: dict[int | None, list[KernelCounts]] = {}
    for process in launches:
        known = [kernel for kernel in process.kernels if kernel.rule_set < len(sets)]
        if known:
            kernels.setdefault(process.rank, []).extend(known)
    every = [kernel for counts in kernels.values() for kernel in counts]
    pads = [_pads_by_kernel(controls, number, every) for number, controls in enumerate(sets)]
    controls = tuple(dict.fromkeys(control for controls in sets for control in controls))
    return tuple(
        receipt
        for rank, counts in kernels.items()
        for control in controls
        for receipt in _receipt(control, rank, counts, sets, pads)
    )


def _pads_by_kernel(controls: Sequence[Control], rule_set: int, kernels: Sequence[KernelCounts]) -> dict[str, Control]:
    """The pad of each compute kernel under one rule set: the first whose pattern matches, as in the shim."""
    pads = [control for control in controls if isinstance(control, SmemPad)]
    by_code = [pad for pad in pads if pad.kernel.startswith(_BY_CODE)]
    by_kernel: dict[str, Control] = {}
    for kernel in kernels:
        if kernel.comm or kernel.rule_set != rule_set:
            continue
        match = next((pad for pad in pads if fnmatchcase(kernel.kernel, pad.kernel)), None)
        if match is None and by_code and kernel.padded + kernel.refused:
            match = by_code[0]  # the shim records names, not code objects; only a pad by code object is left
        if match is not None:
            by_kernel[kernel.kernel] = match
    return by_kernel


def _receipt(
    control: Control,
    rank: int | None,
    kernels: Sequence[KernelCounts],
    sets: Sequence[Sequence[Control]],
    pads: Sequence[Mapping[str, Control]],
) -> Iterator[Receipt]:
    """`pads` are those of each rule set, by kernel."""
    match control:
        case SmemPad(kernel=pattern):
            matches = [
                kernel for kernel in kernels if not kernel.comm and pads[kernel.rule_set].get(kernel.kernel) == control
            ]
            changed, done = sum(kernel.padded for kernel in matches), "padded"
            nothing = f"no kernel named {pattern} was launched"
        case CommPriority():
            matches = [kernel for kernel in kernels if kernel.comm and control in sets[kernel.rule_set]]
            changed, done = sum(kernel.prioritised for kernel in matches), "raised in priority"
            nothing = "no communication kernel was launched"
        case _:
            return
    if not matches:
        where = " under it" if len(sets) > 1 else ""
        yield Receipt(control=control, status="not seen", detail=nothing + where, carrier=CARRIER, rank=rank)
        return
    names = {kernel.kernel for kernel in matches}
    without = [kernel for kernel in kernels if kernel.kernel in names and kernel not in matches]
    seen, refused, skipped = (
        sum(getattr(kernel, name) for kernel in matches) for name in ("seen", "refused", "skipped")
    )
    detail = f"{changed:,} of {seen:,} launches {done}"
    detail += f", {refused:,} refused" if refused else ""
    detail += f", {skipped:,} left alone" if skipped else ""
    if reasons := "; ".join(dict.fromkeys(kernel.reason for kernel in matches if kernel.reason)):
        detail += f": {reasons}"
    if len(sets) > 1:
        detail += f"; {sum(kernel.seen for kernel in without):,} launches came under other settings"
    # One refused launch is enough: the shim leaves that kernel alone from then on.
    status: Status = "refused" if refused else "applied" if changed else "no effect"
    yield Receipt(
        control=control,
        status=status,
        detail=detail,
        carrier=CARRIER,
        rank=rank,
        evidence=(
            ("launches seen", seen),
            ("launches changed", changed),
            ("launches refused", refused),
            ("launches skipped", skipped),
            *([("launches under other settings", sum(kernel.seen for kernel in without))] if len(sets) > 1 else []),
        ),
    )
