"""Our ELF reader against pyelftools, on this machine's own files and on GPU code."""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from makeway.read.binaries import inspect_file
from makeway.read.binaries.elf import parse_elf
from makeway.read.binaries.hsaco import BUNDLE_MAGIC, bundle_entries
from makeway.values.errors import BinaryError, InputError


def test_sections_and_symbols_are_those_of_pyelftools(triton_kernels: Path) -> None:
    files = [*triton_kernels.glob("*.cubin"), *triton_kernels.glob("*.hsaco"), Path(sys.executable).resolve()]
    for file in files:
        ours = parse_elf(file.read_bytes())
        with file.open("rb") as stream:
            theirs = ELFFile(stream)
            expected = [(s.name, s["sh_offset"], s["sh_size"]) for s in theirs.iter_sections()]
            table: Any = theirs.get_section_by_name(".symtab")
            symbols = [symbol.name for symbol in table.iter_symbols()] if table else []
        assert [(s.name, s.offset, s.size) for s in ours.sections] == expected
        names = [symbol.name for symbol in ours.symbols()]
        # pyelftools names a section symbol after its section; the file leaves its name empty
        assert [name for name in names if name] == [s for s, n in zip(symbols, names, strict=True) if n]


def test_a_host_binary_without_gpu_code_says_so() -> None:
    with pytest.raises(BinaryError, match="no GPU code in it"):
        inspect_file(Path(sys.executable).resolve())


def test_a_text_file_is_no_binary(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("just words\n")
    with pytest.raises(BinaryError, match="not a cubin, fatbin, hsaco or shared library"):
        inspect_file(file)


def test_an_empty_file_a_directory_and_a_missing_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(BinaryError, match="empty"):
        inspect_file(tmp_path / "empty")
    with pytest.raises(InputError, match="it is a directory"):
        inspect_file(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        inspect_file(tmp_path / "missing")


def test_an_architecture_that_is_not_there_is_an_error(triton_kernels: Path) -> None:
    with pytest.raises(InputError, match="no kernels for sm_80"):
        inspect_file(triton_kernels / "scale.sm_90.cubin", arch="sm_80")
    with pytest.raises(InputError, match="not an architecture"):
        inspect_file(triton_kernels / "scale.sm_90.cubin", arch="hopper")


def test_launch_values_turn_a_file_entry_into_a_block(triton_kernels: Path) -> None:
    (kernel,) = inspect_file(triton_kernels / "matmul.sm_90.cubin")
    block = kernel.resources(smem_dynamic_bytes=49_152)
    assert (block.threads, block.registers_per_thread, block.smem_bytes) == (256, kernel.registers, 49_152)


def test_a_bundle_entry_that_claims_a_place_beyond_all_memory_ends_the_search(tmp_path: Path) -> None:
    entry = struct.pack("<QQQ", 2**63, 2**62, 4) + b"host"
    path = tmp_path / "bundle"
    path.write_bytes(BUNDLE_MAGIC + struct.pack("<Q", 1) + entry)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert list(bundle_entries(data, 0, len(data))) == []
