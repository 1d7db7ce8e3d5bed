"""Worked cases of the simulator that a reader can check by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from makeway.model.residency import Need
from makeway.model.simulate import Settings, simulate
from makeway.model.simulate.driver import run
from makeway.model.simulate.policies import BackFill, HeldQueue
from makeway.model.simulate.program import EngineOp, Program, Site
from makeway.values.control import CommBlocks, CommPriority, CommThreads, CopyEngine, LaunchOrder, SmemPad, SmPartition
from makeway.values.device import load_device
from makeway.values.kernel import KernelResources
from makeway.values.workload import Measured, Workload, WorkloadBuilder

H100 = load_device("H100-SXM5-80GB")
HOPPER_GEMM = KernelResources(threads=384, registers_per_thread=168, smem_bytes=200 * 1024)  # one block per SM
SMALL = Need(warps=8, registers_per_warp=2048, scalar_registers_per_warp=0, smem_bytes=1024, barriers=0, cluster=1)


def pair(
    kernel: KernelResources, blocks: int, *, comm_ms: float = 0.8, persistent: bool = False, kind: str = "all-gather"
) -> Workload:
    builder = WorkloadBuilder("pair", ranks=8)
    builder.kernel("k", kernel, Measured(time_ns=1e6, blocks=blocks), share=1.0, persistent=persistent)
    builder.collective("c", kind, 2**28, "nccl-2.32.3/ring-simple", time_ns=comm_ms * 1e6, blocks=24)  # type: ignore[arg-type]
    return builder.done()


def kernel_op(**options: object) -> EngineOp:
    given: dict[str, object] = {
        "name": "k",
        "kind": "kernel",
        "block": SMALL,
        "blocks": 40,
        "work_ns": 1e5,
        "share": 0.5,
    }
    return EngineOp(**(given | options))  # type: ignore[arg-type]


def program(*ops: EngineOp, sms: int = 10, **options: object) -> Program:
    return Program(sm=H100.sm, sites=(Site(part=None, gpc=0, sms=sms),), ranks=1, ops=ops, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["class", "block"])
def test_waves_of_a_kernel_alone(engine: str) -> None:
    # 4 blocks fit per SM; at half an SM each they run two at a time's worth: 10 SMs x 4 = 40 blocks in 2e5 ns.
    assert run(program(kernel_op()), engine=engine).end_ns == pytest.approx(2e5 * 2)  # type: ignore[arg-type]
    # one block more: it runs alone afterwards, at its own half of an SM
    assert run(program(kernel_op(blocks=41)), engine=engine).end_ns == pytest.approx(4e5 + 2e5)  # type: ignore[arg-type]


def test_sms_that_no_block_needs_change_nothing() -> None:
    few = kernel_op(blocks=7)
    assert run(program(few, sms=10), engine="class").end_ns == run(program(few, sms=90), engine="class").end_ns


def test_hbm_shared_in_proportion_stretches_both_sides() -> None:
    comm = EngineOp(name="c", kind="copy", stream="x", work_ns=4e5, hbm_per_ns=100.0, group="c")
    memory = kernel_op(hbm_per_ns=20.0)  # 10 SMs x 20 = 200 bytes per ns at full rate
    both = run(program(memory, comm, hbm_per_ns=150.0), engine="class")
    # 300 wanted, 150 there: everything at half speed until one side ends; both need 4e5 ns alone
    assert both.end_ns == pytest.approx(8e5)


def test_a_cluster_is_placed_whole_and_inside_one_gpc() -> None:
    cluster = replace(SMALL, warps=32, cluster=4)  # one block per SM by warps and registers
    ops = (
        kernel_op(name="filler", block=replace(SMALL, warps=32), blocks=5, stream="f"),
        kernel_op(block=cluster, blocks=4),
    )
    sites = (Site(part=None, gpc=0, sms=4), Site(part=None, gpc=1, sms=4))
    for engine in ("class", "block"):
        result = run(replace(program(*ops), sites=sites), engine=engine)
        # the filler leaves three free SMs, in the wrong shape: the cluster waits until a GPC has four
        assert result.times[1].started_ns == pytest.approx(result.times[0].ended_ns)


def test_a_persistent_kernel_takes_what_is_there_and_divides_its_work() -> None:
    workload = pair(HOPPER_GEMM, 132, persistent=True)
    alone = simulate(workload, H100, (), Settings(engine="class"))
    shared = simulate(workload, H100, (SmPartition(24),), Settings(engine="class"))
    compute = next(span for span in shared.timeline.spans if span.kind == "compute")
    assert alone.t_compute_ns == pytest.approx(1e6)
    assert compute.duration_ns == pytest.approx(1e6 * 132 / 108, rel=1e-3)
    assert shared.t_ns < alone.t_ns


def test_a_persistent_kernel_keeps_a_collective_out_whatever_its_priority() -> None:
    workload = pair(HOPPER_GEMM, 132, persistent=True)
    naive, urgent = (
        simulate(workload, H100, controls, Settings(engine="class")) for controls in ((), (CommPriority(),))
    )
    assert urgent.t_ns == pytest.approx(naive.t_ns)
    copied = simulate(workload, H100, (CopyEngine(),), Settings(engine="class"))
    assert copied.t_ns < 0.7 * naive.t_ns


def test_a_pad_slows_a_measured_kernel_that_needs_its_residency() -> None:
    kernel = KernelResources(threads=256, registers_per_thread=64, smem_bytes=16 * 1024)  # four per SM
    builder = WorkloadBuilder("alone")
    builder.kernel("k", kernel, Measured(time_ns=1e6, blocks=5280), share=0.5)
    times = [
        simulate(builder.done(), H100, controls, Settings(engine="class")).t_ns
        for controls in ((), (SmemPad(70_000),), (SmemPad(120_000),))  # four, two and one block per SM
    ]
    assert times[0] == pytest.approx(1e6)
    assert times[1] == pytest.approx(1e6)  # two blocks of half an SM each still fill it
    assert times[2] == pytest.approx(2e6)


def test_padding_alone_does_nothing_on_a_strict_queue() -> None:
    kernel = KernelResources(threads=256, registers_per_thread=64, smem_bytes=16 * 1024)
    workload = pair(kernel, 2112)
    naive = simulate(workload, H100, (), Settings(engine="class"))
    padded = simulate(workload, H100, (SmemPad(40_000),), Settings(engine="class"))
    assert padded.t_ns >= naive.t_ns * 0.999


def test_launching_first_is_as_good_as_priority_for_a_kernel_of_many_waves() -> None:
    workload = pair(HOPPER_GEMM, 1320)
    first, urgent = (
        simulate(workload, H100, (control,), Settings(engine="class")) for control in (LaunchOrder(), CommPriority())
    )
    assert first.t_ns == pytest.approx(urgent.t_ns, rel=0.1)
    assert first.share_of_ideal is not None
    assert first.share_of_ideal > 0.5


def test_short_kernels_in_one_stream_let_a_collective_in_at_the_next_boundary() -> None:
    builder = WorkloadBuilder("short kernels", ranks=8)
    for index in range(10):
        builder.kernel(f"k{index}", HOPPER_GEMM, Measured(time_ns=1e5, blocks=1320), share=1.0)
    builder.collective("c", "all-gather", 2**28, "nccl-2.32.3/ring-simple", time_ns=5e5, blocks=24)
    workload = replace(builder.done(), host_launch_ns=0.0)
    naive, urgent = (
        simulate(workload, H100, controls, Settings(engine="class")) for controls in ((), (CommPriority(),))
    )
    assert naive.t_ns == pytest.approx(urgent.t_ns, rel=0.1)


def test_fewer_blocks_and_threads_slow_the_collective_itself() -> None:
    workload = pair(HOPPER_GEMM, 1320, kind="all-reduce")
    plain = simulate(workload, H100, (LaunchOrder(),), Settings(engine="class"))
    fewer = simulate(workload, H100, (LaunchOrder(), CommBlocks(4)), Settings(engine="class"))
    thinner = simulate(workload, H100, (LaunchOrder(), CommThreads(128)), Settings(engine="class"))
    length = [p.timeline.of("comm")[0].duration_ns for p in (plain, fewer, thinner)]
    assert length[0] < length[1]
    assert length[0] < length[2]


@pytest.mark.parametrize("engine", ["class", "block"])
def test_a_collective_cannot_finish_without_its_last_channels(engine: str) -> None:
    whole = replace(SMALL, warps=32)  # one block per SM
    filler = kernel_op(name="filler", block=whole, blocks=8, share=1.0, work_ns=1e6)
    comm = EngineOp(name="c", kind="collective", stream="x", block=whole, blocks=5, work_ns=1e5, share=0.0, group="c")
    result = run(program(filler, comm), engine=engine)  # type: ignore[arg-type]
    # two SMs are free: two of five channels move their part, then wait for the filler to end at 1e6; the other
    # three parts then move at full rate
    assert result.times[1].started_ns == 0
    assert result.times[1].ended_ns == pytest.approx(1e6 + 0.6e5)


def test_backfill_starves_a_large_block_once_block_times_spread() -> None:
    kernel = KernelResources(threads=256, registers_per_thread=98, smem_bytes=48 * 1024)
    workload = pair(kernel, 2640)
    spread = Settings(engine="block", jitter=0.05, dispatch=BackFill())
    strict = simulate(workload, H100, (CommPriority(),), replace(spread, dispatch=None))
    starved = simulate(workload, H100, (CommPriority(),), spread)
    lockstep = simulate(workload, H100, (CommPriority(),), replace(spread, jitter=0.0))
    assert starved.t_ns > 1.3 * strict.t_ns
    assert lockstep.t_ns < 1.1 * strict.t_ns


@pytest.mark.parametrize(("hold", "waves"), [(0.0, 1), (0.5, 2), (1.0, 4)])
def test_a_held_queue_opens_after_its_part_is_placed(hold: float, waves: int) -> None:
    whole = replace(SMALL, warps=32)  # one block per SM
    first = kernel_op(name="first", block=whole, blocks=40, share=1.0)
    second = kernel_op(name="second", block=whole, blocks=10, share=1.0, stream="s", launch_ns=1.0)
    result = run(program(first, second), engine="class", dispatch=HeldQueue(hold))
    assert result.times[1].started_ns == pytest.approx(waves * 1e5)


def test_a_held_queue_never_lets_a_lower_priority_go_first() -> None:
    whole = replace(SMALL, warps=32)
    low = kernel_op(name="low", block=whole, blocks=40, share=1.0)
    high = kernel_op(name="high", block=whole, blocks=20, share=1.0, stream="s", launch_ns=1.0, priority=1)
    result = run(program(low, high), engine="class", dispatch=HeldQueue(0.5))
    assert result.times[1].ended_ns == pytest.approx(3e5)  # one wave of `low`, then two of its own


@pytest.mark.parametrize("path", ["symmetric", "pat-simple", "collnet-simple", "tree-simple", "zero-cta"])
def test_every_path_of_a_library_can_be_simulated(path: str) -> None:
    builder = WorkloadBuilder("paths", ranks=8)
    builder.kernel("k", HOPPER_GEMM, Measured(time_ns=1e6, blocks=1320), share=1.0)
    kind = "all-gather" if path == "zero-cta" else "all-reduce"
    builder.collective("c", kind, 2**26, f"nccl-2.32.3/{path}")  # type: ignore[arg-type]
    prediction = simulate(builder.done(), H100)
    assert prediction.t_compute_ns == pytest.approx(1e6)
    assert prediction.t_comm_ns > 2**26 * (7 / 8) / 450  # at most the raw rate of the links, bytes per ns
    assert prediction.ideal_ns <= prediction.t_ns <= prediction.t_sequential_ns * (1 + 1e-9)
