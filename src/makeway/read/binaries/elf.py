"""The few parts of an ELF file that GPU code needs: header, sections, symbols.

Not pyelftools, for two reasons: it takes as long to walk the sections of one NCCL architecture as
NVIDIA's own tool takes for the whole job, and it hides the symbol bits that mark a CUDA kernel.
Tests compare with pyelftools.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap

from makeway.values.errors import BinaryError

Buffer = bytes | mmap

MAGIC = b"\x7fELF"
MACHINE_CUDA = 190
MACHINE_AMDGPU = 224
TYPE_NOBITS = 8
TYPE_FUNCTION = 2

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


@dataclass(frozen=True, slots=True)
class Section:
    """One section header, its name looked up."""

    name: str
    type: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """One symbol; `other` carries CUDA's kernel mark."""

    name: str
    type: int
    other: int


@dataclass(frozen=True, slots=True)
class Elf:
    """A 64-bit little-endian ELF file."""

    data: Buffer
    machine: int
    abi_version: int
    flags: int
    sections: tuple[Section, ...]

    def content(self, section: Section) -> bytes:
        """The bytes of a section; none for one that occupies no file space."""
        if section.type == TYPE_NOBITS:
            return b""
        return _slice(self.data, section.offset, section.size, f"section {section.name}")

    def symbols(self) -> tuple[Symbol, ...]:
        """All symbols of .symtab, by index; empty without one."""
        table = next((section for section in self.sections if section.name == ".symtab"), None)
        if table is None:
            return ()
        if table.link >= len(self.sections):
            raise BinaryError("damaged ELF file: the symbol table names no string table")
        names = self.content(self.sections[table.link])
        rows = self.content(table)
        rows = rows[: len(rows) // _SYMBOL.size * _SYMBOL.size]
        return tuple(
            Symbol(_name(names, name), info & 0xF, other) for name, info, other, *_ in _SYMBOL.iter_unpack(rows)
        )


def parse_elf(data: Buffer) -> Elf:
    """The ELF file in `data`; BinaryError when it is truncated or not a 64-bit little-endian ELF."""
    if len(data) < _HEADER.size or data[:4] != MAGIC:
        raise BinaryError("not an ELF file")
    ident, _, machine, _, _, _, table, flags, _, _, _, entry, count, name_index = _HEADER.unpack_from(data)
    if ident[4] != 2 or ident[5] != 1:
        raise BinaryError("not a 64-bit little-endian ELF file")
    sections = tuple(_sections(data, table, entry, count, name_index)) if count else ()
    return Elf(data, machine, ident[8], flags, sections)


def _sections(data: Buffer, table: int, entry: int, count: int, name_index: int) -> Iterator[Section]:
    if entry != _SECTION.size or name_index >= count:
        raise BinaryError("damaged ELF file: its section table is malformed")
    rows = list(_SECTION.iter_unpack(_slice(data, table, entry * count, "the section table")))
    names = _slice(data, rows[name_index][4], rows[name_index][5], "the section names")
    for name, kind, _, _, offset, size, link, _, _, _ in rows:
        yield Section(_name(names, name), kind, offset, size, link)


def _name(names: bytes, offset: int) -> str:
    end = names.find(b"\0", offset)
    return names[offset : end if end >= 0 else len(names)].decode("utf-8", "replace")


def _slice(data: Buffer, offset: int, size: int, what: str) -> bytes:
    if offset + size > len(data):
        raise BinaryError(f"damaged or truncated ELF file: {what} ends at byte {offset + size:,} of {len(data):,}")
    return data[offset : offset + size]
