"""Kernel nodes of a CUDA graph through the driver API: listed, read, set. Not yet run on hardware.

The driver is `cuda.bindings.driver`, or a stand-in with the same names. A refusal is an `UnsupportedError` that names
the call and its result. `kernelParams` and `extra` of a node belong to the node: they are passed on unchanged
(NVIDIA's documentation of cuGraphKernelNodeGetParams; ggml-org/llama.cpp#12152).
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from operator import attrgetter
from typing import Any

from makeway.values.errors import MissingExtraError, UnsupportedError

# What a node carries besides its parameters, read before and after to prove that nothing else changed.
# The rest of a programmatic launch is in the graph's edges, which nothing here touches.
ATTRIBUTES = (
    "PRIORITY",
    "PREFERRED_SHARED_MEMORY_CARVEOUT",
    "COOPERATIVE",
    "CLUSTER_DIMENSION",
    "PROGRAMMATIC_STREAM_SERIALIZATION",
)
ATTRIBUTE_BYTES = 64  # cuda.h, CUlaunchAttributeValue
LARGEST_SMEM_BYTES = 2**31 - 1  # function attributes are signed 32-bit numbers

NO_CARVE_OUT = -1  # cuda.h, CU_SHAREDMEM_CARVEOUT_DEFAULT: no preference; 0 prefers L1
MOST_SHARED = 100  # cuda.h, CU_SHAREDMEM_CARVEOUT_MAX_SHARED

# A node's priority and carve-out (None where the driver does not report it), and the bytes of the other ATTRIBUTES.
ReadAttributes = Callable[[Any], tuple[int | None, int | None, bytes]]

_shape = attrgetter("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ")


def load_driver() -> Any:
    """The module `cuda.bindings.driver`, or the error that names the extra."""
    try:
        spec = importlib.util.find_spec("cuda.bindings.driver")
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise MissingExtraError("shaping CUDA graphs needs cuda-bindings, which is not installed.", "cuda")
    return importlib.import_module("cuda.bindings.driver")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A kernel node as read; attributes and priority are not read where the plan asks nothing of it."""

    smem_bytes: int  # dynamic, per block
    priority: int | None = None  # lower goes first
    carve_out: int | None = None  # percent of an SM's memory that is shared memory; -1: the driver's choice
    shape: tuple[int, ...] = field(repr=False)  # grid and block
    function: tuple[int, int] = field(repr=False)  # handles: (CUfunction, CUkernel), one of which may be 0
    attributes: bytes | None = field(default=None, repr=False)  # ATTRIBUTES after the carve-out, concatenated

    @property
    def cooperative(self) -> bool:
        return any((self.attributes or b"")[:ATTRIBUTE_BYTES])

    @property
    def cluster_sides(self) -> tuple[int, ...]:
        """Width, height and depth of a cluster; all 1 without clusters."""
        sides = (self.attributes or b"")[ATTRIBUTE_BYTES : ATTRIBUTE_BYTES + 12]
        return tuple(max(int.from_bytes(sides[at : at + 4], "little"), 1) for at in range(0, 12, 4))

    @property
    def cluster(self) -> int:
        """Blocks in a cluster."""
        return prod(self.cluster_sides)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelNode:
    """A kernel node and its path."""

    path: tuple[int, ...]  # its number in the graph; inside child graphs, theirs come first
    handle: Any
    child: int | None  # number of the outermost child-graph node it lies in; None: it lies in the graph itself


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNodes:
    """The kernel nodes of a graph and of its child graphs, in the driver's order."""

    kernels: tuple[KernelNode, ...]
    children: dict[int, tuple[Any, Any]]  # outermost child-graph nodes by number: (node, graph in it)
    conditionals: int  # nodes whose bodies were not inspected


class GraphDriver:
    """The driver calls, each with its result checked."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        ids = [getattr(driver.CUkernelNodeAttrID, f"CU_LAUNCH_ATTRIBUTE_{name}") for name in ATTRIBUTES]
        self._priority, self._carve_out = ids[:2]
        self._read_attributes = _attribute_reader(driver, ids)
        self._limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._static = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        self._preferred = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT

    def _ask(self, call: str, *arguments: Any) -> Any:
        try:
            status, *values = getattr(self.driver, call)(*arguments)
        except RuntimeError as error:  # cuda-bindings: this driver has no such function
            raise UnsupportedError(f"{call}: {error}") from None
        if status:
            raise UnsupportedError(f"{call} returned {status.name}")
        return values[0] if len(values) == 1 else tuple(values)

    # --- nodes ---------------------------------------------------------------------------------

    def nodes(self, graph: Any) -> GraphNodes:
        """The kernel nodes of a graph, child graphs included."""
        kinds = self.driver.CUgraphNodeType
        kernels: list[KernelNode] = []
        children: dict[int, tuple[Any, Any]] = {}
        conditionals = 0
        open_graphs: list[tuple[tuple[int, ...], Any]] = [((), graph)]
        while open_graphs:
            path, inner = open_graphs.pop()
            for number, node in enumerate(self._listed(inner)):
                kind, here = self._ask("cuGraphNodeGetType", node), (*path, number)
                if kind == kinds.CU_GRAPH_NODE_TYPE_KERNEL:
                    kernels.append(KernelNode(path=here, handle=node, child=path[0] if path else None))
                elif kind == kinds.CU_GRAPH_NODE_TYPE_GRAPH:
                    nested = self._ask("cuGraphChildGraphNodeGetGraph", node)
                    open_graphs.append((here, nested))
                    if not path:
                        children[number] = (node, nested)
                elif kind == kinds.CU_GRAPH_NODE_TYPE_CONDITIONAL:
                    conditionals += 1
        return GraphNodes(
            kernels=tuple(sorted(kernels, key=attrgetter("path"))), children=children, conditionals=conditionals
        )

    def _listed(self, graph: Any) -> Sequence[Any]:
        _, count = self._ask("cuGraphGetNodes", graph)
        if not count:
            return ()
        nodes, count = self._ask("cuGraphGetNodes", graph, count)
        listed: Sequence[Any] = nodes[:count]
        return listed

    def params(self, node: Any) -> Any:
        """The parameters: our copy of the structure, which points to the node's arrays."""
        status, params = self.driver.cuGraphKernelNodeGetParams(node)
        if status:
            raise UnsupportedError(f"cuGraphKernelNodeGetParams returned {status.name}")
        return params

    def state(self, node: Any, params: Any, *, attributes: bool) -> NodeState:
        """The node as it is now; `params` were just read."""
        priority, carve_out, others = self._read_attributes(node) if attributes else (None, None, None)
        return NodeState(
            smem_bytes=params.sharedMemBytes,
            priority=priority,
            carve_out=carve_out,
            shape=_shape(params),
            function=(int(params.func), int(params.kern)),
            attributes=others,
        )

    def set_smem(self, node: Any, params: Any, smem_bytes: int) -> None:
        """Set the dynamic shared memory; `params` must be newer than the last change, and are stale afterwards."""
        params.sharedMemBytes = smem_bytes
        (status,) = self.driver.cuGraphKernelNodeSetParams(node, params)
        if status:
            raise UnsupportedError(f"cuGraphKernelNodeSetParams returned {status.name}")

    def set_priority(self, node: Any, priority: int) -> None:
        value = self.driver.CUkernelNodeAttrValue()
        value.priority = priority
        self._ask_nothing("cuGraphKernelNodeSetAttribute", node, self._priority, value)

    def set_carve_out(self, node: Any, percent: int) -> None:
        value = self.driver.CUkernelNodeAttrValue()
        value.sharedMemCarveout = percent % 2**32  # -1 is written as an unsigned number
        self._ask_nothing("cuGraphKernelNodeSetAttribute", node, self._carve_out, value)

    def set_executable_node(self, executable: Any, node: Any, params: Any) -> None:
        self._ask_nothing("cuGraphExecKernelNodeSetParams", executable, node, params)

    def set_executable_child(self, executable: Any, node: Any, graph: Any) -> None:
        self._ask_nothing("cuGraphExecChildGraphNodeSetParams", executable, node, graph)

    def _ask_nothing(self, call: str, *arguments: Any) -> None:
        values = self._ask(call, *arguments)
        assert values == ()

    # --- functions and the device ---------------------------------------------------------------

    def name(self, function: tuple[int, int]) -> str:
        """The kernel's name in the driver, mangled for C++."""
        func, kern = function
        name: bytes = self._ask("cuFuncGetName", func) if func else self._ask("cuKernelGetName", kern)
        return name.decode(errors="replace")

    def loaded(self, function: tuple[int, int], context: int) -> int:
        """The CUfunction whose limits apply to a node.

        A CUkernel has one per context; limits set on it override those of the CUkernel, whenever they were set
        (NVIDIA's documentation of cuKernelSetAttribute).
        """
        func, kern = function
        if func:
            return func
        current = int(self._ask("cuCtxGetCurrent"))
        if context not in (0, current):
            raise UnsupportedError("the node belongs to another context; make that one current")
        return int(self._ask("cuKernelGetFunction", kern))

    def limit_bytes(self, func: int) -> int:
        """The most dynamic shared memory that a launch of the function may ask for now."""
        return int(self._ask("cuFuncGetAttribute", self._limit, func))

    def set_limit(self, func: int, limit_bytes: int) -> None:
        self._ask_nothing("cuFuncSetAttribute", func, self._limit, limit_bytes)

    def prefers_carve_out(self, func: int) -> bool:
        """Whether the program has a preference for the function; a driver that does not say has none."""
        try:
            return int(self._ask("cuFuncGetAttribute", self._preferred, func)) != NO_CARVE_OUT
        except UnsupportedError:
            return False

    def resident_blocks(self, func: int, threads: int, smem_bytes: int) -> int:
        """Blocks on an SM at once."""
        return int(self._ask("cuOccupancyMaxActiveBlocksPerMultiprocessor", func, threads, smem_bytes))

    def clusters(self, func: int, params: Any, smem_bytes: int, sides: Sequence[int]) -> int:
        """Clusters on the device at once, with so much dynamic shared memory."""
        config = self.driver.CUlaunchConfig()
        for name in ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ"):
            setattr(config, name, getattr(params, name))
        config.sharedMemBytes = smem_bytes
        attribute = self.driver.CUlaunchAttribute()
        attribute.id = self.driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        value = self.driver.CUlaunchAttributeValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = sides
        attribute.value = value
        config.attrs, config.numAttrs = [attribute], 1
        return int(self._ask("cuOccupancyMaxActiveClusters", func, config))

    def sms(self) -> int:
        count = self.driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        return int(self._ask("cuDeviceGetAttribute", count, self._ask("cuCtxGetDevice")))

    def static_bytes(self, func: int) -> int:
        return int(self._ask("cuFuncGetAttribute", self._static, func))

    def block_bytes(self) -> int:
        """The most shared memory, static and dynamic, that one block may have on the current device."""
        optin = self.driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        return int(self._ask("cuDeviceGetAttribute", optin, self._ask("cuCtxGetDevice")))

    def priorities(self) -> tuple[int, int]:
        """(least, greatest): the greatest is the lowest number."""
        least, greatest = self._ask("cuCtxGetStreamPriorityRange")
        return int(least), int(greatest)


# --- attributes ---------------------------------------------------------------------------------


def _attribute_reader(driver: Any, ids: Sequence[Any]) -> ReadAttributes:
    """A reader of a node's ATTRIBUTES, priority and carve-out first; an attribute that this driver lacks reads as zero.

    cuda-bindings builds an object of twenty views for every value, which takes longer than all the rest. So we call
    the driver's entry point directly and let it fill a buffer.
    """
    if not hasattr(driver, "cuGetProcAddress"):
        return _slow_reader(driver, ids)
    status, address, *_ = driver.cuGetProcAddress(b"cuGraphKernelNodeGetAttribute", 12000, 0)  # CUDA 12.0
    if status:
        raise UnsupportedError(f"cuGetProcAddress of cuGraphKernelNodeGetAttribute returned {status.name}")
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(int(address))
    # Each attribute has its own slot: the driver writes one member of the union, and the rest stays zero.
    buffer = ctypes.create_string_buffer(ATTRIBUTE_BYTES * len(ids))
    start = ctypes.addressof(buffer)
    priority, carve_out, *others = [(int(attribute), start + ATTRIBUTE_BYTES * at) for at, attribute in enumerate(ids)]

    def read(node: Any) -> tuple[int | None, int | None, bytes]:
        handle = int(node)
        unranked, uncarved = call(handle, *priority), call(handle, *carve_out)
        for attribute, slot in others:
            call(handle, attribute, slot)
        content = buffer.raw
        return (
            None if unranked else _number(content),
            None if uncarved else _number(content[ATTRIBUTE_BYTES:]),
            content[2 * ATTRIBUTE_BYTES :],
        )

    return read


def _slow_reader(driver: Any, ids: Sequence[Any]) -> ReadAttributes:
    def read(node: Any) -> tuple[int | None, int | None, bytes]:
        answers = [driver.cuGraphKernelNodeGetAttribute(node, attribute) for attribute in ids]
        values = [None if status else value.pad for status, value in answers]
        priority, carve_out = [None if value is None else _number(value) for value in values[:2]]
        return priority, carve_out, b"".join([value or bytes(ATTRIBUTE_BYTES) for value in values[2:]])

    return read


def _number(value: bytes) -> int:
    return int.from_bytes(value[:4], "little", signed=True)
