"""makeway.torch on GPUs that are not here: a torch namespace with the names we use stands in for the package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from tests.standin import green_contexts

from makeway.act.plans import PlanLike, plan_of
from makeway.act.torch import groups as torch_groups
from makeway.act.torch import process as torch_process
from makeway.act.torch import where as torch_where
from makeway.act.torch.ddp import module_group
from makeway.act.torch.fsdp import _symmetric
from makeway.act.torch.kernels import tile_sides
from makeway.act.torch.where import where_runs
from makeway.read.plan_file import dump_plan
from makeway.torch import (
    comm_stream,
    compute_partition,
    copy_engine_buffer,
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


class Group:
    """A process group; its backend is asked for by kind of device (torch/csrc/distributed/c10d/ProcessGroup.hpp)."""

    def __init__(self, options: Any) -> None:
        self._options = options

    def _get_backend(self, device: tuple[str, int | None]) -> Any:
        assert device[0] == "cuda"
        return SimpleNamespace(options=self._options())


class Symmetric:
    """torch.distributed._symmetric_memory with NCCL's allocator.

    The backend cannot change once memory was allocated, and a window needs a communicator: torch 2.13,
    torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.cpp (`set_backend`) and
    torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py (`SymmMemAllocMixin`).
    """

    def __init__(self, used_as: str | None = None) -> None:
        self.backend, self.used, self.log = used_as or "CUDA", used_as is not None, list[str]()

    def set_backend(self, name: str) -> None:
        if name != self.backend and self.used:
            raise RuntimeError("Backend can not be changed after use.")
        self.backend = name

    def get_backend(self, device: Any) -> str:
        return self.backend

    def empty(self, *sizes: int, dtype: Any, device: Any) -> Any:
        self.used = True
        return "window", sizes, device

    def rendezvous(self, tensor: Any, group: Group) -> None:
        assert self.log == ["barrier"], "the communicator does not exist yet"
        assert tensor[0] == "window"
        self.log.append("rendezvous")


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
    """One H100 or MI300X in one rank, whose process group is made later.

    `chosen`: the program has chosen its device. Before that, to ask for the current one would start CUDA on the first
    (torch 2.13, torch/cuda/__init__.py, `current_device` calls `_lazy_init`), and `is_available` calls cuInit, after
    which no forked child can use CUDA; only `device_count` asks NVML first.
    """

    def __init__(
        self,
        *,
        gpus: int = 8,
        amd: bool = False,
        backends: str = "cuda:nccl",
        nccl: bool = True,
        chosen: bool = True,
        version: tuple[int, ...] = (2, 30, 7),
    ) -> None:
        self.__version__ = "2.13.0"
        self.version = SimpleNamespace(cuda=None if amd else "13.0", hip="7.1" if amd else None)
        self.made: dict[str, Any] | None = None
        self.streams: list[Stream] = [Stream()]
        green, self._C = green_contexts.third(green_contexts.Driver())
        facts = SimpleNamespace(multi_processor_count=132, major=9, minor=0)
        self.device = lambda kind, index=None: (kind, index)
        self.symmetric = Symmetric()
        self.empty = lambda sizes, dtype, device=("cpu", None): ("plain", tuple(sizes), device)

        def current_device() -> int:
            assert chosen, "CUDA was started before the program chose its device"
            return 3

        self.cuda = SimpleNamespace(
            device_count=lambda: gpus,
            current_device=current_device,
            get_device_properties=lambda _: facts,
            nccl=SimpleNamespace(version=lambda: version),
            Stream=Stream,
            CUDAGraph=Graph,
            graph=self._entered,
            stream=self._entered,
            current_stream=lambda: self.streams[-1],
            synchronize=lambda _: None,
            green_contexts=green,
        )
        world = Group(self._options)
        self.distributed = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: self.made is not None,
            get_backend_config=lambda group: backends,
            init_process_group=self._init,
            group=SimpleNamespace(WORLD=world),
            get_rank=lambda: 5,
            barrier=lambda group: self.symmetric.log.append("barrier"),
            new_group=lambda backend, pg_options: Group(lambda: pg_options),
            _symmetric_memory=self.symmetric,
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
def under_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Any]:
    """A process of a program, and its torch, under a plan of all controls."""
    made = []

    def make(torch: FakeTorch) -> torch_process.Process:
        monkeypatch.setattr(torch_process, "torch", torch)
        monkeypatch.setattr(torch_process, "dist", torch.distributed)
        for module in (torch_groups, torch_where):
            monkeypatch.setattr(module, "load_torch", lambda: torch)
        (tmp_path / "plan.toml").write_text(dump_plan(Plan(controls=EVERY)))
        made.append(torch_process.Process(tmp_path / "plan.toml", tmp_path))
        return made[-1]

    yield make
    for process in made:  # what stands in for torch's own functions would stay
        process.group_goes(None)


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
        Chunks: "no effect",  # no module yet
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


@pytest.mark.parametrize("backend", ["nccl", "gloo", None])
def test_cuda_is_never_started_before_the_program_chooses_its_device(under_plan: Any, backend: str | None) -> None:
    torch = FakeTorch(chosen=False, backends="gloo" if backend == "gloo" else "cuda:nccl")
    process = under_plan(torch)
    arguments = process.group_options({"backend": backend})
    assert bool(arguments) == (backend != "gloo")
    torch.distributed.init_process_group(backend, **arguments)
    if backend != "gloo":  # on CPUs the plan acts on threads, which is tested elsewhere
        process.group_made()
        process.group_goes(None)
    assert process.file.error is None


def test_chunks_of_a_program_on_gpus_make_smaller_buckets(under_plan: Any) -> None:
    """A real DistributedDataParallel, made by a program whose group runs on GPUs as far as the plan can see."""
    import torch as real
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch = FakeTorch()
    process = under_plan(torch)
    torch.distributed.init_process_group("nccl")
    process.group_made()
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        small = DistributedDataParallel(real.nn.Linear(8, 8))
        (receipt,) = [one for one in process.file.receipts if isinstance(one.control, Chunks)]
        assert (receipt.status, receipt.carrier) == ("no effect", "torch on CUDA")  # all of it fits one bucket
        large = DistributedDataParallel(real.nn.Linear(2048, 1024))
        own = DistributedDataParallel(real.nn.Linear(2048, 1024), bucket_cap_mb=1)
    finally:
        dist.destroy_process_group()
        process.group_goes(None)
    assert small.bucket_bytes_cap == large.bucket_bytes_cap == 25 * 2**20 // 4
    assert own.bucket_bytes_cap == 2**20
    (receipt,) = [one for one in process.file.receipts if isinstance(one.control, Chunks)]
    assert (receipt.status, receipt.carrier) == ("applied", "torch on CUDA")
    assert dict(receipt.evidence) == {"bucket bytes": 25 * 2**20 // 4, "gradient bytes": 4 * 1024 * 2049}


# --- modules of DistributedDataParallel and fully_shard -------------------------------------------


def test_a_module_gets_a_group_that_is_read_back_and_no_copy_engine() -> None:
    torch: Any = FakeTorch()
    group, receipts = module_group([CommPriority(), CommBlocks(8), CopyEngine()], None, torch=torch)
    assert group is not None
    options = group._get_backend(torch.device("cuda")).options
    assert vars(options.config) == {"min_ctas": 8, "max_ctas": 8, "cga_cluster_size": -1, "cta_policy": -1}
    assert [(type(one.control), one.status, dict(one.evidence)) for one in receipts] == [
        (CommPriority, "applied", {"is_high_priority_stream": 1}),
        (CommBlocks, "applied", {"config.min_ctas": 8, "config.max_ctas": 8}),
        (CopyEngine, "no effect", {}),
    ]
    assert "all-reduces" in receipts[-1].detail
    assert module_group([CopyEngine()], None, torch=torch)[0] is None


def test_a_group_that_does_not_keep_an_option_is_caught() -> None:
    torch = FakeTorch()
    torch.distributed.new_group = lambda backend, pg_options: Group(Options)
    _, (receipt,) = module_group([CommPriority()], None, torch=torch)
    assert (receipt.status, dict(receipt.evidence)) == ("no effect", {"is_high_priority_stream": 0})


def test_a_group_of_the_program_stays() -> None:
    group, receipts = module_group([CommPriority(), CopyEngine()], Group(Options), torch=FakeTorch())
    assert group is None
    assert [receipt.status for receipt in receipts] == ["refused", "no effect"]


class Sharded:
    """A module of fully_shard (torch 2.13, _fully_shard.py and _fsdp_param_group.py, `set_symm_mem`)."""

    def __init__(self, group: Group, symmetric: Symmetric, *, custom: bool = False) -> None:
        parameters = SimpleNamespace(_all_gather_process_group=group, _all_gather_comm=object())
        self._state, self._symmetric, self._custom = SimpleNamespace(_fsdp_param_groups=[parameters]), symmetric, custom

    def _get_fsdp_state(self) -> Any:
        return self._state

    def set_symm_mem_for_comm(self) -> None:
        class SymmMemAllGather: ...

        if self._custom:
            raise AssertionError("cannot call set_symm_mem() when all gather comm is custom: Ours")
        self._symmetric.set_backend("NCCL")
        self._state._fsdp_param_groups[0]._all_gather_comm = SymmMemAllGather()


def zero_cta_torch(**more: Any) -> FakeTorch:
    torch = FakeTorch(**more)
    init_process_group([CopyEngine()], "nccl", torch=torch)
    return torch


def test_sharded_modules_gather_into_windows_where_the_group_has_the_policy() -> None:
    torch = zero_cta_torch()
    modules: Any = [Sharded(torch.distributed.group.WORLD, torch.symmetric) for _ in range(3)]
    receipt = _symmetric(CopyEngine(), modules, torch=torch)
    assert receipt.status == "applied"
    assert dict(receipt.evidence) == {"config.cta_policy": 2, "parameter groups in windows": 3}
    assert "a profile shows" in receipt.detail


@pytest.mark.parametrize(
    ("torch", "custom", "reason"),
    [
        (FakeTorch(), False, "needs the zero-CTA policy from its start"),
        (zero_cta_torch(version=(2, 27, 5)), False, "needs NCCL 2.28 or later"),
        (zero_cta_torch(), True, "when all gather comm is custom"),
    ],
)
def test_sharded_modules_stay_as_they_are_where_copies_cannot_work(torch: FakeTorch, custom: bool, reason: str) -> None:
    if torch.made is None:
        init_process_group([CommPriority()], "nccl", torch=torch)
    module: Any = Sharded(torch.distributed.group.WORLD, torch.symmetric, custom=custom)
    receipt = _symmetric(CopyEngine(), [module], torch=torch)
    assert receipt.status == "refused"
    assert reason in receipt.detail
    assert torch.symmetric.backend == "CUDA"


def test_a_buffer_for_copy_engines_is_a_window_of_a_group_with_the_policy() -> None:
    torch = zero_cta_torch()
    tensor, receipt = copy_engine_buffer(4, 8, dtype="bf16", torch=torch, environ={})
    assert tensor == ("window", (4, 8), ("cuda", 3))
    assert torch.symmetric.log == ["barrier", "rendezvous"]
    assert (receipt.status, receipt.carrier) == ("applied", "torch on CUDA")
    assert dict(receipt.evidence) == {"config.cta_policy": 2}
    assert "split sizes still uses blocks" in receipt.detail


def test_a_buffer_that_copy_engines_cannot_fill_is_an_ordinary_one_and_says_why() -> None:
    other = zero_cta_torch()
    other.distributed._symmetric_memory = Symmetric(used_as="NVSHMEM")
    plain = FakeTorch()
    init_process_group([CommPriority()], "nccl", torch=plain)
    for torch, environ, reason in (
        (plain, {}, "config.cta_policy = -1 in the process group: the group needs the zero-CTA policy"),
        (zero_cta_torch(version=(2, 27, 5)), {}, "needs NCCL 2.28 or later"),
        (zero_cta_torch(), {"NCCL_CTA_POLICY": "0"}, "NCCL_CTA_POLICY=0 in the environment overrides"),
        (other, {}, "Backend can not be changed after use"),
        (zero_cta_torch(amd=True), {}, "RCCL"),
    ):
        tensor, receipt = copy_engine_buffer(4, 8, dtype="bf16", torch=torch, environ=environ)
        assert tensor == ("plain", (4, 8), ("cuda", 3))
        assert receipt.status == "refused"
        assert reason in receipt.detail
    tensor, receipt = copy_engine_buffer(4, dtype="bf16", torch=FakeTorch(gpus=0), environ={})
    assert (tensor[0], receipt.status) == ("plain", "no effect")


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
    assert unaffected == {SmemPad, TileChoice, CopyEngine, CommPriority, CommBlocks}  # no group to hold options


def test_a_group_of_the_block_is_for_collectives_that_name_it() -> None:
    backend = NullBackend()
    backend.session = SimpleNamespace(group="group")
    with overlap([CommPriority(), CopyEngine()], backend=backend) as in_force:
        priority, copies = in_force.receipts
    assert (priority.status, copies.status) == ("applied", "no effect")
    assert "group=in_force.group" in priority.detail
    assert "no collective of the program is rerouted" in copies.detail


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
