"""Single calls of the driver, through ctypes and cuda-bindings: calls.py WHAT ... Prints the answers as JSON."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

from cuda.bindings import driver  # type: ignore[import-untyped, unused-ignore]
from tests.standin.checks.limits import DYNAMIC, OPT_IN, value, word

PER_THREAD = 2  # CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM


def unknown() -> str:
    """A call that nobody implements here."""
    driver.cuInit(0)
    return word(driver.cuMemAllocManaged(16, 1))


def unknown_attribute() -> str:
    driver.cuInit(0)
    return word(driver.cuDeviceGetAttribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_PITCH, 0))


def before_init() -> list[str]:
    return [word(driver.cuDeviceGetCount()), word(driver.cuCtxGetCurrent())]


def addresses() -> dict[str, Any]:
    """What cuGetProcAddress_v2 gives, each address as the name that the library exports it under."""
    library = ctypes.CDLL("libcuda.so.1")
    asked = [
        ("cuMemAlloc", 2000, 0),
        ("cuMemAlloc", 3020, 0),
        ("cuCtxGetDevice", 12080, 0),
        ("cuCtxGetDevice", 13000, 0),
        ("cuCtxCreate", 11030, 0),
        ("cuCtxCreate", 11040, 0),
        ("cuLaunchKernel", 12000, 0),
        ("cuLaunchKernel", 12000, PER_THREAD),
        ("cuLaunchKernel", 6000, PER_THREAD),
        ("cuMemcpyHtoD", 12000, PER_THREAD),
        ("cuInit", 12000, PER_THREAD),
        ("cuLaunchKernelEx", 11050, 0),
        ("cuAbsent", 12000, 0),
        ("cuMemAlloc_v2", 12000, 0),
        ("cuInit", 99000, 0),
    ]
    names = [
        "cuMemAlloc", "cuMemAlloc_v2", "cuCtxGetDevice", "cuCtxGetDevice_v2", "cuCtxCreate_v2", "cuCtxCreate_v3",
        "cuLaunchKernel", "cuLaunchKernel_ptsz", "cuMemcpyHtoD_v2_ptds", "cuInit",
    ]  # fmt: skip
    exported = {ctypes.cast(getattr(library, name), ctypes.c_void_p).value: name for name in names}
    found = {}
    for name, version, flags in asked:
        address, status = ctypes.c_void_p(), ctypes.c_int(-1)
        error = library.cuGetProcAddress_v2(
            name.encode(), ctypes.byref(address), version, ctypes.c_uint64(flags), ctypes.byref(status)
        )
        found[f"{name} {version} {flags}"] = [error, status.value, exported.get(address.value)]
    return found


def room(function: Any, threads: int) -> list[int]:
    """The most dynamic shared memory with which 1, 2, ... blocks still fit, with all of it opted in."""
    most = value(driver.cuDeviceGetAttribute(OPT_IN, 0))
    value((*driver.cuFuncSetAttribute(function, DYNAMIC, most), None))
    blocks = value(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, 0))
    return [
        value(driver.cuOccupancyAvailableDynamicSMemPerBlock(function, count, threads))
        for count in range(1, blocks + 1)
    ]


def cubins(directory: str, arch: str) -> dict[str, Any]:
    """What the driver says of each kernel of an architecture."""
    driver.cuInit(0)
    driver.cuCtxSetCurrent(value(driver.cuDevicePrimaryCtxRetain(0)))
    kind = driver.CUfunction_attribute
    found = {}
    for file in sorted(Path(directory).glob(f"*.{arch}.cubin")):
        module = value(driver.cuModuleLoadData(file.read_bytes()))
        (function,) = value(driver.cuModuleEnumerateFunctions(1, module))
        threads = value(driver.cuFuncGetAttribute(kind.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function))
        parameters: list[list[int]] = []
        while (answer := driver.cuFuncGetParamInfo(function, len(parameters)))[0] == driver.CUresult.CUDA_SUCCESS:
            parameters.append(list(answer[1:]))
        found[file.name] = {
            "name": value(driver.cuFuncGetName(function)).decode(),
            "registers": value(driver.cuFuncGetAttribute(kind.CU_FUNC_ATTRIBUTE_NUM_REGS, function)),
            "static": value(driver.cuFuncGetAttribute(kind.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function)),
            "threads": threads,
            "parameters": parameters,
            "occupancy": [
                value(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, smem))
                for smem in range(0, 49153, 4096)
            ],
            "room": room(function, threads),
        }
    return found


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
