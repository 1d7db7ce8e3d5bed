"""A plan applied to a CUDA graph: compute nodes padded, comm nodes raised in priority. Not yet run on hardware.

Public driver calls only, and the graph's topology stays as it is. Every node is read before and after. A change that
the driver refuses, or answers with something else than was asked, is taken back: the node then is what the program made
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from makeway.act.backend import Receipt
from makeway.act.cuda.graph_functions import Functions, LimitReceipt, lowered
from makeway.act.cuda.graph_nodes import GraphDriver, GraphNodes, KernelNode, NodeState, load_driver
from makeway.values.control import CommPriority, Control, Plan, SmemPad
from makeway.values.errors import InputError, UnsupportedError

NodeStatus = Literal["applied", "refused", "no effect", "untouched"]

KEPT_PRIORITY = (
    "an instantiated graph keeps the priorities it was made with, as cuGraphExecUpdate documents; shape the graph "
    "before it is instantiated"
)
USE_NODE_PRIORITY = (
    "priorities count in graphs instantiated with CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY, as torch does on CUDA"
)
PORTABLE_CLUSTER = 8  # blocks; CUDA C++ Programming Guide, thread block clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReceipt:
    """What became of one kernel node, as read back from the driver."""

    path: tuple[int, ...]  # its number in the graph; inside child graphs, theirs come first
    kernel: str
    comm: bool
    before: NodeState
    after: NodeState
    status: NodeStatus
    detail: str
    control: Control | None  # what asked for a change
    handle: int = field(repr=False)  # CUgraphNode


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReceipt:
    """What became of every kernel node of a graph, and of the limits of their functions."""

    nodes: tuple[NodeReceipt, ...]
    limits: tuple[LimitReceipt, ...]
    notes: tuple[str, ...]
    graph: int = field(repr=False)
    executable: int | None = field(repr=False)

    def counts(self) -> dict[NodeStatus, int]:
        """Nodes by status."""
        return dict(Counter(node.status for node in self.nodes))


def shape_graph(graph: int, plan: Plan, *, executable: int | None = None, driver: Any = None) -> GraphReceipt:
    """Apply the pads and the comm priority of a plan to a graph that is not running.

    The context of its kernels must be current. Without `executable`, instantiate the graph afterwards. With it, the
    graph and what was instantiated from it are changed alike: pads only, since priorities are fixed by then. `driver`
    stands in for `cuda.bindings.driver`.
    """
    calls = GraphDriver(driver or load_driver())
    found = calls.nodes(graph)
    functions = Functions(calls, plan)
    changes = [_change(calls, functions, node, instantiated=executable is not None) for node in found.kernels]
    _carry_out(calls, found, changes, executable)
    nodes = tuple(_receipt(calls, change) for change in changes)
    return GraphReceipt(
        nodes=nodes,
        limits=functions.settle({node.after.function for node in nodes if node.status == "applied"}),
        notes=(*functions.notes(), *_notes(found, plan)),
        graph=graph,
        executable=executable,
    )


def shape_torch_graph(cuda_graph: Any, plan: Plan, *, driver: Any = None) -> GraphReceipt:
    """Apply a plan to a captured `torch.cuda.CUDAGraph(keep_graph=True)`, and instantiate it.

    A graph that was instantiated before is instantiated anew, so that priorities count too.
    """
    try:
        graph = cuda_graph.raw_cuda_graph()
    except RuntimeError as error:
        raise InputError(
            f"cannot shape this CUDA graph: torch gave no handle ({str(error).splitlines()[0]}); "
            "capture into torch.cuda.CUDAGraph(keep_graph=True) and shape it after the capture"
        ) from None
    receipt = shape_graph(int(graph), plan, driver=driver)
    cuda_graph.instantiate()
    return receipt


def undo(receipt: GraphReceipt, *, lower_limits: bool = False, driver: Any = None) -> GraphReceipt:
    """Put every changed node back, in the executable too where that was changed; the receipt of that.

    The graph must still exist. A node that was set again since is left alone and says so. A function's limit is only a
    permission, and others may rely on it by now: an instantiated copy of the padded graph, another graph. It is put
    back with `lower_limits`.
    """
    calls = GraphDriver(driver or load_driver())
    found = calls.nodes(receipt.graph)
    now = {int(node.handle): node for node in found.kernels}
    changes = [_back(calls, now, node) for node in receipt.nodes if node.before != node.after]
    _carry_out(calls, found, changes, receipt.executable)
    nodes = tuple(_receipt(calls, change) for change in changes)
    limits = tuple(lowered(calls, limit) for limit in receipt.limits) if lower_limits else ()
    return GraphReceipt(nodes=nodes, limits=limits, notes=(), graph=receipt.graph, executable=receipt.executable)


def control_receipts(receipt: GraphReceipt, plan: Plan) -> tuple[Receipt, ...]:
    """One receipt for each control of the plan that a graph can carry: applied when every node took it."""
    return tuple(
        _control_receipt(control, [node for node in receipt.nodes if node.control == control])
        for control in plan.controls
        if isinstance(control, SmemPad | CommPriority)
    )


def _control_receipt(control: Control, nodes: Sequence[NodeReceipt]) -> Receipt:
    if not nodes:
        return Receipt(control=control, status="no effect", detail="the graph has no such kernel")
    applied = sum(node.status == "applied" for node in nodes)
    detail = f"{applied:,} of {len(nodes):,} nodes"
    if applied == len(nodes):
        return Receipt(control=control, status="applied", detail=detail)
    first = next(node for node in nodes if node.status != "applied")
    status: Literal["refused", "no effect"] = "refused" if first.status == "refused" else "no effect"
    return Receipt(control=control, status=status, detail=f"{detail}; {first.kernel}: {first.detail}")


# --- what is asked of a node --------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Change:
    node: KernelNode
    kernel: str
    comm: bool
    control: Control | None
    before: NodeState
    wanted: NodeState
    params: Any  # read when `before` was; None once the node was set
    refusal: str | None = None
    note: str = ""


def _change(calls: GraphDriver, functions: Functions, node: KernelNode, *, instantiated: bool) -> _Change:
    params = calls.params(node.handle)
    function = functions.of(params)
    before = calls.state(node.handle, params, attributes=function.control is not None)
    change = _Change(
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
                change.wanted = replace(before, smem_bytes=before.smem_bytes + pad_bytes)
                functions.permit(function, params, change.wanted.smem_bytes)
            case CommPriority():
                if instantiated:
                    raise UnsupportedError(KEPT_PRIORITY)
                if before.priority is None:
                    raise UnsupportedError("this driver does not tell the priority of a node")
                change.wanted = replace(before, priority=functions.greatest_priority())
    except UnsupportedError as error:
        change.refusal = str(error)
    return change


def _fragile(node: NodeState) -> str | None:
    """Why a node is not padded: it needs blocks resident together, and might not fit.

    A launch that does not fit fails, and unlike a launch, a node of a replay cannot be repeated without its pad.
    """
    if not any(node.attributes or b""):
        return None
    if node.cooperative:
        return "a cooperative launch must have all its blocks resident; a pad could keep it from running"
    if node.cluster > PORTABLE_CLUSTER:
        return f"a cluster of {node.cluster} blocks (over {PORTABLE_CLUSTER}) may find no room when padded"
    return None


def _back(calls: GraphDriver, now: dict[int, KernelNode], done: NodeReceipt) -> _Change:
    node = now.get(done.handle)
    if node is None:
        raise InputError(f"cannot undo: node {done.path} ({done.kernel}) is no longer in the graph")
    params = calls.params(node.handle)
    before = calls.state(node.handle, params, attributes=True)
    same = before == done.after
    return _Change(
        node=node,
        kernel=done.kernel,
        comm=done.comm,
        control=done.control,
        before=before,
        wanted=done.before if same else before,
        params=params,
        refusal=None if same else "the node was set again since, so it is left alone",
    )


# --- doing it -----------------------------------------------------------------------------------


def _carry_out(calls: GraphDriver, found: GraphNodes, changes: Sequence[_Change], executable: int | None) -> None:
    """Set what is to be set, first in the graph, then in what was instantiated from it."""
    asked = [change for change in changes if change.refusal is None and change.wanted != change.before]
    for change in asked:
        try:
            _set(calls, change, change.wanted, change.params)
        except UnsupportedError as error:
            _give_up(calls, change, str(error))
    if executable is not None:
        _carry_out_instantiated(calls, found, [change for change in asked if change.refusal is None], executable)


def _carry_out_instantiated(calls: GraphDriver, found: GraphNodes, changes: Sequence[_Change], executable: int) -> None:
    inside: dict[int, list[_Change]] = {}
    for change in changes:
        if _verified(calls, change) != change.wanted:
            continue
        change.note = "; in the instantiated graph too, as the driver accepted it (it cannot be read back)"
        if change.node.child is not None:
            inside.setdefault(change.node.child, []).append(change)
            continue
        try:
            calls.set_executable_node(executable, change.node.handle, calls.params(change.node.handle))
        except UnsupportedError as error:
            _give_up(calls, change, str(error))
    for child, within in inside.items():  # a child graph is updated as a whole
        try:
            calls.set_executable_child(executable, *found.children[child])
        except UnsupportedError as error:
            for change in within:
                _give_up(calls, change, str(error))


def _verified(calls: GraphDriver, change: _Change) -> NodeState:
    """What the node is now; put back first when that is neither what was asked nor what it was."""
    after = _read(calls, change)
    if change.refusal is None and after not in (change.wanted, change.before):
        _give_up(calls, change, f"the driver made something else of it ({_others(change.wanted, after)})")
        after = _read(calls, change)
    return after


def _read(calls: GraphDriver, change: _Change) -> NodeState:
    node = change.node.handle
    return calls.state(node, calls.params(node), attributes=change.before.attributes is not None)


def _set(calls: GraphDriver, change: _Change, to: NodeState, params: Any) -> None:
    node = change.node.handle
    if to.smem_bytes != params.sharedMemBytes:
        calls.set_smem(node, params, to.smem_bytes)
    if to.priority is not None and to.priority != change.before.priority:
        calls.set_priority(node, to.priority)


def _give_up(calls: GraphDriver, change: _Change, reason: str) -> None:
    """Note the refusal and put the node back where it was."""
    change.refusal = reason
    node, before = change.node.handle, change.before
    params = calls.params(node)
    try:
        if params.sharedMemBytes != before.smem_bytes:
            calls.set_smem(node, params, before.smem_bytes)
        if change.wanted.priority != before.priority and before.priority is not None:
            calls.set_priority(node, before.priority)
    except UnsupportedError as error:
        change.refusal = f"{reason}; it could not be put back: {error}"


def _receipt(calls: GraphDriver, change: _Change) -> NodeReceipt:
    after = _verified(calls, change)
    status, detail = _judged(change, after)
    return NodeReceipt(
        path=change.node.path,
        kernel=change.kernel,
        comm=change.comm,
        before=change.before,
        after=after,
        status=status,
        detail=detail,
        control=change.control,
        handle=int(change.node.handle),
    )


def _judged(change: _Change, after: NodeState) -> tuple[NodeStatus, str]:
    if change.refusal is not None:
        return "refused", change.refusal
    if change.control is None:
        return "untouched", "" if after == change.before else f"changed meanwhile: {_others(change.before, after)}"
    if after != change.wanted:
        return "no effect", "the driver accepted the change and the node is as before"
    return "applied", f"{_words(change.before, after)}{change.note}"


def _words(before: NodeState, after: NodeState) -> str:
    found = []
    if before.smem_bytes != after.smem_bytes:
        found.append(f"{before.smem_bytes:,} to {after.smem_bytes:,} bytes of dynamic shared memory")
    if before.priority != after.priority:
        found.append(f"priority {before.priority} to {after.priority}")
    return ", ".join(found) or f"already at priority {after.priority}"


def _others(before: NodeState, after: NodeState) -> str:
    parts = ("smem_bytes", "priority", "shape", "function", "attributes")
    return ", ".join(part for part in parts if getattr(before, part) != getattr(after, part))


def _notes(found: GraphNodes, plan: Plan) -> tuple[str, ...]:
    notes = []
    if found.conditionals:
        notes.append(f"{found.conditionals:,} conditional nodes were not looked into")
    if CommPriority() in plan.controls:
        notes.append(USE_NODE_PRIORITY)
    return tuple(notes)
