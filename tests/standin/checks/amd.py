"""Launches at the limits of an AMD device, through ctypes: amd.py KERNELS HSACO... Prints the answers as JSON."""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from pathlib import Path
from typing import Any

POINTER, INT = ctypes.c_void_p, ctypes.c_int
COMM = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
TARGET = b"hipv4-amdgcn-amd-amdhsa--gfx90a"
NUM_REGS, STATIC, MAX_THREADS = 4, 1, 0  # HIP_FUNC_ATTRIBUTE_...
MAX_DYNAMIC = 8  # hipFuncAttributeMaxDynamicSharedMemorySize

hip = ctypes.CDLL("libamdhip64.so")
hip.hipKernelNameRef.restype = ctypes.c_char_p
hip.hipGetErrorName.restype = ctypes.c_char_p
register_binary = getattr(hip, "__hipRegisterFatBinary")
register_binary.restype = POINTER
register_function = getattr(hip, "__hipRegisterFunction")


class Dim3(ctypes.Structure):
    """HIP's three sizes."""

    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


def word(error: int) -> str:
    return str(hip.hipGetErrorName(error).decode())


def made(name: str, *values: Any) -> ctypes.c_void_p:
    handle = POINTER()
    error = getattr(hip, name)(ctypes.byref(handle), *values)
    assert error == 0, (name, word(error))
    return handle


def attribute(function: Any, which: int) -> int:
    value = INT()
    assert hip.hipFuncGetAttribute(ctypes.byref(value), which, function) == 0
    return value.value


def arguments(buffer: Any) -> Any:
    kept = [POINTER(buffer.value), POINTER(buffer.value), INT(7), POINTER(0), POINTER(0)]
    array: Any = (POINTER * len(kept))(*(ctypes.addressof(value) for value in kept))
    array.kept = kept
    return array


def bundle(code: bytes) -> bytes:
    """A clang offload bundle: the host's empty entry and the device's."""
    entries = [(b"host-x86_64-unknown-linux", b""), (TARGET, code)]
    at = 32 + sum(24 + len(target) for target, _ in entries)
    table, bodies = b"", b""
    for target, body in entries:
        table += struct.pack("<QQQ", at + len(bodies), len(body), len(target)) + target
        bodies += body
    return b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(entries)) + table + bodies


def registered(code: bytes, name: str = COMM) -> Any:
    """The address of a host stub that stands for the kernel, as a compiled program registers it."""
    data = ctypes.create_string_buffer(bundle(code))
    wrapper = (ctypes.c_uint64 * 3)(0x1_4849_5046, ctypes.addressof(data), 0)
    handle = register_binary(wrapper)
    stub = ctypes.create_string_buffer(b"host stub")
    address: Any = POINTER(ctypes.addressof(stub))
    register_function(POINTER(handle), address, name.encode(), name.encode(), -1, None, None, None, None, None)
    address.kept = (stub, data, wrapper)
    return address


def launches(code: bytes) -> dict[str, Any]:
    function = made("hipModuleGetFunction", made("hipModuleLoadData", code), COMM.encode())
    values = arguments(made("hipMalloc", ctypes.c_size_t(4096)))
    host = registered(code)
    far = POINTER(ctypes.addressof(ctypes.create_string_buffer(8)))

    def plain(grid: int = 1, block: int = 256, smem: int = 0, given: Any = values) -> str:
        return word(hip.hipModuleLaunchKernel(function, grid, 1, 1, block, 1, 1, smem, None, given, None))

    def by_host(stub: Any, smem: int = 0) -> str:
        return word(hip.hipLaunchKernel(stub, Dim3(1, 1, 1), Dim3(256, 1, 1), values, ctypes.c_size_t(smem), None))

    def extended(threads: int) -> str:
        size = ctypes.c_size_t(0)
        return word(
            hip.hipExtModuleLaunchKernel(function, threads, 1, 1, 256, 1, 1, size, None, values, None, None, None, 0)
        )

    def cooperative(blocks: int) -> str:
        return word(hip.hipModuleLaunchCooperativeKernel(function, blocks, 1, 1, 256, 1, 1, 0, None, values))

    blocks = INT()
    occupancy = hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor
    assert occupancy(ctypes.byref(blocks), function, 256, ctypes.c_size_t(20000)) == 0
    return {
        "plain": plain(),
        "all local memory": plain(smem=65536),
        "more local memory than there is": plain(smem=65537),
        "no blocks": plain(grid=0),
        "more threads than compiled for": plain(block=512),
        "more threads than a block has": plain(block=2048),
        "no arguments": plain(given=None),
        "last error": word(hip.hipGetLastError()),
        "last error again": word(hip.hipGetLastError()),
        "extended": extended(512),
        "extended, uneven": extended(300),
        "cooperative": cooperative(110),
        "cooperative too large": cooperative(100_000),
        "by host stub": by_host(host),
        "by host stub, too much": by_host(host, 65537),
        "by an unknown stub": by_host(far),
        "attribute": word(hip.hipFuncSetAttribute(host, MAX_DYNAMIC, 65536)),
        "attribute too large": word(hip.hipFuncSetAttribute(host, MAX_DYNAMIC, 65537)),
        "name": hip.hipKernelNameRef(function).decode(),
        "blocks with 20000 bytes": blocks.value,
        "priorities": [priority(asked) for asked in (5, 1, 0, -1, -9)],
        "another architecture": word(
            hip.hipModuleLoadData(ctypes.byref(POINTER()), code.replace(b"gfx90a", b"gfx942"))
        ),
    }


def priority(asked: int) -> int:
    value = INT()
    hip.hipStreamGetPriority(made("hipStreamCreateWithPriority", 0, asked), ctypes.byref(value))
    return value.value


def metadata(files: list[str]) -> dict[str, Any]:
    found = {}
    for file in map(Path, files):
        name = file.name.split(".")[0].removesuffix("_small")
        function = made("hipModuleGetFunction", made("hipModuleLoadData", file.read_bytes()), name.encode())
        found[file.name] = [attribute(function, which) for which in (NUM_REGS, STATIC, MAX_THREADS)]
    return found


if __name__ == "__main__":
    code = (Path(sys.argv[1]) / f"{COMM}.gfx90a.hsaco").read_bytes()
    print(json.dumps({"launches": launches(code), "metadata": metadata(sys.argv[2:])}))
