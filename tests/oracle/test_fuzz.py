"""Damaged binaries: one clear error or a sound answer, never a traceback, a hang or a memory grab."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from makeway.read.binaries import inspect_file
from makeway.read.binaries.elf import parse_elf
from makeway.values.errors import BinaryError, InputError, UnsupportedError

ROUNDS = 1_000  # per seed file, of which there are eight
MANY_ROUNDS = 3_000  # in the long suite
LONGEST_S = 20.0  # a hang, not a slow moment of a shared machine


@pytest.fixture(scope="module")
def seeds(triton_kernels: Path, libnccl: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Real binaries of every kind, small enough to mutate thousands of times."""
    out = tmp_path_factory.mktemp("seeds")
    (out / "nccl.fatbin").write_bytes(_first_fatbin(libnccl.read_bytes()))
    (out / "plain.fatbin").write_bytes(_fatbin((triton_kernels / "scale.sm_90.cubin").read_bytes(), 90))
    (out / "bundle.hipfb").write_bytes(_bundle((triton_kernels / "scale.gfx90a.hsaco").read_bytes()))
    names = [
        "scale.sm_80.cubin",
        "scale.sm_90.cubin",
        "matmul.sm_120.cubin",
        "scale.gfx90a.hsaco",
        "matmul.gfx942.hsaco",
    ]
    return [triton_kernels / name for name in names] + sorted(out.iterdir())


def _first_fatbin(library: bytes) -> bytes:
    """The first region of a library's .nv_fatbin: one source file's kernels, compressed, for all architectures."""
    section = next(section for section in parse_elf(library).sections if section.name == ".nv_fatbin")
    size = 16 + int.from_bytes(library[section.offset + 8 : section.offset + 16], "little")
    return library[section.offset : section.offset + size]


def _fatbin(cubin: bytes, arch: int) -> bytes:
    entry = b"".join(
        value.to_bytes(size, "little")
        for value, size in (
            (2, 2), (0x101, 2), (64, 4), (len(cubin), 8), (0, 4), (0, 4), (8, 2), (1, 2), (arch, 4),
            (0, 4), (0, 4), (0x11, 8), (0, 8), (0, 8),
        )
    )  # fmt: skip
    body = entry + cubin
    return b"\x50\xed\x55\xba\x01\x00\x10\x00" + len(body).to_bytes(8, "little") + body


def _bundle(hsaco: bytes) -> bytes:
    target = b"hipv4-amdgcn-amd-amdhsa--gfx90a"
    head = b"__CLANG_OFFLOAD_BUNDLE__" + (1).to_bytes(8, "little")
    offset = len(head) + 24 + len(target)
    fields = b"".join(value.to_bytes(8, "little") for value in (offset, len(hsaco), len(target)))
    return head + fields + target + hsaco


def test_the_containers_made_here_read_as_their_content(seeds: list[Path]) -> None:
    by_name = {path.name: path for path in seeds}
    assert inspect_file(by_name["plain.fatbin"])[0].name == "scale"
    assert {kernel.arch for kernel in inspect_file(by_name["nccl.fatbin"])} >= {"sm_80", "sm_90", "sm_100", "sm_120"}
    assert inspect_file(by_name["bundle.hipfb"])[0].arch == "gfx90a"


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(MANY_ROUNDS, marks=pytest.mark.long)])
@pytest.mark.parametrize("index", range(8))
def test_mutated_binaries_give_an_answer_or_one_clear_error(
    seeds: list[Path], index: int, rounds: int, tmp_path: Path, draw: random.Random
) -> None:
    original = seeds[index].read_bytes()
    target = tmp_path / "mutated"
    refused = 0
    for mutant in mutants(original, draw, rounds):
        target.write_bytes(mutant)
        started = time.monotonic()
        message = refusal(target)
        refused += message is not None
        assert message is None or message.startswith(str(target))
        assert time.monotonic() - started < LONGEST_S
    assert refused > rounds // 20  # the mutations do reach what the reader looks at


def refusal(file: Path) -> str | None:
    try:
        inspect_file(file, reader="native")
    except (BinaryError, InputError, UnsupportedError) as error:
        return str(error)
    return None


def mutants(original: bytes, draw: random.Random, rounds: int) -> Iterator[bytes]:
    """Truncations, byte flips, extreme fields and spliced garbage, aimed at headers more than at code."""
    for _ in range(rounds):
        data = bytearray(original)
        kind = draw.randrange(5)
        if kind == 0:
            del data[draw.randrange(1, len(data)) :]
        elif kind == 1:
            for _ in range(draw.randint(1, 8)):
                data[draw.randrange(min(len(data), 256))] = draw.randrange(256)
        elif kind == 2:
            for _ in range(draw.randint(1, 64)):
                data[draw.randrange(len(data))] = draw.randrange(256)
        elif kind == 3:
            at = draw.choice(
                (draw.randrange(64), draw.randrange(len(data)), max(len(data) - draw.randrange(1, 4096), 0))
            )
            data[at : at + 8] = draw.choice(
                (b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f\0\0\0\0", b"\0\0\0\0\x01\0\0\0")
            )
        else:
            at = draw.randrange(len(data))
            data[at:at] = draw.randbytes(draw.randint(1, 64))
        yield bytes(data)


def test_random_bytes_and_text_are_refused(tmp_path: Path) -> None:
    draw, target = random.Random(7), tmp_path / "noise"
    marks = (b"", b"\x7fELF", b"\x7fELF\x02\x01\x01", b"\x50\xed\x55\xba", b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB")
    for round_ in range(1_000):
        target.write_bytes(marks[round_ % len(marks)] + draw.randbytes(draw.randint(1, 500)))
        with pytest.raises((BinaryError, UnsupportedError)):
            inspect_file(target, reader="native")
