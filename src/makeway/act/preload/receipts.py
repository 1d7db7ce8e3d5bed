"""Reads the launch shim's receipts: one file per process, in the layout of receipts.c.

A process may still run, or may have died during a write: unreadable entries are left out.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"MKWRCPTS"
VERSION = 1
FILE_BYTES = 1 << 20
SLOTS = 2047
OVERFLOW_NAME = "(kernels beyond the table)"

_HEADER = struct.Struct("<8sIIiIII32x")
_SLOT = struct.Struct("<5QQIIII")
_TEXT = struct.Struct("<II")
_NO_RANK = -1
_LONGEST_TEXT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCounts:
    """The launches of one kernel by outcome: each is padded, refused, skipped, prioritised or left alone.

    `asked_bytes` and `given_bytes` are those of the last padded launch, 0 when there was none. A refused launch was
    repeated unchanged.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReceipts:
    """What the shim did in one process."""

    pid: int
    rank: int | None
    notes: tuple[str, ...]
    kernels: tuple[KernelCounts, ...]  # in the order of their first launch


def read_receipts(directory: Path) -> tuple[LaunchReceipts, ...]:
    """The receipts of every process that left some, by rank and process id."""
    files = [receipts for path in directory.glob("launch-*") if (receipts := _read(_content(path))) is not None]
    return tuple(sorted(files, key=lambda each: (each.rank is None, each.rank or 0, each.pid)))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _read(data: bytes) -> LaunchReceipts | None:
    if len(data) < _HEADER.size or not data.startswith(MAGIC):
        return None
    _, version, pid, rank, slots, _, notes = _HEADER.unpack_from(data)
    if version != VERSION:
        return None
    return LaunchReceipts(
        pid=pid,
        rank=None if rank == _NO_RANK else rank,
        notes=_texts(data, notes),
        kernels=tuple(
            counts for slot in (*range(1, min(slots, SLOTS)), 0) if (counts := _kernel(data, slot)) is not None
        ),
    )


def _kernel(data: bytes, slot: int) -> KernelCounts | None:
    at = _HEADER.size + slot * _SLOT.size
    if at + _SLOT.size > len(data):
        return None
    plain, padded, refused, skipped, prioritised, both, name, comm, reasons, _ = _SLOT.unpack_from(data, at)
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
        asked_bytes=both >> 32,
        given_bytes=both & 0xFFFFFFFF,
        reason="; ".join(_texts(data, reasons)) if refused or skipped else "",
    )


def _texts(data: bytes, at: int) -> tuple[str, ...]:
    """A list of texts, the oldest first. Offsets only point back, so the loop ends."""
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
