"""`RankSummary`: what one rank adds to the analysis of a job, in about a hundredth of its trace, and its file format.

A file holds any number of summaries. Each is a length, a header and columns. The header alone says what the rank did;
the columns of one communicator are read when that communicator is matched, so a job never has to fit in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard

from makeway.decide.analysis.evidence import RankEvidence
from makeway.decide.analysis.findings import CauseKind, Figures
from makeway.decide.analysis.ledger import LineKind
from makeway.decide.analysis.many.columns import MOST_ROWS, pack, unpack, unzigzag, zigzag
from makeway.decide.analysis.runs import RunStamp
from makeway.values.collective import CollectiveKind
from makeway.values.errors import InputError, printable
from makeway.values.facts import open_regular
from makeway.values.timeline import Origin

MAGIC = b"makeway summary 2\n"
MOST_HEADER_BYTES = 64 << 20
_LENGTHS = struct.Struct("<QQ")  # of a summary without these, and of its header


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveKey:
    """What collectives of one kind share."""

    name: str
    kind: CollectiveKind | None = None
    in_bytes: int | None = None
    out_bytes: int | None = None
    moves: bool = False  # the trace says something about what it moves


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The collectives of one group, or of one stream where no group is recorded, in order of start."""

    rows: int
    group: str | None = None
    group_ranks: tuple[int, ...] = ()
    stream: str | None = None  # None: a group is recorded
    first_ns: int = 0  # start of the first
    first_sequence: int | None = None  # None: not all are numbered
    pieces: int = 0  # exposed times that are not a whole collective
    sizes: tuple[int, ...] = ()  # of each packed column, as in `LaneColumns`
    at: int = 0  # of the first column


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseTime:
    """The time of all causes of one kind on a rank."""

    kind: str
    of: str
    time_ns: int  # what they cost
    delay_ns: int  # late: from ready to start
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelClass:
    """Kernels of one name."""

    name: str
    kind: str
    count: int
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """One rank: its figures, its ledger without what other ranks show, its kernels, and where its collectives are."""

    rank: int
    source: str
    origin: Origin
    figures: Figures
    spans: int
    ledger: Mapping[LineKind, int]  # before waiting is taken off its exposed lines
    evidence: RankEvidence  # why its communication counts as such
    stamp: RunStamp  # which run it belongs to
    device: str | None = None
    library: str | None = None
    causes: tuple[CauseTime, ...] = ()  # exposed ones are in the columns
    kernels: tuple[KernelClass, ...] = ()  # the most time first
    keys: tuple[CollectiveKey, ...] = ()
    exposed: Mapping[CauseKind, int] = field(default_factory=dict)  # cause -> exposed time, before waiting is taken off
    labels: tuple[str, ...] = ()  # those causes as columns number them, and the ledger line of each
    lines: tuple[LineKind, ...] = ()
    lanes: tuple[Lane, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class LaneColumns:
    """The columns of a lane before packing; `whole` is 0, or 1 + the label of a collective exposed from end to end."""

    starts_ns: list[int]
    durations_ns: list[int]
    keys: list[int]
    sequence: list[int] | None
    whole: list[int]
    piece_rows: list[int]
    piece_offsets_ns: list[int]  # from the start of the collective
    piece_times_ns: list[int]
    piece_labels: list[int]

    def packed(self) -> tuple[bytes, ...]:
        starts = self.starts_ns
        gaps = [0, *(after - before for before, after in pairwise(starts))]
        numbers = self.sequence or []
        steps = zigzag(after - before for before, after in pairwise(numbers))
        rows = self.piece_rows
        return (
            pack(gaps[: len(starts)]),
            pack(self.durations_ns),
            pack(self.keys),
            pack([0, *steps] if numbers else []),
            pack(self.whole),
            pack([after - before for before, after in zip([0, *rows], rows, strict=False)]),
            pack(self.piece_offsets_ns),
            pack(self.piece_times_ns),
            pack(self.piece_labels),
        )


def encoded(summary: RankSummary, columns: Sequence[tuple[bytes, ...]]) -> bytes:
    """The summary with the packed columns of its lanes, as one entry of a file."""
    lanes, at = [], 0
    for lane, packed in zip(summary.lanes, columns, strict=True):
        sizes = tuple(map(len, packed))
        lanes.append(replace(lane, sizes=sizes, at=at))
        at += sum(sizes)
    header = zstandard.ZstdCompressor(level=9, write_checksum=True).compress(
        msgspec.msgpack.encode(replace(summary, lanes=tuple(lanes)))
    )
    body = b"".join(part for packed in columns for part in packed)
    return _LENGTHS.pack(len(header) + len(body), len(header)) + header + body


class StoredSummary:
    """One summary in a file: its header in memory, its columns read when they are asked for."""

    def __init__(self, path: Path, at: int, summary: RankSummary) -> None:
        self.summary = summary
        self._path, self._at = path, at

    def durations_ns(self, lane: Lane) -> Sequence[int]:
        return self._column(lane, 1, lane.rows)

    def starts_ns(self, lane: Lane, *, earlier_ns: int = 0) -> list[int]:
        """The starts, by a clock that is `earlier_ns` behind."""
        starts = accumulate(self._column(lane, 0, lane.rows), initial=lane.first_ns - earlier_ns)
        next(starts)  # the first gap is 0
        return list(starts)

    def keys(self, lane: Lane) -> Sequence[int]:
        return self._column(lane, 2, lane.rows)

    def sequence(self, lane: Lane) -> list[int] | None:
        if lane.first_sequence is None:
            return None
        numbers = accumulate(unzigzag(self._column(lane, 3, lane.rows)), initial=lane.first_sequence)
        next(numbers)
        return list(numbers)

    def whole(self, lane: Lane) -> bytes:
        """The `whole` column; at most 255 labels."""
        column = self._column(lane, 4, lane.rows)
        return bytes(column)

    def pieces(self, lane: Lane) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]:
        """Rows, offsets, times and labels of the exposed times that are not a whole collective."""
        rows = list(accumulate(self._column(lane, 5, lane.pieces)))
        offsets, times, labels = (self._column(lane, number, lane.pieces) for number in (6, 7, 8))
        return rows, offsets, times, labels

    def _column(self, lane: Lane, number: int, rows: int) -> Sequence[int]:
        try:
            with open_regular(self._path) as file:  # each time: a job may have more files than a process may open
                file.seek(self._at + lane.at + sum(lane.sizes[:number]))
                return unpack(file.read(lane.sizes[number]), rows)
        except (OSError, InputError) as error:
            raise InputError(f"{printable(self._path)}, rank {self.summary.rank}: {error}") from None


def stored_summaries(paths: Sequence[Path]) -> list[StoredSummary]:
    """The summaries in files that `makeway analyze --shard` wrote."""
    return [stored for path in paths for stored in _in_file(path)]


def _in_file(path: Path) -> Iterator[StoredSummary]:
    try:
        with open_regular(path) as file:
            yield from _entries(file, path)
    except OSError as error:
        raise InputError(f"cannot read {printable(path)}: {error.strerror or error}") from None


def _entries(file: BinaryIO, path: Path) -> Iterator[StoredSummary]:
    name = printable(path)
    if file.read(len(MAGIC)) != MAGIC:
        raise InputError(
            f"{name} is not a file of summaries in this version's format; write it with "
            "`makeway analyze TRACES --shard I/N --out FILE`"
        )
    end = path.stat().st_size
    while lengths := file.read(_LENGTHS.size):
        at = file.tell()
        size, header_size = _LENGTHS.unpack(lengths) if len(lengths) == _LENGTHS.size else (1, 0)
        if not header_size <= size <= end - at or header_size > MOST_HEADER_BYTES:
            raise InputError(f"{name} is cut short; write it again")
        yield StoredSummary(path, at + header_size, _header(file.read(header_size), name))
        file.seek(at + size)


def _header(data: bytes, name: str) -> RankSummary:
    try:
        if not 0 <= zstandard.frame_content_size(data) <= MOST_HEADER_BYTES:
            raise InputError(f"{name} is damaged: a header is too long")
        plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=MOST_HEADER_BYTES)
        summary = msgspec.msgpack.decode(plain, type=RankSummary)
    except (zstandard.ZstdError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{name} is damaged: {error}") from None
    if any(not 0 <= max(lane.rows, lane.pieces) <= MOST_ROWS or len(lane.sizes) != 9 for lane in summary.lanes):
        raise InputError(f"{name} is damaged: a header names impossible columns")
    if any(min(lane.rows, lane.pieces, lane.at, *lane.sizes) < 0 for lane in summary.lanes):
        raise InputError(f"{name} is damaged: a header names impossible columns")
    return summary
