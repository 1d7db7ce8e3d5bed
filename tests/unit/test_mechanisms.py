"""Interference by mechanism: each alone, what all of them conserve, and that without them nothing changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from makeway.model.presets import load_preset
from makeway.model.residency import need, resident_blocks
from makeway.model.simulate.compile import compile_program
from makeway.model.simulate.driver import run
from makeway.model.simulate.mechanisms import (
    DEFAULT,
    MEMORY_OVERDRIVE,
    Mechanisms,
    Reuse,
    gemm_traffic,
    mechanism_names,
    streaming_warps,
)
from makeway.model.simulate.policies import DISPATCHES, Proportional
from makeway.model.simulate.predict import Settings, simulate
from makeway.model.simulate.program import EngineOp, Program, Site
from makeway.model.simulate.rewrite import rewritten
from makeway.values.control import CommPriority, CommThreads, Control, CopyEngine, SmemPad, SmPartition
from makeway.values.device import load_device
from makeway.values.kernel import KernelResources
from makeway.values.workload import BlockWork, Gemm, KernelOp, WorkloadBuilder

A100, H100, MI300X = (load_device(name) for name in ("A100-SXM4-80GB", "H100-SXM5-80GB", "MI300X"))
few = settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
SMALL = need(A100.sm, KernelResources(threads=256, registers_per_thread=32))
NORM = KernelResources(threads=256, registers_per_thread=40)


# --- off: what it was before ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "device", "controls", "t_ns"),
    [
        ("tp-llama-70b", H100, (), 4026305.8035460035),
        ("gemm-ar", H100, (CommPriority(),), 2148785.9424),
    ],
)
def test_without_mechanisms_the_digits_are_those_of_the_model_without_them(
    name: str, device: object, controls: tuple[Control, ...], t_ns: float
) -> None:
    prediction = simulate(load_preset(name, device), device, controls, Settings(engine="class", mechanisms=NONE))  # type: ignore[arg-type]
    assert prediction.t_ns == t_ns


NONE = Mechanisms.none()


@pytest.mark.parametrize("name", ["gemm-ar", "fsdp-llama-7b"])
def test_without_mechanisms_a_program_is_neutral(name: str) -> None:
    program = compile_program(load_preset(name, H100), H100, (), dispatch=DISPATCHES["strict"], mechanisms=NONE).program
    assert program.power_exponent is None
    assert program.mixed_hbm == 1.0
    for op in program.ops:
        assert (op.reuse, op.power, op.slack, op.exposure) == ((), 0.0, 1.0, 1.0)
        assert op.kind == "kernel" or op.share == 0.0


# --- laws -------------------------------------------------------------------------------------


@st.composite
def pairs(draw: st.DrawFn) -> Program:
    """A kernel beside a collective that outlasts it, with every mechanism in some strength, on a small A100."""
    kernel = EngineOp(
        name="k",
        kind="kernel",
        stream="compute",
        launch_ns=10.0,
        block=SMALL,
        blocks=draw(st.integers(1, 60)),  # one wave: how later waves fall is another matter
        work_ns=1e4,
        share=draw(st.sampled_from([0.2, 0.5, 1.0])),
        hbm_per_ns=draw(st.sampled_from([0.0, 10.0, 30.0])),
        reuse=(Reuse(draw(st.sampled_from([0.0, 20.0])), draw(st.sampled_from([0.3, 1.0, 2.0]))),),
        power=draw(st.sampled_from([0.0, 1.0])),
    )
    collective = EngineOp(
        name="c",
        kind="collective",
        stream="comm",
        block=SMALL,
        blocks=draw(st.integers(1, 10)),
        work_ns=1e9,
        share=draw(st.sampled_from([0.0, 0.5])),
        exposure=0.31,
        slack=draw(st.sampled_from([1.0, 2.0])),
        hbm_per_ns=draw(st.sampled_from([0.0, 80.0])),
        power=draw(st.sampled_from([0.0, 0.25])),
        group="c",
    )
    return Program(
        sm=A100.sm,
        sites=(Site(part=None, gpc=0, sms=10),),
        ranks=1,
        ops=(kernel, collective),
        hbm_per_ns=200.0,
        mixed_hbm=draw(st.sampled_from([1.0, 0.84])),
        power_exponent=draw(st.sampled_from([None, 2.8])),
    )


def _kernel_end(program: Program, engine: str = "class") -> float:
    return run(program, engine=engine).times[0].ended_ns  # type: ignore[arg-type]


@few
@given(pairs())
def test_no_mechanism_makes_a_kernel_faster_beside_a_collective(program: Program) -> None:
    kernel, collective = program.ops
    end = _kernel_end(program)
    weaker = (
        replace(program, mixed_hbm=1.0),
        replace(program, power_exponent=None),
        replace(program, ops=(replace(kernel, reuse=()), collective)),
        replace(program, ops=(kernel, replace(collective, slack=1.0))),
    )
    for other in weaker:
        assert _kernel_end(other) <= end * (1 + 1e-9) + 0.1
    # A slower collective leaves more HBM, and slower blocks more power: SM neighbours are compared without both.
    wide = replace(program, hbm_per_ns=None, power_exponent=None)
    alone = replace(wide, ops=(kernel, replace(collective, share=0.0)))
    assert _kernel_end(alone) <= _kernel_end(wide) * (1 + 1e-9) + 0.1


@few
@given(pairs())
def test_both_engines_agree_on_every_mechanism(program: Program) -> None:
    assert _kernel_end(program) == pytest.approx(_kernel_end(program, "block"), rel=1e-6)


@given(
    st.lists(st.tuples(st.floats(0.0, 1e3), st.floats(1.0, 4.0)), min_size=1, max_size=4),
    st.floats(1.0, 1e3),
)
def test_shared_bandwidth_is_conserved(operations: list[tuple[float, float]], capacity: float) -> None:
    demands = {index: demand for index, (demand, _) in enumerate(operations)}
    slack = {index: slack for index, (_, slack) in enumerate(operations)}
    shares = Proportional().shares(demands, capacity, slack)
    moved = sum(demands[op] * shares[op] for op in demands)
    assert all(0.0 <= share <= 1.0 + 1e-9 for share in shares.values())
    assert moved == pytest.approx(min(capacity, sum(demands.values())), rel=1e-6)
    for op in demands:  # who has more in flight loses no larger part
        for other in demands:
            if demands[op] and demands[other] and slack[op] >= slack[other]:
                assert shares[op] >= shares[other] - 1e-9


# --- traffic of a product ---------------------------------------------------------------------

products = st.builds(
    Gemm,
    m=st.integers(1, 20_000),
    n=st.integers(1, 20_000),
    k=st.integers(1, 20_000),
    tile=st.sampled_from([(64, 64, 32), (128, 256, 64), (256, 256, 64)]),
)


@given(products, st.integers(1, 1000), st.integers(0, 1 << 28), st.integers(0, 1 << 28))
def test_a_product_moves_each_matrix_at_least_once_and_less_with_more_cache(
    gemm: Gemm, at_once: int, cache: int, more: int
) -> None:
    small = gemm_traffic(gemm, at_once=at_once, cache_bytes=cache).hbm_bytes
    large = gemm_traffic(gemm, at_once=at_once, cache_bytes=cache + more).hbm_bytes
    assert gemm.min_bytes * (1 - 1e-9) <= large <= small * (1 + 1e-9)
    assert gemm_traffic(gemm, at_once=at_once, cache_bytes=1 << 50).hbm_bytes == pytest.approx(gemm.min_bytes)


def test_without_cache_a_square_wave_reads_its_rows_and_columns() -> None:
    """16 x 16 tiles, 16 at a time: 4 x 4 tiles share rows and columns, so each matrix is read four times."""
    gemm = Gemm(m=1024, n=1024, k=512, tile=(64, 64, 32))
    matrix, result = 2 * 1024 * 512, 2 * 1024 * 1024
    assert gemm_traffic(gemm, at_once=16, cache_bytes=0).hbm_bytes == 4 * 2 * matrix + result


def test_a_stream_takes_cache_from_a_product_in_proportion_to_what_it_brings_in() -> None:
    reuse = Reuse(100.0, 1.0)
    assert reuse.missed_bytes() == 0.0
    assert reuse.missed_bytes(0.5) == 50.0
    assert Reuse(100.0, 2.0).missed_bytes(0.5) == 0.0  # half of the cache is enough


# --- warps in flight --------------------------------------------------------------------------


def _streaming(block: KernelResources, blocks: int = 20_000) -> BlockWork:
    return BlockWork(blocks=blocks, hbm_bytes_per_block=32_768)


@pytest.mark.parametrize("device", [A100, H100])
def test_a_memory_bound_kernel_with_one_block_per_sm_cannot_cover_latency(device: object) -> None:
    builder = WorkloadBuilder("norm")
    builder.kernel("norm", NORM, _streaming(NORM))
    workload = builder.done()
    pad = device.sm.smem_block_bytes // 2 + 1024  # type: ignore[attr-defined]
    assert resident_blocks(device, NORM.padded(pad)) == 1  # type: ignore[arg-type]
    plain = simulate(workload, device, (), Settings(engine="class"))  # type: ignore[arg-type]
    padded = simulate(workload, device, (SmemPad(pad),), Settings(engine="class"))  # type: ignore[arg-type]
    assert 1.5 < padded.t_ns / plain.t_ns < 3.0


def test_littles_law_gives_the_warps() -> None:
    """A100: 1.5 x 2,039 GB/s over 108 SMs for 600 cycles of 1.41 GHz, 512 bytes per warp."""
    assert streaming_warps(A100) == pytest.approx(1.5 * 2039e9 / 108 * 600 / 1.41e9 / 512)


def test_a_product_keeps_its_own_saturation() -> None:
    builder = WorkloadBuilder("two kinds")
    builder.kernel("stream", NORM, _streaming(NORM))
    builder.kernel("compute", NORM, BlockWork(blocks=1000, flops_per_block=1e9))
    stream, compute = compile_program(builder.done(), A100, (), dispatch=DISPATCHES["strict"]).program.ops
    warps = streaming_warps(A100)
    assert warps is not None
    assert stream.share == pytest.approx(8 / warps)
    assert compute.share == 8 / 12


def test_two_thirds_of_the_sms_saturate_memory_and_half_do_not() -> None:
    """All SMs can ask for 1.5 times what HBM has."""
    assert MEMORY_OVERDRIVE == 1.5
    builder = WorkloadBuilder("stream")
    builder.kernel("stream", NORM, _streaming(NORM, 108 * 6 * 10))
    times = {
        kept: simulate(builder.done(), A100, (SmPartition(108 - kept),), Settings(engine="class")).t_ns
        for kept in (108 - 36, 54)
    }
    alone = simulate(builder.done(), A100, (), Settings(engine="class")).t_ns
    assert times[72] == pytest.approx(alone, rel=1e-3)
    assert times[54] == pytest.approx(alone / 0.75, rel=0.1)


# --- clocks -----------------------------------------------------------------------------------


def test_communication_lowers_the_clock_of_a_product_by_the_power_it_takes() -> None:
    """On copy engines no SM is lost: the clock is what the power of the moved bytes leaves, at an exponent of 2.8."""
    builder = WorkloadBuilder("product and copies", ranks=8)
    block = KernelResources(threads=384, registers_per_thread=168, smem_bytes=200 * 1024)
    builder.kernel("gemm", block, Gemm(m=8192, n=132 * 256, k=8192, tile=(128, 256, 64)), share=1.0)
    builder.collective("gather", "all-gather", 2**36, "nccl-2.32.3/ring-simple")
    prediction = simulate(builder.done(), H100, (CopyEngine(),), Settings(engine="class"))
    (span,) = prediction.timeline.of("compute")
    _, copy = compile_program(builder.done(), H100, (CopyEngine(),), dispatch=DISPATCHES["strict"]).program.ops
    assert copy.power == pytest.approx(0.75 * copy.hbm_per_ns / 3352)
    assert 0.1 < copy.power < 0.25
    assert span.duration_ns / prediction.t_compute_ns == pytest.approx((1 - copy.power) ** (-1 / 2.8), rel=1e-3)


# --- what has to be shared --------------------------------------------------------------------


def test_two_collectives_at_once_share_the_links() -> None:
    builder = WorkloadBuilder("two gathers", ranks=8)
    for index in range(2):
        builder.collective(f"gather {index}", "all-gather", 2**30, "nccl-2.32.3/ring-simple", stream=f"comm{index}")
    prediction = simulate(builder.done(), H100, (), Settings(engine="class"))
    assert prediction.t_ns == pytest.approx(prediction.t_sequential_ns, rel=0.02)


def test_l2_bandwidth_is_shared() -> None:
    op = EngineOp(name="k0", kind="kernel", stream="s0", block=SMALL, blocks=10, work_ns=1e4, l2_per_ns=20.0)
    program = Program(
        sm=A100.sm,
        sites=(Site(part=None, gpc=0, sms=20),),
        ranks=1,
        ops=(op, replace(op, name="k1", stream="s1")),
        l2_per_ns=200.0,
    )
    assert run(replace(program, ops=(op,)), engine="class").end_ns == pytest.approx(1e4)
    assert run(program, engine="class").end_ns == pytest.approx(2e4)


def test_copy_engines_move_their_bytes_through_hbm() -> None:
    builder = WorkloadBuilder("stream and copies", ranks=8)
    builder.kernel("stream", NORM, _streaming(NORM))
    builder.collective("gather", "all-gather", 2**32, "rccl-5.4.3/generic")
    workload = builder.done()
    _, copy = compile_program(workload, MI300X, (CopyEngine(),), dispatch=DISPATCHES["cut-ahead"]).program.ops
    assert copy.kind == "copy"
    assert copy.hbm_per_ns == pytest.approx(2 * copy.link_per_ns, rel=0.05)
    prediction = simulate(workload, MI300X, (CopyEngine(),), Settings(engine="class"))
    (span,) = prediction.timeline.of("compute")
    assert span.duration_ns > 1.15 * prediction.t_compute_ns


def test_a_pad_reaches_every_kernel_that_its_pattern_names() -> None:
    builder = WorkloadBuilder("three")
    for name in ("gemm 0", "gemm 1", "norm"):
        builder.kernel(name, NORM, BlockWork(blocks=10, flops_per_block=1e6))
    padded = rewritten(builder.done(), (SmemPad(1000, "gemm*"),))
    assert [op.resources.smem_bytes for op in padded.operations if isinstance(op, KernelOp)] == [1000, 1000, 0]


def test_fewer_threads_for_a_collective_say_that_no_source_gives_their_rate() -> None:
    workload = load_preset("gemm-ar", H100)
    plain = simulate(workload, H100, (), Settings(engine="class"))
    fewer = simulate(workload, H100, (CommThreads(128),), Settings(engine="class"))
    assert not any("thread exponent" in sentence for sentence in plain.assumed)
    assert any("thread exponent" in sentence for sentence in fewer.assumed)


def test_every_mechanism_is_part_of_what_a_pair_is_remembered_by() -> None:
    programs = [
        compile_program(
            load_preset("conccl-20", MI300X), MI300X, (), dispatch=DISPATCHES["cut-ahead"], mechanisms=mechanisms
        ).program
        for mechanisms in (DEFAULT, *(DEFAULT.flipped(name) for name in mechanism_names() if name != "in_flight"))
    ]
    assert len({repr(program) for program in programs}) == len(programs)
