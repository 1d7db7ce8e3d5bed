"""The events of a JSON trace of any size, plain or gzip, in decoded pieces and constant memory.

A piece ends at a guessed boundary, and decoding proves the guess. A JSON parser reads from left to right, and its
state depends only on what it has read. A piece starts where an element of the event array starts. If `[`, the piece
and `]` decode, the parser had finished a complete element at that `]`. Inside a string the `]` would be text; inside
an element it would close or break that element; either way the outer array would stay open. A piece ends with `}`, so
no number is split. Hence a cut that decodes is a true boundary, whatever braces and quotes the names hold, and the
next piece again starts where an element starts.

If no guess decodes, or the JSON is damaged, an exact scan takes over, which is slower and counts what it drops.

Time is linear in the inflated size, and memory is bounded: at most MOST_BYTES precede the events, make one event or
follow them. A file that inflates to more than that without an event is refused.
"""

from __future__ import annotations

import gc
import re
import zlib
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Generic, TypeVar

import msgspec

from makeway.read.traces.places import open_place
from makeway.values.errors import TraceError, printable

inflate: ModuleType = zlib
with suppress(ImportError):  # the same interface, three times as fast
    inflate = import_module("isal.isal_zlib")

EVENTS_KEY = "traceEvents"
GZIP_MAGIC = b"\x1f\x8b"
CHUNK_BYTES = 2 << 20  # of JSON decoded at a time; larger is no faster and exceeds the caches
READ_BYTES = 1 << 17  # of a compressed file inflated at a time
SALVAGE_BYTES = 64  # of a damaged compressed file inflated at a time
MOST_BYTES = 64 << 20  # before the events, of one event, and after them
GUESSES = 3  # cuts tried before the exact scan

GZIP_WINDOW = 31  # zlib: a gzip frame with the largest window
# Between two events. Inside a string the quote would be escaped, so only a list of objects in an event's own arguments
# can look the same.
_BETWEEN_EVENTS = re.compile(rb'\}\s*(,)\s*\{\s*"(?:ph|cat|name|ts|pid|tid|args|dur)"\s*:')
# Every token that changes the position in the document. Bytes are matched by number: 0x22 is a quote, 0x2C a comma,
# 0x3A a colon, 0x5B and 0x5D are brackets, 0x7B and 0x7D braces.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[\[\]{},:]', re.DOTALL)
# inf and nan are not JSON, but some profilers write them.
_STRING_OR_INF = re.compile(rb'("(?:[^"\\]++|\\.)*+"?)|[-+]?\b(?:inf|nan|infinity)\b', re.DOTALL | re.IGNORECASE)
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_COMMA, _CLOSE = b",]"

T = TypeVar("T")


# --- bytes -------------------------------------------------------------------------------------


@dataclass(slots=True)
class ByteSource:
    """The bytes of a file, inflated if it is gzip, and whether it ends early."""

    path: Path
    progress: Callable[[int], None] | None = None  # receives the bytes of the file read so far
    chunk_bytes: int = CHUNK_BYTES
    broken: bool = False  # the gzip data end early or are damaged

    def chunks(self) -> Iterator[bytes]:
        try:
            with open_place(self.path) as file:
                magic = file.read(len(GZIP_MAGIC))
                file.seek(0)
                yield from self._inflated(file) if magic == GZIP_MAGIC else self._plain(file)
        except OSError as error:
            raise TraceError(f"cannot read {printable(self.path)}: {error.strerror or error}") from error

    def _plain(self, file: IO[bytes]) -> Iterator[bytes]:
        while chunk := file.read(self.chunk_bytes):
            self._report(file)
            yield chunk

    def _inflated(self, file: IO[bytes]) -> Iterator[bytes]:
        done = 0
        try:
            for chunk in self._members(file, READ_BYTES):
                done += len(chunk)
                yield chunk
        except inflate.error:
            # A call that fails discards what it has inflated, so smaller calls lose less.
            self.broken = True
            file.seek(0)
            with suppress(inflate.error):
                for chunk in self._members(file, SALVAGE_BYTES):
                    if new := chunk[done:]:
                        yield new
                    done = max(0, done - len(chunk))

    def _members(self, file: IO[bytes], read_bytes: int) -> Iterator[bytes]:
        member, pending = inflate.decompressobj(GZIP_WINDOW), b""
        while pending or (pending := file.read(read_bytes)):
            if member.eof:  # another member follows, or zeros that some tools pad with
                if not (pending := pending.lstrip(b"\0")):
                    continue
                member = inflate.decompressobj(GZIP_WINDOW)
            chunk = member.decompress(pending, self.chunk_bytes)
            pending = member.unused_data if member.eof else member.unconsumed_tail
            self._report(file)
            if chunk:
                yield chunk
        self.broken |= not member.eof

    def _report(self, file: IO[bytes]) -> None:
        if self.progress is not None:
            self.progress(file.tell())


# --- the header --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The start of a JSON document, up to the array under a wanted key or the outermost array."""

    text: bytes
    rest: bytes  # what has been read after it
    key: str | None = None  # None: the document is an array, or has none of the keys
    is_array: bool = False
    too_long: bool = False  # no such array in the first MOST_BYTES


def read_head(chunks: Iterator[bytes], keys: Collection[str] = (EVENTS_KEY,)) -> Head:
    """Read up to the array under the first of these keys of the outermost object."""
    data, wanted, blanks = bytearray(), 0, 0
    for chunk in chunks:
        if data:
            data += chunk
        else:
            data += chunk.removeprefix(b"\xef\xbb\xbf").lstrip()
            blanks += len(chunk) - len(data)
        if data and not data.startswith(b"{"):
            is_array = data[:1] == b"["
            return Head(text=b"", rest=bytes(data[1:]), is_array=True) if is_array else Head(text=bytes(data), rest=b"")
        if len(data) + blanks > MOST_BYTES:
            break
        if data and len(data) >= wanted:
            if (array := _find_array(data, keys)) is not None:
                return _up_to(data, *array)
            wanted = 2 * len(data)  # so the cost stays linear
    array = _find_array(data, keys)
    if array is not None:
        return _up_to(data, *array)
    return Head(text=bytes(data), rest=b"", too_long=len(data) + blanks > MOST_BYTES)


def _up_to(data: bytearray, key: str, at: int) -> Head:
    return Head(text=bytes(data[: at - 1]), rest=bytes(data[at:]), key=key)


def _find_array(data: bytearray, keys: Collection[str]) -> tuple[str, int] | None:
    """The first of `keys` in the outermost object whose value is an array, and where its first element starts."""
    depth, name, colon = 0, b"", False
    for token in _TOKEN.finditer(data):
        at = token.start()
        match data[at]:
            case 0x22:
                if not token[1]:
                    return None  # the string continues beyond what has been read
                name, colon = token[0] if depth == 1 else b"", False
                continue
            case 0x3A:
                colon = bool(name)
                continue
            case 0x5B if colon and (key := name[1:-1].decode(errors="replace")) in keys:
                return key, at + 1
            case 0x5B | 0x7B:
                depth += 1
            case 0x5D | 0x7D:
                depth -= 1
        name, colon = b"", False
    return None


def header_entries(text: bytes) -> dict[str, Any]:
    """Every readable entry of the outermost object of a JSON text, which may be damaged or incomplete."""
    entries: dict[str, Any] = {}
    depth, name, begin = 0, b"", None
    for token in _TOKEN.finditer(text):
        at = token.start()
        match text[at]:
            case 0x22:
                if not token[1]:
                    break
                if depth == 1 and begin is None:
                    name = token[0]
            case 0x3A if depth == 1 and begin is None:
                begin = token.end()
            case 0x5B | 0x7B:
                depth += 1
            case byte:
                depth -= byte in b"]}"
                if begin is not None and (depth == 0 or (depth == 1 and byte == _COMMA)):
                    with suppress(*_UNREADABLE):
                        entries[str(msgspec.json.decode(name))] = msgspec.json.decode(text[begin:at])
                    name, begin = b"", None
    return entries


# --- events ------------------------------------------------------------------------------------


@dataclass(slots=True)
class EventStream(Generic[T]):
    """The elements of a document's event array and, once they were read, what stands around the array."""

    source: ByteSource
    decoder: msgspec.json.Decoder[list[T]]
    header: dict[str, Any] = field(default_factory=dict)
    events: int = 0
    unreadable: int = 0  # elements that are not JSON, or not an event
    cut_short: bool = False

    def pieces(self) -> Iterator[list[T]]:
        """Lists of events in order, with every complete event even of a file that is cut short."""
        chunks = self.source.chunks()
        head = read_head(chunks)
        if head.key is None and not head.is_array:
            self.header, self.cut_short = header_entries(head.text), True
            return
        tail = yield from self._array(chunks, head.rest)
        self.cut_short = tail is None
        if not head.is_array:
            after = b"}" if tail is None else tail + _joined(chunks)
            text = head.text + b"null" + after
            try:
                self.header = msgspec.json.decode(text, type=dict[str, Any])
            except _UNREADABLE:
                self.header, self.cut_short = header_entries(text), True
            self.header.pop(EVENTS_KEY, None)
        self.cut_short |= self.source.broken

    def _array(self, chunks: Iterator[bytes], rest: bytes) -> Generator[list[T], None, bytes | None]:
        """The pieces of the array; returns what follows its end, or None if the end is missing."""
        data, wanted = bytearray(b"[" + rest), 0
        while True:
            if len(data) >= wanted or len(data) > MOST_BYTES:
                done, ended = yield from self._cut(data)
                data = bytearray(b"[") + memoryview(data)[done:]
                if ended:
                    return bytes(data[1:])
                if len(data) > MOST_BYTES:
                    self._give_up()
                    return None
                # An event is larger than this. Waiting for twice as much keeps the cost linear.
                wanted = 2 * len(data) if done == 1 else 0
            if (chunk := next(chunks, None)) is None:
                break
            data += chunk
        slices, done, ended = _scan(data, to_the_end=True)
        yield from self._one_by_one(data, slices)
        return bytes(data[done:]) if ended else None

    def _give_up(self) -> None:
        """An event does not end: what was read until then counts, if anything was."""
        if not self.events:
            raise TraceError(f"{printable(self.source.path)} holds no trace: {too_long()}")

    def _cut(self, data: bytearray) -> Generator[list[T], None, tuple[int, bool]]:
        """The complete events in `data`; returns where the next one starts, and whether the array ended."""
        for comma in _likely_cuts(data):
            data[comma] = _CLOSE
            try:
                piece = self.decoder.decode(memoryview(data)[: comma + 1])
            except _UNREADABLE:
                data[comma] = _COMMA
            else:
                self.events += len(piece)
                yield piece
                return comma + 1, False
        slices, done, ended = _scan(data)
        yield from self._one_by_one(data, slices)
        return done, ended

    def _one_by_one(self, data: bytearray, slices: list[tuple[int, int]]) -> Iterator[list[T]]:
        piece: list[T] = []
        for begin, end in slices:
            text = b"[" + data[begin:end] + b"]"
            try:
                piece += self.decoder.decode(text)
            except _UNREADABLE:
                try:
                    piece += self.decoder.decode(_STRING_OR_INF.sub(lambda match: match[1] or b"null", text))
                except _UNREADABLE:
                    self.unreadable += 1
        self.events += len(piece)
        if piece:
            yield piece


def _joined(chunks: Iterator[bytes]) -> bytes:
    """What follows the events, as far as it is kept."""
    text = bytearray()
    for chunk in chunks:
        text += chunk
        if len(text) > MOST_BYTES:
            break
    return bytes(text)


def too_long() -> str:
    """Why a document was given up."""
    return f"its first {MOST_BYTES >> 20} MiB, unpacked, hold no event"


def _likely_cuts(data: bytearray) -> list[int]:
    """Commas that seem to separate events, the last first."""
    for window in (1 << 16, len(data)):
        commas = [match.start(1) for match in _BETWEEN_EVENTS.finditer(data, max(0, len(data) - window))]
        if commas:
            return commas[: -GUESSES - 1 : -1]
    return []


def _scan(data: bytearray, *, to_the_end: bool = False) -> tuple[list[tuple[int, int]], int, bool]:
    """The complete elements of the array that `data` opens with, where the next one starts, and whether it ended.

    With `to_the_end` an element is complete without a comma after it.
    """
    slices: list[tuple[int, int]] = []
    depth, begin = 0, 1
    for token in _TOKEN.finditer(data, 1):
        at = token.start()
        match data[at]:
            case 0x22:
                if not token[1]:
                    return slices, begin, False
            case 0x5B | 0x7B:
                depth += 1
            case 0x2C if depth == 0:
                slices.append((begin, at))
                begin = at + 1
            case 0x5D if depth == 0:
                if data[begin:at].strip():
                    slices.append((begin, at))
                return slices, at + 1, True
            case 0x5D | 0x7D:
                depth = max(0, depth - 1)
    if to_the_end and depth == 0 and data[begin:].rstrip().endswith(b"}"):
        slices.append((begin, len(data)))
    return slices, begin, False


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection: decoding creates no cycles, and searching for them would double the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
