"""The graph rewriter held to its laws on a driver that is a few strict Python values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from makeway.act.cuda.graph import GraphChanges, NodeChange, shape_graph, undo
from makeway.values.control import CommPriority, SmemPad
from makeway.values.plan import Plan

# --- a driver of values -------------------------------------------------------------------------

OPTIN_BYTES = 232_448  # compute capability 9.0
GREATEST = -5
SMS, SM_BYTES = 132, 233_472
NO_PREFERENCE = b"\xff" * 4 + bytes(60)  # cuda.h, CU_SHAREDMEM_CARVEOUT_DEFAULT
SMS_TO_SPARE = 4  # where clusters may be placed: a deep pad leaves no room for one of eight blocks
GEMM, NORM, REDUCE = "_Z4gemmPKfS0_Pf", "layer_norm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


class Answer(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910


class Kind(IntEnum):
    CU_GRAPH_NODE_TYPE_KERNEL = 0
    CU_GRAPH_NODE_TYPE_MEMCPY = 1
    CU_GRAPH_NODE_TYPE_GRAPH = 4
    CU_GRAPH_NODE_TYPE_CONDITIONAL = 13


class Attribute(IntEnum):
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
    CU_LAUNCH_ATTRIBUTE_PRIORITY = 8
    CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 14


class Value:
    """The driver's union: a number, seen as a priority, a carve-out, the sides of a cluster or bytes."""

    def __init__(self, pad: bytes = bytes(64)) -> None:
        self.pad = pad

    @property
    def priority(self) -> int:
        return int.from_bytes(self.pad[:4], "little", signed=True)

    @priority.setter
    def priority(self, value: int) -> None:
        self.pad = value.to_bytes(4, "little", signed=True) + bytes(60)

    def _carve(self, value: int) -> None:
        self.pad = value.to_bytes(4, "little") + bytes(60)

    sharedMemCarveout = property(fset=_carve)  # noqa: N815


@dataclass
class Node:
    """A node; `kernelParams` of its parameters is (node, edition), stale once the node was set again."""

    kind: Kind = Kind.CU_GRAPH_NODE_TYPE_KERNEL
    func: int = 0
    kern: int = 0
    smem_bytes: int = 0
    arguments: bytes = b""
    shape: tuple[int, ...] = (64, 1, 1, 256, 1, 1)
    attributes: dict[int, bytes] = field(default_factory=dict)
    graph: int = 0  # of a child-graph node
    edition: int = 0

    @property
    def contents(self) -> tuple[Any, ...]:
        return (self.func, self.kern, self.smem_bytes, self.arguments, self.shape, dict(self.attributes))


@dataclass
class Func:
    name: str
    static_bytes: int = 0
    limit_bytes: int = 49_152
    carve_out: int = -1


class FakeDriver:
    """What the rewriter needs of `cuda.bindings.driver`; it refuses pads above a limit and fails on stale arrays."""

    CUkernelNodeAttrID = Attribute
    CUkernelNodeAttrValue = Value
    CUgraphNodeType = Kind
    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES=1,
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT=9,
    )
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=97, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=16
    )
    CUlaunchAttributeID = Attribute
    CUlaunchAttribute = CUlaunchConfig = SimpleNamespace

    @staticmethod
    def CUlaunchAttributeValue() -> Any:  # noqa: N802
        return SimpleNamespace(clusterDim=SimpleNamespace())

    def __init__(self) -> None:
        self.functions: dict[int, Func] = {}
        self.kernels: dict[int, int] = {}  # CUkernel: CUfunction
        self.nodes: dict[int, Node] = {}
        self.graphs: dict[int, list[int]] = {}
        self.executables: dict[int, dict[int, tuple[Any, ...]]] = {}
        self.priorities = (0, GREATEST)
        self.refuse: Callable[[str, tuple[Any, ...]], bool] = lambda call, arguments: False
        self._handles = count(0x1000)
        self.calls: list[str] = []

    # --- building -------------------------------------------------------------------------------

    def function(self, name: str, *, static_bytes: int = 0) -> int:
        handle = next(self._handles)
        self.functions[handle] = Func(name, static_bytes, 49_152 - static_bytes)
        return handle

    def kernel(self, name: str) -> int:
        handle = next(self._handles)
        self.kernels[handle] = self.function(name)
        return handle

    def add(self, graph: int, node: Node) -> int:
        handle = next(self._handles)
        self.nodes[handle] = node
        self.graphs[graph].append(handle)
        return handle

    def graph(self) -> int:
        handle = next(self._handles)
        self.graphs[handle] = []
        return handle

    def inside(self, graph: int) -> Iterator[int]:
        for handle in self.graphs[graph]:
            yield handle
            if self.nodes[handle].kind == Kind.CU_GRAPH_NODE_TYPE_GRAPH:
                yield from self.inside(self.nodes[handle].graph)

    def instantiate(self, graph: int) -> int:
        handle = next(self._handles)
        self.executables[handle] = {node: self.nodes[node].contents for node in self.inside(graph)}
        return handle

    def everything(self) -> Any:
        nodes = {handle: node.contents for handle, node in self.nodes.items()}
        return deepcopy((nodes, self.functions, self.executables))

    # --- calls ----------------------------------------------------------------------------------

    def _refused(self, call: str, *arguments: Any) -> bool:
        self.calls.append(call)
        return self.refuse(call, arguments)

    def cuGraphGetNodes(self, graph: int, most: int = 0) -> Any:  # noqa: N802
        found = self.graphs[graph]
        return (Answer(0), found[:most], len(found)) if most else (Answer(0), [], len(found))

    def cuGraphNodeGetType(self, node: int) -> Any:  # noqa: N802
        return Answer(0), self.nodes[node].kind

    def cuGraphChildGraphNodeGetGraph(self, node: int) -> Any:  # noqa: N802
        return Answer(0), self.nodes[node].graph

    def cuGraphKernelNodeGetParams(self, handle: int) -> Any:  # noqa: N802
        node = self.nodes[handle]
        shape = dict(zip(("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ"), node.shape))  # noqa: B905
        return Answer(0), SimpleNamespace(
            func=node.func,
            kern=node.kern,
            ctx=0,
            sharedMemBytes=node.smem_bytes,
            kernelParams=(handle, node.edition),
            extra=0,
            **shape,
        )

    def _checked(self, params: Any) -> bytes | None:
        """The arguments, or None when the driver would refuse."""
        owner, edition = params.kernelParams
        assert self.nodes[owner].edition == edition, "an array was used after its node was set"
        func = params.func or self.kernels[params.kern]
        if params.sharedMemBytes > self.functions[func].limit_bytes:
            return None
        return self.nodes[owner].arguments

    def cuGraphKernelNodeSetParams(self, handle: int, params: Any) -> Any:  # noqa: N802
        arguments, node = self._checked(params), self.nodes[handle]
        if arguments is None or self._refused("cuGraphKernelNodeSetParams", handle, params.sharedMemBytes):
            return (Answer.CUDA_ERROR_INVALID_VALUE,)
        node.smem_bytes, node.arguments, node.edition = params.sharedMemBytes, arguments, node.edition + 1
        return (Answer(0),)

    def cuGraphExecKernelNodeSetParams(self, executable: int, handle: int, params: Any) -> Any:  # noqa: N802
        arguments = self._checked(params)
        if arguments is None or self._refused("cuGraphExecKernelNodeSetParams", handle, params.sharedMemBytes):
            return (Answer.CUDA_ERROR_INVALID_VALUE,)
        func, kern, _, _, shape, attributes = self.executables[executable][handle]
        self.executables[executable][handle] = (func, kern, params.sharedMemBytes, arguments, shape, attributes)
        return (Answer(0),)

    def cuGraphExecChildGraphNodeSetParams(self, executable: int, handle: int, graph: int) -> Any:  # noqa: N802
        held = self.executables[executable]
        inside = {node: self.nodes[node].contents for node in self.inside(graph)}
        same = all(held[node][-1] == contents[-1] for node, contents in inside.items())
        if not same or self._refused("cuGraphExecChildGraphNodeSetParams", handle):
            return (Answer.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,)
        held.update(inside)
        return (Answer(0),)

    def cuGraphKernelNodeGetAttribute(self, handle: int, attribute: Attribute) -> Any:  # noqa: N802
        if attribute == Attribute.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
            return Answer.CUDA_ERROR_INVALID_VALUE, None  # documented as valid for launches only
        carve = attribute == Attribute.CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        unset = NO_PREFERENCE if carve else bytes(64)
        return Answer(0), Value(self.nodes[handle].attributes.get(attribute, unset))

    def cuGraphKernelNodeSetAttribute(self, handle: int, attribute: Attribute, value: Value) -> Any:  # noqa: N802
        if self._refused("cuGraphKernelNodeSetAttribute", handle, value.priority):
            return (Answer.CUDA_ERROR_INVALID_VALUE,)
        self.nodes[handle].attributes[attribute] = value.pad
        if attribute == Attribute.CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT and value.pad == NO_PREFERENCE:
            del self.nodes[handle].attributes[attribute]  # as if it had never been set
        return (Answer(0),)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, func: int, threads: int, smem_bytes: int) -> Any:  # noqa: N802
        assert smem_bytes <= self.functions[func].limit_bytes, "the driver answers for launches that it would take"
        return Answer(0), min(SM_BYTES // (smem_bytes + self.functions[func].static_bytes + 1024), 8)

    def cuOccupancyMaxActiveClusters(self, func: int, config: Any) -> Any:  # noqa: N802
        sides = config.attrs[0].value.clusterDim
        _, blocks = self.cuOccupancyMaxActiveBlocksPerMultiprocessor(func, config.blockDimX, config.sharedMemBytes)
        return Answer(0), blocks * SMS_TO_SPARE // (sides.x * sides.y * sides.z)

    def cuFuncGetName(self, func: int) -> Any:  # noqa: N802
        self.calls.append("cuFuncGetName")
        return Answer(0), self.functions[func].name.encode()

    def cuKernelGetName(self, kern: int) -> Any:  # noqa: N802
        return self.cuFuncGetName(self.kernels[kern])

    def cuKernelGetFunction(self, kern: int) -> Any:  # noqa: N802
        return Answer(0), self.kernels[kern]

    def cuCtxGetCurrent(self) -> Any:  # noqa: N802
        return Answer(0), 0xC0

    def cuCtxGetDevice(self) -> Any:  # noqa: N802
        return Answer(0), 0

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> Any:  # noqa: N802
        return Answer(0), SMS if attribute == 16 else OPTIN_BYTES

    def cuFuncGetAttribute(self, attribute: int, func: int) -> Any:  # noqa: N802
        found = self.functions[func]
        return Answer(0), {8: found.limit_bytes, 1: found.static_bytes, 9: found.carve_out}[attribute]

    def cuFuncSetAttribute(self, func: int, attribute: int, value: int) -> Any:  # noqa: N802
        found = self.functions[func]
        if value + found.static_bytes > OPTIN_BYTES or self._refused("cuFuncSetAttribute", func, value):
            return (Answer.CUDA_ERROR_INVALID_VALUE,)
        found.limit_bytes = value
        return (Answer(0),)

    def cuCtxGetStreamPriorityRange(self) -> Any:  # noqa: N802
        return Answer(0), *self.priorities


# --- graphs of all kinds ------------------------------------------------------------------------

NAMES = (GEMM, NORM, REDUCE, "_ZN7deep_ep9intranode8dispatchILi8EEEvv")
COMM = frozenset(NAMES[2:])


@dataclass(frozen=True)
class Sketch:
    """A node to be made: a kernel by name, a copy (None) or a child graph."""

    name: str | None
    library: bool  # through a CUkernel
    smem_bytes: int
    priority: int
    cooperative: bool
    cluster: int
    child: tuple[Sketch, ...] | None = None


leaves = st.builds(
    Sketch,
    name=st.sampled_from([*NAMES, None]),
    library=st.booleans(),
    smem_bytes=st.integers(0, 49_152),
    priority=st.integers(-5, 0),
    cooperative=st.sampled_from([False, False, False, True]),
    cluster=st.sampled_from([1, 1, 2, 8, 16]),
)
sketches = st.recursive(
    leaves,
    lambda inner: st.builds(
        lambda child: Sketch(None, False, 0, 0, False, 1, tuple(child)), st.lists(inner, min_size=1, max_size=4)
    ),
    max_leaves=8,
)
graphs = st.lists(sketches, max_size=8)
pads = st.integers(1, 300_000)
plans = st.builds(
    lambda pad, pattern, priority: Plan(
        controls=((SmemPad(pad, pattern),) if pattern else ()) + ((CommPriority(),) if priority else ())
    ),
    pads,
    st.sampled_from(["*", "*gemm*", "layer_*", "nccl*", None]),
    st.booleans(),
)


def built(sketch: list[Sketch]) -> tuple[FakeDriver, int]:
    driver = FakeDriver()
    handles = {(name, library): driver.kernel(name) if library else driver.function(name)
               for name in NAMES for library in (False, True)}  # fmt: skip

    def fill(graph: int, inner: tuple[Sketch, ...]) -> int:
        for number, each in enumerate(inner):
            if each.child is not None:
                kind = Kind.CU_GRAPH_NODE_TYPE_GRAPH
                driver.add(graph, Node(kind=kind, graph=fill(driver.graph(), each.child)))
            elif each.name is None:
                driver.add(graph, Node(kind=Kind.CU_GRAPH_NODE_TYPE_MEMCPY))
            else:
                handle = handles[each.name, each.library]
                driver.add(graph, kernel_node(handle, each, arguments=number.to_bytes(4, "little")))
        return graph

    return driver, fill(driver.graph(), tuple(sketch))


def kernel_node(handle: int, sketch: Sketch, *, arguments: bytes) -> Node:
    word = Value()
    word.priority = sketch.priority
    return Node(
        func=0 if sketch.library else handle,
        kern=handle if sketch.library else 0,
        smem_bytes=sketch.smem_bytes,
        arguments=arguments,
        attributes={
            Attribute.CU_LAUNCH_ATTRIBUTE_PRIORITY: word.pad,
            Attribute.CU_LAUNCH_ATTRIBUTE_COOPERATIVE: bytes([sketch.cooperative]) + bytes(63),
            Attribute.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: b"".join(
                size.to_bytes(4, "little") for size in (sketch.cluster, 1, 1)
            )
            + bytes(52),
        },
    )


def graph_of(*nodes: Node, driver: FakeDriver) -> int:
    graph = driver.graph()
    for node in nodes:
        driver.add(graph, node)
    return graph


def state(driver: FakeDriver, receipt: NodeChange) -> tuple[int, int]:
    node = driver.nodes[receipt.handle]
    return node.smem_bytes, Value(node.attributes.get(Attribute.CU_LAUNCH_ATTRIBUTE_PRIORITY, bytes(64))).priority


def check_truth(driver: FakeDriver, receipt: GraphChanges, before: Any) -> None:
    """Receipts say what the driver holds, and no node is anything but what was asked or what it was."""
    nodes, _, _ = before
    for node in receipt.nodes:
        smem_bytes, priority = state(driver, node)
        assert node.after.smem_bytes == smem_bytes
        assert node.after.priority in (None, priority)
        func, kern, _, arguments, shape, attributes = nodes[node.handle]
        now = driver.nodes[node.handle]
        assert (now.func, now.kern, now.arguments, now.shape) == (func, kern, arguments, shape)
        others = attributes.keys() - {Attribute.CU_LAUNCH_ATTRIBUTE_PRIORITY}
        assert all(now.attributes[which] == attributes[which] for which in others)
        carved = Attribute.CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT in now.attributes
        assert carved == (node.after.carve_out == 100)
        assert not carved or node.after.smem_bytes > node.before.smem_bytes
        if node.status != "applied":
            assert now.contents == nodes[node.handle]
        assert node.status in ("applied", "untouched") or node.detail


# --- laws ---------------------------------------------------------------------------------------


@given(graphs, plans)
def test_only_what_the_plan_names_changes_and_comm_is_never_padded(sketch: list[Sketch], plan: Plan) -> None:
    driver, graph = built(sketch)
    before = driver.everything()
    receipt = shape_graph(graph, plan, driver=driver)
    check_truth(driver, receipt, before)
    pad = next((control for control in plan.controls if isinstance(control, SmemPad)), None)
    for node in receipt.nodes:
        assert node.comm == (node.kernel in COMM)
        added = node.after.smem_bytes - node.before.smem_bytes
        padded = pad and node.receipt and node.receipt.control == pad and node.status == "applied"
        assert added == (pad.pad_bytes if pad and padded else 0)
        if node.comm:
            assert added == 0
            assert state(driver, node)[1] == (
                GREATEST if CommPriority() in plan.controls else node_priority(before, node)
            )
        else:
            assert state(driver, node)[1] == node_priority(before, node)
    assert len(receipt.nodes) == sum(driver.nodes[node].kind == 0 for node in driver.inside(graph))


def node_priority(before: Any, node: NodeChange) -> int:
    return Value(before[0][node.handle][-1][Attribute.CU_LAUNCH_ATTRIBUTE_PRIORITY]).priority


def gemm_node(driver: FakeDriver, **more: Any) -> tuple[int, int]:
    func = driver.function(GEMM)
    return graph_of(Node(func=func, **more), driver=driver), func


def test_a_cluster_that_the_pad_leaves_no_room_for_is_refused() -> None:
    driver = FakeDriver()
    sides = b"".join(size.to_bytes(4, "little") for size in (8, 1, 1)) + bytes(52)
    graph, _ = gemm_node(driver, attributes={Attribute.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: sides})
    for pad_bytes, status in ((40_000, "applied"), (150_000, "refused")):
        (node,) = shape_graph(graph, Plan(controls=(SmemPad(pad_bytes, "*gemm*"),)), driver=driver).nodes
        assert node.status == status, node.detail
        if status == "refused":
            assert "no whole cluster of 8 blocks" in node.detail


def test_a_grid_that_was_sized_without_the_pad_is_left_alone() -> None:
    driver = FakeDriver()
    graph, _ = gemm_node(driver, shape=(8 * SMS, 1, 1, 256, 1, 1))
    (node,) = shape_graph(graph, Plan(controls=(SmemPad(40_000, "*gemm*"),)), driver=driver).nodes
    assert node.status == "refused"
    assert "fits on the device at once" in node.detail


def test_a_preference_of_the_programs_own_is_kept() -> None:
    driver = FakeDriver()
    graph, func = gemm_node(driver)
    driver.functions[func].carve_out = 50
    (node,) = shape_graph(graph, Plan(controls=(SmemPad(40_000, "*gemm*"),)), driver=driver).nodes
    assert (node.status, node.after.carve_out) == ("applied", -1)


@given(graphs, plans, st.booleans())
def test_undo_restores_the_original(sketch: list[Sketch], plan: Plan, instantiated: bool) -> None:
    driver, graph = built(sketch)
    executable = driver.instantiate(graph) if instantiated else None
    before = driver.everything()
    receipt = shape_graph(graph, plan, executable=executable, driver=driver)
    back = undo(receipt, lower_limits=True, driver=driver)
    assert driver.everything() == before
    assert {node.status for node in back.nodes} <= {"applied"}
    assert len(back.nodes) == sum(node.before != node.after for node in receipt.nodes)


@given(graphs, plans, st.randoms(use_true_random=False), st.booleans())
def test_whatever_the_driver_refuses_a_node_is_changed_whole_or_not_at_all(
    sketch: list[Sketch], plan: Plan, chance: Any, instantiated: bool
) -> None:
    driver, graph = built(sketch)
    executable = driver.instantiate(graph) if instantiated else None
    before = driver.everything()

    def refuse(call: str, arguments: tuple[Any, ...]) -> bool:
        held = before[0].get(arguments[0])
        returning = held is not None and held[2] == arguments[-1]  # what a node was is always valid
        return call.endswith("SetParams") and not returning and chance.random() < 0.5

    driver.refuse = refuse
    check_truth(driver, receipt := shape_graph(graph, plan, executable=executable, driver=driver), before)
    if executable is not None:
        for node in receipt.nodes:
            assert driver.executables[executable][node.handle][2] == node.after.smem_bytes


@given(graphs, plans)
def test_an_instantiated_graph_gets_the_pads_and_keeps_its_priorities(sketch: list[Sketch], plan: Plan) -> None:
    driver, graph = built(sketch)
    executable = driver.instantiate(graph)
    receipt = shape_graph(graph, plan, executable=executable, driver=driver)
    for node in receipt.nodes:
        assert driver.executables[executable][node.handle] == driver.nodes[node.handle].contents
        if node.receipt and isinstance(node.receipt.control, CommPriority):
            assert node.status == "refused"
            assert "before it is instantiated" in node.detail


@example(  # the larger of two is refused, since its clusters would not fit
    [Sketch(NAMES[0], False, 0, 0, False, 1), Sketch(NAMES[0], False, 34_078, 0, False, 8)],
    Plan(controls=(SmemPad(81_635),)),
)
@given(graphs, plans)
def test_a_limit_stays_raised_only_for_nodes_that_need_it(sketch: list[Sketch], plan: Plan) -> None:
    driver, graph = built(sketch)
    before = {handle: function.limit_bytes for handle, function in driver.functions.items()}
    receipt = shape_graph(graph, plan, driver=driver)
    needed: dict[int, int] = {}
    for node in receipt.nodes:
        if node.status == "applied" and not node.comm:
            func, kern = node.after.function
            func = func or driver.kernels[kern]
            needed[func] = max(needed.get(func, 0), node.after.smem_bytes)
    for handle, function in driver.functions.items():
        assert function.limit_bytes == max(before[handle], needed.get(handle, 0))
    raised = {limit.function: limit.after_bytes for limit in receipt.limits}
    assert raised == {handle: most for handle, most in needed.items() if most > before[handle]}
