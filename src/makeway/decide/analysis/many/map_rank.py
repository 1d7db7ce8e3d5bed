"""The map: one trace to the summaries of its ranks, kept in a cache under a hash of the trace's content."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path

from makeway import __version__
from makeway.decide.analysis.exposure import exposed_pieces
from makeway.decide.analysis.figures import spans_of_step
from makeway.decide.analysis.findings import Cause, CauseKind
from makeway.decide.analysis.ledger_entries import exposed_line, rank_ledger
from makeway.decide.analysis.many.summary import (
    CauseTime,
    CollectiveKey,
    KernelClass,
    Lane,
    LaneColumns,
    RankSummary,
    encoded,
)
from makeway.decide.analysis.names import short_name
from makeway.decide.analysis.rank import RankRecord, rank_records
from makeway.read.summary_cache import SummaryCache
from makeway.read.traces.classify import load_comm_names
from makeway.read.traces.places import open_place
from makeway.read.traces.read import read_trace
from makeway.values.device import load_device
from makeway.values.errors import TraceError, printable
from makeway.values.timeline import Span, SpanKind, Timeline

MOST_KERNELS = 32  # classes kept of each rank; the rest is one class
REST = "all others"
_HASH_BYTES = 1 << 20  # read at a time
_FORMAT = 1  # of what is cached
_KINDS: tuple[SpanKind, ...] = ("compute", "comm", "copy", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOptions:
    """How traces are read, in plain values that any engine can send; see `analyze`."""

    device: str | None = None
    step: int | None = None
    comm_names: Path | str | None = None
    cached: bool = True


def summaries_of(path: Path, options: MapOptions) -> bytes:
    """The summaries of all ranks in one trace, as entries of a file of summaries."""
    store = SummaryCache() if options.cached else None
    key = _key(path, options) if store else ""
    kept = store.read(key) if store else None
    if kept is not None:
        return kept
    timeline = read_trace(path, comm=load_comm_names(options.comm_names))
    device = load_device(options.device) if options.device else None
    records = rank_records(timeline, device=device, step=options.step)
    data = b"".join(summary_of(record, timeline, options.step) for record in records)
    if store:
        store.write(key, data)
    return data


def _key(path: Path, options: MapOptions) -> str:
    """A hash of the trace's bytes, its name (it may name the rank), and all that the summary depends on."""
    names = repr(load_comm_names(options.comm_names).patterns).encode() if options.comm_names else b""
    digest = hashlib.blake2b(repr((_FORMAT, __version__, _source(), str(path), options.device, options.step)).encode())
    digest.update(len(names).to_bytes(8, "little") + names)
    try:
        with open_place(path) as file:
            while chunk := file.read(_HASH_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise TraceError(f"cannot read {printable(path)}: {error.strerror or error}") from error
    return digest.hexdigest()[:40]


@cache
def _source() -> str:
    """A hash of makeway's reading and analysing source: a changed rule never reads what another one wrote."""
    root = Path(__file__).parents[3]
    digest = hashlib.blake2b()
    for folder in ("values", "read", "decide/analysis", "data"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".toml", ".csv"):
                digest.update(path.read_bytes())
    return digest.hexdigest()


# --- one rank ------------------------------------------------------------------------------------


def summary_of(record: RankRecord, timeline: Timeline, step: int | None = None) -> bytes:
    """A rank's record as one entry of a file of summaries; `timeline` is what the record is of."""
    findings = record.findings
    spans: Sequence[Span] = (
        timeline.of(*_KINDS, rank=findings.rank) if step is None else spans_of_step(timeline, findings.rank, step)
    )
    labels: dict[CauseKind, int] = {}
    keys: dict[CollectiveKey, int] = {}
    exposed = _exposed(spans, record.causes, labels)
    lanes = _lanes(record.comm)
    columns = [_columns(members, exposed, keys) for members in lanes.values()]
    exposed_causes = [cause for cause in record.causes if cause.of == "exposed"]
    by_cause: Counter[CauseKind] = Counter()
    for cause in exposed_causes:
        by_cause[cause.kind] += cause.time_ns
    summary = RankSummary(
        rank=findings.rank,
        source=findings.source,
        origin=findings.origin,
        figures=findings.figures,
        spans=findings.spans,
        ledger={line.kind: line.ns for line in rank_ledger(record.ledger, exposed_causes).lines},
        evidence=record.evidence,
        stamp=record.stamp,
        device=findings.device,
        library=findings.library,
        causes=_cause_times(record.causes),
        kernels=_kernel_classes(spans),
        keys=tuple(keys),
        exposed=by_cause,
        labels=tuple(labels),
        lines=tuple(map(exposed_line, labels)),
        lanes=tuple(_lane(name, own) for name, own in zip(lanes, columns, strict=True)),
        notes=findings.notes,
    )
    return encoded(summary, [own.packed() for own in columns])


_LaneName = tuple[str | None, tuple[int, ...], str | None]
_Piece = tuple[int, int, int]  # start, time and label


def _lanes(comm: Sequence[Span]) -> dict[_LaneName, list[Span]]:
    """The collectives by group, or by stream where no group is recorded."""
    lanes: dict[_LaneName, list[Span]] = defaultdict(list)
    for span in sorted(comm, key=attrgetter("start_ns", "end_ns")):
        exchange = span.exchange
        if exchange is not None and (exchange.group is not None or exchange.group_ranks):
            lanes[exchange.group or "", exchange.group_ranks, None].append(span)
        else:
            lanes[None, (), span.stream].append(span)
    return lanes


def _lane(name: _LaneName, columns: LaneColumns) -> Lane:
    group, ranks, stream = name
    return Lane(
        rows=len(columns.starts_ns),
        group=group,
        group_ranks=ranks,
        stream=stream,
        first_ns=columns.starts_ns[0],
        first_sequence=columns.sequence[0] if columns.sequence else None,
        pieces=len(columns.piece_rows),
    )


def _columns(
    members: Sequence[Span], exposed: Mapping[int, Sequence[_Piece]], keys: dict[CollectiveKey, int]
) -> LaneColumns:
    sequence = [span.exchange.sequence for span in members if span.exchange and span.exchange.sequence is not None]
    columns = LaneColumns(
        starts_ns=[span.start_ns for span in members],
        durations_ns=[span.duration_ns for span in members],
        keys=[keys.setdefault(_key_of(span), len(keys)) for span in members],
        sequence=sequence if len(sequence) == len(members) else None,
        whole=[0] * len(members),
        piece_rows=[],
        piece_offsets_ns=[],
        piece_times_ns=[],
        piece_labels=[],
    )
    for row, span in enumerate(members):
        for start, time, label in exposed.get(id(span), ()):
            if time == span.duration_ns:
                columns.whole[row] = 1 + label
            else:
                columns.piece_rows.append(row)
                columns.piece_offsets_ns.append(start - span.start_ns)
                columns.piece_times_ns.append(time)
                columns.piece_labels.append(label)
    return columns


def _key_of(span: Span) -> CollectiveKey:
    exchange = span.exchange
    if exchange is None:
        return CollectiveKey(name=span.name)
    return CollectiveKey(
        name=span.name, kind=exchange.kind, in_bytes=exchange.in_bytes, out_bytes=exchange.out_bytes, moves=True
    )


def _exposed(spans: Sequence[Span], causes: Sequence[Cause], labels: dict[CauseKind, int]) -> dict[int, list[_Piece]]:
    """The exposed times of each collective, by its id, with the number of the cause; they do not overlap."""
    pieces = list(exposed_pieces(list(spans)))
    starts = [start for _, start, _ in pieces]
    times: dict[int, list[_Piece]] = defaultdict(list)
    for cause in causes:
        if cause.of == "exposed":
            owner = pieces[bisect_right(starts, cause.at_ns) - 1][0]
            times[id(owner)].append((cause.at_ns, cause.time_ns, labels.setdefault(cause.kind, len(labels))))
    return times


def _cause_times(causes: Sequence[Cause]) -> tuple[CauseTime, ...]:
    """The causes that other ranks do not change, by kind."""
    costs: Counter[tuple[str, str]] = Counter()
    delays: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for cause in causes:
        if cause.of != "exposed":
            key = cause.kind, cause.of
            costs[key] += cause.cost_ns
            delays[key] += cause.time_ns if cause.of == "late" else 0
            counts[key] += 1
    return tuple(
        CauseTime(kind=key[0], of=key[1], time_ns=costs[key], delay_ns=delays[key], count=count)
        for key, count in counts.items()
    )


def _kernel_classes(spans: Sequence[Span]) -> tuple[KernelClass, ...]:
    times: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for span in spans:
        key = span.name, span.kind
        times[key] += span.end_ns - span.start_ns
        counts[key] += 1
    by_class: dict[tuple[str, str], list[int]] = {}
    for place, ((name, kind), time) in enumerate(times.most_common()):
        entry = by_class.setdefault((short_name(name) if place < MOST_KERNELS else REST, kind), [0, 0])
        entry[0] += counts[name, kind]
        entry[1] += time
    return tuple(
        KernelClass(name=name, kind=kind, count=count, time_ns=time) for (name, kind), (count, time) in by_class.items()
    )
