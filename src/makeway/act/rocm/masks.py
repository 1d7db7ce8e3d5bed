"""Streams confined to some CUs by hipExtStreamCreateWithCUMask, which torch does not offer. Not yet run on hardware.

Bit i of a mask is not CU i of the chip: the driver assigns bits round-robin, first over XCDs (gfx942 on), then over
shader engines (Linux kernel, drivers/gpu/drm/amd/amdkfd/kfd_mqd_manager.c, `mqd_symmetrically_map_cu_mask`). So
neighbouring bits are spread evenly, and each full round takes one CU of every XCD.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Paragraph of 32 bits in which `count` bits from `first` on are set."""
    if first < 0 or count < 1:
        raise InputError(f"a mask needs at least 1 CU from 0 on, got {count} from {first}")
    bits = ((1 << count) - 1) << first
    words = -(-(first + count) // _WORD_BITS)
    return tuple(bits >> (_WORD_BITS * at) & 0xFFFFFFFF for at in range(words))


def hip_library() -> Any:
    """HIP's runtime, preferably the copy that torch has loaded; an error that names it where there is none."""
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
    """A stream whose kernels stay on the CUs of the mask, as read back from the driver; destroyed at the end."""
    stream = ctypes.c_void_p()
    mask = (ctypes.c_uint32 * len(bits))(*bits)
    with torch.cuda.device(device):
        _check(hip.hipExtStreamCreateWithCUMask(ctypes.byref(stream), ctypes.c_uint32(len(bits)), mask), "create")
    try:
        granted = (ctypes.c_uint32 * len(bits))()
        _check(hip.hipExtStreamGetCUMask(stream, ctypes.c_uint32(len(bits)), granted), "read back")
        if tuple(granted) != bits:
            raise UnsupportedError(f"a stream requested CU mask {_hex(bits)}, the driver set {_hex(tuple(granted))}.")
        cus = sum(word.bit_count() for word in granted)
        detail = f"stream on {cus} CUs, mask {_hex(bits)} read back; only kernels on that stream are confined"
        yield ConfinedStream(stream=torch.cuda.ExternalStream(stream.value, device=device), sms=cus, detail=detail)
    finally:
        torch.cuda.synchronize(device)
        hip.hipStreamDestroy(stream)


def _check(status: int, what: str) -> None:
    if status:
        raise UnsupportedError(
            f"HIP could not {what} a stream with a CU mask (error {status}); is the device busy or old?"
        )


def _hex(words: tuple[int, ...]) -> str:
    return "0x" + "".join(f"{word:08x}" for word in reversed(words))
