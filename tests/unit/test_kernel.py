"""Blocks and sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.values.errors import InputError, InvalidKernelError
from makeway.values.kernel import KernelResources, parse_resources
from makeway.values.units import ceil_to, floor_to, format_bytes, parse_bytes


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_rounding_reaches_the_nearest_multiple(value: int, unit: int) -> None:
    assert ceil_to(value, unit) - unit < value <= ceil_to(value, unit)
    assert floor_to(value, unit) <= value < floor_to(value, unit) + unit
    assert ceil_to(value, unit) % unit == floor_to(value, unit) % unit == 0


@given(st.integers(0, 2**40))
def test_sizes_survive_being_written_and_read(size: int) -> None:
    assert parse_bytes(format_bytes(size).replace(",", "")) == size


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("48KiB", 49152), ("48 kb", 49152), ("1.5KiB", 1536), ("2M", 2097152), ("1GiB", 2**30)]
)
def test_sizes_are_read_as_cuda_writes_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "-1", "1.3B", "12 apples", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_bytes(text)


def test_a_block_is_read_from_pairs() -> None:
    assert parse_resources("threads=256, registers=98, smem=48KiB") == KernelResources(
        threads=256, registers_per_thread=98, smem_bytes=49152
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("threads=0,registers=8", "threads must be a whole number in 1..1,024, got 0"),
        ("threads=1025,registers=8", "threads must be a whole number in 1..1,024, got 1025"),
        ("threads=32,registers=0", "registers must be a whole number in 1..512"),
        ("threads=32,registers=many", "registers must be a whole number"),
        ("threads=32,regs=8", "unknown key 'regs'"),
        ("threads=32", "lacks registers="),
        ("threads", "cannot read 'threads'"),
        ("threads=32,registers=8,cluster=0", "cluster must be a whole number in 1..64"),
    ],
)
def test_a_block_that_cannot_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidKernelError, match=said):
        parse_resources(text)
