"""Laws of the simulator, on random programs and on random workloads."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, pstdev

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from makeway.model.residency import need, resident_blocks
from makeway.model.simulate.driver import _Run, run
from makeway.model.simulate.network import node_wire
from makeway.model.simulate.policies import BackFill, CutAhead, HeldQueue, MaxMin, Proportional, StrictHeadOfLine
from makeway.model.simulate.predict import Settings, simulate
from makeway.model.simulate.program import EngineOp, Program, Site
from makeway.model.simulate.spread import BLOCK_SPREAD, deviations
from makeway.values.collective import load_footprint
from makeway.values.control import CommBlocks, CommPriority, Control, CopyEngine, LaunchOrder, SmemPad, SmPartition
from makeway.values.device import Device, load_device
from makeway.values.errors import InputError
from makeway.values.kernel import KernelResources
from makeway.values.workload import BlockWork, Measured, Workload, WorkloadBuilder

A100 = load_device("A100-SXM4-80GB")
H100 = load_device("H100-SXM5-80GB")
MI250X = load_device("MI250X")
few = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])

NCCL = KernelResources(threads=288, registers_per_thread=96, smem_bytes=89_344)

blocks_of_compute = st.builds(
    KernelResources,
    threads=st.sampled_from([64, 128, 256, 512, 1024]),
    registers_per_thread=st.integers(16, 64),
    smem_bytes=st.sampled_from([0, 4096, 16384, 40_000]),
)
policies = st.sampled_from([StrictHeadOfLine(), BackFill(), CutAhead(), HeldQueue(0.5)])
hbm_rules = st.sampled_from([Proportional(), MaxMin()])


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A few kernels on one or two streams and a collective, on a small A100."""
    sm = A100.sm
    ops: list[EngineOp] = []
    for index in range(draw(st.integers(1, 3))):
        ops.append(
            EngineOp(
                name=f"k{index}",
                kind="kernel",
                stream=f"s{draw(st.integers(0, 1))}",
                launch_ns=draw(st.sampled_from([0.0, 5e3, 1e5])),
                block=need(sm, draw(blocks_of_compute)),
                blocks=draw(st.integers(1, 200)),
                work_ns=draw(st.sampled_from([1e4, 3e4, 7e4])),
                share=draw(st.sampled_from([0.1, 0.25, 0.6, 1.0])),
                hbm_per_ns=draw(st.sampled_from([0.0, 10.0, 40.0])),
            )
        )
    ops.append(
        EngineOp(
            name="c",
            kind="collective",
            stream="comm",
            after=draw(st.sampled_from([(), (0,)])),
            priority=draw(st.integers(0, 1)),
            block=need(sm, NCCL),
            blocks=draw(st.integers(1, 8)),
            work_ns=draw(st.sampled_from([2e4, 4e5])),
            share=0.0,
            hbm_per_ns=draw(st.sampled_from([0.0, 100.0])),
            group="c",
        )
    )
    return Program(
        sm=sm,
        sites=(Site(part=None, gpc=0, sms=10),),
        ranks=1,
        ops=tuple(ops),
        hbm_per_ns=draw(st.sampled_from([None, 200.0])),
    )


@few
@given(programs(), policies, hbm_rules)
def test_both_engines_agree_on_equal_block_times(program: Program, policy: StrictHeadOfLine, hbm: Proportional) -> None:
    by_class = run(program, engine="class", dispatch=policy, hbm=hbm)
    by_block = run(program, engine="block", dispatch=policy, hbm=hbm)
    for one, other in zip(by_class.times, by_block.times, strict=True):
        assert one.ended_ns == pytest.approx(other.ended_ns, rel=1e-6)
        assert one.started_ns == pytest.approx(other.started_ns, rel=1e-6, abs=0.1)


@few
@given(programs(), policies, hbm_rules, st.sampled_from([0.02, BLOCK_SPREAD, 0.2]))
def test_taking_many_ends_at_once_changes_nothing(
    program: Program, policy: StrictHeadOfLine, hbm: Proportional, jitter: float
) -> None:
    spread = replace(program, jitter=jitter)
    fast = run(spread, engine="block", dispatch=policy, hbm=hbm)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Run, "_refill", lambda self: None)
        slow = run(spread, engine="block", dispatch=policy, hbm=hbm)
    assert fast.events == slow.events
    for one, other in zip(fast.times, slow.times, strict=True):
        assert one.started_ns == pytest.approx(other.started_ns, rel=1e-9)
        assert one.ended_ns == pytest.approx(other.ended_ns, rel=1e-9)


@few
@given(programs(), policies, st.sampled_from(["class", "block"]), st.sampled_from([0.0, 0.1]))
def test_an_sm_never_holds_more_than_it_has(
    program: Program, policy: StrictHeadOfLine, engine: str, jitter: float
) -> None:
    jitter = jitter if engine == "block" else 0.0
    result = run(replace(program, jitter=jitter), engine=engine, dispatch=policy, sample_ns=0.0)  # type: ignore[arg-type]
    sm = program.sm
    for sample in result.samples:
        assert sum(sms for _, sms in sample.holdings) == 10
        for held, _ in sample.holdings:
            blocks = [(program.ops[op].block, count) for op, count in held]
            assert sum(count for _, count in blocks) <= sm.max_blocks
            assert sum(block.warps * count for block, count in blocks if block) <= sm.max_warps
            assert sum(block.smem_bytes * count for block, count in blocks if block) <= sm.smem_bytes
            used = sum(block.warps * block.registers_per_warp * count for block, count in blocks if block)
            assert used <= sm.registers


@few
@given(programs(), policies)
def test_work_is_conserved(program: Program, policy: StrictHeadOfLine) -> None:
    """An SM does at most one nanosecond of work per nanosecond, and everything is done in the end."""
    result = run(program, engine="block", dispatch=policy)
    work = sum(op.blocks * op.work_ns for op in program.ops if op.kind == "kernel")
    assert result.end_ns * 10 >= work * (1 - 1e-9)
    assert all(times.ended_ns >= times.started_ns >= times.arrived_ns for times in result.times)


@few
@given(programs(), policies)
def test_streams_keep_their_order_and_events_are_waited_for(program: Program, policy: StrictHeadOfLine) -> None:
    times = run(program, engine="class", dispatch=policy).times
    for index, op in enumerate(program.ops):
        for earlier in op.after:
            assert times[index].started_ns >= times[earlier].ended_ns - 0.1
        for before in range(index):
            if program.ops[before].stream == op.stream:
                assert times[index].started_ns >= times[before].ended_ns - 0.1


@few
@given(programs(), st.floats(1.0, 4.0))
def test_more_bandwidth_never_slows_a_kernel_that_runs_alone(program: Program, factor: float) -> None:
    assume(program.hbm_per_ns is not None)
    alone = replace(program, ops=(replace(program.ops[0], after=()),))
    assert alone.hbm_per_ns is not None
    more = replace(alone, hbm_per_ns=alone.hbm_per_ns * factor)
    assert run(more, engine="class").end_ns <= run(alone, engine="class").end_ns + 0.1


# --- through the front door --------------------------------------------------------------------

controls = st.lists(
    st.sampled_from([CommPriority(), LaunchOrder(), SmPartition(24), SmemPad(20_000), SmemPad(66_561)]),
    max_size=2,
    unique_by=type,
)


def pair(kernel: KernelResources, blocks: int, time_ns: float, comm_ns: float, *, launches: int = 1) -> Workload:
    builder = WorkloadBuilder("pair", ranks=8)
    for index in range(launches):
        builder.kernel(f"k{index}", kernel, Measured(time_ns=time_ns / launches, blocks=blocks))
    builder.collective("c", "all-gather", 2**28, "nccl-2.27.5/ring-simple", time_ns=comm_ns)
    return builder.done()


@few
@given(
    blocks_of_compute,
    st.integers(1, 4),
    st.sampled_from([2e5, 1e6]),
    st.sampled_from([1e5, 1e6]),
    controls,
    st.integers(1, 3),
)
def test_with_one_compute_stream_of_whole_waves_no_plan_beats_the_longer_part(
    kernel: KernelResources, waves: int, time_ns: float, comm_ns: float, chosen: list[Control], launches: int
) -> None:
    assume(kernel.smem_bytes + 66_561 <= A100.sm.smem_block_bytes)
    blocks = waves * resident_blocks(A100, kernel) * A100.sms
    workload = pair(kernel, blocks, time_ns, comm_ns, launches=launches)
    prediction = simulate(workload, A100, chosen, Settings(engine="class"))
    assert prediction.t_ns >= prediction.ideal_ns * (1 - 1e-6)


def test_a_last_wave_of_one_block_can_be_hidden_so_that_a_plan_beats_the_ideal() -> None:
    """Alone, the last of 1,729 blocks has the GPU to itself; behind a collective, waves no longer align."""
    kernel = KernelResources(threads=128, registers_per_thread=16)
    workload = pair(kernel, 16 * A100.sms + 1, 1e6, 1e5)
    prediction = simulate(workload, A100, (LaunchOrder(),), Settings(engine="class"))
    assert prediction.t_ns < prediction.ideal_ns


@few
@given(
    st.sampled_from(["A40", "A100-SXM4-80GB", "H100-SXM5-80GB", "MI250X", "MI300X"]),
    st.sampled_from(["all-gather", "all-to-all"]),
    st.integers(12, 30),
    st.sampled_from(["parallel-copy", "one-engine"]),
    st.booleans(),
)
def test_copy_engines_may_beat_the_ideal_of_blocks_and_never_the_links(
    name: str, kind: str, log_bytes: int, variant: str, prelaunch: bool
) -> None:
    device = load_device(name)
    library = "rccl-5.4.3/generic" if device.vendor == "amd" else "nccl-2.27.5/ring-simple"
    builder = WorkloadBuilder("pair", ranks=8)
    kernel = KernelResources(threads=256, registers_per_thread=64)
    builder.kernel("k", kernel, Measured(time_ns=2e5, blocks=4 * resident_blocks(device, kernel) * device.sms))
    builder.collective("c", kind, 2**log_bytes, library)  # type: ignore[arg-type]
    workload = builder.done()
    copies = CopyEngine(variant, prelaunch)  # type: ignore[arg-type]
    prediction = simulate(workload, device, (copies,), Settings(engine="class", jitter=0.0))
    exchange = workload.collectives[0].collective
    links = node_wire(device, replace(exchange, kind="all-to-all"), ranks=exchange.ranks)
    on_links_ns = exchange.wire_bytes / links.bytes_per_s * 1e9
    assert prediction.t_ns >= max(prediction.t_compute_ns, on_links_ns) * (1 - 1e-6)


def test_a_small_gather_on_copy_engines_beats_the_ideal_of_blocks() -> None:
    """A ring of eight takes seven hops one after another, copies go straight to their peers."""
    builder = WorkloadBuilder("pair", ranks=8)
    builder.kernel("k", KernelResources(threads=256, registers_per_thread=64), Measured(time_ns=2e4, blocks=432))
    builder.collective("c", "all-gather", 2**16, "nccl-2.27.5/ring-simple")
    prediction = simulate(builder.done(), load_device("A40"), (CopyEngine(),), Settings(engine="class", jitter=0.0))
    assert prediction.t_ns < prediction.ideal_ns
    assert prediction.share_of_ideal is not None
    assert prediction.share_of_ideal > 1


@few
@given(blocks_of_compute, st.integers(200, 3000))
def test_sequential_is_the_sum(kernel: KernelResources, blocks: int) -> None:
    prediction = simulate(pair(kernel, blocks, 1e6, 5e5), A100, (), Settings(engine="class"))
    assert prediction.t_sequential_ns == pytest.approx(1e6 + 5e5, rel=1e-6)
    assert prediction.t_compute_ns == pytest.approx(1e6, rel=1e-6)
    assert prediction.t_comm_ns == pytest.approx(5e5, rel=1e-6)


@few
@given(blocks_of_compute, st.integers(1, 3000), st.sampled_from([None, 0.02, 0.14]), st.integers(1, 3))
def test_a_measured_kernel_takes_its_measured_time_with_any_spread(
    kernel: KernelResources, blocks: int, jitter: float | None, launches: int
) -> None:
    workload = pair(kernel, blocks, 1e6, 5e5, launches=launches)
    prediction = simulate(workload, A100, (), Settings(jitter=jitter))
    assert prediction.t_compute_ns == pytest.approx(1e6, rel=1e-9)
    assert prediction.t_sequential_ns == pytest.approx(1e6 + 5e5, rel=1e-9)


def test_block_times_keep_their_mean_and_their_spread() -> None:
    for seed in range(3):
        values = deviations(seed)
        assert fmean(values) == pytest.approx(0.0, abs=1e-12)
        assert pstdev(values) == pytest.approx(1.0, abs=0.01)
        assert all(fmean(values[at : at + 64]) == pytest.approx(0.0, abs=1e-12) for at in range(0, 4096, 64))
    assert deviations(0) != deviations(1)


@few
@given(blocks_of_compute, st.integers(200, 2000), st.integers(1, 5000))
def test_a_pad_that_changes_no_residency_changes_no_time(kernel: KernelResources, blocks: int, pad: int) -> None:
    padded = kernel.padded(pad)
    assume(padded.smem_bytes <= A100.sm.smem_block_bytes)
    comm = load_footprint("nccl-2.27.5/ring-simple", "sm_80").block
    assert comm is not None
    assume(resident_blocks(A100, padded) == resident_blocks(A100, kernel))
    plain = simulate(pair(kernel, blocks, 1e6, 5e5), A100, (CommPriority(),), Settings(engine="class"))
    shaped = simulate(pair(kernel, blocks, 1e6, 5e5), A100, (CommPriority(), SmemPad(pad)), Settings(engine="class"))
    assert shaped.t_ns == pytest.approx(plain.t_ns, rel=1e-9)


@pytest.mark.parametrize(("waves", "bound"), [(1, 0.5), (2, 0.35), (4, 0.15), (15, 0.05)])
def test_jitter_moves_the_end_by_a_bounded_amount(waves: int, bound: float) -> None:
    """Class engine against per-block with 5 % jitter: worst for one-wave kernels and just above a wave boundary."""
    kernel = KernelResources(threads=256, registers_per_thread=98, smem_bytes=48 * 1024)
    for blocks in (264 * waves, 264 * waves + 1):
        workload = WorkloadBuilder("alone")
        workload.kernel("k", kernel, BlockWork(blocks=blocks, flops_per_block=1e9), share=0.5)
        plain = simulate(workload.done(), H100, (), Settings(engine="class"))
        spread = simulate(workload.done(), H100, (), Settings(engine="block", jitter=0.05, seed=3))
        assert abs(spread.t_ns / plain.t_ns - 1) <= bound
        assert spread.t_ns != plain.t_ns


def test_several_compute_streams_can_beat_the_sum_of_isolated_kernels() -> None:
    """The scheduling anomaly to know: small kernels of several streams fill SMs that each alone leaves empty."""
    kernel = KernelResources(threads=256, registers_per_thread=48)
    builder = WorkloadBuilder("two streams", ranks=8)
    for index in range(2):
        builder.kernel(f"k{index}", kernel, Measured(time_ns=1e6, blocks=50), stream=f"s{index}")
    prediction = simulate(builder.done(), A100, (), Settings(engine="class"))
    assert prediction.t_sequential_ns == pytest.approx(2e6)
    assert prediction.t_ns < 1.01e6


def test_ranks_that_start_late_hold_up_the_others() -> None:
    kernel = KernelResources(threads=256, registers_per_thread=48)
    workload = pair(kernel, 2000, 1e6, 5e5)
    together = simulate(workload, A100, (LaunchOrder(),), Settings(engine="class"))
    skewed = simulate(workload, A100, (LaunchOrder(),), Settings(engine="class", skew_ns=3e5))
    (comm,) = skewed.timeline.of("comm", rank=0)
    assert comm.waiting_ns == pytest.approx(3e5, rel=0.01)
    assert skewed.t_ns > together.t_ns


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda b: b.collective("c", "all-gather", 0, "nccl-2.27.5/ring-simple"), "at least 1 byte"),
        (lambda b: b.collective("c", "all-gather", 10, "nccl-2.27.5/ring-simple", blocks=0), "1 or more"),
        (
            lambda b: b.kernel(
                "k", KernelResources(threads=32, registers_per_thread=8), Measured(time_ns=-1, blocks=3)
            ),
            "above 0",
        ),
        (lambda b: b.kernel("k", KernelResources(threads=32, registers_per_thread=8), BlockWork(blocks=3)), "above 0"),
        (
            lambda b: b.kernel(
                "k", KernelResources(threads=32, registers_per_thread=8), BlockWork(blocks=3, flops_per_block=-1)
            ),
            "negative",
        ),
    ],
)
def test_impossible_operations_are_refused(build: object, said: str) -> None:
    builder = WorkloadBuilder("bad", ranks=8)
    with pytest.raises(InputError, match=said):
        build(builder)  # type: ignore[operator]


def test_blocks_that_can_never_be_resident_are_an_error_not_a_hang() -> None:
    builder = WorkloadBuilder("too many", ranks=8)
    builder.collective("c", "all-gather", 2**28, "threads=1024,registers=64,smem=160KiB", blocks=109)
    with pytest.raises(
        InputError, match=r"can never become resident: it needs 109 blocks at once, .* has room for 108"
    ):
        simulate(builder.done(), A100)


def test_collectives_that_starve_each_other_are_reported_as_a_deadlock() -> None:
    """Two gangs on two streams, each holding SMs the other needs: named, not hung."""
    block = need(A100.sm, KernelResources(threads=1024, registers_per_thread=64, smem_bytes=160 * 1024))
    common = {"kind": "collective", "block": block, "blocks": 10, "work_ns": 1e5, "share": 0.0}
    ops = tuple(
        EngineOp(  # rank 0 launches c0 first, rank 1 c1
            name=f"c{index}",
            rank=rank,
            stream=f"s{index}",
            group=f"c{index}",
            launch_ns=10.0 * (index != rank),
            **common,  # type: ignore[arg-type]
        )
        for rank in (0, 1)
        for index in (0, 1)
    )
    program = Program(sm=A100.sm, sites=(Site(part=None, gpc=0, sms=10),), ranks=2, ops=ops)
    with pytest.raises(InputError, match="deadlock at"):
        run(program, engine="block")


# --- clusters of a collective's blocks ----------------------------------------------------------


def _with_cluster(cluster: int | None, device: Device) -> float:
    """A collective of 16 blocks behind a GEMM whose blocks end at different times."""
    gemm = KernelResources(threads=256, registers_per_thread=128, smem_bytes=98_304)
    builder = WorkloadBuilder("pair", ranks=8)
    builder.kernel("k", gemm, Measured(time_ns=1e6, blocks=1_000))
    builder.collective("c", "all-reduce", 2**26, "nccl-2.27.5/ring-simple")
    settings = Settings(engine="block", jitter=0.1, seed=1)
    return simulate(builder.done(), device, (CommPriority(), CommBlocks(16, cluster)), settings).t_ns


def test_a_plan_sets_the_cluster_that_the_library_would_choose_otherwise() -> None:
    own, four, two, one = (_with_cluster(cluster, H100) for cluster in (None, 4, 2, 1))
    assert load_footprint("nccl-2.27.5/ring-simple", H100.arch).block.cluster == 4  # type: ignore[union-attr]
    assert own == four
    assert len({four, two, one}) == 3


def test_a_cluster_that_does_not_divide_the_blocks_is_none() -> None:
    assert _with_cluster(3, H100) == _with_cluster(1, H100)


def test_a_gpu_without_clusters_refuses_them() -> None:
    assert _with_cluster(1, A100) == _with_cluster(None, A100)
    with pytest.raises(InputError, match="clusters of 2"):
        _with_cluster(2, A100)
