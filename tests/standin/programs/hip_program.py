"""A program for AMD GPUs: hip_program.py KERNELS [LAUNCHES [EXIT_CODE [launcher]]].

It loads code objects with ctypes and launches a GEMM on one stream and, beside it, a kernel named like one of
NCCL's (RCCL's have the same names) on another. With "triton" Triton's own AMD launcher compiles and launches the
same two kernels. It knows nothing of makeway.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

COMM = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
SIZE = 256  # of the square matrices
ARCH_AT = 1160  # of gcnArchName in hipDeviceProp_tR0600
POINTER, INT = ctypes.c_void_p, ctypes.c_int


class Hip:
    """The runtime, with two streams and three buffers."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libamdhip64.so")
        self.buffers = [self.made("hipMalloc", ctypes.c_size_t(SIZE * SIZE * 2)) for _ in range(3)]
        self.compute = self.made("hipStreamCreateWithFlags", 1)
        self.comm = self.made("hipStreamCreateWithFlags", 1)

    def call(self, name: str, *values: Any) -> None:
        error = getattr(self.library, name)(*values)
        if error:
            print(f"failed: {name} gave {error}")
            sys.exit(9)

    def made(self, name: str, *values: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *values)
        return handle

    def arch(self) -> str:
        properties = ctypes.create_string_buffer(4096)
        self.call("hipGetDevicePropertiesR0600", properties, 0)
        return properties.raw[ARCH_AT : ARCH_AT + 256].split(b"\0")[0].decode().split(":")[0]

    def launch(self, function: Any, figures: dict[str, int], grid: tuple[int, int], stream: Any, values: Any) -> None:
        arguments = (POINTER * (len(values) + 2))()
        kept = [*values, POINTER(0), POINTER(0)]  # Triton's two scratch pointers come last
        for index, value in enumerate(kept):
            arguments[index] = ctypes.addressof(value)
        smem = figures["smem_bytes"]
        self.call("hipModuleLaunchKernel", function, *grid, 1, figures["threads"], 1, 1, smem, stream, arguments, None)


def run(hip: Hip, kernels: Path, launches: int) -> str:
    arch = hip.arch()
    figures = json.loads((kernels / "kernels.json").read_text())
    functions = {}
    for name in ("gemm", COMM):
        module = hip.made("hipModuleLoadData", (kernels / f"{name}.{arch}.hsaco").read_bytes())
        functions[name] = hip.made("hipModuleGetFunction", module, name.encode())
    tiles, size = SIZE // 64, INT(SIZE)
    a, b, c = hip.buffers
    for _ in range(launches):
        hip.launch(functions["gemm"], figures[f"gemm.{arch}"], (tiles, tiles), hip.compute, (a, b, c, size, size))
        hip.launch(functions[COMM], figures[f"{COMM}.{arch}"], (8, 1), hip.comm, (a, b, size))
    return arch


def run_triton(hip: Hip, launches: int) -> str:
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import triton
    from triton.backends.amd.driver import HIPDriver, HIPLauncher, HIPUtils

    ours = importlib.import_module("kernels")

    class Driver(HIPDriver):  # type: ignore[misc]
        """Triton asks torch for device and stream; this program has no torch."""

        def __init__(self) -> None:
            self.utils = HIPUtils()
            self.launcher_cls = HIPLauncher
            self.get_current_device = lambda: 0
            self.set_current_device = lambda device: None
            self.get_current_stream = lambda device: hip.compute.value

    class Buffer:
        """Device memory with the two things that Triton asks of a tensor."""

        dtype = "float16"

        def __init__(self, handle: ctypes.c_void_p) -> None:
            self.handle = handle

        def data_ptr(self) -> int:
            return self.handle.value or 0

    driver = Driver()
    triton.runtime.driver.set_active(driver)
    a, b, c = (Buffer(buffer) for buffer in hip.buffers)
    comm = getattr(ours, COMM)
    for _ in range(launches):
        driver.get_current_stream = lambda device: hip.compute.value
        ours.gemm[(SIZE // 64, SIZE // 64)](a, b, c, SIZE, SIZE, BM=64, BN=64, BK=32, num_warps=4)
        driver.get_current_stream = lambda device: hip.comm.value
        comm[(8,)](a, b, SIZE, BLOCK=1024, num_warps=4)
    return str(driver.get_current_target().arch)


if __name__ == "__main__":
    arguments = [*sys.argv[1:], *("", "3", "0", "")[len(sys.argv) - 1 :]]
    launches, hip = int(arguments[1]), Hip()
    arch = run_triton(hip, launches) if arguments[3] == "triton" else run(hip, Path(arguments[0]), launches)
    print(f"launched {launches} gemm and {launches} comm on {arch}")
    sys.exit(int(arguments[2]))
