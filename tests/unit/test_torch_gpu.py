"""makeway.torch on GPUs that are not here: a torch namespace with the names we use stands in for the package."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from makeway.act.plans import PlanLike, plan_of
from makeway.act.torch import groups as torch_groups
from makeway.act.torch import process as torch_process
from makeway.act.torch.groups import where_runs
from makeway.act.torch.kernels import tile_sides
from makeway.read.plan_file import dump_plan
from makeway.torch import (
    comm_stream,
    compute_partition,
    init_process_group,
    overlap,
    process_group_options,
    shaped_graph,
    tiled,
)
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Control,
    CopyEngine,
    LaunchOrder,
    SmemPad,
    SmPartition,
    TileChoice,
)
from makeway.values.errors import UnsupportedError
from makeway.values.plan import Plan
from makeway.values.receipt import Receipt
from tests.standin import green_contexts

EVERY: tuple[Control, ...] = (
    SmemPad(4096),
    TileChoice(64, 64, 64),
    CommPriority(),
    LaunchOrder(),
    CommBlocks(8),
    CommThreads(288),
    SmPartition(16),
    CopyEngine(),
    Chunks(4),
)


class NullBackend:
    """Applies nothing, and claims that it did."""

    name = "cuda"
    session: Any = None

    def refusal(self, control: Control) -> str | None:
        return None

    @contextmanager
    def applied(self, controls: Any) -> Any:
        yield tuple(Receipt(control=control, status="applied", detail="claimed") for control in controls)


class Options:
    def __init__(self) -> None:
        self.is_high_priority_stream = False
        self.config = SimpleNamespace(min_ctas=-1, max_ctas=-1, cga_cluster_size=-1, cta_policy=-1)
        self._timeout: Any = 600


class Stream:
    def __init__(self, device: int | None = None, priority: int = 0) -> None:
        self.priority, self.device = max(priority, -5), device
        self.waited: list[Stream] = []

    def priority_range(self) -> tuple[int, int]:
        return 0, -5

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)


class Graph:
    def __init__(self, *, keep_graph: bool) -> None:
        assert keep_graph
        self.log: list[str] = []

    def raw_cuda_graph(self) -> int:
        raise RuntimeError("no capture was made")

    def instantiate(self) -> None:
        self.log.append("instantiated")

    def replay(self) -> None:
        self.log.append("replayed")


class FakeTorch:
    """One H100 or MI300X in one rank, whose process group is made later."""

    def __init__(self, *, gpus: int = 8, amd: bool = False, backends: str = "cuda:nccl", nccl: bool = True) -> None:
        self.__version__ = "2.13.0"
        self.version = SimpleNamespace(cuda=None if amd else "13.0", hip="7.1" if amd else None)
        self.made: dict[str, Any] | None = None
        self.streams: list[Stream] = [Stream()]
        green, self._C = green_contexts.third(green_contexts.Driver())
        facts = SimpleNamespace(multi_processor_count=132, major=9, minor=0)
        self.device = lambda kind, index: (kind, index)
        self.cuda = SimpleNamespace(
            is_available=lambda: gpus > 0,
            current_device=lambda: 3,
            get_device_properties=lambda _: facts,
            nccl=SimpleNamespace(version=lambda: (2, 30, 7)),
            Stream=Stream,
            CUDAGraph=Graph,
            graph=self._entered,
            stream=self._entered,
            current_stream=lambda: self.streams[-1],
            synchronize=lambda _: None,
            green_contexts=green,
        )
        world = SimpleNamespace(_get_backend=lambda _: SimpleNamespace(options=self._options()))
        self.distributed = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: self.made is not None,
            get_backend_config=lambda group: backends,
            init_process_group=self._init,
            group=SimpleNamespace(WORLD=world),
            get_rank=lambda: 5,
            **({"ProcessGroupNCCL": SimpleNamespace(Options=Options, NCCL_CTA_POLICY_ZERO=2)} if nccl else {}),
        )

    def _options(self) -> Any:
        assert self.made is not None
        return self.made["pg_options"]

    def _init(self, backend: str | None = None, timeout: Any = None, pg_options: Any = None) -> None:
        self.made = {"backend": backend, "pg_options": pg_options if pg_options is not None else Options()}

    @contextmanager
    def _entered(self, stream: Any) -> Any:
        self.streams.append(stream)
        yield
        self.streams.pop()


# --- where ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "where"),
    [
        (FakeTorch(gpus=0), "cpu"),
        (FakeTorch(), "cuda"),
        (FakeTorch(amd=True), "rocm"),
    ],
)
def test_hardware_without_a_process_group_is_that_of_the_process(torch: FakeTorch, where: str) -> None:
    assert where_runs(torch=torch) == where


@pytest.mark.parametrize(
    ("backends", "where"), [("cpu:gloo,cuda:nccl", "cuda"), ("cpu:gloo,cuda:gloo", "cpu"), ("nccl", "cuda")]
)
def test_a_process_group_runs_where_its_backend_runs(backends: str, where: str) -> None:
    torch = FakeTorch(backends=backends)
    torch.distributed.init_process_group()
    assert where_runs(torch=torch) == where


def test_a_plan_may_be_given_as_words_controls_a_file_or_a_plan(tmp_path: Any) -> None:
    plan = Plan(controls=(CommPriority(), SmemPad(4096)))
    (tmp_path / "plan.toml").write_text(dump_plan(plan))
    forms: tuple[PlanLike, ...] = (
        plan,
        tmp_path / "plan.toml",
        str(tmp_path / "plan.toml"),
        ["priority", SmemPad(4096)],
    )
    assert all(plan_of(form) == plan for form in forms)


# --- process groups -------------------------------------------------------------------------------


def test_a_group_is_made_with_the_plans_options_and_read_back() -> None:
    torch = FakeTorch()
    receipts = init_process_group(EVERY, "nccl", torch=torch)
    assert torch.made is not None
    assert torch.made["pg_options"].is_high_priority_stream
    assert vars(torch.made["pg_options"].config)["max_ctas"] == 8
    assert {type(receipt.control): receipt.status for receipt in receipts} == {
        CommPriority: "applied",
        CommBlocks: "applied",
        CopyEngine: "no effect",
    }


def test_variables_that_override_options_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_MAX_CTAS", "2")
    (receipt,) = init_process_group([CommBlocks(8)], "nccl", torch=FakeTorch())
    assert receipt.status == "no effect"
    assert "NCCL_MAX_CTAS=2" in receipt.detail


def test_options_of_the_program_stay() -> None:
    torch, own = FakeTorch(), Options()
    (receipt,) = init_process_group([CommPriority()], "nccl", torch=torch, pg_options=own)
    assert torch.made == {"backend": "nccl", "pg_options": own}
    assert receipt.status == "refused"
    assert not own.is_high_priority_stream


@pytest.mark.parametrize("torch", [FakeTorch(gpus=0), FakeTorch(backends="gloo", nccl=False)])
def test_gloo_is_asked_for_nothing(torch: FakeTorch) -> None:
    (receipt,) = init_process_group([CommPriority()], "gloo", torch=torch)
    assert receipt.status == "no effect"
    assert torch.made is not None


def test_options_without_nccl_are_an_error_that_names_the_alternative() -> None:
    with pytest.raises(UnsupportedError, match="overlap"):
        process_group_options([CommPriority()], torch=FakeTorch(nccl=False))


# --- a program that knows nothing of the plan -----------------------------------------------------


@pytest.fixture
def under_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """A process of a program, and its torch, under a plan of all controls."""

    def make(torch: FakeTorch) -> torch_process.Process:
        monkeypatch.setattr(torch_process, "torch", torch)
        monkeypatch.setattr(torch_process, "dist", torch.distributed)
        monkeypatch.setattr(torch_groups, "load_torch", lambda: torch)
        (tmp_path / "plan.toml").write_text(dump_plan(Plan(controls=EVERY)))
        return torch_process.Process(tmp_path / "plan.toml", tmp_path)

    return make


def test_an_unmodified_program_gets_options_and_receipts_for_what_python_can_read_back(under_plan: Any) -> None:
    torch = FakeTorch()
    process = under_plan(torch)
    arguments = process.group_options({"backend": "nccl", "timeout": 77})
    assert arguments["pg_options"]._timeout == 77  # torch would warn of two timeouts
    torch.distributed.init_process_group("nccl", **arguments)
    process.group_made()
    assert process.file.error is None
    assert (process.file.rank, process.file.backend) == (5, "cuda")
    assert {receipt.carrier for receipt in process.file.receipts} == {"torch on CUDA"}
    assert {receipt.rank for receipt in process.file.receipts} == {5}
    assert {type(receipt.control): receipt.status for receipt in process.file.receipts} == {
        CommPriority: "applied",
        CommBlocks: "applied",
        CopyEngine: "no effect",  # no symmetric windows
        CommThreads: "refused",  # the variable was not there at the start
        TileChoice: "no effect",
        LaunchOrder: "no effect",
        SmPartition: "no effect",
        Chunks: "no effect",
    }  # and nothing for the pad, which the launch shim reports
    process.group_goes(None)


def test_an_unmodified_program_keeps_options_of_its_own(under_plan: Any) -> None:
    torch = FakeTorch()
    process, own = under_plan(torch), Options()
    assert process.group_options({"backend": "nccl", "pg_options": own}) == {}
    torch.distributed.init_process_group("nccl", pg_options=own)
    process.group_made()
    refused = [receipt.control for receipt in process.file.receipts if receipt.status == "refused"]
    assert {CommPriority(), CommBlocks(8), CopyEngine()} <= set(refused)


def test_an_error_of_the_plan_is_recorded_and_not_raised(under_plan: Any) -> None:
    torch = FakeTorch()
    process = under_plan(torch)
    torch.distributed.get_rank = lambda: 1 // 0
    process.group_made()
    assert "ZeroDivisionError" in process.file.error
    assert {receipt.status for receipt in process.file.receipts} == {"refused"}


# --- streams, graphs, blocks of code --------------------------------------------------------------


def test_comm_streams_have_priority_when_the_plan_says_so() -> None:
    prioritised, plain = (comm_stream(plan, torch=FakeTorch()) for plan in (["priority"], ["chunks=2"]))
    assert prioritised is not None
    assert plain is not None
    assert (prioritised.priority, plain.priority) == (-5, 0)
    assert comm_stream(["priority"], torch=FakeTorch(gpus=0)) is None


def test_a_partition_confines_a_compute_stream() -> None:
    with compute_partition([SmPartition(16)], torch=FakeTorch()) as confined:
        assert confined is not None
        assert confined.sms == 112  # 116 are left, cut in steps of 8
    for torch, plan in ((FakeTorch(gpus=0), ["partition=16"]), (FakeTorch(), ["priority"])):
        with compute_partition(plan, torch=torch) as none:
            assert none is None


def test_a_block_runs_on_the_confined_stream_after_and_before_what_is_around_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch, confined = FakeTorch(), Stream()
    monkeypatch.setattr("makeway.act.torch.in_force.load_torch", lambda: torch)
    monkeypatch.setattr("makeway.act.torch.in_force.where_runs", lambda group: "cuda")
    backend = NullBackend()
    backend.session = SimpleNamespace(compute_stream=confined)
    outside = torch.cuda.current_stream()
    with overlap([SmPartition(16)], backend=backend) as in_force:
        assert in_force.where == "cuda"
        assert torch.cuda.current_stream() is confined
        assert confined.waited == [outside]
    assert torch.cuda.current_stream() is outside
    assert outside.waited == [confined]


def test_an_error_while_a_plan_is_applied_leaves_none_in_force() -> None:
    class Broken(NullBackend):
        def applied(self, controls: Any) -> Any:
            raise UnsupportedError("no GPU")

    with pytest.raises(UnsupportedError), overlap(["priority"], backend=Broken()):
        pytest.fail("nothing was applied")
    with overlap(["chunks=2"], backend=NullBackend()) as in_force:
        assert in_force.table() == "chunks=2  applied    claimed"


def test_what_only_our_own_kernels_take_has_no_effect_on_a_program() -> None:
    with overlap(EVERY, backend=NullBackend()) as in_force:
        statuses = {type(receipt.control): receipt.status for receipt in in_force.receipts}
    unaffected = {kind for kind, status in statuses.items() if status == "no effect"}
    assert unaffected == {SmemPad, TileChoice, CopyEngine}


def test_a_graph_is_captured_after_warm_ups_and_shaped(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def shaped(graph: Any, plan: Plan, *, driver: Any = None) -> Any:
        graph.instantiate()
        return SimpleNamespace(nodes=(), plan=plan)

    monkeypatch.setattr("makeway.act.torch.graphs.shape_torch_graph", shaped)
    graph = shaped_graph(lambda: calls.append(1), [SmemPad(4096), CommPriority(), Chunks(2)], torch=FakeTorch())
    assert len(calls) == 4
    graph.replay()
    assert len(calls) == 4
    assert graph.graph is not None
    assert graph.graph.log == ["instantiated", "replayed"]
    assert [receipt.control for receipt in graph.receipts] == [SmemPad(4096), CommPriority()]
    assert {receipt.status for receipt in graph.receipts} == {"no effect"}  # the fake graph has no such kernel


@pytest.mark.parametrize(("torch", "replays"), [(FakeTorch(gpus=0), 2), (FakeTorch(amd=True), 4)])
def test_a_graph_that_cannot_be_shaped_still_runs(torch: FakeTorch, replays: int) -> None:
    calls: list[int] = []
    graph = shaped_graph(lambda: calls.append(1), [CommPriority()], torch=torch)
    graph.replay()
    assert len(calls) == replays
    assert [receipt.status for receipt in graph.receipts] == ["refused"]


# --- names ------------------------------------------------------------------------------------------


def test_every_public_name_is_there() -> None:
    import makeway.torch as package

    assert sorted(package._HOMES) == sorted(package.__all__)
    assert all(callable(getattr(package, name)) for name in package.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        package.nonsense  # noqa: B018


# --- tiles ----------------------------------------------------------------------------------------


def config(m: int, n: int, k: int) -> Any:
    return SimpleNamespace(kwargs={"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": 8})


def test_sides_of_tiles_are_found_by_name() -> None:
    assert tile_sides(config(1, 2, 3).kwargs) == {"M": 1, "N": 2, "K": 3}
    assert tile_sides({"BLOCK_K": 4, "TILE_M": 5, "blockN": 6}) == {"M": 5, "N": 6, "K": 4}
    assert tile_sides({"GROUP_M": 8, "SPLIT_K": 2}) == {}


def test_autotuning_keeps_to_the_tile_and_the_kernel_stays() -> None:
    receipts: list[Any] = []
    configs = [config(64, 64, 32), config(128, 64, 32), config(64, 64, 32)]

    def gemm() -> None: ...

    kernel = SimpleNamespace(fn=SimpleNamespace(fn=gemm), configs=configs, cache={"key": configs[1]})
    kept = tiled(kernel, [TileChoice(64, 64, 32, "ge*")], on_receipt=receipts.append)
    assert kept.configs == [configs[0], configs[2]]
    assert kept.cache == {}
    assert (kernel.configs, kernel.cache) == (configs, {"key": configs[1]})
    assert [receipt.status for receipt in receipts] == ["applied"]
    assert tiled(kernel, [TileChoice(64, 64, 32, "other*")], on_receipt=receipts.append) is kernel
    assert tiled(kernel, [TileChoice(16, 16, 16)], on_receipt=receipts.append) is kernel
    assert "128x64x32, 64x64x32" in receipts[-1].detail
    assert [receipt.status for receipt in receipts] == ["applied", "refused"]
