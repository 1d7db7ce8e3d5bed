"""A program that uses cuda-bindings: bindings_program.py KERNELS [LAUNCHES [EXIT_CODE [graph]]].

It launches a GEMM on one stream and, beside it, a kernel named like one of NCCL's on another. With "graph" the
same work is captured once and replayed. It knows nothing of makeway.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

from cuda.bindings import driver  # type: ignore[import-untyped, unused-ignore]

COMM = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
SIZE = 256  # of the square matrices
POINTER, INT = ctypes.c_void_p, ctypes.c_int


def check(answer: tuple[Any, ...]) -> Any:
    error, *values = answer
    if error != driver.CUresult.CUDA_SUCCESS:
        print(f"failed: {error.name}")
        sys.exit(9)
    return values[0] if len(values) == 1 else tuple(values)


class Program:
    """Two kernels, three buffers, two streams."""

    def __init__(self, kernels: Path) -> None:
        check(driver.cuInit(0))
        device = check(driver.cuDeviceGet(0))
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
        kind = driver.CUdevice_attribute
        major = check(driver.cuDeviceGetAttribute(kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
        minor = check(driver.cuDeviceGetAttribute(kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
        self.arch = f"sm_{major}{minor}"
        self.figures = json.loads((kernels / "kernels.json").read_text())
        self.functions = {name: self.load(kernels, name) for name in ("gemm", COMM)}
        self.buffers = [check(driver.cuMemAlloc(SIZE * SIZE * 2)) for _ in range(3)]
        self.compute = check(driver.cuStreamCreateWithPriority(1, 0))
        self.comm = check(driver.cuStreamCreateWithPriority(1, 0))

    def load(self, kernels: Path, name: str) -> Any:
        cubin = (kernels / f"{name}.{self.arch}.cubin").read_bytes()
        return check(driver.cuModuleGetFunction(check(driver.cuModuleLoadData(cubin)), name.encode()))

    def launch(self, name: str, grid: tuple[int, int], stream: Any, values: tuple[int, ...], types: Any) -> None:
        figures = self.figures[f"{name}.{self.arch}"]
        arguments = ((*values, 0, 0), (*types, POINTER, POINTER))  # Triton's two scratch pointers come last
        smem = figures["smem_bytes"]
        check(
            driver.cuLaunchKernel(self.functions[name], *grid, 1, figures["threads"], 1, 1, smem, stream, arguments, 0)
        )

    def step(self) -> None:
        a, b, c = (int(buffer) for buffer in self.buffers)
        tiles = SIZE // 64
        self.launch("gemm", (tiles, tiles), self.compute, (a, b, c, SIZE, SIZE), (POINTER,) * 3 + (INT,) * 2)
        self.launch(COMM, (8, 1), self.comm, (a, b, SIZE), (POINTER, POINTER, INT))

    def capture(self) -> Any:
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        fork, joined = check(driver.cuEventCreate(2)), check(driver.cuEventCreate(2))
        check(driver.cuStreamBeginCapture(self.compute, mode))
        check(driver.cuEventRecord(fork, self.compute))
        check(driver.cuStreamWaitEvent(self.comm, fork, 0))
        self.step()
        check(driver.cuEventRecord(joined, self.comm))
        check(driver.cuStreamWaitEvent(self.compute, joined, 0))
        graph = check(driver.cuStreamEndCapture(self.compute))
        return check(driver.cuGraphInstantiate(graph, 0))

    def checksum(self) -> int:
        sent = bytes(index % 251 for index in range(SIZE))
        back = bytearray(SIZE)
        check(driver.cuMemcpyHtoD(self.buffers[0], sent, SIZE))
        check(driver.cuMemcpyDtoH(back, self.buffers[0], SIZE))
        return sum(back)


def main(kernels: Path, launches: int, graph: bool) -> None:
    program = Program(kernels)
    if graph:
        executable = program.capture()
        for _ in range(launches):
            check(driver.cuGraphLaunch(executable, program.compute))
    else:
        for _ in range(launches):
            program.step()
    check(driver.cuCtxSynchronize())
    print(f"launched {launches} gemm and {launches} comm on {program.arch}; checksum {program.checksum()}")


if __name__ == "__main__":
    arguments = [*sys.argv[1:], *("", "3", "0", "")[len(sys.argv) - 1 :]]
    main(Path(arguments[0]), int(arguments[1]), arguments[3] == "graph")
    sys.exit(int(arguments[2]))
