"""Sizes as people write them, whole numbers, and the two roundings that hardware does."""

from __future__ import annotations

import re

from makeway.values.errors import InputError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# CUDA and ROCm documents write "48 KB" for 49,152 bytes, so KB and KiB mean the same here.
_FACTORS = {"": 1, "B": 1} | {
    prefix + suffix: factor for prefix, factor in (("K", KIB), ("M", MIB), ("G", GIB)) for suffix in ("", "B", "IB")
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def ceil_to(value: int, unit: int) -> int:
    """`value` rounded up to a multiple of `unit`."""
    return -(-value // unit) * unit


def floor_to(value: int, unit: int) -> int:
    """`value` rounded down to a multiple of `unit`."""
    return value // unit * unit


def check_whole(
    what: str, value: object, low: int, high: int | None = None, *, error: type[InputError] = InputError
) -> None:
    """Refuse anything but a whole number of `low` or more, up to `high`."""
    if type(value) is int and low <= value and (high is None or value <= high):
        return
    limits = f"of {low} or more" if high is None else f"in {low}..{high:,}"
    raise error(f"{what} must be a whole number {limits}, got {value!r}")


def parse_bytes(text: str) -> int:
    """Bytes of a size such as "49152", "48KiB" or "48KB" (K is 1024 here, as in CUDA's documents)."""
    match = _SIZE.fullmatch(text.strip())
    factor = _FACTORS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise InputError(f"{text!r} is not a size; write bytes or KiB/MiB/GiB, for example 49152 or 48KiB")
    size = float(match[1]) * factor
    if size != int(size):
        raise InputError(f"{text!r} is not a whole number of bytes")
    return int(size)


def format_bytes(size: int) -> str:
    """Bytes for people: "48 KiB" where that is exact, "49,000 B" elsewhere."""
    for factor, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= factor and size % factor == 0:
            return f"{size // factor:,} {name}"
    return f"{size:,} B"
