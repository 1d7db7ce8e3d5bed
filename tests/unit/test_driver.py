"""The driver, case by case: ranks, links, power, latencies and channels, with times that a reader can work out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from makeway.model.residency import Need
from makeway.model.simulate.driver import Engine, run
from makeway.model.simulate.mechanisms import Reuse
from makeway.model.simulate.order import linked
from makeway.model.simulate.policies import BackFill, CutAhead, MaxMin, Proportional
from makeway.model.simulate.program import EngineOp, Latencies, Program, Site
from makeway.values.device import load_device
from makeway.values.errors import InputError

SM = load_device("A100-SXM4-80GB").sm
WHOLE = Need(  # one block fills an SM
    warps=64, registers_per_warp=1024, scalar_registers_per_warp=0, smem_bytes=1024, barriers=0, cluster=1
)
QUARTER = replace(WHOLE, warps=16)
both_engines = pytest.mark.parametrize("engine", ["class", "block"])


def kernel(**options: Any) -> EngineOp:
    """Ten blocks of 1e5 ns, one per SM."""
    given: dict[str, Any] = {"name": "k", "kind": "kernel", "block": WHOLE, "blocks": 10, "work_ns": 1e5}
    return EngineOp(**(given | options))


def collective(**options: Any) -> EngineOp:
    given: dict[str, Any] = {
        "name": "c",
        "kind": "collective",
        "stream": "comm",
        "block": QUARTER,
        "blocks": 4,
        "work_ns": 1e5,
    }
    return EngineOp(**(given | {"share": 0.0, "group": options.get("name", "c")} | options))


def copy(**options: Any) -> EngineOp:
    given: dict[str, Any] = {
        "name": "x",
        "kind": "copy",
        "stream": "copies",
        "work_ns": 1e5,
        "group": options.get("name", "x"),
    }
    return EngineOp(**(given | options))


def program(*ops: EngineOp, sms: int = 10, ranks: int = 1, **options: Any) -> Program:
    return Program(sm=SM, sites=(Site(part=None, gpc=0, sms=sms),), ranks=ranks, ops=ops, **options)


def ends(program: Program, engine: Engine = "class", **options: Any) -> list[float]:
    return [times.ended_ns for times in run(program, engine=engine, **options).times]


# --- ranks -------------------------------------------------------------------------------------


@both_engines
def test_the_rank_with_the_fewest_channels_decides_how_many_are_complete(engine: Engine) -> None:
    filler = kernel(blocks=8, work_ns=1e6)  # on rank 0 only: two SMs are left for five blocks
    comm = collective(block=WHOLE, blocks=5)
    times = run(program(filler, comm, replace(comm, rank=1), ranks=2), engine=engine).times
    # two fifths move at two fifths of the rate and wait; the rest moves when the filler has ended
    assert times[1].ended_ns == times[2].ended_ns == pytest.approx(1e6 + 0.6e5)
    assert (times[1].moving_ns, times[2].moving_ns) == (0.0, 0.0)


@both_engines
def test_a_collective_goes_at_the_pace_of_its_slowest_rank(engine: Engine) -> None:
    stream = kernel(rank=1, hbm_per_ns=10.0, work_ns=1e6)  # 100 bytes per ns on rank 1
    comm = copy(hbm_per_ns=100.0)
    times = run(program(comm, replace(comm, rank=1), stream, ranks=2, hbm_per_ns=100.0), engine=engine).times
    assert times[0].ended_ns == times[1].ended_ns == pytest.approx(2e5)


@both_engines
def test_a_collective_moves_when_its_last_rank_is_there(engine: Engine) -> None:
    comm = collective()
    times = run(program(comm, replace(comm, rank=1, launch_ns=3e4), ranks=2), engine=engine).times
    assert [(each.started_ns, each.moving_ns) for each in times] == [(0.0, 3e4), (3e4, 3e4)]
    assert times[0].ended_ns == pytest.approx(1.3e5)


# --- links, HBM and power ----------------------------------------------------------------------


@pytest.mark.parametrize(("capacity", "end"), [(120.0, 1e5), (100.0, 1.2e5), (60.0, 2e5), (None, 1e5)])
def test_collectives_at_once_share_the_links_in_proportion(capacity: float | None, end: float) -> None:
    pair = (copy(link_per_ns=60.0), copy(name="y", stream="others", link_per_ns=60.0))
    assert ends(program(*pair, link_per_ns=capacity)) == pytest.approx([end, end])
    assert ends(program(pair[0], link_per_ns=capacity)) == pytest.approx([1e5])


def test_mixed_streams_get_less_of_hbm_and_equal_ones_all_of_it() -> None:
    stream = kernel(hbm_per_ns=10.0)
    other = replace(stream, name="l", stream="s", blocks=10)
    wide: dict[str, Any] = {"sms": 20, "hbm_per_ns": 200.0, "mixed_hbm": 0.5}
    assert ends(program(stream, other, **wide)) == pytest.approx([1e5, 1e5])
    assert ends(program(stream, copy(hbm_per_ns=100.0), **wide)) == pytest.approx([2e5, 2e5])
    assert ends(program(stream, copy(hbm_per_ns=0.0), **wide)) == pytest.approx([1e5, 1e5])


def test_l2_and_hbm_limit_by_the_scarcer_of_both() -> None:
    op = kernel(hbm_per_ns=10.0, l2_per_ns=30.0)
    assert ends(program(op, hbm_per_ns=50.0, l2_per_ns=300.0)) == pytest.approx([2e5])
    assert ends(program(op, hbm_per_ns=100.0, l2_per_ns=100.0)) == pytest.approx([3e5])


@pytest.mark.parametrize(
    ("power", "left"),
    [(0.0, 1.0), (0.19, 0.81), (0.5, 0.5), (0.9, 0.5)],  # at most half of the budget
)
def test_communication_takes_clock_by_its_power(power: float, left: float) -> None:
    product = kernel(power=1.0, work_ns=1e4)
    options: dict[str, Any] = {"power_exponent": 2.0}
    assert ends(program(product, copy(power=power), **options))[0] == pytest.approx(1e4 / left**0.5)
    assert ends(program(product, copy(power=power)))[0] == pytest.approx(1e4)
    assert ends(program(replace(product, power=0.0), copy(power=power), **options))[0] == pytest.approx(1e4)
    # on half of the SMs it draws half of the power
    half = ends(program(product, copy(power=power), sms=20, **options))[0]
    assert half == pytest.approx(1e4)


def test_collectives_beside_a_kernel_lose_speed_and_copies_do_not() -> None:
    ops = (kernel(blocks=4, work_ns=1e6), collective(work_ns=1e4), copy(work_ns=1e4))
    assert ends(program(*ops, comm_loss=0.75))[1:] == pytest.approx([4e4, 1e4])
    assert ends(program(*ops[1:], comm_loss=0.75)) == pytest.approx([1e4, 1e4])


def test_a_stream_beside_a_product_makes_it_read_again_what_it_loses() -> None:
    """Half of the cache is lost, so half of the 10 bytes per ns that each block reuses are read again."""
    product = kernel(hbm_per_ns=10.0, reuse=(Reuse(10.0, 1.0),))
    comm = collective(hbm_per_ns=100.0, block=QUARTER, work_ns=1e6)
    wide: dict[str, Any] = {"sms": 14, "hbm_per_ns": 200.0}
    assert ends(program(replace(product, reuse=()), comm, **wide))[0] == pytest.approx(1e5)
    assert ends(program(product, comm, **wide))[0] == pytest.approx(1.25e5)  # 100 + 50 + 100 of 200
    copies = copy(hbm_per_ns=100.0, work_ns=1e6)
    assert ends(program(product, copies, **wide))[0] == pytest.approx(1e5)  # past the cache
    assert ends(program(product, copies, memory_side_cache=True, **wide))[0] == pytest.approx(1.25e5)


# --- sharing policies --------------------------------------------------------------------------


def test_who_has_more_in_flight_gets_more_and_no_more_than_it_asks_for() -> None:
    shares = Proportional().shares
    assert shares({0: 60.0, 1: 60.0}, 80.0) == pytest.approx({0: 2 / 3, 1: 2 / 3})
    assert shares({0: 60.0, 1: 60.0}, 90.0, {0: 2.0, 1: 1.0}) == pytest.approx({0: 1.0, 1: 0.5})
    assert shares({0: 60.0, 1: 60.0}, 60.0, {0: 2.0, 1: 1.0}) == pytest.approx({0: 2 / 3, 1: 1 / 3})
    assert shares({0: 60.0, 1: 0.0}, 30.0, {0: 2.0, 1: 1.0}) == pytest.approx({0: 0.5, 1: 1.0})
    assert shares({0: 60.0}, 60.0) == {0: 1.0}


def test_small_demands_are_met_first_under_max_min() -> None:
    shares = MaxMin().shares
    assert shares({0: 90.0, 1: 10.0, 2: 50.0}, 100.0) == pytest.approx({0: 0.5, 1: 1.0, 2: 0.9})
    assert shares({0: 90.0, 1: 10.0}, 100.0) == {0: 1.0, 1: 1.0}
    assert shares({0: 90.0, 1: 0.0}, 45.0) == pytest.approx({0: 0.5, 1: 1.0})


# --- order and latency -------------------------------------------------------------------------


def test_an_operation_waits_for_its_stream_and_for_what_it_names() -> None:
    ops = (kernel(), kernel(name="l"), copy(after=(0,)), copy(name="y", after=(1,)), kernel(rank=1, name="far"))
    followers, counts = linked(ops)
    assert followers == [[(1, False), (2, True)], [(3, True)], [(3, False)], [], []]
    assert counts == [0, 1, 1, 2, 0]


@both_engines
def test_streams_and_events_have_their_own_latency(engine: Engine) -> None:
    ops = (kernel(), kernel(name="next"), copy(after=(0,)))
    late = run(program(*ops, latencies=Latencies(stream_ns=2e3, event_ns=7e3)), engine=engine).times
    assert [times.arrived_ns for times in late] == pytest.approx([0.0, 1.02e5, 1.07e5])
    recorded = run(program(*ops[:2], replace(ops[2], launch_ns=3e5)), engine=engine).times
    assert [times.arrived_ns for times in recorded] == pytest.approx([0.0, 1e5, 3e5])


@both_engines
def test_a_higher_priority_goes_first_whenever_it_arrives(engine: Engine) -> None:
    first, urgent = kernel(blocks=30), kernel(name="u", stream="s", launch_ns=10.0, priority=1)
    plain = ends(program(first, replace(urgent, priority=0)), engine)
    assert plain == pytest.approx([3e5, 4e5])
    assert ends(program(first, urgent), engine) == pytest.approx([4e5, 2e5])


@both_engines
def test_behind_a_block_that_does_not_fit_only_backfill_and_cut_ahead_go_on(engine: Engine) -> None:
    ops = (
        kernel(blocks=10, block=replace(WHOLE, warps=48)),  # three quarters of every SM
        kernel(name="big", stream="s", launch_ns=10.0),
        kernel(name="small", stream="t", launch_ns=20.0, block=QUARTER, work_ns=1e4, share=0.1),
    )
    starts = {
        policy.name: run(program(*ops), engine=engine, dispatch=policy).times[2].started_ns
        for policy in (BackFill(), CutAhead())
    }
    assert starts == pytest.approx({"backfill": 20.0, "cut-ahead": 20.0})
    strict = run(program(*ops), engine=engine).times
    assert strict[2].started_ns >= strict[1].started_ns >= 1e5


# --- what is recorded and refused --------------------------------------------------------------


@both_engines
def test_progress_counts_ended_blocks_and_the_clock_of_collectives(engine: Engine) -> None:
    result = run(program(kernel(blocks=30), copy(work_ns=1.5e5)), engine=engine, progress=True)
    steps = {round(step.time_ns): (*step.done, *step.resident) for step in result.progress}
    assert steps[0] == pytest.approx((0, 0.0, 10, 0))
    assert steps[100_000] == pytest.approx((10, 1e5, 10, 0))
    assert steps[150_000] == pytest.approx((10, 1.5e5, 10, 0))
    assert steps[300_000] == pytest.approx((30, 1.5e5, 0, 0))


@both_engines
def test_samples_are_taken_at_starts_and_ends_and_about_as_often_as_asked(engine: Engine) -> None:
    result = run(program(kernel(blocks=100), copy(work_ns=2.5e5)), engine=engine, sample_ns=3e5)
    assert [sample.time_ns for sample in result.samples] == pytest.approx([0.0, 2.5e5, 6e5, 9e5, 1e6])
    assert result.samples[0].holdings == ((((0, 1),), 10),)
    assert run(program(kernel()), engine=engine).samples == ()


def test_what_can_never_be_resident_is_refused_with_its_numbers() -> None:
    with pytest.raises(InputError, match="c can never become resident: it needs 11 blocks at once, and the device has"):
        run(program(collective(block=WHOLE, blocks=11)), engine="class")
    run(program(collective(block=WHOLE, blocks=10)), engine="class")
    cluster = kernel(block=replace(WHOLE, cluster=4), blocks=4)
    split = (Site(part=None, gpc=0, sms=3), Site(part=None, gpc=1, sms=3))
    with pytest.raises(InputError, match="needs 4 blocks at once in clusters of 4, and the device has room for 6"):
        run(replace(program(cluster), sites=split), engine="class")
    with pytest.raises(InputError, match="part 'comm' of the device has room for 0"):
        run(program(collective(part="comm")), engine="class")


def test_a_deadlock_names_who_waits() -> None:
    comms = [
        collective(
            name=f"c{index}", stream=f"s{index}", block=WHOLE, blocks=10, rank=rank, launch_ns=9.0 * (index != rank)
        )
        for rank in (0, 1)
        for index in (0, 1)
    ]
    with pytest.raises(InputError, match=r"deadlock at 0\.000 ms: nothing runs, and c0, c1, c0 still wait and others"):
        run(program(*comms, ranks=2), engine="block")


@both_engines
def test_soft_saturation_slows_a_block_by_what_its_neighbours_want(engine: Engine) -> None:
    alone = kernel(block=QUARTER, share=0.5)
    assert ends(program(alone, saturation="soft"), engine) == pytest.approx([2e5])  # one per SM, at half of it
    four = replace(alone, blocks=40)  # three neighbours that want half an SM each
    assert ends(program(four, saturation="soft"), engine) == pytest.approx([2e5 * (1 + 1.5)])
    assert ends(program(four), engine) == pytest.approx([2e5 * 2])
