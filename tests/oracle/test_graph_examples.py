"""The graph rewriter in worked examples: what is said of refusals, odd drivers, odd graphs, and torch's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.oracle.test_graph_laws import GEMM, REDUCE, Answer, FakeDriver, Kind, Node, Sketch, graph_of, kernel_node

from makeway.act.cuda.graph import control_receipts, shape_graph, shape_torch_graph, undo
from makeway.values.control import CommBlocks, CommPriority, SmemPad
from makeway.values.errors import InputError, MissingExtraError, UnsupportedError
from makeway.values.plan import Plan

PADDED = Plan(controls=(SmemPad(40_000, "*gemm*"), CommPriority()))


def two_nodes(driver: FakeDriver) -> int:
    gemm, reduce = driver.function(GEMM, static_bytes=1024), driver.function(REDUCE)
    return graph_of(Node(func=gemm, smem_bytes=32_768), Node(func=reduce, smem_bytes=82_240), driver=driver)


def test_a_gemm_is_padded_and_a_collective_raised() -> None:
    driver = FakeDriver()
    receipt = shape_graph(two_nodes(driver), PADDED, driver=driver)
    gemm, reduce = receipt.nodes
    assert (gemm.before.smem_bytes, gemm.after.smem_bytes, gemm.status) == (32_768, 72_768, "applied")
    assert gemm.detail == "32,768 to 72,768 bytes of dynamic shared memory, the largest shared memory preferred"
    assert (reduce.before.priority, reduce.after.priority, reduce.status) == (0, -5, "applied")
    assert reduce.after.smem_bytes == 82_240
    assert receipt.counts() == {"applied": 2}
    assert any("USE_NODE_PRIORITY" in note for note in receipt.notes)
    (limit,) = receipt.limits
    assert (limit.before_bytes, limit.after_bytes) == (48_128, 72_768)
    receipts = control_receipts(receipt, PADDED)
    assert [done.status for done in receipts] == ["applied", "applied"]
    assert {done.evidence for done in receipts} == {(("nodes matched", 1), ("nodes changed", 1))}


def test_more_than_the_device_allows_is_refused_with_what_it_allows() -> None:
    driver = FakeDriver()
    plan = Plan(controls=(SmemPad(200_000),))
    before = (graph := two_nodes(driver), driver.everything())[1]
    receipt = shape_graph(graph, plan, driver=driver)
    gemm = receipt.nodes[0]
    assert gemm.status == "refused"
    assert "232,768 bytes of dynamic shared memory: cuFuncSetAttribute returned CUDA_ERROR_INVALID_VALUE" in gemm.detail
    assert "the device allows this kernel 231,424" in gemm.detail
    assert driver.everything() == before
    (summary,) = control_receipts(receipt, plan)
    assert summary.status == "refused"
    assert summary.detail.startswith("0 of 1 nodes; _Z4gemm")


def test_a_refused_function_attribute_is_asked_once_and_changes_nothing() -> None:
    driver = FakeDriver()
    gemm = driver.function(GEMM)
    graph = graph_of(*[Node(func=gemm, smem_bytes=40_000) for _ in range(100)], driver=driver)
    before = driver.everything()
    driver.refuse = lambda call, arguments: call == "cuFuncSetAttribute"
    receipt = shape_graph(graph, PADDED, driver=driver)
    assert receipt.counts() == {"refused": 100}
    assert driver.everything() == before
    assert driver.calls.count("cuFuncSetAttribute") == 1
    assert driver.calls.count("cuFuncGetName") == 1


def test_cooperative_launches_and_large_clusters_are_not_padded() -> None:
    driver = FakeDriver()
    gemm = driver.function(GEMM)
    kinds = [(True, 1), (False, 16), (False, 8)]
    nodes = [
        kernel_node(gemm, Sketch(GEMM, False, 0, 0, cooperative, cluster), arguments=b"")
        for cooperative, cluster in kinds
    ]
    receipt = shape_graph(graph_of(*nodes, driver=driver), PADDED, driver=driver)
    assert [node.status for node in receipt.nodes] == ["refused", "refused", "applied"]
    assert "cooperative" in receipt.nodes[0].detail
    assert "clusters of 16" in receipt.nodes[1].detail


def test_a_driver_that_accepts_and_does_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    graph = two_nodes(driver)
    monkeypatch.setattr(driver, "cuGraphKernelNodeSetParams", lambda node, params: (Answer(0),))
    monkeypatch.setattr(driver, "cuGraphKernelNodeSetAttribute", lambda node, which, value: (Answer(0),))
    receipt = shape_graph(graph, PADDED, driver=driver)
    assert receipt.counts() == {"no effect": 2}
    assert receipt.limits == ()
    assert {done.status for done in control_receipts(receipt, PADDED)} == {"no effect"}


@pytest.mark.parametrize("instantiated", [False, True])
def test_a_driver_that_changes_something_else_too_is_put_back(
    monkeypatch: pytest.MonkeyPatch, instantiated: bool
) -> None:
    driver = FakeDriver()
    graph = two_nodes(driver)
    executable = driver.instantiate(graph) if instantiated else None
    before = driver.everything()
    real = driver.cuGraphKernelNodeSetParams

    def careless(handle: int, params: Any) -> Any:
        grid = 1 if params.sharedMemBytes == 72_768 else 64
        driver.nodes[handle].shape = (grid, 1, 1, 256, 1, 1)
        return real(handle, params)

    monkeypatch.setattr(driver, "cuGraphKernelNodeSetParams", careless)
    receipt = shape_graph(graph, Plan(controls=(SmemPad(40_000, "*gemm*"),)), executable=executable, driver=driver)
    assert receipt.nodes[0].status == "refused"
    assert "shape" in receipt.nodes[0].detail
    assert driver.everything() == before


def test_a_node_that_was_set_again_since_is_not_undone() -> None:
    driver = FakeDriver()
    receipt = shape_graph(two_nodes(driver), PADDED, driver=driver)
    driver.nodes[receipt.nodes[0].handle].smem_bytes = 8
    back = undo(receipt, driver=driver)
    assert [node.status for node in back.nodes] == ["refused", "applied"]
    assert driver.nodes[receipt.nodes[0].handle].smem_bytes == 8
    driver.graphs[receipt.graph].pop()
    with pytest.raises(InputError, match="no longer in the graph"):
        undo(receipt, driver=driver)


def test_undo_leaves_limits_raised_by_default() -> None:
    driver = FakeDriver()
    receipt = shape_graph(two_nodes(driver), PADDED, driver=driver)
    func = receipt.limits[0].function
    undo(receipt, driver=driver)
    assert driver.functions[func].limit_bytes == 72_768


def test_a_device_with_one_priority_refuses_to_raise_it() -> None:
    driver = FakeDriver()
    driver.priorities = (0, 0)
    receipt = shape_graph(two_nodes(driver), PADDED, driver=driver)
    assert receipt.nodes[1].status == "refused"
    assert receipt.nodes[1].detail == "this device has a single priority"


def test_a_collective_that_is_at_the_greatest_priority_already_says_so() -> None:
    driver = FakeDriver()
    graph = two_nodes(driver)
    shape_graph(graph, Plan(controls=(CommPriority(),)), driver=driver)
    again = shape_graph(graph, Plan(controls=(CommPriority(),)), driver=driver)
    assert again.nodes[1].status == "applied"
    assert again.nodes[1].detail == "already at priority -5"


def test_what_a_graph_cannot_answer_is_said() -> None:
    driver = FakeDriver()
    graph = two_nodes(driver)
    driver.add(graph, Node(kind=Kind.CU_GRAPH_NODE_TYPE_CONDITIONAL))
    plan = Plan(controls=(SmemPad(1024, "code:0123456789abcdef"), CommBlocks(8)))
    receipt = shape_graph(graph, plan, driver=driver)
    assert receipt.counts() == {"untouched": 2}
    assert ["not code" in receipt.notes[0], "1 conditional" in receipt.notes[1]] == [True, True]
    (summary,) = control_receipts(receipt, plan)
    assert (summary.status, summary.detail) == ("no effect", "the graph has no such kernel")


def test_a_kernel_of_another_context_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    graph = graph_of(Node(kern=driver.kernel(GEMM)), driver=driver)
    real = driver.cuGraphKernelNodeGetParams

    def elsewhere(handle: int) -> Any:
        status, params = real(handle)
        params.ctx = 0xC1
        return status, params

    monkeypatch.setattr(driver, "cuGraphKernelNodeGetParams", elsewhere)
    (node,) = shape_graph(graph, PADDED, driver=driver).nodes
    assert node.status == "refused"
    assert "another context" in node.detail


def test_a_graph_that_cannot_be_read_is_an_error_not_a_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    monkeypatch.setattr(driver, "cuGraphGetNodes", lambda graph: (Answer.CUDA_ERROR_INVALID_HANDLE, None, None))
    with pytest.raises(UnsupportedError, match="cuGraphGetNodes returned CUDA_ERROR_INVALID_HANDLE"):
        shape_graph(7, PADDED, driver=driver)


def test_without_cuda_bindings_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"makeway\[cuda\]"):
        shape_graph(7, PADDED)


# --- torch --------------------------------------------------------------------------------------


@dataclass
class FakeTorchGraph:
    driver: FakeDriver
    graph: int | None
    made: list[int] = field(default_factory=list)

    def raw_cuda_graph(self) -> int:
        if self.graph is None:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with ..."
            )
        return self.graph

    def instantiate(self) -> None:
        assert self.graph is not None
        self.made.append(self.driver.instantiate(self.graph))


def test_torchs_graph_is_shaped_before_it_is_instantiated() -> None:
    driver = FakeDriver()
    captured = FakeTorchGraph(driver, two_nodes(driver))
    receipt = shape_torch_graph(captured, PADDED, driver=driver)
    (executable,) = captured.made
    held = driver.executables[executable]
    assert [held[node.handle][2] for node in receipt.nodes] == [72_768, 82_240]


def test_a_torch_graph_that_was_not_kept_says_how_to_keep_it() -> None:
    with pytest.raises(InputError, match=r"CUDAGraph\(keep_graph=True\)"):
        shape_torch_graph(FakeTorchGraph(FakeDriver(), None), PADDED, driver=FakeDriver())


def test_torch_has_the_calls_that_are_used() -> None:
    torch = pytest.importorskip("torch")
    for name in ("raw_cuda_graph", "raw_cuda_graph_exec", "instantiate", "replay"):
        assert callable(getattr(torch.cuda.CUDAGraph, name))
