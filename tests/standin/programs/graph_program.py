"""A program that builds a graph by hand with cuda-bindings: graph_program.py KERNELS STEP...

The graph has one GEMM. Steps: add, add-any, add-handle (how the node is made), same (its parameters read and written
back), set, set-any (the program's own parameters again, for another grid), instantiate, exec, exec-any (a third grid in
the executable), cooperative, cluster (attributes of the node), launch, destroy. It knows nothing of makeway.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from bindings_program import INT, POINTER, SIZE, Program, check, driver  # type: ignore[import-not-found]


class Graph:
    """One kernel node, changed step by step."""

    def __init__(self, kernels: Path) -> None:
        self.program = Program(kernels)
        self.kernels = kernels
        self.graph = check(driver.cuGraphCreate(0))
        self.node: Any = None
        self.executable: Any = None

    def params(self, tiles: int, *, handle: bool = False) -> Any:
        program = self.program
        figures = program.figures[f"gemm.{program.arch}"]
        a, b, c = (int(buffer) for buffer in program.buffers)
        params = driver.CUDA_KERNEL_NODE_PARAMS()
        params.func = 0 if handle else program.functions["gemm"]
        if handle:
            cubin = (self.kernels / f"gemm.{program.arch}.cubin").read_bytes()
            library = check(driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0))
            params.kern = check(driver.cuLibraryGetKernel(library, b"gemm"))
        params.gridDimX, params.gridDimY, params.gridDimZ = tiles, tiles, 1
        params.blockDimX, params.blockDimY, params.blockDimZ = figures["threads"], 1, 1
        params.sharedMemBytes = figures["smem_bytes"]
        params.kernelParams = ((a, b, c, SIZE, SIZE, 0, 0), (POINTER, POINTER, POINTER, INT, INT, POINTER, POINTER))
        return params

    def any_params(self, tiles: int) -> Any:
        given = driver.CUgraphNodeParams()
        given.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
        self.kept = self.params(tiles)
        for name in (
            "func",
            "sharedMemBytes",
            "kernelParams",
            *(f"{part}Dim{side}" for part in ("grid", "block") for side in "XYZ"),
        ):
            setattr(given.kernel, name, getattr(self.kept, name))
        return given

    def attribute(self, name: str, **fields: int) -> None:
        value = driver.CUkernelNodeAttrValue()
        for field, number in fields.items():
            if field in "xyz":
                setattr(value.clusterDim, field, number)
            else:
                setattr(value, field, number)
        which = getattr(driver.CUkernelNodeAttrID, f"CU_LAUNCH_ATTRIBUTE_{name}")
        check(driver.cuGraphKernelNodeSetAttribute(self.node, which, value))

    def step(self, name: str) -> None:
        match name:
            case "add" | "add-handle":
                params = self.params(4, handle=name == "add-handle")
                self.node = check(driver.cuGraphAddKernelNode(self.graph, None, 0, params))
            case "add-any":
                self.node = check(driver.cuGraphAddNode(self.graph, None, None, 0, self.any_params(4)))
            case "same":
                params = check(driver.cuGraphKernelNodeGetParams(self.node))
                check(driver.cuGraphKernelNodeSetParams(self.node, params))
            case "set":
                check(driver.cuGraphKernelNodeSetParams(self.node, self.params(2)))
            case "set-any":
                check(driver.cuGraphNodeSetParams(self.node, self.any_params(2)))
            case "instantiate":
                self.executable = check(driver.cuGraphInstantiate(self.graph, 0))
            case "exec":
                check(driver.cuGraphExecKernelNodeSetParams(self.executable, self.node, self.params(1)))
            case "exec-any":
                check(driver.cuGraphExecNodeSetParams(self.executable, self.node, self.any_params(1)))
            case "cooperative":
                self.attribute("COOPERATIVE", cooperative=1)
            case "cluster":
                self.attribute("CLUSTER_DIMENSION", x=2, y=1, z=1)
            case "launch":
                check(driver.cuGraphLaunch(self.executable, self.program.compute))
            case "destroy":
                check(driver.cuGraphDestroy(self.graph))
            case _:
                sys.exit(f"unknown step {name}")


if __name__ == "__main__":
    assert ctypes.sizeof(POINTER) == 8
    graph = Graph(Path(sys.argv[1]))
    for step in sys.argv[2:]:
        graph.step(step)
