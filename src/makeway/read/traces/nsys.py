"""Nsight Systems SQLite exports: one rank per process and GPU.

Sources: NVIDIA, "SQLite Schema Reference" of the Nsight Systems User Guide (tables, serialised process and thread
ids), and CUPTI's CUpti_ActivityKernel9, CUpti_ActivityMemcpy5 and CUpti_ActivitySynchronization2 (columns). Columns and
tables vary between versions, so whatever is missing is left out and noted.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from makeway.read.traces.classify import CommNames
from makeway.read.traces.host import host_calls, host_kind
from makeway.read.traces.nsys_rows import LIMITS, Calls, launch_of, limits_of, process_of
from makeway.read.traces.nvtx import COLLECTIVE_CALLS, CallRanges
from makeway.values.collective import CollectiveKind
from makeway.values.errors import TraceError, printable
from makeway.values.facts import open_regular
from makeway.values.kernel import Launch
from makeway.values.timeline import (
    CommRule,
    Exchange,
    HostCall,
    HostCallKind,
    Rank,
    Span,
    SpanKind,
    Step,
    Timeline,
    Wait,
)

_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_EVENT = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"

_PEER_COPY = CommRule(by="peer-copy")
_NVTX = CommRule(by="nvtx-range", library="nccl")
_HEADER_BYTES = 100
_PEER_TO_PEER = 10  # CUpti_ActivityMemcpyKind
_STREAM_WAIT_EVENT = 2  # CUpti_ActivitySynchronizationType
_RANGES = (59, 60)  # NVTX push/pop and start/end
_PROCESS_MASK = (1 << 24) - 1
_STEP = re.compile(r"(?:ProfilerStep|(?:train(?:ing)?[ _])?(?:step|iteration|iter))[ _:#]*(\d{1,15})", re.IGNORECASE)

# A block's shared memory is its static plus its dynamic request. sharedMemoryExecuted is the carve-out that the driver
# chose for the SM: 32 KiB for a kernel that uses none.
_RESOURCES = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "clusterX", "clusterY", "clusterZ")
_SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_PLACE = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")


def read_nsys(path: Path, *, comm: CommNames) -> Timeline:
    """The timeline of an SQLite file that `nsys export --type sqlite` wrote. Ranks are numbered by GPU index."""
    if not path.is_file():
        raise TraceError(f"cannot read {printable(path)}: no such file")
    _check_length(path)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            connection.text_factory = lambda text: text.decode(errors="replace")
            return _Reader(path=path, db=connection, comm=comm).timeline()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter if a message quotes damaged text
        raise TraceError(f"{printable(path)}: not an SQLite database, or cut short or damaged ({error})") from None


def _check_length(path: Path) -> None:
    """Raise an error if the file is shorter than its header says (sqlite.org/fileformat2.html, 1.3)."""
    try:
        with open_regular(path) as file:
            header = file.read(_HEADER_BYTES)
            length = file.seek(0, 2)
    except OSError as error:
        raise TraceError(f"cannot read {printable(path)}: {error.strerror}") from None
    if len(header) < _HEADER_BYTES or not header.startswith(b"SQLite format 3\0"):
        raise TraceError(f"{printable(path)}: not an SQLite database; create one with `nsys export --type sqlite`")
    page = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    whole = pages * (page if page > 1 else 1 << 16)
    known = header[24:28] == header[92:96]  # else an old library wrote the file and the count is stale
    if known and length < whole:
        raise TraceError(f"{printable(path)}: cut short, {length:,} of {whole:,} bytes; copy or export it again")


@dataclass(frozen=True, slots=True)
class _Place:
    """A GPU as one process sees it."""

    process: int  # machine and process, as the export serialises them
    device: int


@dataclass(slots=True)
class _Reader:
    """One open export, and what has been left out so far."""

    path: Path
    db: sqlite3.Connection
    comm: CommNames
    columns: dict[str, frozenset[str]] = field(default_factory=dict)  # by table
    ranks: dict[_Place, Rank] = field(default_factory=dict)
    asked: dict[int, Calls] = field(default_factory=dict)  # by process
    ranges: CallRanges = field(default_factory=CallRanges)
    launches: dict[tuple[Any, ...], Launch | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    untimed: int = 0
    unfit: int = 0
    unasked: int = 0

    def timeline(self) -> Timeline:
        tables = [str(name) for (name,) in self.db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        self.columns = {table: self._columns_of(table) for table in tables}
        self._check()
        self.ranks = self._read_ranks()
        self.asked = self._read_calls()
        self.ranges = self._read_ranges()
        spans = [*self._kernels(), *self._copies(), *self._fills()]
        if not spans:
            raise TraceError(f"{printable(self.path)}: no kernel has a start, an end, a GPU and a stream; export again")
        spans.sort(key=lambda span: (span.start_ns, span.end_ns))
        steps, waits = tuple(self._steps()), self._waits()
        self._note_losses(len(spans))
        devices = {rank.device for rank in self.ranks.values()}
        ranks = sorted(self.ranks.values(), key=lambda rank: rank.rank)
        return Timeline(
            spans=tuple(spans),
            origin="imported",
            device=devices.pop() if len(devices) == 1 else None,
            ranks=tuple(replace(rank, notes=tuple(self.notes)) for rank in ranks),
            steps=steps,
            waits=waits,
            host=tuple(self._host_calls()),
        )

    # --- the database ---

    def _columns_of(self, table: str) -> frozenset[str]:
        quoted = table.replace('"', '""')
        return frozenset(str(row[1]) for row in self.db.execute(f'PRAGMA table_info("{quoted}")'))

    def _check(self) -> None:
        if _KERNEL not in self.columns or not self.db.execute(f"SELECT 1 FROM {_KERNEL} LIMIT 1").fetchone():
            raise TraceError(
                f"{printable(self.path)}: an SQLite database without kernels ({len(self.columns):,} tables); record "
                "with `nsys profile --trace=cuda`, then `nsys export --type sqlite`"
            )
        if lacking := [column for column in ("start", "end", "deviceId", "streamId") if not self._has(_KERNEL, column)]:
            raise TraceError(f"{printable(self.path)}: {_KERNEL} lacks {', '.join(lacking)}; export with a newer nsys")

    def _has(self, table: str, *columns: str) -> bool:
        return table in self.columns and self.columns[table].issuperset(columns)

    def _rows(self, table: str, columns: Sequence[str], where: str = "") -> Iterator[tuple[Any, ...]]:
        """The rows of a table, with None for missing columns; empty if there is no such table."""
        if table not in self.columns:
            return
        chosen = ", ".join(column if self._has(table, column) else f"NULL AS {column}" for column in columns)
        yield from self.db.execute(f"SELECT {chosen} FROM {table} {where}")

    def _note_losses(self, spans: int) -> None:
        if self.untimed:
            self.notes.append(
                f"{self.untimed:,} records are left out: no time, GPU or stream, or ending before the start"
            )
        if self.unfit:
            self.notes.append(f"{self.unfit:,} kernels have no usable register and shared memory counts")
        if self.unasked:
            self.notes.append(
                f"{self.unasked:,} of {spans:,} activities have no launch time: their call is not recorded"
            )

    # --- ranks and calls ---

    def _read_ranks(self) -> dict[_Place, Rank]:
        places = set()
        for table in (_KERNEL, _MEMCPY, _MEMSET):
            for process, device in self._rows(table, ("globalPid", "deviceId"), "GROUP BY 1, 2"):
                if type(device) is int:
                    places.add(_Place(process_of(process), device))
        gpus = {
            _Place(pid, device): gpu
            for pid, device, gpu in self._rows("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
            if type(gpu) is int
        }
        kinds = {row[0]: (row[1], limits_of(row[2:])) for row in self._rows("TARGET_INFO_GPU", ("id", "name", *LIMITS))}
        if not kinds:
            self.notes.append("the GPU is not named: the export has no TARGET_INFO_GPU")
        gpu_of = {
            place: gpus.get(_Place(place.process & _PROCESS_MASK, place.device), place.device) for place in places
        }
        ordered = sorted(gpu_of, key=lambda place: (gpu_of[place], place.process))
        shared = len(set(gpu_of.values())) < len(gpu_of)
        self.notes.append(
            "several processes used one GPU: ranks are numbered in the order of GPUs and processes"
            if shared
            else "ranks are numbered by GPU: the trace does not name them"
        )
        ranks = {}
        for number, place in enumerate(ordered):
            name, limits = kinds.get(gpu_of[place], (None, None))
            ranks[place] = Rank(
                rank=number if shared else gpu_of[place],
                device=name if isinstance(name, str) and name else None,
                sms=limits.sms if limits else None,
                source=str(self.path),
                limits=limits,
            )
        return ranks

    def _read_calls(self) -> dict[int, Calls]:
        calls: dict[int, Calls] = {}
        if not self._has(_CALLS, "start", "correlationId", "globalTid"):
            return calls
        # Ordered by correlation id for searching; the outermost call of an id starts first.
        order = "WHERE typeof(start) = 'integer' AND typeof(correlationId) = 'integer' ORDER BY correlationId, start"
        for start, correlation, thread in self._rows(_CALLS, ("start", "correlationId", "globalTid"), order):
            calls.setdefault(process_of(thread), Calls()).add(correlation, start, thread)
        return calls

    def _host_calls(self) -> Iterator[HostCall]:
        names = {number: host_kind(str(value)) for number, value in self._rows("StringIds", ("id", "value"))}
        kinds = {number: kind for number, kind in names.items() if kind is not None}
        calls: dict[int, dict[HostCallKind, list[tuple[int, int]]]] = {}  # by process
        columns = ("start", "end", "nameId", "globalTid")
        for start, end, name, thread in self._rows(_CALLS, columns) if kinds else ():
            if name in kinds and type(start) is int and type(end) is int and start < end:
                calls.setdefault(process_of(thread), {}).setdefault(kinds[name], []).append((start, end))
        for place, rank in self.ranks.items():
            yield from host_calls(calls.get(place.process, {}), [rank.rank])

    def _call(self, process: int, correlation: object) -> tuple[int, int] | None:
        """The time and the thread of a call."""
        return self.asked[process].find(correlation) if process in self.asked else None

    def _asked_ns(self, process: int, correlation: object) -> int | None:
        call = self._call(process, correlation)
        return None if call is None else call[0]

    def _read_ranges(self) -> CallRanges:
        """The collective calls that NCCL marks with NVTX."""
        ranges = CallRanges()
        if not self._has("NVTX_EVENTS", "start", "end", "eventType", "text", "globalTid"):
            return ranges
        strings = dict(self._rows("StringIds", ("id", "value"), "WHERE value LIKE 'nccl%'"))
        columns = ("start", "end", "globalTid", "text", "textId")
        for start, end, thread, text, key in self._rows(
            "NVTX_EVENTS", columns, f"WHERE eventType IN {_RANGES} AND (text LIKE 'nccl%' OR text IS NULL)"
        ):
            if (name := str(text or strings.get(key) or "")) in COLLECTIVE_CALLS and type(thread) is int:
                ranges.add(thread, start, end, name)
        return ranges.ordered()

    def _priorities(self) -> dict[tuple[int, int, int], int]:
        columns = ("processId", "contextId", "streamId", "priority")
        return {
            (process, context, stream): priority - (1 << 32) if priority >= 1 << 31 else priority
            for process, context, stream, priority in self._rows("TARGET_INFO_CUDA_STREAM", columns)
            if type(priority) is int
        }

    # --- spans ---

    def _kernels(self) -> Iterator[Span]:
        # The short name lacks the namespace, which identifies most communication.
        names = [column for column in ("demangledName", "mangledName", "shortName") if self._has(_KERNEL, column)]
        strings = {key: str(value) for key, value in self._rows("StringIds", ("id", "value"))}
        priorities = self._priorities()
        width = len(_PLACE)
        for row in self._rows(_KERNEL, (*_PLACE, *_SHAPE, *_RESOURCES, *names)):
            shape = row[width : -len(names)] if names else row[width:]
            if shape not in self.launches:
                self.launches[shape] = launch_of(shape)
            launch = self.launches[shape]
            self.unfit += launch is None or launch.resources is None
            name = next(
                (strings[key] for key in row[width + len(shape) :] if strings.get(key)), "kernel without a name"
            )
            kind, rule = self._comm(name, row)
            span = self._span(
                row[:width],
                name=name,
                kind="comm" if rule else "compute",
                launch=launch,
                exchange=Exchange(kind=kind) if kind else None,
                priority=priorities.get((process_of(row[6]) & _PROCESS_MASK, row[3], row[4])),
                rule=rule,
            )
            if span is not None:
                yield span

    def _comm(self, name: str, row: Sequence[Any]) -> tuple[CollectiveKind | None, CommRule | None]:
        """The kind of a kernel's communication, and why it is communication; None: it is not."""
        if (comm := self.comm.find(name)) is not None:
            return comm.kind, comm.rule
        if self.ranges and not self.comm.is_compute(name) and (call := self._call(process_of(row[6]), row[5])):
            time, thread = call
            if (marked := self.ranges.around(thread, time)) is not None:
                return COLLECTIVE_CALLS[marked], _NVTX
        return None, None

    def _copies(self) -> Iterator[Span]:
        labels = dict(self._rows("ENUM_CUDA_MEMCPY_OPER", ("id", "label")))
        for *place, kind, source, target in self._rows(_MEMCPY, (*_PLACE, "copyKind", "srcDeviceId", "dstDeviceId")):
            between = kind == _PEER_TO_PEER or (source is not None and target is not None and source != target)
            name = f"Memcpy {labels.get(kind, 'Peer-to-Peer' if between else kind)}"
            rule = _PEER_COPY if between else None
            span = self._span(place, name=name, kind="copy" if between else "memory", rule=rule)
            if span is not None:
                yield span

    def _fills(self) -> Iterator[Span]:
        for place in self._rows(_MEMSET, _PLACE):
            span = self._span(place, name="Memset", kind="memory")
            if span is not None:
                yield span

    def _span(
        self,
        row: Sequence[Any],
        *,
        name: str,
        kind: SpanKind,
        launch: Launch | None = None,
        exchange: Exchange | None = None,
        priority: int | None = None,
        rule: CommRule | None = None,
    ) -> Span | None:
        start, end, device, _, stream, correlation, pid = row
        process = process_of(pid)
        timed = type(start) is int and type(end) is int and 0 < start <= end  # CUPTI records 0 for an unknown time
        if not timed or type(device) is not int or stream is None:
            self.untimed += 1
            return None
        asked_ns = self._asked_ns(process, correlation)
        self.unasked += asked_ns is None
        return Span(
            name=name,
            kind=kind,
            stream=str(stream),
            start_ns=start,
            end_ns=end,
            rank=self.ranks[_Place(process, device)].rank,
            launch=launch,
            launched_ns=asked_ns,
            exchange=exchange,
            priority=priority,
            rule=rule,
        )

    # --- steps and waits ---

    def _steps(self) -> Iterator[Step]:
        if not self._has("NVTX_EVENTS", "start", "end", "eventType", "text"):
            return
        strings = dict(self._rows("StringIds", ("id", "value"), "WHERE value LIKE '%step%' OR value LIKE '%iter%'"))
        ranks: dict[int, list[int]] = {}
        for place, rank in self.ranks.items():
            ranks.setdefault(place.process, []).append(rank.rank)
        columns = ("start", "end", "globalTid", "text", "textId")
        likely = "text LIKE '%step%' OR text LIKE '%iter%' OR text IS NULL"
        ranges = self._rows("NVTX_EVENTS", columns, f"WHERE eventType IN {_RANGES} AND ({likely})")
        for start, end, thread, text, key in ranges:
            match = _STEP.fullmatch(str(text or strings.get(key) or ""))
            if match is None or type(start) is not int or type(end) is not int or end < start:
                continue
            for number in ranks.get(process_of(thread), ()):
                yield Step(number=int(match[1]), rank=number, start_ns=start, end_ns=end)

    def _waits(self) -> tuple[Wait, ...] | None:
        """The stream waits whose event is in the export; None if waits cannot be followed."""
        if not self._has(_SYNC, "syncType", "streamId", "correlationId", "globalPid"):
            return None
        contexts = {
            (process_of(pid), context): self.ranks[_Place(process_of(pid), device)].rank
            for pid, context, device in self._rows(_KERNEL, ("globalPid", "contextId", "deviceId"), "GROUP BY 1, 2, 3")
            if type(device) is int
        }
        # An event may be recorded many times, each with its own eventSyncId.
        recorded = {
            (process_of(pid), event, sync): (stream, self._asked_ns(process_of(pid), correlation))
            for pid, event, sync, stream, correlation in self._rows(
                _EVENT, ("globalPid", "eventId", "eventSyncId", "streamId", "correlationId")
            )
        }
        columns = ("globalPid", "contextId", "streamId", "correlationId", "eventId", "eventSyncId")
        waits, lost = [], 0
        # The device of these rows is the calling thread's; the context identifies the stream's.
        for pid, context, stream, correlation, event, sync in self._rows(
            _SYNC, columns, f"WHERE syncType = {_STREAM_WAIT_EVENT}"
        ):
            process = process_of(pid)
            on_stream, recorded_ns = recorded.get((process, event, sync), (None, None))
            asked_ns, rank = self._asked_ns(process, correlation), contexts.get((process, context))
            if on_stream is None or recorded_ns is None or asked_ns is None or rank is None:
                lost += 1
                continue
            waits.append(
                Wait(
                    rank=rank,
                    stream=str(stream),
                    asked_ns=asked_ns,
                    on_stream=str(on_stream),
                    recorded_ns=recorded_ns,
                )
            )
        if lost:
            self.notes.append(
                f"{lost:,} stream waits cannot be followed: the export does not say where their events were recorded; "
                "record with --cuda-event-trace=true"
            )
        return None if lost and not waits else tuple(waits)
