"""Streams confined to some CUs by hipExtStreamCreateWithCUMask, which torch does not offer. Not yet run on hardware.

Bit i of a mask is not CU i of the chip: the driver assigns bits round-robin, first over XCDs (gfx942 on), then over
shader engines (Linux kernel, drivers/gpu/drm/amd/amdkfd/kfd_mqd_manager.c, `mqd_symmetrically_map_cu_mask`). So
neighbouring bits are spread evenly, and each full round takes one CU of every XCD.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from makeway.act.cuda.streams import ConfinedStream
from makeway.values.errors import InputError, UnsupportedError

_WORD_BITS = 32
_XCDS = {"gfx942": 8, "gfx950": 8}  # MI300X, MI350X as one device: ConCCL reserved 8 CUs at least, one per XCD
_LIBRARY = "amdhip64"


def least_comm_cus(arch: str) -> int:
    """The CUs of one round over the XCDs: a queue must keep a CU on each."""
    return _XCDS.get(arch, 1)


def check_split(cus: int, comm_cus: int, arch: str) -> None:
    """Refuse a split that leaves an XCD without a CU on either side."""
    unit = least_comm_cus(arch)
    if not unit <= comm_cus <= cus - unit or comm_cus % unit:
        raise InputError(
            f"{comm_cus} of {cus} CUs for communication: {arch} needs {unit} or more on both sides, in steps of {unit}"
        )


def mask_words(first: int, count: int) -> tuple[int, ...]:
    """Words of 32 bits in which `count` bits from `first` on are set."""
    if first < 0 or count < 1:
        raise InputError(f"a mask needs at least 1 CU from 0 on, got {count} from {first}")
    bits = ((1 << count) - 1) << first
    words = -(-(first + count) // _WORD_BITS)
    return tuple(bits >> (_WORD_BITS * at) & 0xFFFFFFFF for at in range(words))


def mapped_library(prefix: str) -> str | None:
    """The path of a shared library that this process has mapped, by how its file name begins; None without one.

    A second copy of HIP's runtime knows none of the first one's streams, and torch's ROCm wheels carry their own.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        _, _, path = line.partition("/")
        if path and Path(path).name.startswith(prefix):
            return f"/{path}"
    return None


def hip_library() -> Any:
    """HIP's runtime: the copy that is mapped already, else the one on the library path; an error without either."""
    if (mapped := mapped_library(f"lib{_LIBRARY}.so")) is not None:
        try:
            return ctypes.CDLL(mapped, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError as error:
            raise UnsupportedError(f"{mapped} is mapped but cannot be opened again: {error}") from error
    for name in (ctypes.util.find_library(_LIBRARY), f"lib{_LIBRARY}.so"):
        if name is None:
            continue
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise UnsupportedError(f"lib{_LIBRARY}.so was not found; CU masks need the ROCm runtime on the library path.")


@contextmanager
def masked_stream(torch: Any, hip: Any, device: int, bits: tuple[int, ...]) -> Iterator[ConfinedStream]:
    """A stream whose kernels stay on the CUs of the mask, as read back from the driver; destroyed at the end.

    A global mask (HSA_CU_MASK, ROC_GLOBAL_CU_MASK) may narrow it further; a mask that is wider than requested is an
    error.
    """
    stream = ctypes.c_void_p()
    mask = (ctypes.c_uint32 * len(bits))(*bits)
    with torch.cuda.device(device):
        _check(hip.hipExtStreamCreateWithCUMask(ctypes.byref(stream), ctypes.c_uint32(len(bits)), mask), "create")
    try:
        cus = torch.cuda.get_device_properties(device).multi_processor_count
        with torch.cuda.device(device):
            granted = _granted(hip, stream, max(len(bits), -(-cus // _WORD_BITS)))
        wider = granted is not None and any(word & ~wanted for word, wanted in zip_longest(granted, bits, fillvalue=0))
        if granted is not None and (wider or not any(granted)):
            raise UnsupportedError(f"a stream requested CU mask {_hex(bits)}, the driver set {_hex(granted)}.")
        held = bits if granted is None else granted
        count = sum(word.bit_count() for word in held)
        read = f"mask {_hex(held)} " + ("requested, not reported by HIP" if granted is None else "read back")
        yield ConfinedStream(
            stream=torch.cuda.ExternalStream(stream.value, device=device),
            sms=count,
            detail=f"stream on {count} CUs, {read}; only kernels on that stream are confined",
            reported=granted is not None,
            evidence=(("CUs requested", sum(word.bit_count() for word in bits)),)
            + ((("CUs granted", count),) if granted is not None else ()),
        )
    finally:
        torch.cuda.synchronize(device)
        hip.hipStreamDestroy(stream)


def _granted(hip: Any, stream: ctypes.c_void_p, size: int) -> tuple[int, ...] | None:
    """The stream's mask as HIP reports it; None where it returns success and writes nothing.

    It does so where a global mask is set (ROCm 5 and 6: clr, hipamd/src/hip_stream.cpp, `hipExtStreamGetCUMask`). So it
    is asked twice, over zeros and over ones: a word that was written is the same both times.
    """
    over_zeros, over_ones = (_answer(hip, stream, size, before) for before in (0, 0xFFFFFFFF))
    written = [low == high for low, high in zip(over_zeros, over_ones, strict=True)]
    return over_zeros if any(written) else None


def _answer(hip: Any, stream: ctypes.c_void_p, size: int, before: int) -> tuple[int, ...]:
    answer = (ctypes.c_uint32 * size)(*[before] * size)
    _check(hip.hipExtStreamGetCUMask(stream, ctypes.c_uint32(size), answer), "read back")
    return tuple(answer)


def _check(status: int, what: str) -> None:
    if status:
        raise UnsupportedError(
            f"HIP could not {what} a stream with a CU mask (error {status}); is the device busy or old?"
        )


def _hex(words: tuple[int, ...]) -> str:
    return "0x" + "".join(f"{word:08x}" for word in reversed(words))
