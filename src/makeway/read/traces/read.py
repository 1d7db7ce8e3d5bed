"""Find trace files, recognise their format by content, and read them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Literal, assert_never

from makeway.read.traces.classify import CommNames, load_comm_names
from makeway.read.traces.places import exists, files_below, identity, is_directory, remote_url
from makeway.read.traces.stream import EVENTS_KEY, ByteSource, Head, header_entries, read_head, too_long
from makeway.values.errors import TraceError, printable
from makeway.values.facts import open_regular
from makeway.values.timeline import Timeline

Format = Literal["kineto", "nsys", "nsys-rep", "rocprofv3", "xla"]

ROCPROF_KEY = "rocprofiler-sdk-tool"
_LOOK_BYTES = 1 << 16
_LONGEST_KEY = 40  # characters shown
_SQLITE_MAGIC = b"SQLite format 3\0"
_FIRST_EVENT = re.compile(rb'\s*\{.{0,65536}?"ph"\s*:', re.DOTALL)
_XLA_PROCESS = re.compile(rb'"process_name".{0,200}?"/(?:device:|host:CPU)', re.DOTALL)
NSYS_REPORTS = (".nsys-rep", ".qdrep")  # only NVIDIA's tool knows what is inside
_MOST_NAMED = 3  # files in a note
_READABLE = (
    "makeway reads traces of PyTorch's profiler (Kineto JSON) and of JAX's (*.trace.json.gz), plain or gzip, Nsight "
    "Systems reports and databases (made with `nsys export --type sqlite`) and rocprofv3 JSON."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFiles:
    """Trace files in natural order (rank2 before rank10), and notes on files that were skipped."""

    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def read_trace(path: Path, *, comm: CommNames | None = None, progress: Callable[[int], None] | None = None) -> Timeline:
    """The timeline of a trace of any format; `progress` receives the bytes read so far."""
    names = _known_names() if comm is None else comm
    match recognise(path):
        case "kineto":
            from makeway.read.traces.kineto import read_kineto

            return read_kineto(path, comm=names, progress=progress)
        case "nsys":
            from makeway.read.traces.nsys import read_nsys

            return read_nsys(path, comm=names)
        case "nsys-rep":
            from makeway.read.traces.nsys_rep import read_nsys_rep

            return read_nsys_rep(path, comm=names)
        case "xla":
            from makeway.read.traces.xla import read_xla

            return read_xla(path, comm=names, progress=progress)
        case "rocprofv3":
            from makeway.read.traces.rocprof import read_rocprof

            return read_rocprof(path, comm=names, progress=progress)
        case never:
            assert_never(never)


@cache
def _known_names() -> CommNames:
    """Shared by all files: it remembers the names it has classified."""
    return load_comm_names()


def recognise(path: Path) -> Format:
    """The format of the trace in a file."""
    source = ByteSource(path, chunk_bytes=_LOOK_BYTES)
    chunks = source.chunks()
    first = next(chunks, b"")
    if first.startswith(_SQLITE_MAGIC):
        if (url := remote_url(path)) is not None:
            raise TraceError(
                f"{printable(url)} is a database, which is read from a local disk only; copy it here first"
            )
        with open_regular(path) as file:
            if file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC:
                return "nsys"
        raise TraceError(f"{printable(path)} is a compressed database; unpack it with gunzip first")
    head = read_head(chain((first,), chunks), (EVENTS_KEY, ROCPROF_KEY))
    if head.key == ROCPROF_KEY:
        return "rocprofv3"
    if head.key == EVENTS_KEY or (head.is_array and _FIRST_EVENT.match(head.rest)):
        return "xla" if _XLA_PROCESS.search(head.rest, 0, _LOOK_BYTES) else "kineto"
    if path.suffix in NSYS_REPORTS and not head.text.startswith(b"{") and remote_url(path) is None:
        return "nsys-rep"
    raise TraceError(f"{printable(path)} holds no trace: {_looks_like(first, head, source)}\n{_READABLE}")


def _looks_like(first: bytes, head: Head, source: ByteSource) -> str:
    if head.too_long:
        return too_long()
    if not first:
        return "its gzip data end early or are damaged" if source.broken else "it is empty"
    if head.is_array:
        return "it is a JSON array, but not of events"
    if head.text[:1] == b"{":
        keys = [key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}…" for key in header_entries(head.text)]
        return f"it is a JSON object without {EVENTS_KEY} (its keys: {', '.join(keys[:8]) or 'none that is complete'})"
    if first.startswith(b"PK\x03\x04"):
        return "it is a zip archive; unpack it first"
    if first.startswith(b"\x28\xb5\x2f\xfd"):
        return "it is compressed with zstd; unpack it first"
    if b"\0" in first[:4096]:
        return "it is a binary file"
    return f"it starts with {first[:24].decode(errors='replace')!r}"


def find_traces(paths: Sequence[Path]) -> TraceFiles:
    """The files, and the traces in the directories and below them; a file given twice counts once."""
    files: dict[Path, Path] = {}
    notes = []
    for path in paths:
        if not exists(path):
            raise TraceError(f"no file or directory {printable(path)}")
        if is_directory(path):
            traces, skipped = _traces_in(path)
            notes += skipped
        else:
            traces = [path]
        for trace in traces:
            files.setdefault(identity(trace), trace)
    return TraceFiles(files=tuple(sorted(files.values(), key=natural)), notes=tuple(notes))


def more_traces_than(count: int, paths: Sequence[Path]) -> bool:
    """Whether there are more traces than so many; files are opened only where there are more files."""
    files = (file for path in paths for file in (files_below(path) if is_directory(path) else (path,)))
    return next(islice(files, count, None), None) is not None and len(find_traces(paths).files) > count


def _traces_in(directory: Path) -> tuple[list[Path], list[str]]:
    traces, others = [], list[str]()
    for path in sorted(files_below(directory), key=natural):
        try:
            recognise(path)
        except TraceError as error:
            others.append(str(error).splitlines()[0])
        else:
            traces.append(path)
    traces = _without_copies(traces)
    if not traces:
        seen = f", but {len(others):,} other file{'' if len(others) == 1 else 's'}" if others else ""
        raise TraceError(f"no trace in directory {printable(directory)} or below{seen}\n{_READABLE}")
    if not others:
        return traces, []
    more = f"; and {len(others) - _MOST_NAMED:,} more" if len(others) > _MOST_NAMED else ""
    counted = f"{len(others):,} other files are" if len(others) > 1 else "1 other file is"
    return traces, [f"{counted} left out: {'; '.join(others[:_MOST_NAMED])}{more}"]


def _without_copies(traces: list[Path]) -> list[Path]:
    """Without the second copy that JAX writes of a trace, for Perfetto."""
    folders = {path.parent for path in traces if path.name.endswith(".trace.json.gz")}
    return [path for path in traces if path.name != "perfetto_trace.json.gz" or path.parent not in folders]


def natural(name: Path | str) -> list[tuple[int, int, str]]:
    """A sort key that compares numbers in a name as numbers."""
    parts = (part for part in re.split(r"(\d+)", str(name)) if part)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
