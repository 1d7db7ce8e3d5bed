"""CUDA graphs under a plan: capture, shape, instantiate, replay. Not yet run on hardware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from makeway.act.backend import TORCH_CARRIERS
from makeway.act.cuda.graph import GraphChanges, control_receipts, shape_torch_graph
from makeway.act.cuda.machine import load_torch
from makeway.act.plans import PlanLike, plan_of
from makeway.act.torch.where import Where, where_runs
from makeway.values.control import CommPriority, SmemPad
from makeway.values.plan import Plan
from makeway.values.receipt import Receipt

WARM_UPS = 3  # as in torch's notes on CUDA graphs: lazy set-up must not be captured
NO_GRAPH = "there are no CUDA graphs on a CPU: each replay calls the function"
ONLY_CUDA = "graphs are shaped through the CUDA driver; this one replays as it was captured"


@dataclass(slots=True, kw_only=True)
class ShapedGraph:
    """A captured function; `replay` runs it again on the same memory."""

    receipts: tuple[Receipt, ...]
    result: Any  # of the function; a replay writes to the same tensors
    graph: Any | None = None  # torch.cuda.CUDAGraph; None on a CPU
    nodes: GraphChanges | None = None  # what became of each node
    _function: Callable[[], Any]

    def replay(self) -> Any:
        if self.graph is None:
            self.result = self._function()
        else:
            self.graph.replay()
        return self.result


def shaped_graph(
    function: Callable[[], Any], plan: PlanLike, *, torch: Any | None = None, driver: Any | None = None
) -> ShapedGraph:
    """Capture `function` on the current device, apply the plan's pads and priority to its nodes, instantiate.

    The function is called a few times before, on its own stream. `driver` stands in for `cuda.bindings.driver`.
    """
    torch = torch or load_torch()
    plan, where = plan_of(plan), where_runs(torch=torch)
    if where == "cpu":
        return ShapedGraph(receipts=_refused(plan, NO_GRAPH, where), result=function(), _function=function)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    _warm_up(function, torch)
    with torch.cuda.graph(graph):
        result = function()
    if where == "rocm":
        graph.instantiate()
        return ShapedGraph(receipts=_refused(plan, ONLY_CUDA, where), result=result, graph=graph, _function=function)
    nodes = shape_torch_graph(graph, plan, driver=driver)
    receipts = control_receipts(nodes, plan)
    return ShapedGraph(receipts=receipts, result=result, graph=graph, nodes=nodes, _function=function)


def _warm_up(function: Callable[[], Any], torch: Any) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            function()
    torch.cuda.current_stream().wait_stream(side)


def _refused(plan: Plan, reason: str, where: Where) -> tuple[Receipt, ...]:
    return tuple(
        Receipt(control=control, status="refused", detail=reason, carrier=TORCH_CARRIERS[where])
        for control in plan.controls
        if isinstance(control, SmemPad | CommPriority)
    )
