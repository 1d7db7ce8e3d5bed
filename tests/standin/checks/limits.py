"""Launches at the limits, through cuda-bindings: limits.py KERNELS. Prints the driver's answers as JSON."""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from pathlib import Path
from typing import Any

from cuda.bindings import driver  # type: ignore[import-untyped, unused-ignore]

COMM = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
POINTER, INT = ctypes.c_void_p, ctypes.c_int
DYNAMIC = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
NON_PORTABLE = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
OPT_IN = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN


def value(answer: tuple[Any, ...]) -> Any:
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer[0]
    return answer[1]


def word(answer: tuple[Any, ...]) -> str:
    return str(answer[0].name).removeprefix("CUDA_").removeprefix("ERROR_")


class Limits:
    """One kernel of 128 threads, and launches of it that differ in one thing."""

    def __init__(self, kernels: Path) -> None:
        driver.cuInit(0)
        self.device = value(driver.cuDeviceGet(0))
        driver.cuCtxSetCurrent(value(driver.cuDevicePrimaryCtxRetain(self.device)))
        kind = driver.CUdevice_attribute
        major = value(driver.cuDeviceGetAttribute(kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, self.device))
        minor = value(driver.cuDeviceGetAttribute(kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, self.device))
        self.opt_in = value(driver.cuDeviceGetAttribute(OPT_IN, self.device))
        self.major = major
        self.cubin = (kernels / f"{COMM}.sm_{major}{minor}.cubin").read_bytes()
        self.function = self.load(self.cubin)
        self.buffer = value(driver.cuMemAlloc(4096))
        address = int(self.buffer)
        self.arguments = ((address, address, 7, 0, 0), (POINTER, POINTER, INT, POINTER, POINTER))

    def load(self, cubin: bytes) -> Any:
        self.module = value(driver.cuModuleLoadData(cubin))
        return value(driver.cuModuleGetFunction(self.module, COMM.encode()))

    def launch(self, *, grid: Any = (1, 1, 1), block: Any = (128, 1, 1), smem: int = 0, stream: Any = 0) -> str:
        return word(driver.cuLaunchKernel(self.function, *grid, *block, smem, stream, self.arguments, 0))

    def cluster(self, size: int, *, grid: int = 16) -> str:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = size, 1, 1
        return self.launch_ex([attribute], grid=grid)

    def cooperative(self, grid: int) -> str:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        return self.launch_ex([attribute], grid=grid)

    def launch_ex(self, attributes: list[Any], *, grid: int) -> str:
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = 128, 1, 1
        config.numAttrs, config.attrs = len(attributes), attributes
        return word(driver.cuLaunchKernelEx(config, self.function, self.arguments, 0))

    def set_dynamic(self, size: int) -> str:
        return word(driver.cuFuncSetAttribute(self.function, DYNAMIC, size))


def answers(kernels: Path) -> dict[str, Any]:
    limits = Limits(kernels)
    found: dict[str, Any] = {
        "plain": limits.launch(),
        "48 KiB": limits.launch(smem=49152),
        "above 48 KiB": limits.launch(smem=49153),
        "opt in above the limit": limits.set_dynamic(limits.opt_in + 1),
        "opt in": limits.set_dynamic(limits.opt_in),
        "all of it": limits.launch(smem=limits.opt_in),
        "more than all of it": limits.launch(smem=limits.opt_in + 1),
        "no blocks": limits.launch(grid=(0, 1, 1)),
        "widest grid": limits.launch(grid=(2**31 - 1, 65535, 65535)),
        "too wide a grid": limits.launch(grid=(2**31, 1, 1)),
        "too high a grid": limits.launch(grid=(1, 65536, 1)),
        "other than the required threads": limits.launch(block=(64, 1, 1)),
        "required threads in another shape": limits.launch(block=(64, 2, 1)),
        "too many threads": limits.launch(block=(1024, 2, 1)),
        "cluster of 4": limits.cluster(4),
        "cluster that does not divide": limits.cluster(4, grid=6),
        "cluster of 16": limits.cluster(16),
        "allow 16": word(driver.cuFuncSetAttribute(limits.function, NON_PORTABLE, 1)),
        "cluster of 16 allowed": limits.cluster(16),
        "cooperative": limits.cooperative(64),
        "cooperative too large": limits.cooperative(1 << 20),
        "no arguments": word(driver.cuLaunchKernel(limits.function, 1, 1, 1, 128, 1, 1, 0, 0, 0, 0)),
        "another architecture": word(
            driver.cuModuleLoadData((kernels / f"gemm.sm_{'80' if limits.major == 9 else '90'}.cubin").read_bytes())
        ),
        "fatbin": word(driver.cuModuleLoadData(fatbin(kernels))),
        "no image": word(driver.cuModuleLoadData(b"\x7fELF" + bytes(200))),
        "no such kernel": word(driver.cuModuleGetFunction(limits.module, b"absent")),
        "wild copy": word(driver.cuMemcpyDtoH(bytearray(8192), limits.buffer, 8192)),
        "freed": word(driver.cuMemFree(limits.buffer)),
        "freed twice": word(driver.cuMemFree(limits.buffer)),
    }
    found["priorities"] = [
        value(driver.cuStreamGetPriority(value(driver.cuStreamCreateWithPriority(1, asked))))
        for asked in (3, 0, -2, -5, -99)
    ]
    value(driver.cuCtxCreate(None, 0, limits.device))  # becomes the current one
    found["stream of another context"] = limits.launch(stream=value(driver.cuStreamCreate(1)))
    value(driver.cuCtxPopCurrent())
    found["back in its own"] = limits.launch()
    driver.cuModuleUnload(limits.module)
    found["unloaded"] = limits.launch()
    limits.function = limits.load(with_registers(limits.cubin, 600))
    found["too many registers"] = limits.launch()
    return found


def fatbin(kernels: Path) -> bytes:
    """A fatbin of one kernel for three architectures, not compressed."""
    entries = b""
    for number in (80, 86, 90):
        cubin = (kernels / f"gemm.sm_{number}.cubin").read_bytes()
        cubin += bytes(-len(cubin) % 8)
        entries += struct.pack("<HHIQIIHHIIIQQQ", 2, 1, 64, len(cubin), 0, 0, 0, 0, number, 0, 0, 0, 0, 0) + cubin
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def with_registers(cubin: bytes, registers: int) -> bytes:
    """The same code that claims another number of registers: EIATTR_REGCOUNT is 04 2f 08 00, symbol, count."""
    at = cubin.index(b"\x04\x2f\x08\x00") + 8
    return cubin[:at] + registers.to_bytes(4, "little") + cubin[at + 4 :]


if __name__ == "__main__":
    print(json.dumps(answers(Path(sys.argv[1]))))
