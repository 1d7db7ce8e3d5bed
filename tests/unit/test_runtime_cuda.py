"""Controls on GPUs as far as they can be driven without one: what is missing, what is set, what is refused."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.standin import green_contexts

from makeway.act.backend import Backend
from makeway.act.cuda.backend import CudaBackend
from makeway.act.cuda.machine import GpuMachine, look
from makeway.act.cuda.options import (
    environment_receipt,
    option_settings,
    overriding,
    process_group_options,
    start_environment,
)
from makeway.act.cuda.streams import compute_sms, green_module, green_refusal
from makeway.act.export.frameworks import ZERO_CTA
from makeway.act.export.values import Library
from makeway.act.rocm.backend import RocmBackend
from makeway.act.rocm.masks import check_split, mask_words, masked_stream
from makeway.act.triton.config import GemmConfig, operand_bytes
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
from makeway.values.errors import InputError, UnsupportedError
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
NCCL = Library(name="nccl", version=(2, 30, 7))


# --- a torch with GPUs, as far as we use it -----------------------------------------------------


class Options:
    def __init__(self) -> None:
        self.is_high_priority_stream = False
        self.config = SimpleNamespace(min_ctas=-1, max_ctas=-1, cga_cluster_size=-1, cta_policy=-1)


class FakeStream:
    def __init__(self, device: int | None = None, priority: int = 0) -> None:
        self.priority = max(priority, -5)

    def priority_range(self) -> tuple[int, int]:
        return 0, -5


class FakeTorch:
    """One H100 or MI300X in one rank of a running job; remembers what was made and what was given back."""

    def __init__(self, *, amd: bool = False, initialised: bool = True, green: Any | None = None) -> None:
        self.log: list[str] = []
        self.__version__ = "2.13.0"
        self.version = SimpleNamespace(cuda=None if amd else "13.0", hip="7.1" if amd else None)
        facts = SimpleNamespace(
            name="MI300X" if amd else "H100",
            multi_processor_count=304 if amd else 132,
            major=9,
            minor=0,
            gcnArchName="gfx942:sramecc+",
            shared_memory_per_block=65_536,
            shared_memory_per_block_optin=232_448,
        )
        module, self._C = green or green_contexts.second(green_contexts.Driver())
        self.device = lambda kind, index=None: (kind, index)
        self.cuda = SimpleNamespace(
            device_count=lambda: 8,
            current_device=lambda: 3,
            get_device_properties=lambda _: facts,
            nccl=SimpleNamespace(version=lambda: (2, 30, 7)),
            Stream=FakeStream,
            ExternalStream=lambda pointer, device: SimpleNamespace(pointer=pointer, priority=0),
            synchronize=lambda _: self.log.append("synchronised"),
            device=lambda _: nullcontext(),
            green_contexts=module,
        )
        self.distributed = SimpleNamespace(
            is_nccl_available=lambda: True,
            is_initialized=lambda: initialised,
            ProcessGroupNCCL=SimpleNamespace(Options=Options, NCCL_CTA_POLICY_ZERO=2),
            new_group=self._new_group,
            destroy_process_group=lambda group: self.log.append("group destroyed"),
            _symmetric_memory=SimpleNamespace(),
        )

    def _new_group(self, *, backend: str, pg_options: Options) -> Any:
        self.log.append(f"{backend} group")
        return SimpleNamespace(_get_backend=lambda device: SimpleNamespace(options=pg_options))


def announced_bytes(config: GemmConfig, arch: str) -> int:
    """What Triton would compile for two stages on Hopper: tests/oracle/test_triton_gemm.py asks the compiler."""
    assert arch == "sm_90"
    return 2 * operand_bytes(config.tile, config.dtype) + config.pad_bytes


def backend(torch: FakeTorch | None = None, **environ: str) -> CudaBackend:
    gpu = CudaBackend(torch=torch or FakeTorch(), environ=environ, gemm_bytes=announced_bytes)
    gpu.machine = replace(gpu.machine, triton=True)
    return gpu


def receipt_for(receipts: tuple[Receipt, ...], control: Control) -> Receipt:
    return next(receipt for receipt in receipts if receipt.control == control)


# --- a machine without a GPU --------------------------------------------------------------------


@pytest.mark.parametrize("control", EVERY, ids=lambda control: type(control).__name__)
@pytest.mark.parametrize(
    ("torch", "reason"),
    [
        (SimpleNamespace(__version__="2.13.0+cpu", version=SimpleNamespace(cuda=None, hip=None)), "built without"),
        (
            SimpleNamespace(
                __version__="2.13.0",
                version=SimpleNamespace(cuda="13.0", hip="7.1"),
                cuda=SimpleNamespace(device_count=lambda: 0),
            ),
            "sees no",
        ),
    ],
    ids=["cpu build", "no device"],
)
@pytest.mark.parametrize("kind", [CudaBackend, RocmBackend])
def test_without_a_gpu_every_control_says_what_is_missing(
    kind: type[CudaBackend], torch: Any, reason: str, control: Control
) -> None:
    gpu: Backend = kind(torch=torch)
    assert reason in (gpu.refusal(control) or "")
    with pytest.raises(UnsupportedError, match=reason), gpu.applied((control,)):
        pytest.fail("a control was applied without a GPU")


def test_without_torch_the_reason_is_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert look("nvidia") == GpuMachine(vendor="nvidia")
    assert CudaBackend().refusal(CommPriority()) == "torch is not installed"


def test_backends_benches_and_experiments_load_neither_torch_nor_triton() -> None:
    modules = ("cuda.backend", "cuda.overlap", "rocm.backend", "measure.simulated")
    imports = "; ".join(f"import makeway.act.{module}" for module in modules)
    code = f"{imports}; import sys; sys.exit(not sys.modules.keys().isdisjoint({{'torch', 'triton', 'numpy'}}))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_this_machine_is_looked_at_without_harm() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch without numpy warns when it is loaded
        machine = look("nvidia")
    assert (machine.missing is None) == (machine.devices > 0)


# --- options and variables ----------------------------------------------------------------------


def test_options_of_a_process_group_carry_what_the_controls_say() -> None:
    made = process_group_options(FakeTorch().distributed.ProcessGroupNCCL, EVERY, cluster=1)
    assert made.options.is_high_priority_stream is True
    assert vars(made.options.config) == {"min_ctas": 8, "max_ctas": 8, "cga_cluster_size": 1, "cta_policy": 2}
    assert {receipt.control for receipt in made.receipts} == {CommPriority(), CommBlocks(8), CopyEngine()}
    assert {receipt.status for receipt in made.receipts} == {"applied"}


def test_without_controls_options_stay_as_torch_makes_them() -> None:
    made = process_group_options(FakeTorch().distributed.ProcessGroupNCCL, ())
    assert vars(made.options.config) == vars(Options().config)
    assert made.receipts == ()


def test_a_torch_without_an_option_refuses_the_control_and_sets_nothing() -> None:
    class Older(Options):
        def __init__(self) -> None:
            super().__init__()
            del self.config.cta_policy, self.config.max_ctas

    made = process_group_options(SimpleNamespace(Options=Older, NCCL_CTA_POLICY_ZERO=2), (CopyEngine(), CommBlocks(8)))
    assert [receipt.status for receipt in made.receipts] == ["refused", "refused"]
    assert "config.cta_policy" in made.receipts[0].detail
    assert made.options.config.min_ctas == -1
    unnamed = process_group_options(SimpleNamespace(Options=Options), (CopyEngine(),))
    assert "NCCL_CTA_POLICY_ZERO" in unnamed.receipts[0].detail


def test_an_option_that_does_not_keep_its_value_has_no_effect() -> None:
    class Stubborn(Options):
        def __setattr__(self, name: str, value: object) -> None:
            object.__setattr__(self, name, False if name == "is_high_priority_stream" else value)

    made = process_group_options(SimpleNamespace(Options=Stubborn), (CommPriority(),))
    assert made.receipts[0].status == "no effect"


def test_torchs_own_files_know_every_option_that_is_set() -> None:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("torch is not installed")
    root = Path(spec.submodule_search_locations[0])
    types = (root / "_C" / "_distributed_c10d.pyi").read_text()
    types = types[types.index("class ProcessGroupNCCL") : types.index("class ProcessGroupUCC")]
    used = (root / "distributed" / "fsdp" / "_fully_shard" / "_fully_shard.py").read_text()  # knows cta_policy
    for name in [name for control in EVERY for name, _ in option_settings(control)] + ["config.cga_cluster_size"]:
        field = name.removeprefix("config.")
        assert f"{field}: " in types or f"opts.{name} = dist.ProcessGroupNCCL.{ZERO_CTA}" in used, name


def test_variables_that_are_read_at_start_must_be_there_at_start() -> None:
    wanted = start_environment((CommThreads(288), CommBlocks(8)), NCCL)
    assert wanted == {"NCCL_NTHREADS": "256", "NCCL_MIN_CTAS": "8", "NCCL_MAX_CTAS": "8"}
    late = environment_receipt(CommThreads(288), {}, NCCL)
    assert late.status == "refused"
    assert "NCCL_NTHREADS=256" in late.detail
    assert environment_receipt(CommThreads(288), wanted, NCCL).status == "applied"
    assert environment_receipt(CommThreads(544), {}, NCCL).status == "applied"  # NCCL's own choice
    assert environment_receipt(CommThreads(99), wanted, NCCL).status == "refused"


def test_a_variable_that_says_otherwise_overrides_options() -> None:
    assert overriding(CommBlocks(8), {"NCCL_MAX_CTAS": "32"}, NCCL) is not None
    assert overriding(CommBlocks(8), {"NCCL_MAX_CTAS": "8"}, NCCL) is None
    with backend(NCCL_MAX_CTAS="32").applied((CommBlocks(8),)) as (receipt,):
        assert receipt.status == "no effect"
        assert "NCCL_MAX_CTAS=32" in receipt.detail


# --- the backend with a GPU that is not there ---------------------------------------------------


def test_everything_is_applied_read_back_and_undone() -> None:
    torch = FakeTorch()
    gpu = backend(torch, NCCL_NTHREADS="256")
    with gpu.applied(EVERY) as receipts:
        assert [receipt.control for receipt in receipts] == list(EVERY)
        for receipt in receipts:  # order and pieces are for whoever launches
            by_caller = isinstance(receipt.control, LaunchOrder | Chunks)
            assert receipt.status == ("no effect" if by_caller else "applied")
        session = gpu.session
        assert session is not None
        assert session.group is not None
        assert session.options.config.max_ctas == 8
        assert session.comm_stream is not None
        assert session.comm_stream.priority == -5
        assert session.compute_stream is not None
        assert session.copy_engine
        assert session.gemm.tile == (64, 64, 64)
        assert session.gemm.pad_bytes == 4096
        assert "in a new process group" in receipt_for(receipts, CommBlocks(8)).detail
    assert gpu.session is None
    assert torch.log == ["nccl group", "synchronised", "group destroyed"]


def test_what_was_made_is_given_back_when_the_block_fails() -> None:
    torch = FakeTorch()
    gpu = backend(torch)
    with pytest.raises(ZeroDivisionError), gpu.applied((CommPriority(), SmPartition(16))):
        raise ZeroDivisionError
    assert torch.log[-2:] == ["synchronised", "group destroyed"]
    assert gpu.session is None


def test_without_a_running_job_options_wait_for_the_next_group() -> None:
    gpu = backend(FakeTorch(initialised=False))
    with gpu.applied((CommPriority(),)) as (receipt,):
        assert gpu.session is not None
        assert gpu.session.group is None
        assert gpu.session.options.is_high_priority_stream
        assert "next process group" in receipt.detail


def test_a_refused_control_changes_nothing_and_the_others_are_applied() -> None:
    torch = FakeTorch(green=green_contexts.second(green_contexts.Driver(), built=False))
    gpu = backend(torch)
    with gpu.applied((SmPartition(16), CommPriority())) as (partition, priority):
        assert partition.status == "refused"
        assert "green contexts" in partition.detail
        assert priority.status == "applied"
        assert gpu.session is not None
        assert gpu.session.controls == (CommPriority(),)
        assert gpu.session.compute_stream is None


@pytest.mark.parametrize(
    ("control", "reason"),
    [
        (SmemPad(4096, "flash*"), "only our own GEMM"),
        (SmemPad(232_448), "the device allows 232,448"),
        (TileChoice(48, 64, 64), "powers of 2"),
        (CommBlocks(65), "at most 64 blocks"),
        (SmPartition(130), "leave 0 for compute"),
        (CommThreads(288), "start the program with NCCL_NTHREADS=256"),
    ],
)
def test_what_a_gpu_could_not_do_is_refused_with_its_reason(control: Control, reason: str) -> None:
    assert reason in (backend().refusal(control) or "")


def test_controls_that_exclude_each_other_are_an_error() -> None:
    with pytest.raises(InputError, match="twice"), backend().applied((CommBlocks(4), CommBlocks(8))):
        pytest.fail("two numbers of blocks were applied")


# --- partitions ---------------------------------------------------------------------------------


@given(st.integers(1, 200), st.integers(1, 200), st.sampled_from([6, 7, 8, 9, 10, 12]))
def test_communication_never_gets_fewer_sms_than_asked(sms: int, comm: int, major: int) -> None:
    try:
        left = compute_sms(sms, comm, major)
    except InputError:
        assert sms - comm < 8
        return
    unit = {6: 1, 7: 2, 8: 2}.get(major, 8)
    assert sms - left >= comm
    assert left % unit == 0
    assert sms - comm - left < unit


GENERATIONS: dict[str, Any] = {
    "2.11 to 2.13": green_contexts.second,
    "2.14": lambda driver: green_contexts.third(driver, counts=False),
    "later": green_contexts.third,
}


@pytest.mark.parametrize("make", GENERATIONS.values(), ids=GENERATIONS)
@pytest.mark.parametrize("bindings", [True, False])
def test_every_torch_with_streams_confines_compute_and_says_what_was_granted(
    make: Any, bindings: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = green_contexts.Driver()
    for name, module in (("cuda", ModuleType("cuda")), ("cuda.bindings", ModuleType("cuda.bindings"))):
        monkeypatch.setitem(sys.modules, name, module if bindings else None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver.bindings() if bindings else None)
    torch = FakeTorch(green=make(driver))
    assert backend(torch).refusal(SmPartition(16)) is None
    with backend(torch).applied((SmPartition(16),)) as (receipt,):
        assert receipt.status == "applied"
        assert driver.requests == [112]
        reported = bindings or make is green_contexts.third
        assert ("not reported" in receipt.detail) == (not reported)
        granted = (("SMs granted", 112),) if reported else ()
        assert receipt.evidence == (("SMs requested", 112), *granted)


@pytest.mark.parametrize(
    ("green", "reason"),
    [
        (green_contexts.first(green_contexts.Driver()), "offer no stream; torch 2.11 and later do"),
        (green_contexts.second(green_contexts.Driver(), built=False), "built without green contexts"),
        (green_contexts.third(green_contexts.Driver(), lacks="needs driver 12.8+"), "needs driver 12.8+"),
        ((SimpleNamespace(), SimpleNamespace()), "has no green contexts"),
        (green_contexts.second(green_contexts.Driver(refuses="CUDA_ERROR_OUT_OF_MEMORY")), "CUDA_ERROR_OUT_OF_MEMORY"),
        (green_contexts.third(green_contexts.Driver(sms=100)), "Invalid number of SMs"),
        (green_contexts.third(green_contexts.Driver(unit=64)), "leaves 4 of 132 to communication, not 16"),
    ],
)
def test_a_green_context_that_cannot_be_had_is_refused_in_its_own_words_and_the_block_runs(
    green: Any, reason: str
) -> None:
    gpu = backend(FakeTorch(green=green))
    with gpu.applied((SmPartition(16), CommPriority())) as (partition, priority):
        assert (partition.status, priority.status) == ("refused", "applied")
        assert reason in partition.detail
        assert gpu.session is not None
        assert gpu.session.compute_stream is None


def test_torch_itself_offers_what_the_stand_ins_offer() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch")
    reason = green_refusal(torch) or ""
    assert "built without green contexts" in reason or look("nvidia").missing is None
    assert hasattr(green_module(torch).GreenContext, "create")  # type: ignore[union-attr]


# --- AMD ----------------------------------------------------------------------------------------


class FakeHip:
    """Streams with CU masks, as clr's hipamd/src/hip_stream.cpp has them (`hipExtStreamGetCUMask`).

    A read needs a word for every 32 CUs of the device, else hipErrorInvalidValue (1). The answer is the stream's mask
    and the global one (HSA_CU_MASK) together; if they share no CU, it is the global mask, or every CU. `silent`: ROCm 5
    and 6 leave the answer unwritten where a global mask is set. `lost` bits are ignored, as an old driver might.
    """

    def __init__(
        self, cus: int = 304, *, lost: int = 0, status: int = 0, everywhere: int | None = None, silent: bool = False
    ) -> None:
        self.cus, self.lost, self.status, self.everywhere, self.silent = cus, lost, status, everywhere, silent
        self.masks: dict[int, int] = {}

    def hipExtStreamCreateWithCUMask(self, stream: Any, words: Any, mask: Any) -> int:  # noqa: N802
        stream._obj.value = 4096 + len(self.masks)
        held = sum(word << 32 * at for at, word in enumerate(mask[: words.value]))
        self.masks[stream._obj.value] = held | self.lost
        return self.status

    def hipExtStreamGetCUMask(self, stream: ctypes.c_void_p, words: Any, mask: Any) -> int:  # noqa: N802
        assert stream.value is not None
        if words.value < -(-self.cus // 32):
            return 1
        if self.everywhere is not None and self.silent:
            return 0
        base = self.everywhere if self.everywhere is not None else (1 << self.cus) - 1
        held = (self.masks[stream.value] & base) or base
        for at in range(words.value):
            mask[at] = held >> 32 * at & 0xFFFFFFFF
        return 0

    def hipStreamDestroy(self, stream: ctypes.c_void_p) -> int:  # noqa: N802
        assert stream.value is not None
        del self.masks[stream.value]
        return 0


@given(st.integers(0, 400), st.integers(1, 400))
def test_a_mask_has_exactly_the_bits_that_were_asked_for(first: int, count: int) -> None:
    mask = mask_words(first, count)
    bits = {32 * at + bit for at, word in enumerate(mask) for bit in range(32) if word >> bit & 1}
    assert bits == set(range(first, first + count))
    assert all(word < 2**32 for word in mask)


def test_masks_of_compute_and_communication_share_no_cu() -> None:
    compute, comm = mask_words(16, 288), (*mask_words(0, 16), *[0] * 9)
    assert all(one & other == 0 for one, other in zip(compute, comm, strict=True))


def test_a_split_leaves_every_xcd_a_cu_on_both_sides() -> None:
    check_split(304, 8, "gfx942")
    check_split(104, 1, "gfx90a")
    for comm in (4, 12, 304):
        with pytest.raises(InputError, match="needs 8 or more on both sides"):
            check_split(304, comm, "gfx942")


def test_a_masked_stream_is_read_back_and_destroyed() -> None:
    hip = FakeHip()
    with masked_stream(FakeTorch(amd=True), hip, 0, mask_words(8, 296)) as confined:
        assert confined.sms == 296
        assert confined.stream.pointer in hip.masks
    assert hip.masks == {}


@pytest.mark.parametrize("hip", [FakeHip(lost=0xFF), FakeHip(everywhere=0xFF)], ids=["ignored", "global mask instead"])
def test_a_driver_that_ignores_the_mask_is_caught(hip: FakeHip) -> None:
    with (
        pytest.raises(UnsupportedError, match="the driver set"),
        masked_stream(FakeTorch(amd=True), hip, 0, mask_words(8, 296)),
    ):
        pytest.fail("a stream was given that is not confined")
    assert hip.masks == {}


def test_a_stream_that_was_not_made_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match="error 801"), masked_stream(FakeTorch(), FakeHip(status=801), 0, (1,)):
        pytest.fail("a stream was given that was not made")


def test_an_answer_that_hip_leaves_unwritten_is_not_reported() -> None:
    hip = FakeHip(everywhere=(1 << 304) - 1, silent=True)
    with masked_stream(FakeTorch(amd=True), hip, 0, mask_words(8, 296)) as confined:
        assert not confined.reported
        assert "requested, not reported by HIP" in confined.detail
        assert confined.evidence == (("CUs requested", 296),)
    with masked_stream(FakeTorch(amd=True), FakeHip(), 0, mask_words(8, 296)) as confined:
        assert confined.evidence == (("CUs requested", 296), ("CUs granted", 296))


def test_a_global_mask_narrows_a_stream_and_the_receipt_counts_what_is_left() -> None:
    with masked_stream(FakeTorch(amd=True), FakeHip(everywhere=0xFFFF), 0, mask_words(8, 296)) as confined:
        assert confined.sms == 8


def test_masks_use_the_hip_runtime_that_is_mapped_not_the_one_on_the_path(
    tmp_path: Path,
) -> None:
    """Two real libraries: torch's wheel carries one, the system another."""
    copies = [tmp_path / where / "libamdhip64.so" for where in ("wheel", "system")]
    for at, copy in enumerate(copies):
        copy.parent.mkdir()
        source = f"int makeway_which(void) {{ return {at}; }}"
        subprocess.run(["gcc", "-shared", "-xc", "-", "-o", copy], input=source.encode(), check=True)
    code = (
        "import ctypes, ctypes.util, sys\n"
        "ctypes.util.find_library = lambda _: sys.argv[2]\n"
        "from makeway.act.rocm.masks import hip_library\n"
        "loaded = [ctypes.CDLL(sys.argv[1])] if len(sys.argv) > 3 else []\n"
        "print(hip_library().makeway_which())"
    )
    for mapped, which in ((["mapped"], "0"), ([], "1")):
        command = [sys.executable, "-c", code, *map(str, copies), *mapped]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.strip() == which


def test_amd_partitions_by_cu_mask_and_knows_no_thread_count() -> None:
    hip = FakeHip()
    gpu = RocmBackend(torch=FakeTorch(amd=True), environ={}, hip=hip)
    assert gpu.name == "rocm"
    assert gpu.machine.arch == "gfx942"
    assert "one size" in (gpu.refusal(CommThreads(288)) or "")
    assert "steps of 8" in (gpu.refusal(SmPartition(12)) or "")
    with gpu.applied((SmPartition(16), CommPriority(), CommBlocks(16))) as receipts:
        assert {receipt.status for receipt in receipts} == {"applied"}
        assert "288 CUs" in receipt_for(receipts, SmPartition(16)).detail
    assert hip.masks == {}


def test_amd_without_its_runtime_says_which_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", _not_found)
    gpu = RocmBackend(torch=FakeTorch(amd=True), environ={})
    assert "libamdhip64.so was not found" in (gpu.refusal(SmPartition(16)) or "")


def _not_found(name: str) -> Any:
    raise OSError(name)
