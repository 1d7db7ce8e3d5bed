"""The checksum of files that C reads."""

from __future__ import annotations


def fnv1a(data: bytes) -> int:
    """The checksum (64 bits) of files that C reads."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value
