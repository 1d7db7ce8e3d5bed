"""Curves and waves of the fluid engine, by hand: what has ended, what comes next, and what a change of pace does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from makeway.model.residency import Need
from makeway.model.simulate.driver import Engine, run
from makeway.model.simulate.fluid import fluid_run
from makeway.model.simulate.pairs import ENDLESS_NS, MOST_KNOTS, Curve, Meeting, Pairs, comparable
from makeway.model.simulate.policies import BackFill, CutAhead, Dispatch, HeldQueue, Proportional, StrictHeadOfLine
from makeway.model.simulate.program import EngineOp, Latencies, Program, Site
from makeway.model.simulate.sms import NEVER
from makeway.model.simulate.waves import MOST_WAVES, Waves
from makeway.values.device import load_device

SM = load_device("A100-SXM4-80GB").sm
HALF = Need(warps=32, registers_per_warp=1024, scalar_registers_per_warp=0, smem_bytes=1024, barriers=0, cluster=1)
CURVE = Curve((0.0, 10.0, 30.0), (0.0, 4.0, 8.0))


# --- curves ------------------------------------------------------------------------------------


def test_a_curve_is_linear_between_its_events() -> None:
    assert [CURVE.at(time) for time in (-1.0, 0.0, 5.0, 10.0, 20.0, 30.0, 99.0)] == [0.0, 0.0, 2.0, 4.0, 6.0, 8.0, 8.0]
    assert [CURVE.when(blocks) for blocks in (0.0, 2.0, 4.0, 6.0, 8.0, 99.0)] == [0.0, 5.0, 10.0, 20.0, 30.0, 30.0]
    assert CURVE.end_ns == 30.0


def test_whole_blocks_end_at_events() -> None:
    assert [CURVE.ended(time) for time in (0.0, 9.0, 10.0, 29.0, 30.0, 99.0)] == [0.0, 0.0, 4.0, 4.0, 8.0, 8.0]
    assert [CURVE.counted(blocks) for blocks in (0.0, 1.0, 4.0, 5.0, 99.0)] == [0.0, 10.0, 10.0, 30.0, 30.0]
    assert [CURVE.next_event(time) for time in (0.0, 9.0, 10.0, 30.0)] == [10.0, 10.0, 30.0, 30.0]


def test_a_measurement_survives_the_cache_and_a_damaged_one_does_not() -> None:
    meeting = Meeting(CURVE, 5.0, 0.5)
    assert Meeting.of(meeting.numbers()) == meeting
    numbers = meeting.numbers()
    assert Meeting.of(numbers[:-1]) is None
    assert Meeting.of(numbers[:2]) is None
    assert Meeting.of([*numbers[:-1], -8.0]) is None
    assert Meeting.of([5.0, 0.5, 0.0, 10.0, 10.0, 0.0, 4.0, 8.0]) is None  # times that do not rise
    assert Meeting.of([5.0, 0.5, 0.0, 10.0, 30.0, 0.0, 4.0, 4.0]) is None


# --- pairs -------------------------------------------------------------------------------------


def kernel(**options: Any) -> EngineOp:
    """Four slots of two SMs, ten blocks of 1e4 ns at half an SM each."""
    given: dict[str, Any] = {"name": "k", "kind": "kernel", "block": HALF, "blocks": 10, "work_ns": 1e4, "share": 0.5}
    return EngineOp(**(given | options))


def comm(**options: Any) -> EngineOp:
    given: dict[str, Any] = {
        "name": "c",
        "kind": "collective",
        "stream": "comm",
        "block": HALF,
        "blocks": 1,
        "work_ns": 1e5,
    }
    return EngineOp(**(given | {"share": 0.0, "group": "c"} | options))


def program(*ops: EngineOp, **options: Any) -> Program:
    given: dict[str, Any] = {"sites": (Site(part=None, gpc=0, sms=2),), "ranks": 1, "sm": SM}
    return Program(**(given | {"ops": ops} | options))


def pairs(engine: Engine = "class", **options: Any) -> Pairs:
    return Pairs(program(**options), engine, StrictHeadOfLine(), Proportional())


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_kernel_alone_ends_in_waves() -> None:
    alone = pairs().alone(comparable(kernel()))
    assert alone.kernel == Curve((0.0, 2e4, 4e4, 6e4), (0.0, 4.0, 8.0, 10.0))
    assert alone.block_ns == pytest.approx(2e4)  # the last two have an SM each, half of which they use
    assert alone.comm_rate == 0.0


def test_a_kernel_beside_a_collective_lacks_its_slots_and_both_share_hbm() -> None:
    beside = pairs().beside(comparable(kernel(blocks=9)), comparable(comm()), moving=True)
    assert beside.kernel.times_ns == pytest.approx((0.0, 2e4, 4e4, 6e4))
    assert beside.kernel.blocks == (0.0, 3.0, 6.0, 9.0)
    assert beside.comm_rate == pytest.approx(1.0)
    short = pairs(hbm_per_ns=100.0)
    stream, busy = comparable(kernel(blocks=9, hbm_per_ns=100 / 1.5)), comparable(comm(hbm_per_ns=100.0))
    assert short.beside(stream, busy, moving=True).comm_rate == pytest.approx(0.5)
    assert short.beside(stream, busy, moving=True).kernel.end_ns == pytest.approx(12e4)
    assert short.beside(stream, busy, moving=False).kernel.end_ns == pytest.approx(6e4)  # it waits for a rank


def test_a_collective_beside_a_kernel_loses_its_part() -> None:
    op, other = comparable(kernel(blocks=9)), comparable(comm())
    assert pairs(comm_loss=0.5).beside(op, other, moving=True).comm_rate == pytest.approx(0.5)


def test_a_collective_alone_has_its_rate() -> None:
    assert pairs().alone(comparable(comm())).comm_rate == pytest.approx(1.0)
    assert pairs(hbm_per_ns=50.0).alone(comparable(comm(hbm_per_ns=100.0))).comm_rate == pytest.approx(0.5)
    assert comparable(comm()).work_ns == ENDLESS_NS
    assert comparable(kernel(stream="s", after=(), launch_ns=5.0)) == comparable(kernel(name="other"))


def test_a_curve_of_many_events_is_thinned_and_keeps_its_ends() -> None:
    many = pairs("block", jitter=0.2).alone(comparable(kernel(blocks=1000)))
    exact = run(program(kernel(blocks=1000), jitter=0.2), engine="block").end_ns
    assert MOST_KNOTS / 2 < len(many.kernel.times_ns) <= MOST_KNOTS + 2
    assert (many.kernel.blocks[0], many.kernel.blocks[-1]) == (0.0, 1000.0)
    assert many.kernel.end_ns == pytest.approx(exact)
    assert many.block_ns == pytest.approx(2e4, rel=0.01)


# --- waves -------------------------------------------------------------------------------------


def running(blocks: int = 10, slots: int = 4) -> Waves:
    """Off its curve: blocks of 20 ns from 0 on."""
    waves = Waves(None, block_ns=20.0, blocks=blocks, slots=slots, now=0.0)
    assert waves.place(0.0) == min(blocks, slots)
    return waves


def test_waves_follow_each_other() -> None:
    waves = running()
    assert (waves.ends_at(), waves.next_end(0.0), waves.in_flight, waves.slots) == (60.0, 20.0, 4, 4)
    assert waves.left(0.0) == 0.6
    assert [waves.idle_at(slots) for slots in (1, 2, 3, 4)] == [40.0, 40.0, 60.0, 60.0]
    waves.advance(50.0)
    assert (waves.left(50.0), waves.in_flight, waves.free) == (0.0, 2, 2)
    assert waves.ends_at() == 60.0
    waves.advance(60.0)
    assert waves.empty


def test_slots_of_waves_that_end_now_are_free_until_they_are_placed() -> None:
    waves = running()
    waves.advance(20.0)
    assert (waves.free, waves.in_flight, waves.left(20.0)) == (4, 0, 0.6)
    waves.free -= 1  # somebody else takes one
    assert waves.place(20.0) == 3
    assert waves.ends_at() == 60.0
    assert waves.next_end(20.0) == 40.0
    waves.advance(41.0)
    assert (waves.left(41.0), waves.in_flight) == (0.0, 3)
    assert waves.ends_at() == 60.0


def test_uneven_waves_are_dealt_by_their_ends() -> None:
    waves = running(blocks=12)
    waves.free += 2  # two slots more, from 5 on
    assert waves.place(5.0) == 2
    assert (waves.in_flight, waves.slots) == (6, 6)
    assert waves.ends_at() == 45.0  # six left: four follow at 20, two at 25
    assert waves.idle_at(1) == 40.0
    assert waves.idle_at(5) == 45.0
    waves.advance(21.0)
    assert waves.left(21.0) == pytest.approx(2 / 12)


def test_another_pace_changes_what_is_left_of_the_blocks_in_flight() -> None:
    waves = running()
    waves.pace(40.0, 10.0)  # half is done: 20 are left of 10
    assert waves.next_end(10.0) == 30.0
    assert waves.ends_at() == 30.0 + 2 * 40.0


def test_without_a_slot_a_kernel_never_ends() -> None:
    waves = Waves(None, block_ns=20.0, blocks=10, slots=0, now=0.0)
    assert waves.place(0.0) == 0
    assert (waves.ends_at(), waves.next_end(0.0), waves.idle_at(1)) == (NEVER, NEVER, NEVER)
    assert not waves.empty


def test_a_kernel_on_its_curve_leaves_it_with_the_blocks_that_end_next() -> None:
    curve = Curve((0.0, 20.0, 40.0, 60.0), (0.0, 4.0, 8.0, 10.0))
    waves = Waves(curve, block_ns=20.0, blocks=10, slots=4, now=100.0)
    assert (waves.ends_at(), waves.next_end(100.0), waves.next_end(121.0)) == (160.0, 120.0, 140.0)
    assert [waves.left(time) for time in (100.0, 120.0, 140.0)] == [0.6, 0.2, 0.0]
    assert [waves.idle_at(slots) for slots in (1, 2, 3, 4)] == [140.0, 140.0, 160.0, 160.0]
    off = waves.split(130.0)
    assert (off.in_flight, off.free, off.ends_at()) == (4, 0, 160.0)
    assert off.left(130.0) == 0.2
    now = waves.split(140.0)  # those of now have ended
    assert (now.in_flight, now.free, now.left(140.0)) == (0, 4, 0.2)
    last = waves.split(150.0)
    assert (last.in_flight, last.free, last.left(150.0)) == (2, 2, 0.0)
    assert waves.left(130.0) == 0.2  # the original is as it was


def test_a_kernel_goes_on_along_another_curve_from_as_many_blocks() -> None:
    curve = Curve((0.0, 20.0, 40.0), (0.0, 4.0, 8.0))
    waves = Waves(curve, block_ns=20.0, blocks=8, slots=4, now=0.0)
    waves.follow(Curve((0.0, 40.0, 80.0), (0.0, 4.0, 8.0)), 10.0)  # two blocks' work is done: as at 20 on the other
    assert waves.ends_at() == 70.0
    off = waves.split(10.0)
    assert off.ends_at() == 50.0  # the wave in flight ends at 30, the next takes 20
    off.follow(curve, 10.0)
    assert off.ends_at() == 50.0  # without effect off the curve


def test_neighbouring_waves_are_joined_where_there_are_too_many() -> None:
    count = 10 * MOST_WAVES
    curve = Curve(tuple(float(at) for at in range(count + 1)), tuple(float(at) for at in range(count + 1)))
    off = Waves(curve, block_ns=100.0, blocks=count, slots=100, now=0.0).split(50.0)
    assert off.in_flight == 99  # one of them ended now
    assert off.free == 1
    assert len(off._waves) <= MOST_WAVES
    mean = sum(end * blocks for end, blocks in off._waves) / 99
    assert mean == pytest.approx(100.0, abs=1.0)


# --- programs ----------------------------------------------------------------------------------

POLICIES: tuple[Dispatch, ...] = (StrictHeadOfLine(), BackFill(), CutAhead(), HeldQueue(0.5))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize(
    "ops",
    [
        (kernel(blocks=400), comm(launch_ns=1.0, work_ns=3e5)),
        (kernel(blocks=400), comm(launch_ns=1.0, priority=1, work_ns=3e5)),
        (comm(work_ns=3e5), kernel(blocks=400, launch_ns=1.0)),
        (kernel(blocks=400), comm(launch_ns=1.0, blocks=2, priority=1), comm(name="d", group="d", after=(1,))),
        (kernel(blocks=40), kernel(name="l", blocks=80), comm(after=(0,)), kernel(name="m", after=(2,))),
        (kernel(blocks=40, hbm_per_ns=50.0), EngineOp(name="x", kind="copy", stream="x", work_ns=2e5, hbm_per_ns=50.0)),
    ],
    ids=["behind", "urgent", "first", "two collectives", "events", "copies"],
)
def test_equal_blocks_in_whole_waves_are_met_closely(policy: Dispatch, ops: tuple[EngineOp, ...]) -> None:
    given = program(*ops, hbm_per_ns=120.0)
    fluid = fluid_run(given, full="class", dispatch=policy, hbm=Proportional())
    full = run(given, engine="class", dispatch=policy)
    assert fluid.fallback is None
    for ours, exact in zip(fluid.times, full.times, strict=True):
        assert ours.started_ns == pytest.approx(exact.started_ns, rel=0.01, abs=100.0)
        assert ours.ended_ns == pytest.approx(exact.ended_ns, rel=0.01)


def test_latencies_are_those_of_the_other_engines() -> None:
    ops = (kernel(blocks=40), kernel(name="l", blocks=8), comm(after=(0,)))
    given = program(*ops, latencies=Latencies(stream_ns=2e3, event_ns=7e3))
    fluid = fluid_run(given, full="class", dispatch=StrictHeadOfLine(), hbm=Proportional())
    full = run(given, engine="class")
    assert [times.arrived_ns for times in fluid.times] == pytest.approx([times.arrived_ns for times in full.times])


def test_the_last_of_two_ranks_decides() -> None:
    both = (kernel(blocks=40), comm(), replace(kernel(blocks=40), rank=1), comm(rank=1, launch_ns=5e4))
    given = program(*both, ranks=2)
    fluid = fluid_run(given, full="class", dispatch=BackFill(), hbm=Proportional())
    full = run(given, engine="class", dispatch=BackFill())
    assert fluid.fallback is None
    assert [times.moving_ns for times in fluid.times] == pytest.approx([times.moving_ns for times in full.times])
    assert fluid.end_ns == pytest.approx(full.end_ns, rel=0.01)


@pytest.mark.parametrize(
    ("given", "policy", "said"),
    [
        (program(kernel(), kernel(name="l", stream="s")), StrictHeadOfLine(), "kernels run at once"),
        (program(comm(), comm(name="d", stream="d", group="d")), StrictHeadOfLine(), "collectives run at once"),
        (program(kernel(blocks=40), comm(launch_ns=1.0)), CutAhead(turns=True), "queues take turns"),
        (
            program(kernel(blocks=40), comm(launch_ns=1.0), comm(rank=1), ranks=2),
            HeldQueue(0.5),
            "under held-queue, what happens on one rank lets queues of another go on",
        ),
    ],
    ids=["kernels", "collectives", "turns", "held queue"],
)
def test_what_pairs_cannot_describe_goes_to_the_full_engine_and_says_why(
    given: Program, policy: Dispatch, said: str
) -> None:
    result = fluid_run(given, full="class", dispatch=policy, hbm=Proportional())
    assert result.fallback == said
    assert result.times == run(given, engine="class", dispatch=policy).times
