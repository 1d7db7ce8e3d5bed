"""Find trace files, recognise their format by content, and read them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Literal, assert_never

from makeway.read.traces.classify import CommNames, load_comm_names
from makeway.read.traces.stream import EVENTS_KEY, ByteSource, Head, header_entries, read_head, too_long
from makeway.values.errors import TraceError, printable
from makeway.values.facts import open_regular
from makeway.values.timeline import Timeline

Format = Literal["kineto", "nsys", "rocprofv3"]

ROCPROF_KEY = "rocprofiler-sdk-tool"
_LOOK_BYTES = 1 << 16
_LONGEST_KEY = 40  # characters shown
_SQLITE_MAGIC = b"SQLite format 3\0"
_FIRST_EVENT = re.compile(rb'\s*\{.{0,65536}?"ph"\s*:', re.DOTALL)
_READABLE = (
    "makeway reads PyTorch profiler traces (Kineto JSON, plain or gzip), Nsight Systems databases (made with "
    "`nsys export --type sqlite`) and rocprofv3 JSON."
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
        with open_regular(path) as file:
            if file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC:
                return "nsys"
        raise TraceError(f"{printable(path)} is a compressed database; unpack it with gunzip first")
    head = read_head(chain((first,), chunks), (EVENTS_KEY, ROCPROF_KEY))
    if head.key == ROCPROF_KEY:
        return "rocprofv3"
    if head.key == EVENTS_KEY or (head.is_array and _FIRST_EVENT.match(head.rest)):
        return "kineto"
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
    """The files, and the traces directly in the directories; a file given twice counts once."""
    files: dict[Path, Path] = {}
    notes = []
    for path in paths:
        if not path.exists():
            raise TraceError(f"no file or directory {printable(path)}")
        if path.is_dir():
            traces, skipped = _traces_in(path)
            notes += skipped
        else:
            traces = [path]
        for trace in traces:
            files.setdefault(trace.resolve(), trace)
    return TraceFiles(files=tuple(sorted(files.values(), key=natural)), notes=tuple(notes))


def _traces_in(directory: Path) -> tuple[list[Path], list[str]]:
    traces, notes = [], []
    for path in sorted(directory.iterdir(), key=natural):
        if path.is_dir() or path.name.startswith("."):
            continue
        try:
            recognise(path)
        except TraceError as error:
            notes.append(f"skipped: {str(error).splitlines()[0]}")
        else:
            traces.append(path)
    if not traces:
        others = f", but {len(notes)} other files" if notes else ""
        raise TraceError(
            f"no trace in directory {printable(directory)}{others}; its sub-directories are not searched\n{_READABLE}"
        )
    return traces, notes


def natural(name: Path | str) -> list[tuple[int, int, str]]:
    """A sort key that compares numbers in a name as numbers."""
    parts = (part for part in re.split(r"(\d+)", str(name)) if part)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
