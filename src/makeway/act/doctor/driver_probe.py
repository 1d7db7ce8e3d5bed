"""Questions to NVIDIA's driver that need no torch: limits, occupancy, and what a launch costs. Not yet run on hardware.

python -m makeway.act.doctor.driver_probe CHECK... prints lines of JSON. It calls libcuda through ctypes, so the tests
run all of it on a stand-in driver; Triton compiles the kernels for the device at hand.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from makeway.act.doctor.kernels import NAME, makeway_hold
from makeway.act.doctor.samples import CostRun, DriverFacts, Line, OccupancyRow, write_checks
from makeway.act.triton.gemm import tiled_gemm
from makeway.read.binaries.cubin import cubin_kernels
from makeway.read.binaries.elf import parse_elf
from makeway.values.errors import UnsupportedError
from makeway.values.recorded_device import RecordedLimits

HOLD_WARPS = (1, 2, 4, 8, 16, 32)
TILES = ((64, 64, 32, 4), (128, 64, 32, 4), (128, 128, 32, 4), (128, 128, 32, 8))  # M, N, K, warps
EXTRA_BYTES = (0, 1024, 5_000, 9_216, 16_384, 24_000, 33_000, 49_152, 65_536, 81_920, 100_000, 131_072, 200_000)
COST_LAUNCHES = 200  # below the depth of the driver's queue, so that no launch waits for the GPU
COST_ROUNDS = 41
_WARP = 32
# CUdevice_attribute and CUfunction_attribute of cuda.h
_THREADS_PER_BLOCK, _SMEM_BLOCK, _WARP_SIZE, _CLOCK_KHZ, _SMS, _L2, _THREADS = 1, 8, 10, 13, 16, 38, 39
_COPY_ENGINES, _MAJOR, _MINOR, _SMEM_SM, _REGISTERS, _SMEM_OPTIN, _BLOCKS, _RESERVED = 40, 75, 76, 81, 82, 97, 106, 111
_MAX_DYNAMIC, _CARVE_OUT = 8, 9


def main(checks: Sequence[str]) -> None:
    write_checks(checks, _measured)


def _measured(check: str) -> Line:
    driver = Driver()
    if check == "occupancy":
        return Line(check=check, driver=driver.facts())
    return Line(check=check, cost=driver.cost())


class Driver:
    """libcuda, with the primary context of the first device."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise UnsupportedError(f"libcuda.so.1 cannot be loaded: {error}") from None
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.device = device
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        if error := getattr(self.library, name)(*arguments):
            raise UnsupportedError(f"{name} failed with CUDA error {error}")

    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    @property
    def arch(self) -> int:
        return self.attribute(_MAJOR) * 10 + self.attribute(_MINOR)

    def function(self, cubin: bytes, name: str) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    # --- limits and occupancy ---------------------------------------------------------------------

    def facts(self) -> DriverFacts:
        """The driver's description of the device, and its answers for a sweep of threads, registers and memory."""
        name, version, memory = ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_size_t()
        self.call("cuDeviceGetName", name, 256, self.device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.call("cuDeviceTotalMem_v2", ctypes.byref(memory), self.device)
        limits = RecordedLimits(
            vendor="nvidia",
            arch=f"sm_{self.arch}",
            sms=self.attribute(_SMS),
            memory_bytes=memory.value,
            registers=self.attribute(_REGISTERS),
            threads=self.attribute(_THREADS),
            max_threads_per_block=self.attribute(_THREADS_PER_BLOCK),
            warp_threads=self.attribute(_WARP_SIZE),
            smem_bytes=self.attribute(_SMEM_SM),
            smem_block_bytes=self.attribute(_SMEM_OPTIN),
            smem_default_block_bytes=self.attribute(_SMEM_BLOCK),
        )
        clock_khz = self.attribute(_CLOCK_KHZ)
        return DriverFacts(
            device=name.value.decode(errors="replace"),
            driver_version=version.value,
            limits=limits,
            smem_reserved_bytes=self.attribute(_RESERVED),
            max_blocks=self.attribute(_BLOCKS),
            clock_hz=clock_khz * 1000.0 if clock_khz > 0 else None,
            l2_bytes=max(self.attribute(_L2), 0) or None,
            copy_engines=max(self.attribute(_COPY_ENGINES), 0) or None,
            occupancy=tuple(self.occupancy(self.attribute(_SMEM_OPTIN))),
        )

    def occupancy(self, most_bytes: int) -> Iterator[OccupancyRow]:
        for compiled, threads in _sweep(self.arch):
            (kernel,) = cubin_kernels(parse_elf(compiled.asm["cubin"]))
            function = self.function(compiled.asm["cubin"], kernel.name)
            self.call("cuFuncSetAttribute", function, _CARVE_OUT, 100)
            for extra in EXTRA_BYTES:
                smem = compiled.metadata.shared + extra
                block = kernel.resources(threads=threads, smem_dynamic_bytes=smem)
                if block.smem_bytes > most_bytes:
                    continue
                self.call("cuFuncSetAttribute", function, _MAX_DYNAMIC, smem)
                blocks = ctypes.c_int()
                asked = (ctypes.byref(blocks), function, threads, ctypes.c_size_t(smem))
                self.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", *asked)
                yield OccupancyRow(kernel=kernel.name, block=block, blocks=blocks.value)

    # --- the cost of a launch ---------------------------------------------------------------------

    def cost(self) -> CostRun:
        """Processor time of launches of an empty block, the GPU idle before each round."""
        function = self.function(_hold(self.arch, 4).asm["cubin"], NAME)
        rows = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(rows), ctypes.c_size_t(4096))
        values = (rows, ctypes.c_int32(0), ctypes.c_uint64(0), ctypes.c_uint64(0))  # Triton's scratch pointers are last
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        launch = self.library.cuLaunchKernel
        shape = (function, 1, 1, 1, 128, 1, 1, 0, None, pointers, None)
        rounds = []
        for _ in range(COST_ROUNDS + 1):
            self.call("cuCtxSynchronize")
            begun = time.process_time_ns()
            for _ in range(COST_LAUNCHES):
                if launch(*shape):
                    raise UnsupportedError("cuLaunchKernel failed")
            rounds.append((time.process_time_ns() - begun) / COST_LAUNCHES)
        self.call("cuCtxSynchronize")
        return CostRun(launches=COST_LAUNCHES, round_ns=tuple(rounds[1:]))  # the first loads the code


def _hold(arch: int, warps: int) -> Any:
    source = ASTSource(makeway_hold, {"rows": "*i64", "hold_ns": "i32"}, {})
    return triton.compile(source, target=GPUTarget("cuda", arch, _WARP), options={"num_warps": warps})


def _sweep(arch: int) -> Iterator[tuple[Any, int]]:
    """Kernels of few and of many registers, with their threads."""
    for warps in HOLD_WARPS:
        yield _hold(arch, warps), warps * _WARP
    types = dict.fromkeys("abc", "*fp16") | dict.fromkeys("mnk", "i32")
    types |= dict.fromkeys(("TILE_M", "TILE_N", "TILE_K", "PRECISION"), "constexpr")
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(6)}
    for *tile, warps in TILES:
        constants = {(6 + at,): side for at, side in enumerate(tile)} | {(9,): "ieee"}
        source = ASTSource(tiled_gemm, types, constants, aligned)
        options = {"num_warps": warps, "num_stages": 2}
        yield triton.compile(source, target=GPUTarget("cuda", arch, _WARP), options=options), warps * _WARP


if __name__ == "__main__":
    main(sys.argv[1:])
