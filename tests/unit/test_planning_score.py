"""Scores: the judge says what `simulate` says; the quick scorer only ranks."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from makeway.decide.planning.score import Judge, QuickScorer, Score, dispatch_policies, judged
from makeway.model.presets import PresetOptions, load_preset
from makeway.model.simulate.policies import DISPATCHES
from makeway.model.simulate.predict import Settings, simulate, vendor_dispatch
from makeway.values.control import CommBlocks, CommPriority, Control, LaunchOrder, SmemPad, SmPartition
from makeway.values.device import load_device
from makeway.values.kernel import KernelResources
from makeway.values.workload import BlockWork, Gemm, Measured, Work, Workload, WorkloadBuilder

A100 = load_device("A100-SXM4-80GB")
H100 = load_device("H100-SXM5-80GB")
MI250X = load_device("MI250X")
MI300X = load_device("MI300X")
few = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
ELEMENTWISE = KernelResources(threads=512, registers_per_thread=32)


def pair(resources: KernelResources, work: Work, *, persistent: bool = False) -> Workload:
    builder = WorkloadBuilder("pair", ranks=8)
    builder.kernel("k", resources, work, share=0.6, persistent=persistent)
    builder.collective("c", "all-gather", 2**28, "nccl-2.32.3/ring-simple", blocks=24, time_ns=0.8e6)
    return builder.done()


works = st.one_of(
    st.builds(Measured, time_ns=st.floats(1e5, 3e6), blocks=st.integers(1, 3000)),
    st.builds(BlockWork, blocks=st.integers(1, 3000), flops_per_block=st.floats(1e6, 1e9)),
    st.builds(Gemm, m=st.integers(100, 9000), n=st.integers(100, 9000), k=st.integers(100, 4000)),
)
sets = st.sampled_from([(), (CommPriority(),), (LaunchOrder(),), (SmPartition(24),), (SmPartition(8), CommBlocks(8))])


def test_nvidia_is_judged_under_both_policies_and_amd_under_its_own() -> None:
    assert [policy.name for policy in dispatch_policies(A100)] == ["strict", "backfill"]
    assert [policy.name for policy in dispatch_policies(MI250X)] == ["cut-ahead"]
    assert [policy.name for policy in dispatch_policies(MI300X)] == ["held-queue"]
    assert [policy.name for policy in dispatch_policies(A100, DISPATCHES["strict"])] == ["strict"]


@few
@given(works, sets)
def test_the_judge_says_what_simulate_says(work: Work, controls: tuple[Control, ...]) -> None:
    workload = pair(ELEMENTWISE, work)
    judge = Judge(workload, A100)
    assert judge.score(controls).t_ns == simulate(workload, A100, controls).t_ns
    backfill = DISPATCHES["backfill"]
    assert judge.score(controls, backfill).t_ns == judged(workload, A100, controls, backfill).t_ns
    assert judge.baseline.t_sequential_ns == simulate(workload, A100).t_sequential_ns


@few
@given(works, sets, st.booleans())
def test_the_quick_scorer_is_the_fluid_engine_with_equal_block_times(
    work: Work, controls: tuple[Control, ...], persistent: bool
) -> None:
    workload = pair(ELEMENTWISE, work, persistent=persistent)
    exact = simulate(workload, A100, controls, Settings(engine="fluid", jitter=0.0))
    if exact.fallback is None:
        assert QuickScorer(workload, A100, vendor_dispatch(A100)).time_ns(controls) == pytest.approx(exact.t_ns)


def test_kernels_of_many_waves_are_thinned_where_they_run_at_once() -> None:
    workload = load_preset("cb-ar", A100, PresetOptions(iterations=4))
    scorer = QuickScorer(workload, A100, vendor_dispatch(A100))
    assert scorer.crowded
    exact = simulate(workload, A100, (), Settings(engine="class", jitter=0.0)).t_ns
    assert scorer.time_ns(()) == pytest.approx(exact, rel=0.1)


def test_a_judge_remembers() -> None:
    judge = Judge(load_preset("gemm-ar", A100), A100)
    first = judge.prediction((CommPriority(),))
    assert judge.prediction((CommPriority(),)) is first
    assert judge.evaluations == 1


def test_what_cannot_run_is_a_reason_and_not_an_error() -> None:
    judge = Judge(load_preset("gemm-ar", A100), A100)
    assert "shared memory" in str(judge.attempt((SmemPad(10**6),)))
    assert "add comm-blocks=8" in str(judge.attempt((SmPartition(8),)))
    assert isinstance(judge.attempt((SmPartition(8), CommBlocks(8))), Score)
    quick = QuickScorer(load_preset("gemm-ar", A100), A100, vendor_dispatch(A100))
    assert quick.time_ns((SmemPad(10**6),)) is None
    assert quick.time_ns((SmPartition(8),)) is None
