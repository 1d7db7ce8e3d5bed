"""Cubins inside a fatbin: the container of `.nv_fatbin` sections and `.fatbin` files.

The container is a sequence of regions, each a header and entries; an entry's header names kind,
architecture and compression, so cubins of other architectures are skipped unread. NVIDIA does not
document the layout; it was read from real libraries, and the tests compare it with cuobjdump.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import lz4.block
import zstandard

from makeway.read.binaries.elf import Buffer
from makeway.values.errors import BinaryError, UnsupportedError

MAGIC = b"\x50\xed\x55\xba"
_REGION = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_KIND_ELF = 2
_FLAG_LZ4, _FLAG_ZSTD = 0x2000, 0x8000
_FLAG_ARCH_SPECIFIC, _FLAG_FAMILY_SPECIFIC = 0x100000, 0x200000  # sm_90a, sm_100f
_FLAGS_COMPRESSED = _FLAG_LZ4 | _FLAG_ZSTD
_LARGEST_CUBIN = 1 << 30
_LZ4_LARGEST_RATIO = 255


@dataclass(frozen=True, slots=True)
class Entry:
    """One cubin of a fatbin, still packed."""

    arch: int
    flags: int
    packed: bytes
    size: int  # unpacked

    @property
    def arch_name(self) -> str:
        """The architecture as compilers write it: sm_90, sm_90a, sm_100f."""
        suffix = "a" if self.flags & _FLAG_ARCH_SPECIFIC else "f" if self.flags & _FLAG_FAMILY_SPECIFIC else ""
        return f"sm_{self.arch}{suffix}"


def entries(data: Buffer, start: int, end: int, *, arch: int | None = None) -> Iterator[Entry]:
    """All cubins between two offsets, or those of one architecture; PTX and other kinds are skipped."""
    end = min(end, len(data))
    at = data.find(MAGIC, start, end)
    if at < 0:
        raise BinaryError("no fatbin in it: the magic number is missing")
    while at >= 0:
        if at + _REGION.size > end:
            raise BinaryError(f"truncated fatbin: it ends inside a header at byte {at:,}")
        _, _, header, size = _REGION.unpack_from(data, at)
        stop = at + header + size
        if header < _REGION.size or stop > end:
            raise BinaryError(f"truncated fatbin: a region ends at byte {stop:,} of {end:,}")
        yield from _region_entries(data, at + header, stop, arch)
        at = data.find(MAGIC, stop, end)


def _region_entries(data: Buffer, at: int, stop: int, arch: int | None) -> Iterator[Entry]:
    while at + _ENTRY.size <= stop:
        kind, _, header, size, packed, _, _, _, number, _, _, flags, _, unpacked = _ENTRY.unpack_from(data, at)
        if header < _ENTRY.size or at + header + size > stop:
            raise BinaryError(f"damaged fatbin: the entry at byte {at:,} ends outside its region")
        if kind == _KIND_ELF and (arch is None or number == arch):
            length = packed if flags & _FLAGS_COMPRESSED else size
            if length > size:
                raise BinaryError(f"damaged fatbin: the entry at byte {at:,} is longer than its space")
            body = data[at + header : at + header + length]
            yield Entry(number, flags, body, unpacked if flags & _FLAGS_COMPRESSED else length)
        at += header + size


def unpacked(entry: Entry) -> bytes:
    """The cubin of an entry."""
    if not entry.flags & _FLAGS_COMPRESSED:
        if entry.packed[:4] != b"\x7fELF":
            raise UnsupportedError(
                f"the fatbin packs its sm_{entry.arch} code in a way makeway cannot read (flags {entry.flags:#x})"
            )
        return entry.packed
    if entry.size > _LARGEST_CUBIN:
        raise BinaryError(f"damaged fatbin: a cubin claims {entry.size:,} bytes")
    try:
        if entry.flags & _FLAG_ZSTD:
            return _unpack_zstd(entry)
        if entry.size > len(entry.packed) * _LZ4_LARGEST_RATIO:
            raise BinaryError(f"damaged fatbin: {len(entry.packed):,} packed bytes claim {entry.size:,}")
        return bytes(lz4.block.decompress(entry.packed, uncompressed_size=entry.size))
    except (lz4.block.LZ4BlockError, zstandard.ZstdError) as error:
        raise BinaryError(f"damaged fatbin: a packed cubin does not unpack ({error})") from None


def _unpack_zstd(entry: Entry) -> bytes:
    declared = zstandard.frame_content_size(entry.packed)
    if declared > _LARGEST_CUBIN:
        raise BinaryError(f"damaged fatbin: a cubin claims {declared:,} bytes")
    return zstandard.ZstdDecompressor().decompress(entry.packed, max_output_size=entry.size)
