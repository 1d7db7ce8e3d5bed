"""Kernels of an AMD code object (hsaco), from the msgpack metadata in its note."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from makeway.read.binaries.elf import Buffer, Elf
from makeway.read.binaries.kernels import BinaryKernel
from makeway.values.errors import BinaryError

BUNDLE_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED_BUNDLE_MAGIC = b"CCOB"
_NOTE_METADATA = 32  # NT_AMDGPU_METADATA
_TYPE_NOTE = 7  # SHT_NOTE


def hsaco_kernels(elf: Elf) -> list[BinaryKernel]:
    """All kernels that a code object's metadata lists."""
    metadata = _metadata(elf)
    # "amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-": the processor comes before the features
    arch = str(metadata.get("amdhsa.target", "")).partition(":")[0].rpartition("-")[2] or "unknown"
    kernels = metadata.get("amdhsa.kernels")
    if not isinstance(kernels, list) or not all(isinstance(kernel, dict) for kernel in kernels):
        raise BinaryError("damaged code object: its metadata lists no kernels")
    return [_kernel(kernel, arch) for kernel in kernels]


def _kernel(kernel: dict[str, Any], arch: str) -> BinaryKernel:
    name = kernel.get(".name")
    if not isinstance(name, str):
        raise BinaryError("damaged code object: a kernel has no name")
    return BinaryKernel(
        name=name,
        arch=arch,
        registers=_number(kernel, ".vgpr_count", name),
        threads=_number(kernel, ".max_flat_workgroup_size", name),
        smem_static_bytes=_number(kernel, ".group_segment_fixed_size", name),
        scalar_registers=_number(kernel, ".sgpr_count", name),
        accumulation_registers=_number(kernel, ".agpr_count", name) if ".agpr_count" in kernel else None,
    )


def _number(kernel: dict[str, Any], key: str, name: str) -> int:
    value = kernel.get(key)
    if type(value) is not int or value < 0:
        raise BinaryError(f"damaged code object: kernel {name!r} has no {key}")
    return value


def _metadata(elf: Elf) -> dict[str, Any]:
    for section in elf.sections:
        if section.type != _TYPE_NOTE:
            continue
        for owner, kind, body in _notes(elf.content(section)):
            if owner == b"AMDGPU" and kind == _NOTE_METADATA:
                try:
                    document = msgspec.msgpack.decode(body)
                except (msgspec.DecodeError, RecursionError, ValueError) as error:
                    raise BinaryError(f"damaged code object: its metadata does not decode ({error})") from None
                if isinstance(document, dict):
                    return document
    raise BinaryError("no kernel metadata in this AMD code object (it needs code object version 3 or later)")


def _notes(content: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    at = 0
    while at + 12 <= len(content):
        owner_size, body_size, kind = struct.unpack_from("<III", content, at)
        body = at + 12 + (owner_size + 3 & ~3)
        if body + body_size > len(content):
            raise BinaryError("damaged code object: a note ends outside its section")
        yield content[at + 12 : at + 12 + owner_size].rstrip(b"\0"), kind, content[body : body + body_size]
        at = body + (body_size + 3 & ~3)


def bundle_entries(data: Buffer, start: int, end: int) -> Iterator[tuple[str, bytes]]:
    """(target, code object) of each entry of the clang offload bundles between two offsets."""
    end = min(end, len(data))
    at = data.find(BUNDLE_MAGIC, start, end)
    while at >= 0:
        cursor = at + len(BUNDLE_MAGIC)
        (count,) = struct.unpack("<Q", _bytes(data, cursor, 8, end))
        cursor += 8
        last = cursor
        for _ in range(count):
            offset, size, id_size = struct.unpack("<QQQ", _bytes(data, cursor, 24, end))
            target = _bytes(data, cursor + 24, id_size, end).decode("utf-8", "replace")
            cursor += 24 + id_size
            last = max(last, at + offset + size)
            if target.startswith("hip") and size:
                yield target, _bytes(data, at + offset, size, end)
        at = data.find(BUNDLE_MAGIC, min(last, end), end)  # an entry that is not ours may claim any place


def _bytes(data: Buffer, at: int, size: int, end: int) -> bytes:
    if at + size > end:
        raise BinaryError("truncated offload bundle")
    return data[at : at + size]
