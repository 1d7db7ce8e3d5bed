"""Graphs and captures, through cuda-bindings: graphs.py KERNELS. Prints the driver's answers as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cuda.bindings import driver  # type: ignore[import-untyped, unused-ignore]
from tests.standin.checks.limits import COMM, DYNAMIC, Limits, value, word

MODE = driver.CUstreamCaptureMode
ATTRIBUTE = driver.CUlaunchAttributeID
KERNEL = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL


def begin(stream: Any, mode: Any = MODE.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) -> str:
    return word(driver.cuStreamBeginCapture(stream, mode))


def stream(flags: int = 1, priority: int = 0) -> Any:
    return value(driver.cuStreamCreateWithPriority(flags, priority))


def link(source: Any, target: Any) -> str:
    event = value(driver.cuEventCreate(2))
    driver.cuEventRecord(event, source)
    return word(driver.cuStreamWaitEvent(target, event, 0))


def captured(limits: Limits) -> dict[str, Any]:
    """Fork to a stream of high priority, join, and read the graph back."""
    first, second = stream(), stream(priority=-5)
    begin(first)
    limits.launch(stream=first)
    link(first, second)
    limits.launch(stream=second, smem=100)
    limits.launch(stream=first, smem=200)
    link(second, first)
    limits.launch(stream=first, smem=300)
    graph = value(driver.cuStreamEndCapture(first))
    nodes = driver.cuGraphGetNodes(graph, 10)[1][:4]
    places = {int(node): index for index, node in enumerate(nodes)}
    _, sources, targets, _, count = driver.cuGraphGetEdges(graph, 10)
    pairs = list(zip(sources, targets, strict=True))[:count]
    edges = [(places[int(source)], places[int(target)]) for source, target in pairs]
    priorities = [
        value(driver.cuGraphKernelNodeGetAttribute(node, ATTRIBUTE.CU_LAUNCH_ATTRIBUTE_PRIORITY)).priority
        for node in nodes
    ]
    smem = [value(driver.cuGraphKernelNodeGetParams(node)).sharedMemBytes for node in nodes]
    return {"edges": sorted(edges), "priorities": priorities, "smem": smem}


def capture_errors(limits: Limits) -> dict[str, str]:
    found = {}
    one, other = stream(), stream()
    begin(one)
    found["begin twice"] = begin(one)
    found["synchronise"] = word(driver.cuStreamSynchronize(one))
    found["launch into a broken capture"] = limits.launch(stream=one)
    found["end a broken capture"] = word(driver.cuStreamEndCapture(one))
    found["end none"] = word(driver.cuStreamEndCapture(one))
    begin(one)
    link(one, other)
    limits.launch(stream=other)
    found["end in another stream"] = word(driver.cuStreamEndCapture(other))
    driver.cuStreamEndCapture(one)
    begin(one)
    link(one, other)
    limits.launch(stream=other)
    found["fork without join"] = word(driver.cuStreamEndCapture(one))
    begin(one)
    found["wait for an event outside"] = link(other, one)
    driver.cuStreamEndCapture(one)
    begin(one)
    begin(other)
    found["merge"] = link(other, one)
    driver.cuStreamEndCapture(one)
    driver.cuStreamEndCapture(other)
    blocking = stream(flags=0)
    begin(blocking)
    found["default stream beside it"] = limits.launch()
    driver.cuStreamEndCapture(blocking)
    found["capture the default stream"] = begin(driver.CUstream(0))
    found["afterwards"] = limits.launch(stream=one)
    return found


def built(limits: Limits) -> dict[str, Any]:
    """A graph made by hand: two kernel nodes, one inside a child graph, changed before and after instantiation."""
    found: dict[str, Any] = {}
    params = driver.CUDA_KERNEL_NODE_PARAMS()
    params.func = limits.function
    params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1
    params.blockDimX = 128
    params.kernelParams = limits.arguments
    child, graph = value(driver.cuGraphCreate(0)), value(driver.cuGraphCreate(0))
    value(driver.cuGraphAddKernelNode(child, None, 0, params))
    first = value(driver.cuGraphAddKernelNode(graph, None, 0, params))
    middle = value(driver.cuGraphAddEmptyNode(graph, [first], 1))
    last = value(driver.cuGraphAddChildGraphNode(graph, [middle], 1, child))
    inside = value(driver.cuGraphChildGraphNodeGetGraph(last))
    inner = driver.cuGraphGetNodes(inside, 1)[1][0]
    found["the child is a copy"] = int(inside) != int(child)

    read = value(driver.cuGraphKernelNodeGetParams(first))
    read.sharedMemBytes = 60000
    found["set too much"] = word(driver.cuGraphKernelNodeSetParams(first, read))
    value((*driver.cuFuncSetAttribute(limits.function, DYNAMIC, 70000), None))
    found["set after the opt-in"] = word(driver.cuGraphKernelNodeSetParams(first, read))
    priority = driver.CUkernelNodeAttrValue()
    priority.priority = -3
    which = ATTRIBUTE.CU_LAUNCH_ATTRIBUTE_PRIORITY
    found["set priority"] = word(driver.cuGraphKernelNodeSetAttribute(inner, which, priority))

    executable = value(driver.cuGraphInstantiate(graph, 0))
    target = stream()
    value((*driver.cuGraphLaunch(executable, target), None))
    inner_params = value(driver.cuGraphKernelNodeGetParams(inner))
    inner_params.sharedMemBytes = 50000
    found["change the executable"] = word(driver.cuGraphExecKernelNodeSetParams(executable, inner, inner_params))
    value((*driver.cuGraphLaunch(executable, target), None))
    found["the graph keeps its own"] = value(driver.cuGraphKernelNodeGetParams(inner)).sharedMemBytes
    read.sharedMemBytes = 65000
    found["set with arguments read before a change"] = word(driver.cuGraphKernelNodeSetParams(first, read))
    read = value(driver.cuGraphKernelNodeGetParams(first))
    read.sharedMemBytes = 65000
    found["set with arguments read anew"] = word(driver.cuGraphKernelNodeSetParams(first, read))
    found["update"] = word(driver.cuGraphExecUpdate(executable, graph))
    value((*driver.cuGraphLaunch(executable, target), None))
    value(driver.cuGraphAddEmptyNode(graph, [last], 1))
    found["update of another shape"] = word(driver.cuGraphExecUpdate(executable, graph))
    return found


def by_kernel(limits: Limits) -> dict[str, Any]:
    """A node that names a CUkernel gives it back, and is launched as a function of the current context."""
    library = value(driver.cuLibraryLoadData(limits.cubin, None, None, 0, None, None, 0))
    kernel = value(driver.cuLibraryGetKernel(library, COMM.encode()))
    params = driver.CUDA_KERNEL_NODE_PARAMS()
    params.kern = kernel
    params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1
    params.blockDimX = 128
    params.kernelParams = limits.arguments
    graph = value(driver.cuGraphCreate(0))
    node = value(driver.cuGraphAddKernelNode(graph, None, 0, params))
    read = value(driver.cuGraphKernelNodeGetParams(node))
    name = value(driver.cuKernelGetName(read.kern))
    return {"func": int(read.func), "kern": int(read.kern) == int(kernel), "name": name.decode()}


if __name__ == "__main__":
    state = Limits(Path(sys.argv[1]))
    print(
        json.dumps(
            {
                "captured": captured(state),
                "errors": capture_errors(state),
                "built": built(state),
                "by kernel": by_kernel(state),
            }
        )
    )
