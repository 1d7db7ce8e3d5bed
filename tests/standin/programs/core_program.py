"""A program that uses cuda-core: core_program.py KERNELS [LAUNCHES [EXIT_CODE [graph]]].

The same work as bindings_program.py, written against cuda.core. It knows nothing of makeway.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

from cuda.core import (  # type: ignore[import-untyped, unused-ignore]
    Device,
    LaunchConfig,
    ObjectCode,
    StreamOptions,
    launch,
)

COMM = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
SIZE = 256  # of the square matrices


class Program:
    """Two kernels, three buffers, two streams."""

    def __init__(self, kernels: Path) -> None:
        self.device = Device(0)
        self.device.set_current()
        self.arch = f"sm_{self.device.arch}"
        self.figures = json.loads((kernels / "kernels.json").read_text())
        self.kernels = {name: self.load(kernels, name) for name in ("gemm", COMM)}
        self.compute = self.device.create_stream(options=StreamOptions(nonblocking=True))
        self.comm = self.device.create_stream(options=StreamOptions(nonblocking=True))
        self.buffers = [self.device.allocate(SIZE * SIZE * 2, stream=self.compute) for _ in range(3)]

    def load(self, kernels: Path, name: str) -> Any:
        return ObjectCode.from_cubin((kernels / f"{name}.{self.arch}.cubin").read_bytes()).get_kernel(name)

    def launch(self, name: str, grid: tuple[int, int], stream: Any, *values: Any) -> None:
        figures = self.figures[f"{name}.{self.arch}"]
        config = LaunchConfig(grid=grid, block=figures["threads"], shmem_size=figures["smem_bytes"])
        launch(stream, config, self.kernels[name], *values, 0, 0)  # Triton's two scratch pointers come last

    def step(self, compute: Any, comm: Any) -> None:
        a, b, c = self.buffers
        tiles, size = SIZE // 64, ctypes.c_int(SIZE)
        self.launch("gemm", (tiles, tiles), compute, a, b, c, size, size)
        self.launch(COMM, (8, 1), comm, a, b, size)

    def graph(self) -> Any:
        builder = self.device.create_graph_builder().begin_building()
        first, second = builder.split(2)
        self.step(first, second)
        first.join(first, second)
        return first.end_building().complete()


def main(kernels: Path, launches: int, graph: bool) -> None:
    program = Program(kernels)
    if graph:
        executable = program.graph()
        for _ in range(launches):
            executable.launch(program.compute)
    else:
        for _ in range(launches):
            program.step(program.compute, program.comm)
    program.compute.sync()
    program.comm.sync()
    registers = program.kernels["gemm"].attributes.num_regs
    print(f"launched {launches} gemm and {launches} comm on {program.arch}; gemm has {registers} registers")


if __name__ == "__main__":
    arguments = [*sys.argv[1:], *("", "3", "0", "")[len(sys.argv) - 1 :]]
    main(Path(arguments[0]), int(arguments[1]), arguments[3] == "graph")
    sys.exit(int(arguments[2]))
