"""What the tuner plugin counted, one file per process in the layout of tally.c, and the receipts that follow."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from makeway.act.preload.receipts import LaunchReceipts
from makeway.act.tuner.channels import ALGORITHMS, COLLECTIVES, MOST_CHANNELS, PROTOCOLS, Collective
from makeway.values.control import CommBlocks, Control
from makeway.values.receipt import Receipt, Status

CARRIER = "tuner plugin"
MAGIC = b"MKWTALLY"
VERSION = 2
UNKNOWN = "unknown"  # the choice of an NCCL that shows no table of costs

_HEADER = struct.Struct("<8sIIiIIIQQIIII")
_CELL = struct.Struct("<22Q4QQ40x")
_SIZES = 65  # by the number of bits
_GIVEN = struct.Struct(f"<{MOST_CHANNELS + 1}Q")
_GIVEN_AT = _HEADER.size + len(COLLECTIVES) * _SIZES * _CELL.size
_NO_RANK = -1
_CHOICES = (*(f"{algorithm}-{protocol}" for algorithm in ALGORITHMS for protocol in PROTOCOLS), UNKNOWN)
_NOTES = {
    1: "the tuner plugin had no channel rules: NCCL chose channels, algorithms and protocols itself",
    2: "a change of the channel rules was damaged: the tuner plugin left out it and those after it",
}
_POINT_TO_POINT = "SendRecv"  # NCCL's kernel of send and receive, whose channels no tuner sets


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCounts:
    """Calls of one collective in one class of sizes: what NCCL would have taken, and what it got."""

    collective: Collective
    min_bytes: int
    max_bytes: int
    own: tuple[tuple[str, int], ...]  # calls by NCCL's own choice, "ring-simple"
    channels_set: int
    steered: int  # algorithm and protocol set
    unavailable: int  # NCCL could not use the algorithm and protocol of the rule
    left_to_ll: int  # NCCL wanted LL or LL128, and the rule leaves those alone
    last_channels: int | None  # of the last call that a rule changed

    @property
    def calls(self) -> int:
        return sum(count for _, count in self.own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What the plugin did in one process."""

    pid: int
    rank: int | None
    interface: int | None  # version of the tuner interface; None: no communicator was created
    communicators: int
    ranks: int  # of the largest communicator
    calls: int  # of the busiest communicator
    generations: int  # of rules, the first included
    late: int  # changes that came after their first call, summed over communicators
    notes: tuple[str, ...]
    counts: tuple[CallCounts, ...]
    given: tuple[tuple[int, int], ...] = ()  # calls by the channels that a rule gave them


def read_tallies(directory: Path, *, pid: int | None = None) -> tuple[Tally, ...]:
    """The counts of every process that loaded the plugin (or of one), by rank and process id.

    Unreadable files are left out.
    """
    pattern = "tuner-*" if pid is None else f"tuner-{pid}-*"
    tallies = [tally for path in directory.glob(pattern) if (tally := _read(path)) is not None]
    return tuple(sorted(tallies, key=lambda tally: (tally.rank is None, tally.rank or 0, tally.pid)))


def _read(path: Path) -> Tally | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _GIVEN_AT + _GIVEN.size or not data.startswith(MAGIC):
        return None
    (_, version, pid, rank, interface, communicators, ranks, calls, _, generations, late, notes, _) = (
        _HEADER.unpack_from(data)
    )
    if version != VERSION:
        return None
    return Tally(
        pid=pid,
        rank=None if rank == _NO_RANK else rank,
        interface=interface or None,
        communicators=communicators,
        ranks=ranks,
        calls=calls,
        generations=generations,
        late=late,
        notes=(*(text for bit, text in _NOTES.items() if notes & bit), *_late(late)),
        counts=tuple(_counts(data)),
        given=tuple((at, calls) for at, calls in enumerate(_GIVEN.unpack_from(data, _GIVEN_AT)) if calls),
    )


def _late(late: int) -> Iterator[str]:
    if late:
        yield (
            f"{late:,} changes of the channel rules came after the call from which they should hold: "
            "ranks may have used different channels; name a later call"
        )


def _counts(data: bytes) -> Iterator[CallCounts]:
    for kind, collective in enumerate(COLLECTIVES):
        for bits in range(_SIZES):
            cell = _CELL.unpack_from(data, _HEADER.size + (kind * _SIZES + bits) * _CELL.size)
            own, (channels_set, steered, unavailable, left_to_ll, last) = cell[: len(_CHOICES)], cell[len(_CHOICES) :]
            if any(own):
                yield CallCounts(
                    collective=collective,
                    min_bytes=1 << bits >> 1,
                    max_bytes=(1 << bits) - 1,
                    own=tuple((choice, count) for choice, count in zip(_CHOICES, own, strict=True) if count),
                    channels_set=channels_set,
                    steered=steered,
                    unavailable=unavailable,
                    left_to_ll=left_to_ll,
                    last_channels=last >> 32 or None,
                )


# --- receipts -----------------------------------------------------------------------------------


def tuner_receipts(
    controls: Iterable[Control], tallies: Sequence[Tally], launches: Sequence[LaunchReceipts] = ()
) -> tuple[Receipt, ...]:
    """A receipt for each setting of comm blocks on every rank whose processes loaded the plugin."""
    settings = [control for control in controls if isinstance(control, CommBlocks)]
    by_rank: dict[int | None, list[Tally]] = {}
    for tally in tallies:
        by_rank.setdefault(tally.rank, []).append(tally)
    return tuple(
        _receipt(control, rank, mine, _largest_grid(process for process in launches if process.rank == rank))
        for rank, mine in by_rank.items()
        for control in settings
    )


def _largest_grid(processes: Iterator[LaunchReceipts]) -> int:
    """Blocks of the largest launch of a collective that the launch shim saw; 0: it saw none."""
    grids = (
        kernel.most_blocks
        for process in processes
        for kernel in process.kernels
        if kernel.comm and _POINT_TO_POINT not in kernel.kernel
    )
    return max(grids, default=0)


def _receipt(control: CommBlocks, rank: int | None, tallies: Sequence[Tally], grid: int) -> Receipt:
    counts = [row for tally in tallies for row in tally.counts]
    asked = sum(row.calls for row in counts)
    changed = sum(calls for tally in tallies for channels, calls in tally.given if channels == control.blocks)
    status, detail = _verdict(control.blocks, asked, changed, grid)
    evidence = [("calls asked", asked), ("calls given channels", changed)]
    return Receipt(
        control=control,
        status=status,
        detail=detail,
        carrier=CARRIER,
        rank=rank,
        evidence=(*evidence, *([("largest grid", grid)] if grid else [])),
    )


def _verdict(blocks: int, asked: int, changed: int, grid: int) -> tuple[Status, str]:
    if not asked:
        return "not seen", "NCCL loaded the tuner plugin and asked it about no collective; send and receive never ask"
    if not changed:
        return "not seen", f"{asked:,} calls, all too small for {blocks} channels or in a low-latency protocol"
    given = f"{changed:,} of {asked:,} calls were given {blocks} channels"
    if grid > blocks:
        return "no effect", f"{given}, but the launch shim saw a collective of {grid} blocks"
    if 0 < grid < blocks:
        return "not seen", f"{given}, but the largest collective that the launch shim saw had {grid} blocks"
    return "applied", f"{given}{f', and the largest had {grid} blocks' if grid else ''}"
