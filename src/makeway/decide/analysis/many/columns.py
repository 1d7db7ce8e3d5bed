"""Columns of whole numbers in few bytes: the narrowest width, one plane per byte of it, then zstd.

Times differ little from one collective to the next, so the planes of the high bytes are almost constant.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence

import zstandard

from makeway.values.errors import InputError

MOST_ROWS = 1 << 26  # of one column; a rank records some 10,000 collectives a minute
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_LEVEL = 6


def pack(numbers: Sequence[int]) -> bytes:
    """The column as bytes; numbers are from 0 to 2**64 - 1."""
    largest = max(numbers, default=0)
    width = next(width for width in _CODES if largest < 1 << 8 * width)
    data = _little(array(_CODES[width], numbers)).tobytes()
    planes = b"".join(data[plane::width] for plane in range(width))
    return bytes((width,)) + zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(planes)


def unpack(packed: bytes, rows: int) -> array[int]:
    """The column of `rows` numbers."""
    if not packed or packed[0] not in _CODES or not 0 <= rows <= MOST_ROWS:
        raise InputError("a column is damaged: it has no known width")
    width, size = packed[0], rows * packed[0]
    try:
        if zstandard.frame_content_size(packed[1:]) != size:
            raise InputError(f"a column is damaged: it does not hold {rows:,} numbers")
        planes = zstandard.ZstdDecompressor().decompress(packed[1:], max_output_size=size)
    except zstandard.ZstdError as error:
        raise InputError(f"a column is damaged: {error}") from None
    column = array(_CODES[width])
    if width == 1:
        column.frombytes(planes)
        return column
    data = bytearray(size)
    for plane in range(width):
        data[plane::width] = planes[plane * rows : (plane + 1) * rows]
    column.frombytes(bytes(data))
    return _little(column)


def zigzag(numbers: Iterable[int]) -> list[int]:
    """Signed numbers as unsigned ones: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return [2 * number if number >= 0 else -2 * number - 1 for number in numbers]


def unzigzag(numbers: Iterable[int]) -> list[int]:
    return [-(number >> 1) - 1 if number & 1 else number >> 1 for number in numbers]


def _little(column: array[int]) -> array[int]:
    """The column with its bytes in the order of the file, or back."""
    if sys.byteorder == "big":
        column.byteswap()
    return column
