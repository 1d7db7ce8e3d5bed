"""Predictions: which engine and spread, what baselines are, and what is shown of a run; sweeps and spreads."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Any

import pytest

from makeway.model.presets import load_preset
from makeway.model.residency import Need, resident_blocks
from makeway.model.simulate import predict, spread
from makeway.model.simulate.fitting import Fitting, plus
from makeway.model.simulate.policies import CutAhead, HeldQueue, StrictHeadOfLine, latency_shares
from makeway.model.simulate.predict import Settings, resolved, simulate, vendor_dispatch
from makeway.model.simulate.spread import BLOCK_SPREAD, SHORTEST_BLOCK, block_factors, deviations
from makeway.model.simulate.sweep import _points, sweep, with_alternatives
from makeway.values.control import CommBlocks, CommPriority, Control, SmemPad, SmPartition
from makeway.values.device import load_device
from makeway.values.errors import InputError
from makeway.values.kernel import KernelResources
from makeway.values.timeline import share_of_ideal
from makeway.values.workload import BlockWork, Gemm, Measured, Workload, WorkloadBuilder

A100, H100, MI250X, MI300X = (load_device(name) for name in ("A100-SXM4-80GB", "H100-SXM5-80GB", "MI250X", "MI300X"))
BLOCK = KernelResources(threads=256, registers_per_thread=64, smem_bytes=32 * 1024)  # four blocks per SM
NCCL = "nccl-2.27.5/ring-simple"
BY_CLASS = Settings(engine="class")


def workload(*streams: str, comm: bool = True, blocks: int = 864, **options: Any) -> Workload:
    """A kernel of 1 ms on each of these streams, and an all-gather of 0.5 ms."""
    builder = WorkloadBuilder("kernels", ranks=8)
    for index, stream in enumerate(streams):
        builder.kernel(f"k{index}", BLOCK, Measured(time_ns=1e6, blocks=blocks), stream=stream)
    if comm:
        builder.collective("c", "all-gather", 2**26, NCCL, time_ns=5e5, **options)
    return replace(builder.done(), host_launch_ns=0.0)


def computed(*streams: str) -> Workload:
    """The same with kernels whose time the model computes."""
    measured, work = workload(*streams), BlockWork(blocks=864, flops_per_block=1e6)
    kernels = [replace(kernel, work=work) for kernel in measured.kernels]
    return replace(measured, operations=(*kernels, *measured.operations[len(kernels) :]))


# --- which engine ------------------------------------------------------------------------------


def test_the_engine_follows_from_the_size_of_a_workload_and_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = computed("s", "s"), computed("s", "t")
    monkeypatch.setattr(predict, "MOST_RECORDED_BLOCKS", 0)  # of measured kernels only
    assert (resolved(one, Settings()).engine, resolved(one, Settings()).spread) == ("block", BLOCK_SPREAD)
    monkeypatch.setattr(predict, "MOST_BLOCKS", 2 * 864)
    assert resolved(one, Settings()).engine == "block"
    monkeypatch.setattr(predict, "MOST_BLOCKS", 2 * 864 - 1)
    assert (resolved(one, Settings()).engine, resolved(one, Settings()).spread) == ("fluid", BLOCK_SPREAD)
    assert (resolved(two, Settings()).engine, resolved(two, Settings()).spread) == ("class", 0.0)
    assert resolved(two, Settings(jitter=0.1)).engine == "fluid"
    assert resolved(one, Settings(engine="block", jitter=0.1)).spread == 0.1


@pytest.mark.parametrize("streams", [("s", "s"), ("s", "t")])
def test_measured_kernels_take_the_class_engine_from_a_smaller_size_on(
    streams: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = workload(*streams)
    assert predict.MOST_RECORDED_BLOCKS < predict.MOST_BLOCKS
    monkeypatch.setattr(predict, "MOST_RECORDED_BLOCKS", 2 * 864)
    assert (resolved(recorded, Settings()).engine, resolved(recorded, Settings()).spread) == ("block", BLOCK_SPREAD)
    monkeypatch.setattr(predict, "MOST_RECORDED_BLOCKS", 2 * 864 - 1)
    assert (resolved(recorded, Settings()).engine, resolved(recorded, Settings()).spread) == ("class", 0.0)
    assert resolved(recorded, Settings(jitter=0.1)).engine == "fluid"


def test_each_vendor_has_its_dispatch_policy() -> None:
    assert vendor_dispatch(A100) == StrictHeadOfLine()
    assert vendor_dispatch(MI250X) == CutAhead()
    assert isinstance(vendor_dispatch(MI300X), HeldQueue)


@pytest.mark.parametrize(
    "options", [{"jitter": 1.0}, {"jitter": -0.1}, {"skew_ns": -1.0}, {"engine": "class", "jitter": 0.1}]
)
def test_settings_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Settings(**options)
    assert Settings(jitter=0.0, engine="class", skew_ns=0.0)


# --- times -------------------------------------------------------------------------------------


@pytest.mark.parametrize("controls", [(), (CommPriority(),), (SmPartition(24),)], ids=str)
@pytest.mark.parametrize("settings", [Settings(), BY_CLASS, Settings(engine="fluid"), Settings(skew_ns=2e5)], ids=str)
def test_the_time_is_the_end_of_the_last_span(controls: tuple[Control, ...], settings: Settings) -> None:
    prediction = simulate(workload("s"), A100, controls, settings)
    assert round(prediction.t_ns) == max(span.end_ns for span in prediction.timeline.spans)
    assert prediction.share_of_ideal == share_of_ideal(
        t_sequential=prediction.t_sequential_ns,
        t=prediction.t_ns,
        t_compute=prediction.t_compute_ns,
        t_comm=prediction.t_comm_ns,
    )


def test_baselines_are_without_controls_and_without_each_other() -> None:
    for controls in ((), (CommPriority(),), (CommBlocks(4),), (SmPartition(54),)):
        prediction = simulate(workload("s", "s"), A100, controls, BY_CLASS)
        assert prediction.t_compute_ns == pytest.approx(2e6)
        assert prediction.t_comm_ns == pytest.approx(5e5)
        assert prediction.t_sequential_ns == pytest.approx(2.5e6)
        assert prediction.ideal_ns == prediction.t_ideal_ns == prediction.t_compute_ns
        assert prediction.t_naive_ns == simulate(workload("s", "s"), A100, (), BY_CLASS).t_ns


def test_kernels_of_several_streams_overlap_in_compute_and_add_up_in_sequence() -> None:
    prediction = simulate(workload("s", "t", blocks=54, comm=False), A100, (), BY_CLASS)  # half of the SMs each
    assert prediction.t_sequential_ns == pytest.approx(2e6)
    assert prediction.t_compute_ns == prediction.t_ns == pytest.approx(1e6)


def test_a_late_rank_starts_late_by_the_skew() -> None:
    prediction = simulate(workload("s"), A100, (), replace(BY_CLASS, skew_ns=3e5))
    starts = [min(span.start_ns for span in prediction.timeline.spans if span.rank == rank) for rank in (0, 1)]
    assert starts == [0, 300_000]
    assert prediction.t_sequential_ns == pytest.approx(1.5e6)  # of one rank


def test_waiting_is_the_time_between_the_first_block_and_the_first_byte() -> None:
    prediction = simulate(workload("s"), A100, (CommPriority(),), replace(BY_CLASS, skew_ns=3e5))
    first, last = prediction.timeline.of("comm", rank=0)[0], prediction.timeline.of("comm", rank=1)[0]
    assert first.waiting_ns == last.start_ns - first.start_ns > 0
    assert last.waiting_ns == 0


def test_what_sms_hold_is_recorded_on_request_and_adds_up_to_the_device() -> None:
    prediction = simulate(workload("s"), A100, (), replace(BY_CLASS, record=True))
    moments = {held.time_ns for held in prediction.timeline.holdings}
    assert len(moments) > 2
    for moment in moments:
        assert sum(held.sms for held in prediction.timeline.holdings if held.time_ns == moment) == 108
    full = [held for held in prediction.timeline.holdings if held.time_ns == 0]
    assert [(held.sms, held.blocks) for held in full] == [(108, (("k0", 4),))]


# --- sweeps ------------------------------------------------------------------------------------


def labels(kind: Any, given: Workload, *base: Control) -> list[str]:
    return [label for label, _, _ in _points(kind, given, A100, base)]


def test_a_sweep_has_its_values_in_place_of_what_was_asked() -> None:
    given = workload("s")
    assert labels("comm-blocks", given) == [f"{count} blocks" for count in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)]
    assert labels("priority", given) == ["equal priority", "comm priority"]
    points = list(_points("comm-blocks", given, A100, (CommBlocks(3), CommPriority())))
    assert points[0][2] == (CommPriority(), CommBlocks(1))
    assert [point[2] for point in _points("priority", given, A100, (CommPriority(),))] == [(), (CommPriority(),)]


def test_pads_are_the_smallest_for_each_residency_that_every_kernel_can_have() -> None:
    points = list(_points("pad", workload("s"), A100, (SmemPad(5),)))
    assert points[0][2] == ()
    pads = [controls[0].pad_bytes for _, _, controls in points[1:] if isinstance(controls[0], SmemPad)]
    assert [resident_blocks(A100, BLOCK.padded(pad)) for pad in pads] == [3, 2, 1]
    assert [resident_blocks(A100, BLOCK.padded(pad - 1)) for pad in pads] == [4, 3, 2]
    assert [label for label, _, _ in points] == ["pad 0 B", *(f"pad {pad:,} B" for pad in pads)]
    builder = WorkloadBuilder("two")
    builder.kernel("a", BLOCK, Measured(time_ns=1e6, blocks=864))
    builder.kernel("b", replace(BLOCK, smem_bytes=100 * 1024), Measured(time_ns=1e6, blocks=864))
    most = A100.sm.smem_block_bytes - 100 * 1024
    both = [controls[0].pad_bytes for _, _, controls in _points("pad", builder.done(), A100, ()) if controls]  # type: ignore[union-attr]
    assert both == [pad for pad in pads if pad <= most]


def test_a_grid_sweep_sets_the_grid_of_every_product() -> None:
    builder = WorkloadBuilder("products")
    for index in range(2):
        builder.kernel(f"g{index}", BLOCK, Gemm(m=512, n=512, k=512))
    points = list(_points("grid", builder.done(), A100, ()))
    assert len(points) == 7 * 7
    assert (points[0][0], points[1][0], points[-1][0]) == ("2x2", "4x2", "128x128")
    assert [kernel.work.grid for kernel in points[1][1].kernels if isinstance(kernel.work, Gemm)] == [(4, 2), (4, 2)]
    sides = [(2, 4, 8, 16, 32, 64, 128)[at] for at in range(7)]
    assert [label for label, _, _ in points] == [f"{x}x{y}" for y in sides for x in sides]
    with pytest.raises(InputError, match="matrix products"):
        list(_points("grid", workload("s"), A100, ()))


def test_a_value_that_cannot_run_says_why_and_the_others_go_on() -> None:
    said: list[str] = []
    swept = sweep("comm-blocks", workload("s"), A100, (SmPartition(8),), BY_CLASS, progress=said.append)
    assert [outcome.prediction is not None for outcome in swept.outcomes] == [True] * 4 + [False] * 6
    assert "12 blocks that must be resident at once" in str(swept.outcomes[4].error)
    assert said[0] == "simulating 1 of 10: 1 blocks"
    assert len(said) == 10


def test_alternatives_are_every_policy_with_a_spread() -> None:
    prediction = simulate(workload("s"), A100, (CommPriority(),))
    found = with_alternatives(prediction, Settings(jitter=0.1)).alternatives
    assert [(each.dispatch, each.hbm) for each in found] == [
        ("strict", "proportional"), ("strict", "max-min"), ("backfill", "proportional"), ("backfill", "max-min"),
    ]  # fmt: skip
    assert {each.jitter for each in found} == {0.1}
    assert {each.jitter for each in with_alternatives(prediction, Settings(jitter=0.0)).alternatives} == {BLOCK_SPREAD}
    amd = simulate(load_preset("gemm-ar", MI250X), MI250X, (), BY_CLASS)
    names = [each.dispatch for each in with_alternatives(amd, Settings()).alternatives]
    assert names == ["cut-ahead", "cut-ahead", "shader-engines", "shader-engines"]
    for each in found:
        assert each.share_of_ideal == prediction.share_of(each.t_ns)


# --- how blocks spread -------------------------------------------------------------------------


def test_factors_have_the_spread_that_is_asked_for_in_no_order() -> None:
    factors = block_factors(0, 0.1)
    assert len(factors) == spread.MOST_FACTORS
    assert fmean(factors) == pytest.approx(1.0, abs=1e-9)
    assert pstdev(factors) == pytest.approx(0.1, rel=0.01)
    batch = factors[:64]
    assert sum(later > earlier for earlier, later in pairwise(batch)) in range(20, 45)
    assert min(block_factors(0, 0.9)) == SHORTEST_BLOCK
    assert block_factors(0, 0.1) != block_factors(1, 0.1)


def test_each_batch_fills_the_normal_distribution() -> None:
    """One of each 64th; where in it moves from batch to batch."""
    assert [spread._halved(number) for number in range(5)] == [1 / 2, 5 / 8, 5 / 16, 13 / 16, 5 / 32]
    first = sorted(deviations(0)[:64])
    quantiles = [spread._QUANTILE((stratum + 0.5) / 64) for stratum in range(64)]
    assert first == pytest.approx(quantiles, abs=1e-9)
    second = sorted(deviations(0)[64:128])
    assert second != pytest.approx(first, abs=1e-3)


# --- latency -----------------------------------------------------------------------------------


def test_the_moved_bytes_never_exceed_hbm_and_meet_the_closed_form() -> None:
    demands, waiting = {0: 80.0, 1: 60.0}, {0: 1.0, 1: 0.5}
    shares = latency_shares(demands, waiting, 100.0, 3.0)
    moved = sum(demands[op] * shares[op] for op in demands)
    stretch = (1 - (moved / 100.0) ** 3) ** (-1 / 3)
    assert shares[0] == pytest.approx(1 / stretch, rel=1e-4)
    assert shares[1] == pytest.approx(1 / (1 + 0.5 * (stretch - 1)), rel=1e-4)


# --- room on an SM -----------------------------------------------------------------------------


def test_placing_a_block_takes_one_from_the_room() -> None:
    def taking(warps: int, registers: int) -> Need:
        return Need(
            warps=warps, registers_per_warp=registers, scalar_registers_per_warp=0, smem_bytes=0, barriers=0, cluster=1
        )

    even, uneven = taking(4, 2048), taking(3, 4096)
    fitting = Fitting(A100.sm, [even, uneven])
    assert [fitting.capacity(0, ((0, held),)) if held else fitting.capacity(0, ()) for held in (0, 1, 7)] == [8, 7, 1]
    assert fitting.steady(0, ())
    rooms = [fitting.capacity(1, ((1, held),) if held else ()) for held in range(6)]
    assert rooms == [5, 4, 3, 2, 1, 0]
    assert fitting.steady(1, ())
    assert fitting.steady(0, ((0, 8),))  # no room at all
    assert plus(((0, 2),), 1, 3) == ((0, 2), (1, 3))
    assert plus(((0, 2), (1, 3)), 0, -2) == ((1, 3),)
