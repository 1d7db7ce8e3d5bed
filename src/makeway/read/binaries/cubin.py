"""Kernels of a cubin, from its symbols and `.nv.info` attributes."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

from makeway.read.binaries.elf import TYPE_FUNCTION, Elf
from makeway.read.binaries.kernels import BinaryKernel
from makeway.values.errors import BinaryError

# Attribute numbers as `cuobjdump -elf` names them (EIATTR_...).
_MAX_THREADS, _REQUIRED_THREADS, _REGISTERS, _CLUSTER, _BARRIERS = 0x05, 0x10, 0x2F, 0x3D, 0x4C
_HAS_PAYLOAD = 4
_KERNEL_MARK = 0x10  # STO_CUDA_ENTRY in a symbol's st_other
_SYSTEM_SMEM_BYTES = 1024
_FIRST_ARCH_WITH_SYSTEM_SMEM = 90  # from sm_90 on, .nv.shared.KERNEL starts with the system's 1 KiB


def architecture(elf: Elf) -> int:
    """The compute capability a cubin was built for, as in sm_90. ABI 8 moved it up by one byte."""
    return (elf.flags >> 8) & 0xFF if elf.abi_version >= 8 else elf.flags & 0xFF


def cubin_kernels(elf: Elf, *, arch: str | None = None) -> list[BinaryKernel]:
    """All kernels of a cubin; device functions that are not kernels are left out.

    A cubin does not tell sm_90a from sm_90: a container that does passes the name as `arch`.
    """
    symbols = elf.symbols()
    sections = {section.name: section for section in elf.sections}
    registers: dict[str, int] = {}
    if ".nv.info" in sections:
        for attribute, value in _attributes(elf.content(sections[".nv.info"])):
            if attribute == _REGISTERS and len(value) >= 8:
                index, count = struct.unpack_from("<II", value)
                if index < len(symbols):
                    registers[symbols[index].name] = count
    number = architecture(elf)
    kernels = []
    for symbol in symbols:
        if symbol.type != TYPE_FUNCTION or not symbol.other & _KERNEL_MARK:
            continue
        if symbol.name not in registers:
            raise BinaryError(f"damaged cubin: no register count recorded for kernel {symbol.name!r}")
        info = sections.get(f".nv.info.{symbol.name}")
        shared = sections.get(f".nv.shared.{symbol.name}")
        static = shared.size if shared else 0
        has_system = number >= _FIRST_ARCH_WITH_SYSTEM_SMEM and static >= _SYSTEM_SMEM_BYTES
        kernels.append(
            BinaryKernel(
                name=symbol.name,
                arch=arch or f"sm_{number}",
                registers=registers[symbol.name],
                smem_static_bytes=static,
                smem_system_bytes=_SYSTEM_SMEM_BYTES if has_system else 0,
                **_launch_shape(elf.content(info) if info else b""),
            )
        )
    return kernels


def _launch_shape(info: bytes) -> dict[str, Any]:
    values = dict(_attributes(info))
    exact = _product(values.get(_REQUIRED_THREADS))
    return {
        "threads": exact if exact is not None else _product(values.get(_MAX_THREADS)),
        "threads_required": exact is not None,
        "cluster": _product(values.get(_CLUSTER)),
        "barriers": values[_BARRIERS][0] if values.get(_BARRIERS) else None,
    }


def _product(value: bytes | None) -> int | None:
    """x*y*z of a three-number attribute; None when it is absent or empty (0 means "not given")."""
    if value is None or len(value) < 12:
        return None
    return math.prod(struct.unpack_from("<III", value)) or None


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, value) of each record: format, attribute, then 16 bits that are the value or its length."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, word = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _HAS_PAYLOAD:
            if at + word > len(info):
                raise BinaryError("damaged cubin: a .nv.info record ends outside its section")
            yield attribute, info[at : at + word]
            at += word
        else:
            yield attribute, word.to_bytes(2, "little")
