"""Scores: the worst of what the hardware may do, cheap, and true to the engines."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from makeway.decide.planning.score import Fidelity, Scorer, dispatch_policies, score
from makeway.decide.planning.thinning import kernel_waves, settled, thinned
from makeway.model.presets import load_preset
from makeway.model.residency import resident_blocks
from makeway.model.simulate.compile import compile_program
from makeway.model.simulate.driver import run
from makeway.model.simulate.policies import DISPATCHES
from makeway.model.simulate.predict import Settings, simulate, vendor_dispatch
from makeway.values.control import Chunks, CommPriority, CommThreads, Control, LaunchOrder, SmemPad, SmPartition
from makeway.values.device import Device, load_device
from makeway.values.kernel import KernelResources
from makeway.values.workload import BlockWork, Gemm, KernelOp, Measured, Work, Workload, WorkloadBuilder

A100 = load_device("A100-SXM4-80GB")
H100 = load_device("H100-SXM5-80GB")
MI250X = load_device("MI250X")
MI300X = load_device("MI300X")
few = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
TILE = KernelResources(threads=128, registers_per_thread=222, smem_bytes=80 * 1024)  # two blocks per SM of an A100
ELEMENTWISE = KernelResources(threads=512, registers_per_thread=32)


def pair(resources: KernelResources, work: Work, *, persistent: bool = False) -> Workload:
    builder = WorkloadBuilder("pair", ranks=8)
    builder.kernel("k", resources, work, share=0.6, persistent=persistent)
    builder.collective("c", "all-gather", 2**28, "nccl-2.32.3/ring-simple", blocks=24, time_ns=0.8e6)
    return builder.done()


works = st.one_of(
    st.builds(
        Measured, time_ns=st.floats(1e5, 3e6), blocks=st.integers(1, 3000), hbm_bytes=st.sampled_from([0.0, 1e9])
    ),
    st.builds(BlockWork, blocks=st.integers(1, 3000), flops_per_block=st.floats(1e6, 1e9)),
    st.builds(Gemm, m=st.integers(100, 9000), n=st.integers(100, 9000), k=st.integers(100, 4000)),
)


def test_nvidia_is_scored_under_both_policies_and_amd_under_its_own() -> None:
    assert [policy.name for policy in dispatch_policies(A100)] == ["strict", "backfill"]
    assert [policy.name for policy in dispatch_policies(MI250X)] == ["cut-ahead"]
    assert [policy.name for policy in dispatch_policies(MI300X)] == ["held-queue"]
    assert [policy.name for policy in dispatch_policies(A100, DISPATCHES["strict"])] == ["strict"]


def test_the_slowest_policy_counts() -> None:
    scored = score(pair(TILE, Measured(time_ns=1e6, blocks=2592)), A100, (CommPriority(),))
    times = dict(scored.by_dispatch)
    assert times["backfill"] > 1.3 * times["strict"]
    assert scored.t_ns == times["backfill"]


@few
@given(works, st.sampled_from([(), (CommPriority(),), (LaunchOrder(),), (SmPartition(24),)]), st.booleans())
def test_under_the_strict_queue_a_score_is_what_simulate_says(
    work: Work, controls: tuple[Control, ...], persistent: bool
) -> None:
    workload = pair(ELEMENTWISE, work, persistent=persistent)
    scored = score(workload, A100, controls, dispatch=DISPATCHES["strict"])
    assert scored.t_ns == pytest.approx(simulate(workload, A100, controls, Settings(engine="class")).t_ns, rel=1e-6)


@few
@given(works, st.booleans(), st.sampled_from([A100, MI250X]))
def test_known_work_in_place_of_a_measured_time_changes_nothing(work: Work, persistent: bool, device) -> None:  # type: ignore[no-untyped-def]
    builder = WorkloadBuilder("alone")
    builder.kernel("k", ELEMENTWISE, work, persistent=persistent)
    workload = builder.done()
    policy = vendor_dispatch(device)
    for controls in ((), (SmemPad(20_000),)):
        before, after = (
            compile_program(one, device, controls, dispatch=policy).program.ops[0]
            for one in (workload, settled(workload, device))
        )
        assert after.blocks == before.blocks
        assert after.work_ns == pytest.approx(before.work_ns, rel=1e-9)
        assert after.hbm_per_ns == pytest.approx(before.hbm_per_ns, rel=1e-9, abs=1e-12)


@few
@given(works, st.integers(4, 32))
def test_thinning_keeps_the_work_and_cuts_the_waves(work: Work, waves: int) -> None:
    workload = pair(ELEMENTWISE, work)
    (before,), (after,) = workload.kernels, thinned(workload, A100, waves).kernels
    if kernel_waves(before, A100) <= waves:
        assert after == before
        return
    assert kernel_waves(after, A100) <= 1.5 * waves + 1
    assert _total_work(after) == pytest.approx(_total_work(before), rel=1e-6)


def _total_work(kernel: KernelOp) -> float:
    if isinstance(kernel.work, Measured):
        return kernel.work.time_ns
    workload = Workload(name="k", operations=(kernel,))
    op = compile_program(workload, A100, (), dispatch=vendor_dispatch(A100)).program.ops[0]
    return op.blocks * op.work_ns


def test_equal_block_times_hide_starvation_and_the_estimate_of_it_does_not() -> None:
    workload = pair(TILE, Measured(time_ns=1e6, blocks=2592))
    backfill = DISPATCHES["backfill"]
    program = compile_program(workload, A100, (CommPriority(),), dispatch=backfill).program
    blind = run(program, engine="class", dispatch=backfill).end_ns
    honest = score(workload, A100, (CommPriority(),), dispatch=backfill, fidelity=Fidelity(engine="block")).t_ns
    judged = score(workload, A100, (CommPriority(),), dispatch=backfill).t_ns
    assert blind < 0.75 * honest
    assert judged == pytest.approx(honest, rel=0.03)


KERNELS = {
    "tile": (TILE, 0.6),
    "elementwise": (ELEMENTWISE, 0.5),
    "one block": (KernelResources(threads=1024, registers_per_thread=40), 1.0),
}


NVIDIA_CASES = [(device, name, threads) for device in (A100, H100) for name in KERNELS for threads in (None, 288)]
AMD_CASES = [(MI250X, name, None) for name in ("elementwise", "one block")]  # the tile needs more than its LDS


@pytest.mark.parametrize(("device", "name", "threads"), [*NVIDIA_CASES, *AMD_CASES])
def test_the_estimate_of_who_starves_is_close_to_the_engine_that_keeps_every_block(
    device: Device, name: str, threads: int | None
) -> None:
    resources, share = KERNELS[name]
    library = "rccl-5.4.3/generic" if device.vendor == "amd" else "nccl-2.32.3/ring-simple"
    builder = WorkloadBuilder("pair", ranks=8)
    wave = resident_blocks(device, resources) * device.sms
    builder.kernel("k", resources, Measured(time_ns=1e6, blocks=6 * wave), share=share)
    builder.collective("c", "all-gather", 2**28, library, blocks=24, time_ns=0.8e6)
    workload = builder.done()
    policy = dispatch_policies(device)[-1]
    controls: tuple[Control, ...] = (CommPriority(), *([CommThreads(threads)] if threads else []))
    judged = score(workload, device, controls, dispatch=policy).t_ns
    honest = score(workload, device, controls, dispatch=policy, fidelity=Fidelity(engine="block")).t_ns
    assert judged == pytest.approx(honest, rel=0.08)  # at six waves spread alone is worth several percent


def test_the_dispatch_policy_does_not_matter_where_nobody_waits_for_the_same_sms() -> None:
    scorer = Scorer(pair(TILE, Measured(time_ns=1e6, blocks=2592)), A100, dispatch_policies(A100))
    strict, backfill = (time_ns for _, time_ns in scorer.score((SmPartition(24),)).by_dispatch)
    assert strict == backfill


def test_a_scorer_remembers() -> None:
    scorer = Scorer(load_preset("gemm-ar", A100), A100, dispatch_policies(A100))
    first = scorer.score((CommPriority(),))
    spent = scorer.spent_ms
    assert scorer.score((CommPriority(),)) is first
    assert scorer.spent_ms == spent
    assert scorer.evaluations == 1


def test_what_cannot_run_is_a_reason_and_not_an_error() -> None:
    scorer = Scorer(load_preset("gemm-ar", A100), A100, dispatch_policies(A100))
    assert "shared memory" in str(scorer.attempt((SmemPad(10**6),)))


def test_pieces_cost_more_of_the_budget() -> None:
    spent = []
    for controls in ((), (Chunks(8),)):
        scorer = Scorer(load_preset("cb-ar", A100), A100, dispatch_policies(A100), Fidelity(waves=4))
        scorer.score(controls)
        spent.append(scorer.spent_ms)
    assert spent[1] > 2 * spent[0]
