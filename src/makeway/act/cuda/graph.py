"""A plan applied to a CUDA graph: compute nodes padded, comm nodes raised in priority. Not yet run on hardware.

Public driver calls only, and the graph's topology stays as it is. Every node is read before and after. A change that
the driver refuses, or carries out differently, is undone: the node is then as the program made it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from makeway.act.cuda.graph_functions import Functions, LimitChange, lowered
from makeway.act.cuda.graph_nodes import (
    MOST_SHARED,
    NO_CARVE_OUT,
    GraphDriver,
    GraphNodes,
    KernelNode,
    NodeState,
    load_driver,
)
from makeway.values.control import CommPriority, Control, SmemPad
from makeway.values.errors import InputError, UnsupportedError
from makeway.values.plan import Plan
from makeway.values.receipt import Receipt, Status
from makeway.values.support import support

CARRIER = "CUDA graph"  # in the support table
KEPT_PRIORITY = (
    "an instantiated graph keeps its priorities, as cuGraphExecUpdate documents; shape the graph before it is "
    "instantiated"
)
USE_NODE_PRIORITY = (
    "priorities count in graphs instantiated with CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY, as torch does on CUDA"
)
PORTABLE_CLUSTER = 8  # blocks; CUDA C++ Programming Guide, thread block clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """One kernel node before and after, as read back from the driver."""

    path: tuple[int, ...]  # its number in the graph; inside child graphs, theirs come first
    kernel: str
    comm: bool
    before: NodeState
    after: NodeState
    receipt: Receipt | None  # None: the plan asks nothing of this node
    handle: int = field(repr=False)  # CUgraphNode

    @property
    def status(self) -> Status | Literal["untouched"]:
        return "untouched" if self.receipt is None else self.receipt.status

    @property
    def detail(self) -> str:
        return "" if self.receipt is None else self.receipt.detail


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphChanges:
    """Every kernel node of a graph, and the function limits that were raised for them."""

    nodes: tuple[NodeChange, ...]
    limits: tuple[LimitChange, ...]
    notes: tuple[str, ...]
    graph: int = field(repr=False)
    executable: int | None = field(repr=False)

    def counts(self) -> dict[str, int]:
        """Nodes by status."""
        return dict(Counter(node.status for node in self.nodes))


def shape_graph(graph: int, plan: Plan, *, executable: int | None = None, driver: Any = None) -> GraphChanges:
    """Apply the pads and the comm priority of a plan to a graph that is not running.

    The context of its kernels must be current. Without `executable`, instantiate the graph afterwards. With it, the
    graph and its executable are changed alike: pads only, since priorities are fixed by then. `driver` stands in for
    `cuda.bindings.driver`.
    """
    calls = GraphDriver(driver or load_driver())
    listed = calls.nodes(graph)
    functions = Functions(calls, plan)
    requests = [_request(calls, functions, node, instantiated=executable is not None) for node in listed.kernels]
    _carry_out(calls, listed, requests, executable)
    nodes = tuple(_node_change(calls, request) for request in requests)
    return GraphChanges(
        nodes=nodes,
        limits=functions.settle([node.after for node in nodes if node.status == "applied"]),
        notes=(*functions.notes(), *_notes(listed, nodes, plan)),
        graph=graph,
        executable=executable,
    )


def shape_torch_graph(cuda_graph: Any, plan: Plan, *, driver: Any = None) -> GraphChanges:
    """Apply a plan to a captured `torch.cuda.CUDAGraph(keep_graph=True)`, and instantiate it.

    A graph that is already instantiated is instantiated again, so that priorities take effect too.
    """
    try:
        graph = cuda_graph.raw_cuda_graph()
    except RuntimeError as error:
        raise InputError(
            f"cannot shape this CUDA graph: torch gave no handle ({str(error).splitlines()[0]}); "
            "capture into torch.cuda.CUDAGraph(keep_graph=True) and shape it after the capture"
        ) from None
    changes = shape_graph(int(graph), plan, driver=driver)
    cuda_graph.instantiate()
    return changes


def undo(changes: GraphChanges, *, lower_limits: bool = False, driver: Any = None) -> GraphChanges:
    """Restore every changed node, in the executable too where it was changed.

    The graph must still exist. A node that the program has set since then is left alone, and its receipt says so. A
    function's limit is only a permission, which another graph or executable may rely on by now: it is lowered only
    with `lower_limits`.
    """
    calls = GraphDriver(driver or load_driver())
    listed = calls.nodes(changes.graph)
    current = {int(node.handle): node for node in listed.kernels}
    requests = [_restoring(calls, current, node) for node in changes.nodes if node.before != node.after]
    _carry_out(calls, listed, requests, changes.executable)
    nodes = tuple(_node_change(calls, request) for request in requests)
    limits = tuple(lowered(calls, limit) for limit in changes.limits) if lower_limits else ()
    return GraphChanges(nodes=nodes, limits=limits, notes=(), graph=changes.graph, executable=changes.executable)


def control_receipts(changes: GraphChanges, plan: Plan) -> tuple[Receipt, ...]:
    """One receipt for each control of the plan that a graph can carry: applied when every node took it."""
    return tuple(
        _control_receipt(control, [node for node in changes.nodes if node.receipt and node.receipt.control == control])
        for control in plan.controls
        if support(control, CARRIER).supported
    )


def _control_receipt(control: Control, nodes: Sequence[NodeChange]) -> Receipt:
    applied = sum(node.status == "applied" for node in nodes)
    evidence = (("nodes matched", len(nodes)), ("nodes changed", applied))
    status: Status = "applied"
    detail = f"{applied:,} of {len(nodes):,} nodes"
    if not nodes:
        status, detail = "no effect", "the graph has no such kernel"
    elif applied < len(nodes):
        first = next(node for node in nodes if node.status != "applied")
        status, detail = (
            "refused" if first.status == "refused" else "no effect",
            f"{detail}; {first.kernel}: {first.detail}",
        )
    return Receipt(control=control, status=status, detail=detail, carrier=CARRIER, evidence=evidence)


# --- the change wanted of a node ------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Request:
    node: KernelNode
    kernel: str
    comm: bool
    control: Control | None
    before: NodeState
    wanted: NodeState
    params: Any  # read with `before`
    refusal: str | None = None
    note: str = ""


def _request(calls: GraphDriver, functions: Functions, node: KernelNode, *, instantiated: bool) -> _Request:
    params = calls.params(node.handle)
    function = functions.of(params)
    before = calls.state(node.handle, params, attributes=function.control is not None)
    request = _Request(
        node=node,
        kernel=function.name,
        comm=function.comm,
        control=function.control,
        before=before,
        wanted=before,
        params=params,
    )
    try:
        match function.control:
            case SmemPad(pad_bytes):
                if reason := _fragile(before):
                    raise UnsupportedError(reason)
                request.wanted = replace(before, smem_bytes=before.smem_bytes + pad_bytes)
                functions.permit(function, params, request.wanted.smem_bytes)
                functions.stands(function, params, before, request.wanted.smem_bytes)
                free = before.carve_out == NO_CARVE_OUT and not instantiated
                if free and functions.may_carve(function, params):
                    request.wanted = replace(request.wanted, carve_out=MOST_SHARED)
            case CommPriority():
                if instantiated:
                    raise UnsupportedError(KEPT_PRIORITY)
                if before.priority is None:
                    raise UnsupportedError("this driver does not report the priority of a node")
                request.wanted = replace(before, priority=functions.greatest_priority())
    except UnsupportedError as error:
        request.refusal = str(error)
    return request


def _fragile(node: NodeState) -> str | None:
    """Why a node is not padded: its blocks must be resident together, and might not fit.

    A launch that does not fit fails and, inside a replay, cannot be repeated without its pad.
    """
    if not any(node.attributes or b""):
        return None
    if node.cooperative:
        return "a cooperative launch must have all its blocks resident; a pad could keep it from running"
    if node.cluster > PORTABLE_CLUSTER:
        return (
            f"in clusters of {node.cluster} blocks, more than {PORTABLE_CLUSTER}, which not every device places at once"
        )
    return None


def _restoring(calls: GraphDriver, current: dict[int, KernelNode], change: NodeChange) -> _Request:
    node = current.get(change.handle)
    if node is None:
        raise InputError(f"cannot undo: node {change.path} ({change.kernel}) is no longer in the graph")
    params = calls.params(node.handle)
    before = calls.state(node.handle, params, attributes=True)
    same = before == change.after
    return _Request(
        node=node,
        kernel=change.kernel,
        comm=change.comm,
        control=change.receipt.control if change.receipt else None,
        before=before,
        wanted=change.before if same else before,
        params=params,
        refusal=None if same else "the program has set the node since, so it is left alone",
    )


# --- carrying it out ----------------------------------------------------------------------------


def _carry_out(calls: GraphDriver, listed: GraphNodes, requests: Sequence[_Request], executable: int | None) -> None:
    """Set every node, first in the graph, then in its executable."""
    open_requests = [request for request in requests if request.refusal is None and request.wanted != request.before]
    for request in open_requests:
        try:
            _set(calls, request, request.wanted, request.params)
        except UnsupportedError as error:
            _give_up(calls, request, str(error))
    if executable is not None:
        _carry_out_instantiated(
            calls, listed, [request for request in open_requests if request.refusal is None], executable
        )


def _carry_out_instantiated(
    calls: GraphDriver, listed: GraphNodes, requests: Sequence[_Request], executable: int
) -> None:
    inside: dict[int, list[_Request]] = {}
    for request in requests:
        if _verified(calls, request) != request.wanted:
            continue
        request.note = "; the driver accepted it in the executable too, which cannot be read back"
        if request.node.child is not None:
            inside.setdefault(request.node.child, []).append(request)
            continue
        try:
            calls.set_executable_node(executable, request.node.handle, calls.params(request.node.handle))
        except UnsupportedError as error:
            _give_up(calls, request, str(error))
    for child, within in inside.items():  # a child graph is updated as a whole
        try:
            calls.set_executable_child(executable, *listed.children[child])
        except UnsupportedError as error:
            for request in within:
                _give_up(calls, request, str(error))


def _verified(calls: GraphDriver, request: _Request) -> NodeState:
    """The node as it is now; restored first when it is neither as requested nor as before."""
    after = _read(calls, request)
    if request.refusal is None and after not in (request.wanted, request.before):
        _give_up(calls, request, f"the driver changed something else ({_changed_fields(request.wanted, after)})")
        after = _read(calls, request)
    return after


def _read(calls: GraphDriver, request: _Request) -> NodeState:
    node = request.node.handle
    return calls.state(node, calls.params(node), attributes=request.before.attributes is not None)


def _set(calls: GraphDriver, request: _Request, to: NodeState, params: Any) -> None:
    node = request.node.handle
    if to.smem_bytes != params.sharedMemBytes:
        calls.set_smem(node, params, to.smem_bytes)
    if to.priority is not None and to.priority != request.before.priority:
        calls.set_priority(node, to.priority)
    if to.carve_out is not None and to.carve_out != request.before.carve_out:
        try:
            calls.set_carve_out(node, to.carve_out)
        except UnsupportedError as error:  # the pad stands without it
            request.wanted = replace(request.wanted, carve_out=request.before.carve_out)
            request.note = f"; no carve-out: {error}"


def _give_up(calls: GraphDriver, request: _Request, reason: str) -> None:
    """Note the refusal and restore the node."""
    request.refusal = reason
    node, before = request.node.handle, request.before
    params = calls.params(node)
    try:
        if params.sharedMemBytes != before.smem_bytes:
            calls.set_smem(node, params, before.smem_bytes)
        if request.wanted.priority != before.priority and before.priority is not None:
            calls.set_priority(node, before.priority)
        if request.wanted.carve_out != before.carve_out and before.carve_out is not None:
            calls.set_carve_out(node, before.carve_out)
    except UnsupportedError as error:
        request.refusal = f"{reason}; it could not be restored: {error}"


def _node_change(calls: GraphDriver, request: _Request) -> NodeChange:
    after = _verified(calls, request)
    return NodeChange(
        path=request.node.path,
        kernel=request.kernel,
        comm=request.comm,
        before=request.before,
        after=after,
        receipt=None if request.control is None else _receipt(request.control, request, after),
        handle=int(request.node.handle),
    )


def _receipt(control: Control, request: _Request, after: NodeState) -> Receipt:
    status: Status = "applied"
    detail = f"{_difference(request.before, after)}{request.note}"
    if request.refusal is not None:
        status, detail = "refused", request.refusal
    elif after != request.wanted:
        status, detail = "no effect", "the driver accepted the change and the node is as before"
    return Receipt(control=control, status=status, detail=detail, carrier=CARRIER)


def _difference(before: NodeState, after: NodeState) -> str:
    parts = []
    if before.smem_bytes != after.smem_bytes:
        parts.append(f"{before.smem_bytes:,} to {after.smem_bytes:,} bytes of dynamic shared memory")
    if before.priority != after.priority:
        parts.append(f"priority {before.priority} to {after.priority}")
    if before.carve_out != after.carve_out:
        parts.append("the largest shared memory preferred" if after.carve_out == MOST_SHARED else "its carve-out back")
    return ", ".join(parts) or f"already at priority {after.priority}"


def _changed_fields(before: NodeState, after: NodeState) -> str:
    names = ("smem_bytes", "priority", "carve_out", "shape", "function", "attributes")
    return ", ".join(name for name in names if getattr(before, name) != getattr(after, name))


def _notes(listed: GraphNodes, nodes: Sequence[NodeChange], plan: Plan) -> tuple[str, ...]:
    notes = [
        f"{node.kernel} {node.path} changed meanwhile: {_changed_fields(node.before, node.after)}"
        for node in nodes
        if node.receipt is None and node.before != node.after
    ]
    if listed.conditionals:
        notes.append(f"{listed.conditionals:,} conditional nodes were not inspected")
    if CommPriority() in plan.controls:
        notes.append(USE_NODE_PRIORITY)
    return tuple(notes)
