"""The kernels of a file, whatever its format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Literal

from makeway.read.binaries.cubin import architecture, cubin_kernels
from makeway.read.binaries.cuobjdump import cuobjdump_kernels, cuobjdump_path
from makeway.read.binaries.elf import MACHINE_AMDGPU, MACHINE_CUDA, MAGIC, Buffer, Elf, parse_elf
from makeway.read.binaries.fatbin import MAGIC as FATBIN_MAGIC
from makeway.read.binaries.fatbin import entries, unpacked
from makeway.read.binaries.hsaco import BUNDLE_MAGIC, COMPRESSED_BUNDLE_MAGIC, bundle_entries, hsaco_kernels
from makeway.read.binaries.kernels import BinaryKernel
from makeway.values.errors import BinaryError, InputError, UnknownNameError, UnsupportedError
from makeway.values.facts import open_regular

Reader = Literal["auto", "native", "cuobjdump"]
_MOST_NAMES = 3  # that a message lists
_SHORTEST_BEGINNING, _LONGEST_BEGINNING = 3, 64  # characters of a name that are looked for


@dataclass(frozen=True, slots=True)
class Inspection:
    """The kernels of one file."""

    file: Path
    kernels: tuple[BinaryKernel, ...]


def inspect(path: Path, *, arch: str | None = None, name: str | None = None, reader: Reader = "auto") -> Inspection:
    """The kernels in a binary: of one architecture, or whose name contains `name`."""
    kernels = inspect_file(path, arch=arch, reader=reader)
    if name is None:
        return Inspection(path, tuple(kernels))
    matches = tuple(kernel for kernel in kernels if name in kernel.name)
    if not matches:
        raise UnknownNameError(f"{path}: no kernel name contains {name!r}{_nearest(name, kernels)}")
    return Inspection(path, matches)


def _nearest(name: str, kernels: list[BinaryKernel]) -> str:
    """The names that share the longest beginning of `name`, in any case; a few of all names when none does."""
    names = list(dict.fromkeys(kernel.name for kernel in kernels))
    for length in range(min(len(name), _LONGEST_BEGINNING), _SHORTEST_BEGINNING - 1, -1):
        if near := [known for known in names if name[:length].lower() in known.lower()]:
            return f"; nearest: {', '.join(near[:_MOST_NAMES])}"
    return f"; the file has {len(names):,}, for example {', '.join(names[:_MOST_NAMES])}"


def inspect_file(path: Path, *, arch: str | None = None, reader: Reader = "auto") -> list[BinaryKernel]:
    """Every kernel in a cubin, fatbin, hsaco or shared library, or those of one architecture.

    "auto" reads the file itself and turns to cuobjdump only for code it cannot unpack.
    """
    wanted = _Wanted.parse(arch)
    try:
        with open_regular(path) as file:
            if not file.seek(0, 2):
                raise BinaryError("the file is empty")
            if reader == "cuobjdump":
                return cuobjdump_kernels(path, arch=arch)
            with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
                kernels = _kernels(data, wanted)
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    except UnsupportedError as error:
        if reader == "auto" and cuobjdump_path() is not None:
            return cuobjdump_kernels(path, arch=arch)
        raise UnsupportedError(f"{path}: {error}") from None
    except BinaryError as error:
        raise BinaryError(f"{path}: {error}") from None
    if arch is not None and not kernels:
        raise InputError(
            f"{path}: it holds no kernels for {arch}; run `makeway inspect` without --arch to see what it has"
        )
    return kernels


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which architectures to read: all, one exactly, or one with its variants (sm_100: also sm_100f)."""

    name: str | None
    number: int | None

    @classmethod
    def parse(cls, arch: str | None) -> _Wanted:
        if arch is None or re.fullmatch(r"gfx[0-9a-f]+", arch):
            return cls(arch, None)
        match = re.fullmatch(r"sm_(\d+)[af]?", arch)
        if not match:
            raise InputError(f"{arch!r} is not an architecture; write for example sm_90 or gfx90a")
        return cls(arch, int(match[1]))

    @property
    def vendor(self) -> str | None:
        return None if self.name is None else "nvidia" if self.number else "amd"

    def takes(self, arch: str) -> bool:
        return self.name is None or arch == self.name or (self.number is not None and arch.rstrip("af") == self.name)


def _kernels(data: Buffer, wanted: _Wanted) -> list[BinaryKernel]:
    if data[:4] == FATBIN_MAGIC:
        return _fatbin_kernels(data, 0, len(data), wanted)
    if data[: len(BUNDLE_MAGIC)] == BUNDLE_MAGIC:
        return _bundle_kernels(data, 0, len(data), wanted)
    if data[:4] != MAGIC:
        raise BinaryError("not a cubin, fatbin, hsaco or shared library (it starts with none of their marks)")
    elf = parse_elf(data)
    if elf.machine == MACHINE_CUDA:
        return [kernel for kernel in cubin_kernels(elf) if wanted.takes(kernel.arch)]
    if elf.machine == MACHINE_AMDGPU:
        return [kernel for kernel in hsaco_kernels(elf) if wanted.takes(kernel.arch)]
    return list(_host_kernels(elf, wanted))


def _host_kernels(elf: Elf, wanted: _Wanted) -> Iterator[BinaryKernel]:
    readers = {".nv_fatbin": ("nvidia", _fatbin_kernels), ".hip_fatbin": ("amd", _bundle_kernels)}
    sections = [section for section in elf.sections if section.name in readers and section.size]
    if not sections:
        raise BinaryError("no GPU code in it (it has neither a .nv_fatbin nor a .hip_fatbin section)")
    for section in sections:
        vendor, read = readers[section.name]
        if wanted.vendor in (None, vendor):
            yield from read(elf.data, section.offset, section.offset + section.size, wanted)


def _fatbin_kernels(data: Buffer, start: int, end: int, wanted: _Wanted) -> list[BinaryKernel]:
    kernels = []
    for entry in entries(data, start, end, arch=wanted.number):
        if not wanted.takes(entry.arch_name):
            continue
        elf = parse_elf(unpacked(entry))
        if elf.machine != MACHINE_CUDA or architecture(elf) != entry.arch:
            raise BinaryError(f"damaged fatbin: its {entry.arch_name} entry holds something else")
        kernels += cubin_kernels(elf, arch=entry.arch_name)
    return kernels


def _bundle_kernels(data: Buffer, start: int, end: int, wanted: _Wanted) -> list[BinaryKernel]:
    if data[start : start + 4] == COMPRESSED_BUNDLE_MAGIC:
        raise UnsupportedError(
            "its HIP code is a compressed offload bundle; unpack it with clang-offload-bundler first"
        )
    kernels = []
    for target, code in bundle_entries(data, start, end):
        if wanted.takes(target.partition(":")[0].rpartition("-")[2]):
            kernels += hsaco_kernels(parse_elf(code))
    return kernels
