"""The HIP twin of graph_program.py, by ctypes: hip_graph_program.py KERNELS STEP... add-host gives a host pointer."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "checks"))

from amd import Dim3, registered  # type: ignore[import-not-found]
from hip_program import INT, POINTER, SIZE, Hip  # type: ignore[import-not-found]

COOPERATIVE = 2  # hipLaunchAttributeCooperative
KERNEL = 0  # hipGraphNodeTypeKernel


class KernelNode(ctypes.Structure):
    """hipKernelNodeParams."""

    _fields_ = (
        ("block", Dim3),
        ("extra", POINTER),
        ("function", POINTER),
        ("grid", Dim3),
        ("arguments", POINTER),
        ("smem_bytes", ctypes.c_uint),
    )


class AnyNode(ctypes.Structure):
    """hipGraphNodeParams of a kernel."""

    _fields_ = (
        ("type", INT),
        ("reserved", INT * 3),
        ("kernel", KernelNode),
        ("rest", ctypes.c_char * (29 * 8 - ctypes.sizeof(KernelNode))),
        ("end", ctypes.c_longlong),
    )


class Graph:
    """One kernel node, changed step by step."""

    def __init__(self, kernels: Path) -> None:
        self.hip = Hip()
        arch = self.hip.arch()
        self.figures = json.loads((kernels / "kernels.json").read_text())[f"gemm.{arch}"]
        self.code = (kernels / f"gemm.{arch}.hsaco").read_bytes()
        self.function = self.hip.made("hipModuleGetFunction", self.hip.made("hipModuleLoadData", self.code), b"gemm")
        self.graph = self.hip.made("hipGraphCreate", 0)
        self.node: Any = None
        self.executable: Any = None

    def params(self, tiles: int) -> KernelNode:
        kept = [*self.hip.buffers, INT(SIZE), INT(SIZE), POINTER(0), POINTER(0)]
        arguments = (POINTER * len(kept))(*(ctypes.addressof(value) for value in kept))
        self.kept = (kept, arguments)
        return KernelNode(
            block=Dim3(self.figures["threads"], 1, 1),
            function=self.function,
            grid=Dim3(tiles, tiles, 1),
            arguments=ctypes.addressof(arguments),
            smem_bytes=self.figures["smem_bytes"],
        )

    def any_params(self, tiles: int) -> Any:
        return ctypes.byref(AnyNode(type=KERNEL, kernel=self.params(tiles)))

    def step(self, name: str) -> None:
        call, none = self.hip.call, ctypes.c_size_t(0)
        match name:
            case "add" | "add-host":
                if name == "add-host":
                    self.function = registered(self.code, "gemm")
                params = self.params(4)
                self.node = self.hip.made("hipGraphAddKernelNode", self.graph, None, none, ctypes.byref(params))
            case "add-any":
                self.node = self.hip.made("hipGraphAddNode", self.graph, None, none, self.any_params(4))
            case "same":
                params = KernelNode()
                call("hipGraphKernelNodeGetParams", self.node, ctypes.byref(params))
                call("hipGraphKernelNodeSetParams", self.node, ctypes.byref(params))
            case "set":
                call("hipGraphKernelNodeSetParams", self.node, ctypes.byref(self.params(2)))
            case "set-any":
                call("hipGraphNodeSetParams", self.node, self.any_params(2))
            case "instantiate":
                self.executable = self.hip.made("hipGraphInstantiate", self.graph, None, None, none)
            case "exec":
                call("hipGraphExecKernelNodeSetParams", self.executable, self.node, ctypes.byref(self.params(1)))
            case "exec-any":
                call("hipGraphExecNodeSetParams", self.executable, self.node, self.any_params(1))
            case "cooperative":
                call("hipGraphKernelNodeSetAttribute", self.node, COOPERATIVE, (INT * 16)(1))
            case "launch":
                call("hipGraphLaunch", self.executable, self.hip.compute)
            case _:
                sys.exit(f"unknown step {name}")


if __name__ == "__main__":
    graph = Graph(Path(sys.argv[1]))
    for step in sys.argv[2:]:
        graph.step(step)
