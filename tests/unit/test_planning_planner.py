"""Plans: chosen by the score, never worse than published heuristics, explained in plain sentences."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from makeway.decide.planning.explain import LARGEST_ERROR, model_error
from makeway.decide.planning.heuristics import heuristic_names
from makeway.decide.planning.planner import plan as make_plan
from makeway.model.presets import PresetOptions, load_preset
from makeway.model.simulate.policies import DISPATCHES
from makeway.values.collective import Collective
from makeway.values.control import (
    CommBlocks,
    CommPriority,
    CommThreads,
    Control,
    CopyEngine,
    LaunchOrder,
    SmemPad,
    SmPartition,
    control_word,
)
from makeway.values.device import Device, load_device
from makeway.values.errors import InputError
from makeway.values.kernel import KernelResources
from makeway.values.plan import Forecast, Plan, Rejected, Search
from makeway.values.workload import CollectiveOp, KernelOp, Measured, Workload, WorkloadBuilder

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from planner_map import Setting, rows_by_cell, verdict  # noqa: E402

A40 = load_device("A40")
A100 = load_device("A100-SXM4-80GB")
H100 = load_device("H100-SXM5-80GB")
MI250X = load_device("MI250X")
MI300X = load_device("MI300X")
NCCL, RCCL = "nccl-2.32.3/ring-simple", "rccl-5.4.3/generic"
GEMM = KernelResources(threads=128, registers_per_thread=222, smem_bytes=80 * 1024)
TRITON = KernelResources(threads=256, registers_per_thread=98, smem_bytes=48 * 1024)
QUICK_MS = 150.0


def pair(
    resources: KernelResources, blocks: int, kind: str = "all-reduce", *, comm_ms: float = 0.8, library: str = NCCL,
    comm_blocks: int = 24, persistent: bool = False,
) -> Workload:  # fmt: skip
    """A kernel of 1 ms and a collective beside it."""
    size_bytes = round(2**28 * comm_ms / 0.8)
    builder = WorkloadBuilder("pair", ranks=8)
    builder.kernel("k", resources, Measured(time_ns=1e6, blocks=blocks), share=0.6, persistent=persistent)
    builder.collective("c", kind, size_bytes, library, time_ns=comm_ms * 1e6, blocks=comm_blocks)  # type: ignore[arg-type]
    return builder.done()


def kinds(plan: Plan) -> set[type[Control]]:
    return {type(control) for control in plan.controls}


def record(plan: Plan) -> Search:
    assert plan.search is not None
    return plan.search


def times(plan: Plan) -> Forecast:
    assert plan.predicted is not None
    return plan.predicted


# --- what is chosen, case by case: none of it is written in the planner ------------------------


def test_a_stream_of_short_kernels_needs_nothing() -> None:
    # The collective enters at the first kernel's end.
    builder = WorkloadBuilder("layers", ranks=8)
    for index in range(12):
        builder.kernel(f"k{index}", GEMM, Measured(time_ns=1e5, blocks=432))
    builder.collective("c", "all-reduce", 2**26, NCCL, time_ns=3e5)
    plan = make_plan(builder.done(), A100, budget_ms=QUICK_MS)
    assert record(plan).leave_as_is
    assert plan.controls == ()
    assert record(plan).summary[0].startswith("Leave as is")


def test_one_long_kernel_before_a_collective_needs_priority_or_order() -> None:
    # One block per SM: a retiring block leaves a whole SM, so both policies let a high priority in.
    plan = make_plan(pair(GEMM, 2016, comm_blocks=8), A40, budget_ms=QUICK_MS)
    assert kinds(plan) & {CommPriority, LaunchOrder}
    assert not kinds(plan) & {SmemPad, SmPartition, CopyEngine}
    assert times(plan).t_plan_ns < 0.7 * times(plan).t_naive_ns


def test_a_persistent_kernel_needs_copy_engines_or_where_values_are_added_a_partition() -> None:
    gather = make_plan(pair(TRITON, 216, "all-gather", persistent=True), A100, budget_ms=QUICK_MS)
    assert kinds(gather) == {CopyEngine}
    reduce = make_plan(pair(TRITON, 216, "all-reduce", persistent=True), A100, budget_ms=QUICK_MS)
    assert SmPartition in kinds(reduce)
    assert not kinds(reduce) & {CommPriority, LaunchOrder}


def test_a_collective_that_does_not_fit_beside_the_gemm_is_made_smaller() -> None:
    workload = load_preset("gemm-ar", A100)
    plan = make_plan(workload, A100, budget_ms=2 * QUICK_MS)
    assert kinds(plan) & {CommThreads, CommBlocks}
    assert times(plan).t_plan_ns < 0.95 * record(plan).baselines["cui-pericas"].t_ns  # priority alone


def test_where_the_hardware_back_fills_a_pad_alone_makes_room() -> None:
    block = KernelResources(threads=256, registers_per_thread=64, smem_bytes=16 * 1024)
    plan = make_plan(pair(block, 2640, library=RCCL, comm_blocks=32), MI250X)
    assert kinds(plan) == {SmemPad}  # priority does nearly as well: block by block the pad is 3 % faster
    nvidia = make_plan(pair(block, 2640), A100, budget_ms=QUICK_MS, dispatch=DISPATCHES["strict"])
    assert kinds(nvidia) != {SmemPad}  # order, not room, keeps it out


def test_what_one_dispatch_policy_cannot_rely_on_is_not_planned_for_both() -> None:
    workload = pair(GEMM, 2592)  # two blocks per SM: back-fill starves a high priority
    strict = make_plan(workload, A100, budget_ms=QUICK_MS, dispatch=DISPATCHES["strict"])
    assert times(strict).dispatchers == ("strict",)
    both = make_plan(workload, A100, budget_ms=QUICK_MS)
    assert times(both).dispatchers == ("strict", "backfill")
    assert record(both).baselines["cui-pericas"].t_ns > 1.3 * record(strict).baselines["cui-pericas"].t_ns
    assert kinds(both) != {CommPriority}


# --- laws --------------------------------------------------------------------------------------

PRESETS = [
    (device, preset, options)
    for device in (A40, A100, H100, MI250X, MI300X)
    for preset, options in (
        ("gemm-ar", PresetOptions()),
        ("conccl-01", PresetOptions()),
        ("cb-ar", PresetOptions(grid=(16, 16), iterations=3)),
        ("tp-llama-70b", PresetOptions()),
    )
]


@pytest.mark.parametrize(("device", "preset", "options"), PRESETS, ids=lambda value: getattr(value, "name", None))
def test_a_plan_is_never_worse_than_any_published_heuristic(
    device: Device, preset: str, options: PresetOptions
) -> None:
    plan = make_plan(load_preset(preset, device, options), device, budget_ms=100)
    predicted, search = times(plan), record(plan)
    assert set(search.baselines) == set(heuristic_names())
    assert search.t_best_ns <= min(baseline.t_ns for baseline in search.baselines.values())
    assert predicted.t_sequential_ns is not None
    gain = (predicted.t_naive_ns - search.t_best_ns) / predicted.t_sequential_ns
    assert search.leave_as_is == (gain <= model_error(device.arch))
    assert predicted.t_plan_ns == (predicted.t_naive_ns if search.leave_as_is else search.t_best_ns)
    assert len(plan.reasons) == len(plan.controls)
    assert all(item.reason for item in plan.rejected)
    assert {item.control for item in plan.rejected}.isdisjoint(plan.controls)


def test_the_model_error_of_a_device_without_published_results_is_the_largest() -> None:
    assert model_error(A100.arch) < model_error(A40.arch) < model_error(MI250X.arch) == LARGEST_ERROR
    assert model_error(H100.arch) == LARGEST_ERROR


# --- the words ---------------------------------------------------------------------------------


def test_each_control_has_its_times_and_each_rejection_a_reason() -> None:
    plan = make_plan(pair(GEMM, 2016, comm_blocks=8), A40, budget_ms=QUICK_MS)
    assert record(plan).summary[0].startswith("Worth doing: ")
    assert "the slowest under the strict and backfill dispatch policies" in record(plan).summary[1]
    assert all(" ms with it, " in reason and " ms without it (-" in reason for reason in plan.reasons)
    reasons = {control_word(item.control): item.reason for item in plan.rejected}
    assert "cannot add" in reasons["copy-engine"]
    assert any(reason.startswith(("does not help: +", "changes nothing: ")) for reason in reasons.values())


def test_a_gain_within_the_error_of_the_model_is_left_alone_and_says_so() -> None:
    plan = make_plan(pair(GEMM, 2592, comm_ms=0.01), A100, budget_ms=QUICK_MS)
    assert record(plan).leave_as_is
    assert "the best set found (" in record(plan).summary[0] or "nothing faster was found" in record(plan).summary[0]
    assert "the model is off by 1.1 %" in record(plan).summary[1]


def test_what_the_budget_did_not_buy_is_noted() -> None:
    plan = make_plan(load_preset("gemm-ar", A100), A100, budget_ms=20)
    assert any(note.startswith("stopped early") for note in record(plan).notes)
    assert any("who starves" in note for note in record(plan).notes)


def test_thinned_kernels_are_noted() -> None:
    plan = make_plan(load_preset("cb-ar", A100), A100, budget_ms=100)
    assert record(plan).waves is not None
    assert any("thinned" in note for note in record(plan).notes)


def test_small_workloads_are_judged_block_by_block() -> None:
    assert record(make_plan(pair(GEMM, 864), A40, budget_ms=2_000)).engine == "block"
    assert record(make_plan(pair(GEMM, 864), A40, budget_ms=100)).engine == "class"


# --- what is asked -----------------------------------------------------------------------------


def test_forced_controls_stay_whatever_they_cost() -> None:
    workload = pair(GEMM, 2592, comm_ms=0.01)
    plan = make_plan(workload, A100, budget_ms=QUICK_MS, controls=(SmPartition(48),))
    assert plan.controls == (SmPartition(48),)
    assert plan.reasons == ("required",)
    assert times(plan).t_plan_ns > times(plan).t_naive_ns  # SMs that compute misses
    assert "with the required ones" in record(plan).summary[0]


def test_excluded_kinds_are_in_no_plan_and_keep_their_reason() -> None:
    why = Rejected(control=CopyEngine(), reason="the sizes are not recorded")
    workload = pair(TRITON, 216, "all-gather", persistent=True)
    plan = make_plan(workload, A100, budget_ms=QUICK_MS, excluded=(why,))
    assert CopyEngine not in kinds(plan)
    assert why in plan.rejected
    assert all(CopyEngine() not in baseline.controls for baseline in record(plan).baselines.values())


def test_a_forced_control_that_cannot_work_is_an_error() -> None:
    with pytest.raises(InputError, match="exceeds the 163 KiB of shared memory per block by"):
        make_plan(pair(GEMM, 864), A100, controls=(SmemPad(100 * 1024),))


def test_a_published_heuristic_can_be_followed() -> None:
    plan = make_plan(load_preset("conccl-02", MI300X), MI300X, budget_ms=100, heuristic="conccl-sp")
    assert plan.controls == (CommPriority(), LaunchOrder())
    assert times(plan).t_plan_ns == record(plan).baselines["conccl-sp"].t_ns
    assert record(plan).evaluations <= len(heuristic_names()) + 10  # baselines and reasons, no search
    assert not record(plan).notes or not record(plan).notes[0].startswith("stopped early")


def test_an_unknown_heuristic_and_an_empty_budget_are_errors() -> None:
    with pytest.raises(InputError, match="did you mean 'makeway'"):
        make_plan(pair(GEMM, 864), A100, heuristic="makewai")
    with pytest.raises(InputError, match="above 0 ms"):
        make_plan(pair(GEMM, 864), A100, budget_ms=0)


def test_a_workload_with_nothing_to_overlap_is_left_as_it_is() -> None:
    builder = WorkloadBuilder("alone")
    builder.kernel("k", GEMM, Measured(time_ns=1e6, blocks=864))
    plan = make_plan(builder.done(), A100, budget_ms=QUICK_MS)
    assert record(plan).leave_as_is
    assert plan.controls == ()


# --- the same everywhere -----------------------------------------------------------------------

SCRIPT = """
from makeway.values.device import load_device
from makeway.decide.planning.planner import plan
from makeway.model.presets import load_preset
device = load_device("H100-SXM5-80GB")
print(plan(load_preset("tp-llama-70b", device), device, budget_ms=100))
"""


def test_a_plan_is_the_same_to_the_byte_in_every_process() -> None:
    printed = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert "Plan(" in printed[0]
    assert "Search(" in printed[0]


def as_from_a_trace(operations: int) -> Workload:
    ops: list[KernelOp | CollectiveOp] = []
    for index in range(operations):
        if index % 8 == 7:
            exchange = Collective(kind="reduce-scatter", size_bytes=2**25, ranks=8)
            after = (ops[-1].name,)
            ops.append(CollectiveOp(name=f"c{index}", collective=exchange, library=NCCL, after=after, time_ns=3e5))
        else:
            block = replace(TRITON, smem_bytes=1024 * (index % 5))
            ops.append(KernelOp(name=f"k{index}", resources=block, work=Measured(time_ns=5e4, blocks=300 + index)))
    return Workload(name="trace", operations=tuple(ops), ranks=8)


def test_a_workload_of_400_operations_keeps_to_its_budget() -> None:
    plan = make_plan(as_from_a_trace(400), A100)
    assert record(plan).evaluations <= 20  # each counts all its operations
    assert record(plan).baselines["conccl-sp"].t_ns > 0


# --- the control map ---------------------------------------------------------------------------

CELLS = [
    ("A40", "Triton GEMM", "ring 544"),
    ("A100-SXM4-80GB", "GEMM 128x128", "ring 544"),
    ("A100-SXM4-80GB", "Triton GEMM, persistent", "ring 288"),
    ("H100-SXM5-80GB", "Hopper GEMM", "ring 544"),
    ("H100-SXM5-80GB", "elementwise 1024", "ring 288, cluster 1"),
    ("MI250X", "small-tile GEMM", "RCCL 256"),
    ("MI300X", "attention", "RCCL 256"),
]


@pytest.mark.parametrize("cell", CELLS, ids=", ".join)
@pytest.mark.parametrize("copies", [True, False])
def test_the_plan_uses_what_the_control_map_says_helps(cell: tuple[str, str, str], copies: bool) -> None:
    setting = Setting(copies=copies, budget_ms=QUICK_MS)
    answer = verdict((cell, rows_by_cell(setting)[cell], setting))
    assert answer.agrees, answer.why_not
