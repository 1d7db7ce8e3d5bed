"""What a workload becomes for the engines, figure by figure: each follows from facts that stand beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from makeway.model.residency import resident_blocks
from makeway.model.simulate.channels import fitting_blocks, partition_with_channels
from makeway.model.simulate.compile import compile_program
from makeway.model.simulate.device_numbers import device_sites, model_fact
from makeway.model.simulate.mechanisms import (
    DEFAULT,
    FLAT_TRAFFIC,
    MEMORY_OVERDRIVE,
    MIXED_HBM,
    MOVING_POWER,
    NEIGHBOUR_EXPOSURE,
    NEIGHBOUR_SHARE,
    NEIGHBOUR_THREADS,
    POWER_EXPONENT,
    gemm_traffic,
)
from makeway.model.simulate.network import collective_cost
from makeway.model.simulate.policies import DISPATCHES
from makeway.model.simulate.program import EngineOp, Program, Site
from makeway.values.collective import Collective, load_footprint
from makeway.values.control import CommBlocks, CommPriority, CommThreads, Control, CopyEngine, SmPartition
from makeway.values.device import Device, load_device
from makeway.values.errors import InputError, UnsupportedError
from makeway.values.kernel import KernelResources
from makeway.values.workload import BlockWork, Gemm, Measured, Work, Workload, WorkloadBuilder

A100, H100, MI300X = (load_device(name) for name in ("A100-SXM4-80GB", "H100-SXM5-80GB", "MI300X"))
BLOCK = KernelResources(threads=256, registers_per_thread=64, smem_bytes=32 * 1024)  # 8 warps, 4 blocks per SM
NCCL = "nccl-2.27.5/ring-simple"
GEMM = Gemm(m=4096, n=4096, k=1024, tile=(128, 128, 32))


def kernel_of(work: Work, device: Device = A100, *controls: Control, **options: object) -> EngineOp:
    builder = WorkloadBuilder("kernel", ranks=8)
    builder.kernel("k", BLOCK, work, **options)
    builder.collective("c", "all-gather", 2**20, NCCL)
    return compiled(builder.done(), device, *controls).ops[0]


def collective_of(*controls: Control, kind: str = "all-gather", device: Device = A100, **options: object) -> EngineOp:
    builder = WorkloadBuilder("collective", ranks=8)
    builder.collective("c", kind, 2**28, NCCL if device.vendor == "nvidia" else "rccl-5.4.3/generic", **options)  # type: ignore[arg-type]
    return compiled(builder.done(), device, *controls).ops[0]


def compiled(workload: Workload, device: Device = A100, *controls: Control) -> Program:
    return compile_program(workload, device, controls, dispatch=DISPATCHES["strict"]).program


# --- limits of the device ----------------------------------------------------------------------


def test_a_program_has_the_limits_of_its_device() -> None:
    builder = WorkloadBuilder("both", ranks=8)
    builder.kernel("k", BLOCK, GEMM)
    builder.collective("c", "all-gather", 2**28, NCCL)
    program = compiled(builder.done())
    assert (program.hbm_per_ns, program.l2_per_ns, program.link_per_ns) == (2039.0, 7219.0, 240.0)  # bytes per ns
    assert (program.mixed_hbm, program.power_exponent) == (MIXED_HBM, POWER_EXPONENT)
    assert program.sites == (Site(part=None, gpc=0, sms=108),)
    assert not program.memory_side_cache
    assert compiled(builder.done(), replace(A100, l2_bytes_per_s=None)).l2_per_ns is None


def test_the_memory_side_cache_of_a_device_is_known() -> None:
    builder = WorkloadBuilder("gather", ranks=8)
    builder.collective("c", "all-gather", 2**28, "rccl-5.4.3/generic")
    assert compiled(builder.done(), MI300X).memory_side_cache


def test_the_widest_links_of_all_collectives_are_the_links() -> None:
    """A collective that took twice its predicted time had links of half the rate; another shows what they carry."""
    builder = WorkloadBuilder("two", ranks=8)
    gather = Collective(kind="all-gather", size_bytes=2**28, ranks=8)
    alone_ns = collective_cost(A100, gather).alone_ns(24)
    builder.collective("slow", "all-gather", 2**28, NCCL, time_ns=2 * alone_ns)
    assert compiled(builder.done()).link_per_ns == pytest.approx(120.0)
    builder.collective("plain", "all-gather", 2**28, NCCL)
    assert compiled(builder.done()).link_per_ns == 240.0


def test_clusters_see_gpcs_and_shader_engines_are_dealt_in_turn() -> None:
    whole = [(None, 40)]
    assert [site.sms for site in device_sites(H100, whole, gpcs=1, clusters=False)] == [40]
    per_gpc = model_fact(H100, "sms_per_gpc")
    sms = int(per_gpc[0].value) if per_gpc and not isinstance(per_gpc[0].value, tuple) else 16
    assert [site.sms for site in device_sites(H100, whole, gpcs=1, clusters=True)][:2] == [sms, sms]
    dealt = device_sites(MI300X, [("compute", 6), ("comm", 4)], gpcs=4, clusters=False)
    assert [(site.part, site.gpc, site.sms) for site in dealt] == [
        ("compute", 0, 2), ("compute", 1, 2), ("compute", 2, 1), ("compute", 3, 1),
        ("comm", 2, 1), ("comm", 3, 1), ("comm", 0, 1), ("comm", 1, 1),
    ]  # fmt: skip


def test_launches_follow_each_other_by_the_hosts_time_unless_they_are_recorded() -> None:
    builder = WorkloadBuilder("launches")
    for index in range(3):
        builder.kernel(f"k{index}", BLOCK, Measured(time_ns=1e5, blocks=432))
    workload = replace(builder.done(), host_launch_ns=4000.0)
    assert [op.launch_ns for op in compiled(workload).ops] == [0.0, 4000.0, 8000.0]
    late = replace(workload, operations=(*workload.operations[:2], replace(workload.operations[2], launched_ns=7.0)))
    assert compiled(late).ops[2].launch_ns == 7.0
    skewed = compile_program(workload, A100, (), dispatch=DISPATCHES["strict"], skew_ns=(0.0, 500.0)).program
    assert [(op.rank, op.launch_ns) for op in skewed.ops[2:4]] == [(0, 8000.0), (1, 500.0)]


# --- kernels -----------------------------------------------------------------------------------


def test_a_product_takes_its_flops_at_its_efficiency_and_its_tiles_read_through_l2() -> None:
    op = kernel_of(GEMM)
    assert op.blocks == 32 * 32
    flops = 2 * 4096 * 4096 * 1024
    assert op.work_ns == pytest.approx(flops / GEMM.efficiency / (312e12 / 108) / 1024 * 1e9)
    assert op.l2_per_ns == pytest.approx((128 + 128) * 1024 * 2 / op.work_ns)
    traffic = gemm_traffic(GEMM, at_once=4 * 108, cache_bytes=41_943_040)
    assert op.hbm_per_ns == pytest.approx(traffic.hbm_bytes / 1024 / op.work_ns)
    assert (op.power, op.reuse) == (1.0, ())


def test_without_counted_traffic_each_matrix_moves_twice() -> None:
    builder = WorkloadBuilder("product")
    builder.kernel("k", BLOCK, GEMM)
    plain = DEFAULT.flipped("traffic")
    result = compile_program(builder.done(), A100, (), dispatch=DISPATCHES["strict"], mechanisms=plain)
    op = result.program.ops[0]
    assert op.hbm_per_ns * op.work_ns * op.blocks == pytest.approx(FLAT_TRAFFIC * GEMM.min_bytes)
    assert any("2 times" in sentence for sentence in result.assumed)


def test_reuse_is_told_per_block_and_nanosecond_of_work() -> None:
    builder = WorkloadBuilder("product")
    builder.kernel("k", BLOCK, GEMM)
    lost = DEFAULT.flipped("l2_capacity")
    op = compile_program(builder.done(), A100, (), dispatch=DISPATCHES["strict"], mechanisms=lost).program.ops[0]
    traffic = gemm_traffic(GEMM, at_once=4 * 108, cache_bytes=41_943_040)
    for given, own in zip(op.reuse, traffic.reuse, strict=True):
        assert given.repeated_bytes * 1024 * op.work_ns == pytest.approx(own.repeated_bytes)
        assert given.fit == own.fit


@pytest.mark.parametrize(
    ("dtype", "peak", "limited"), [("fp32", 19.5e12, False), ("tf32", 156e12, True), ("bf16", 312e12, True)]
)
def test_arithmetic_takes_its_time_at_the_peak_of_its_type(dtype: str, peak: float, limited: bool) -> None:
    op = kernel_of(BlockWork(blocks=1000, flops_per_block=1e8, dtype=dtype))  # type: ignore[arg-type]
    assert op.work_ns == pytest.approx(1e8 / (peak / 108) * 1e9)
    assert op.share == 8 / 12  # warps over those that saturate an SM
    assert op.power == (1.0 if limited else 0.0)
    assert (op.hbm_per_ns, op.l2_per_ns) == (0.0, 0.0)


def test_memory_traffic_takes_its_time_at_the_most_that_sms_demand() -> None:
    op = kernel_of(BlockWork(blocks=1000, hbm_bytes_per_block=1e6, dtype="bf16"))
    assert op.hbm_per_ns == pytest.approx(MEMORY_OVERDRIVE * 2039 / 108)
    assert op.work_ns == pytest.approx(1e6 / op.hbm_per_ns)
    assert op.l2_per_ns == op.hbm_per_ns
    assert op.power == 0.0


def test_the_longer_of_arithmetic_and_traffic_decides_and_says_what_a_kernel_waits_for() -> None:
    most = MEMORY_OVERDRIVE * 2039e9 / 19.5e12  # bytes per operation where both take as long
    bound = [
        kernel_of(BlockWork(blocks=1000, flops_per_block=1e8, hbm_bytes_per_block=1e8 * most * part))
        for part in (0.9, 1.1)
    ]
    assert bound[0].work_ns == pytest.approx(1e8 / (19.5e12 / 108) * 1e9)
    assert bound[1].work_ns == pytest.approx(1.1 * bound[0].work_ns)
    assert bound[0].share == 8 / 12 > bound[1].share  # latency, not issue slots


def test_measured_traffic_makes_a_kernel_memory_bound_from_half_of_what_hbm_could_move() -> None:
    half = 0.5 * 2039e9 * 1e-3  # in 1 ms
    below, above = (kernel_of(Measured(time_ns=1e6, blocks=864, hbm_bytes=half * part)).share for part in (0.99, 1.01))
    assert below == 8 / 12 > above


def test_a_measured_kernel_has_the_work_for_its_time_and_moves_no_more_than_hbm_can() -> None:
    op = kernel_of(Measured(time_ns=1e6, blocks=864, hbm_bytes=5e8))  # two waves of four blocks per SM
    assert op.work_ns == pytest.approx(1e6 / 8)
    assert op.hbm_per_ns == pytest.approx(5e8 / 864 / op.work_ns)
    full = kernel_of(Measured(time_ns=1e6, blocks=864, hbm_bytes=1e12))
    assert full.hbm_per_ns == pytest.approx(2039 / 108)


def test_a_persistent_kernel_has_as_many_blocks_as_its_part_holds() -> None:
    work = Measured(time_ns=1e6, blocks=864)
    whole, part = (
        kernel_of(work, A100, *controls, persistent=True) for controls in ((), (SmPartition(8), CommBlocks(8)))
    )
    assert resident_blocks(A100, BLOCK) == 4
    assert (whole.blocks, part.blocks) == (4 * 108, 4 * 100)
    assert whole.blocks * whole.work_ns == pytest.approx(part.blocks * part.work_ns)
    assert (whole.part, part.part) == (None, "compute")


# --- collectives -------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "passes"), [("all-reduce", 14), ("all-gather", 7)])
def test_a_collective_takes_latency_wire_time_hbm_and_power(kind: str, passes: int) -> None:
    op = collective_of(kind=kind)
    wire = 2**28 * passes / 8
    assert op.blocks == 24
    assert op.work_ns == pytest.approx(8400 + passes * 3400 + wire / 240)
    assert op.link_per_ns == pytest.approx(wire / op.work_ns)
    assert op.hbm_per_ns == op.l2_per_ns == pytest.approx(3 * op.link_per_ns)
    assert op.power == pytest.approx(MOVING_POWER * op.hbm_per_ns / 2039)
    assert op.share == pytest.approx(NEIGHBOUR_SHARE * 544 / NEIGHBOUR_THREADS)
    assert op.exposure == NEIGHBOUR_EXPOSURE
    assert op.slack == 24 * 20 / 240  # what its blocks could move, over what links carry
    assert op.priority == 0


def test_fewer_blocks_and_threads_move_less_and_have_no_slack() -> None:
    op = collective_of(CommBlocks(8), CommThreads(128), CommPriority(), SmPartition(24))
    assert op.work_ns == pytest.approx(8400 + 7 * 3400 + 2**28 * 7 / 8 / (8 * 20 * 128 / 544))
    assert op.share == pytest.approx(NEIGHBOUR_SHARE * 128 / NEIGHBOUR_THREADS)
    assert (op.blocks, op.slack, op.priority, op.part) == (8, 1.0, 1, "comm")


def test_a_measured_time_scales_all_rates() -> None:
    plain, measured = collective_of(), collective_of(time_ns=3e6)
    factor = 3e6 / plain.work_ns
    assert measured.work_ns == pytest.approx(3e6)
    assert measured.link_per_ns == pytest.approx(plain.link_per_ns / factor)
    assert measured.hbm_per_ns == pytest.approx(plain.hbm_per_ns / factor)
    few = collective_of(CommBlocks(6), time_ns=3e6)  # half of what the links carry
    assert few.work_ns == pytest.approx(factor * (8400 + 7 * 3400 + 2**28 * 7 / 8 / 120))


def test_copy_engines_read_and_write_what_they_send_and_take_no_block() -> None:
    op = collective_of(CopyEngine())
    assert (op.kind, op.blocks, op.block) == ("copy", 0, None)
    assert op.hbm_per_ns * op.work_ns == pytest.approx(2 * 2**28 * 7 / 8, rel=0.01)  # but for the start of a copy
    assert op.link_per_ns * op.work_ns == pytest.approx(2**28 * 7 / 8)
    assert op.power == pytest.approx(MOVING_POWER * op.hbm_per_ns / 2039)
    twice = collective_of(CopyEngine(), time_ns=2 * collective_of().work_ns)
    assert twice.work_ns == pytest.approx(2 * op.work_ns)
    assert twice.hbm_per_ns == pytest.approx(op.hbm_per_ns / 2)


def test_a_cluster_that_does_not_divide_the_blocks_is_given_up() -> None:
    block = load_footprint("nccl-2.32.3/ring-simple", "sm_90").block
    assert block is not None
    assert block.cluster == 4
    builder = WorkloadBuilder("clusters", ranks=8)
    builder.collective("c", "all-gather", 2**28, "nccl-2.32.3/ring-simple")
    clusters = [compiled(builder.done(), H100, CommBlocks(blocks)).ops[0].block for blocks in (8, 6)]
    assert [need.cluster for need in clusters if need] == [4, 1]


def test_what_cannot_run_says_why() -> None:
    with pytest.raises(UnsupportedError, match="they move bytes and cannot add"):
        collective_of(CopyEngine(), kind="all-reduce")
    with pytest.raises(InputError, match="leave none of 108 for compute"):
        collective_of(SmPartition(108))
    with pytest.raises(InputError, match=r"c: 65 blocks; .* has at most 64"):
        collective_of(CommBlocks(65))
    with pytest.raises(UnsupportedError, match="no fact fp32_flops_per_s"):
        kernel_of(BlockWork(blocks=1, flops_per_block=1e6), replace(A100, fp32_flops_per_s=None))
    with pytest.raises(UnsupportedError, match="no fact hbm_bytes_per_s"):
        kernel_of(BlockWork(blocks=1, hbm_bytes_per_block=1e6), replace(A100, hbm_bytes_per_s=None))


# --- partitions --------------------------------------------------------------------------------


def test_a_partition_brings_the_channels_that_it_holds_where_the_library_takes_more() -> None:
    builder = WorkloadBuilder("gather", ranks=8)
    builder.collective("c", "all-gather", 2**28, NCCL)
    block = load_footprint(NCCL, "sm_80").block
    assert block is not None
    assert fitting_blocks(A100, block, 8) == 8 * resident_blocks(A100, block) == 8
    assert partition_with_channels(builder.done(), A100, 8) == (SmPartition(8), CommBlocks(8))
    assert partition_with_channels(builder.done(), A100, 24) == (SmPartition(24),)
    builder.collective("few", "all-gather", 2**28, NCCL, blocks=6)
    assert partition_with_channels(builder.done(), A100, 8) == (SmPartition(8), CommBlocks(8))
    builder = WorkloadBuilder("few blocks", ranks=8)
    builder.collective("few", "all-gather", 2**28, NCCL, blocks=6)
    assert partition_with_channels(builder.done(), A100, 8) == (SmPartition(8),)


def test_of_two_libraries_the_one_whose_blocks_need_more_room_sets_the_channels() -> None:
    builder = WorkloadBuilder("two libraries", ranks=8)
    builder.collective("small", "all-gather", 2**28, "threads=64,registers=32,smem=1KiB")
    assert partition_with_channels(builder.done(), A100, 8) == (SmPartition(8),)  # 24 of many
    builder.collective("large", "all-gather", 2**28, NCCL)
    assert partition_with_channels(builder.done(), A100, 8) == (SmPartition(8), CommBlocks(8))


def test_each_collective_is_asked_for_its_own_room() -> None:
    builder = WorkloadBuilder("two libraries", ranks=8)
    builder.collective("small", "all-gather", 2**28, "threads=64,registers=32,smem=1KiB", blocks=24)
    builder.collective("large", "all-gather", 2**28, NCCL, blocks=24)
    with pytest.raises(InputError, match="large has 24 blocks that must be resident at once, and 8 SMs hold 8 of them"):
        compiled(builder.done(), A100, SmPartition(8))


def test_a_partition_that_is_too_small_says_how_many_blocks_it_holds() -> None:
    with pytest.raises(InputError, match="24 blocks that must be resident at once, and 23 SMs hold 23"):
        collective_of(SmPartition(23))
    assert collective_of(SmPartition(24)).blocks == 24
