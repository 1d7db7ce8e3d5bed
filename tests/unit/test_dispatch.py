"""Dispatch rules against worked cases that were measured on real GPUs and published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from makeway.model.residency import Need
from makeway.model.simulate.block_engine import BlockSms
from makeway.model.simulate.class_engine import ClassSms
from makeway.model.simulate.driver import run
from makeway.model.simulate.policies import BackFill, CutAhead, Dispatch, MaxMin, Proportional, StrictHeadOfLine
from makeway.model.simulate.program import EngineOp, Program, Site
from makeway.model.simulate.sms import Layout
from makeway.model.validate.rows import published_csv
from makeway.values.device import SmLimits, load_device

# Pascal's SM: 2,048 threads, 32 blocks, 64 warps; the cases below are bound by threads and warps.
PASCAL = replace(load_device("V100-SXM2-16GB").sm)


def threads(count: int) -> Need:
    """A block that takes nothing but warps and a slot."""
    return Need(
        warps=-(-count // 32), registers_per_warp=256, scalar_registers_per_warp=0, smem_bytes=0, barriers=0, cluster=1
    )


def kernel(name: str, block: Need, blocks: int, work_ns: float = 1e6, **options: object) -> EngineOp:
    return EngineOp(name=name, kind="kernel", block=block, blocks=blocks, work_ns=work_ns, **options)  # type: ignore[arg-type]


def program(sm: SmLimits, sms: int, *ops: EngineOp, engines: int = 1) -> Program:
    sites = tuple(Site(part=None, gpc=engine, sms=len(range(engine, sms, engines))) for engine in range(engines))
    return Program(sm=sm, sites=sites, ranks=1, ops=ops)


@pytest.mark.parametrize(
    ("x_threads", "y_threads", "expected"),
    [(256, 160, [0, 0, 1]), (1024, 32, [0, 0, 1]), (1024, 33, [0, 0, 0])],
)
def test_the_next_block_goes_to_the_sm_with_the_most_room(x_threads: int, y_threads: int, expected: list[int]) -> None:
    """Gilman et al.: 5 SMs, SM0 empty, one block of X on each other; three blocks of Y one at a time."""
    ops = (kernel("x", threads(x_threads), 5), kernel("y", threads(y_threads), 3))
    layout = Layout(program(PASCAL, 5, *ops), StrictHeadOfLine())
    sms = BlockSms(layout, [0.0, 0.0], [1.0, 1.0], [5, 3], 0)
    sms.place(0, 5)
    emptied = sms._sms[0]
    emptied.blocks.clear()
    sms._changed(0, -1, 0, emptied)
    landed = []
    for _ in range(3):
        before = [len(sm.blocks) for sm in sms._sms]
        assert sms.place(1, 1) == 1
        landed += [index for index, sm in enumerate(sms._sms) if len(sm.blocks) > before[index]]
    assert landed == expected


@pytest.mark.parametrize(("policy", "held_back"), [(StrictHeadOfLine(), True), (BackFill(), False)])
def test_a_high_priority_block_that_does_not_fit_holds_back_a_smaller_one(policy: Dispatch, held_back: bool) -> None:
    """Amert et al., Fig. 8: 1,024 threads at high priority against 512 at low, with room for 512 only."""
    resident = kernel("resident", threads(1024), 1, stream="r", work_ns=10e6)
    filler = kernel("filler", threads(512), 1, stream="f", work_ns=10e6)
    high = kernel("high", threads(1024), 1, stream="h", priority=1, launch_ns=1e5)
    low = kernel("low", threads(512), 1, stream="l", launch_ns=2e5)
    result = run(program(PASCAL, 1, resident, filler, high, low), engine="block", dispatch=policy)
    started = {op.name: times.started_ns for op, times in zip((resident, filler, high, low), result.times, strict=True)}
    assert (started["low"] >= started["high"]) == held_back


@pytest.mark.parametrize("engine", ["class", "block"])
def test_only_the_head_of_the_queue_places_blocks(engine: str) -> None:
    """The leftover rule: a second kernel starts when all blocks of the first are placed, not when one would fit."""
    first = kernel("first", threads(1024), 21, stream="a")
    second = kernel("second", threads(32), 1, stream="b", launch_ns=1.0)
    result = run(program(PASCAL, 5, first, second), engine=engine)  # type: ignore[arg-type]
    assert result.times[1].started_ns == pytest.approx(2 * 2e6)  # two waves of ten, at half speed each


# --- AMD ---------------------------------------------------------------------------------------

RADEON_VII_CUS = 60
AMD_SM = load_device("MI250X").sm  # four SIMDs, wave64; 40 waves per CU on Radeon VII
VEGA = replace(AMD_SM, max_warps=40, max_blocks=40, barriers=16)


def waves(count: int, registers: int = 8192) -> Need:
    return Need(
        warps=count, registers_per_warp=registers, scalar_registers_per_warp=0, smem_bytes=0, barriers=1, cluster=1
    )


def matmuls(cus: int, small_cus: int | None = None) -> tuple[EngineOp, EngineOp]:
    """MM1024 (16 waves a block) and MM256 (4 waves), as many threads each; registers bind at 16 waves a CU.

    Alone they take the published 3.20 and 5.03 ms in eight rounds.
    """
    large = kernel("mm1024", waves(16), 8 * cus, stream="l", work_ns=3.20e6 / 8, share=1.0)
    small = kernel(
        "mm256", waves(4), 32 * (small_cus or cus), stream="s", work_ns=5.03e6 / 32, share=0.25, launch_ns=1e3
    )
    return large, small


def published_ms() -> dict[tuple[str, str, str], float]:
    return {
        (row["measured"], row["beside"], row["setting"]): float(row["mean_ms"])
        for row in published_csv("amd_dispatch_ms.csv")
    }


AMD_QUEUES = CutAhead(gpcs=4, turns=True)


def test_equal_workgroups_share_an_amd_gpu_evenly() -> None:
    """MM1024 beside MM1024 takes twice as long: 6.45 ms against 3.20, a ratio of 2.02."""
    large, _ = matmuls(RADEON_VII_CUS)
    other = replace(large, name="other", stream="o")
    result = run(program(VEGA, RADEON_VII_CUS, large, other, engines=4), engine="block", dispatch=AMD_QUEUES)
    table = published_ms()
    published = table["MM1024", "MM1024", "shared"] / table["MM1024", "none", "alone"]
    assert result.times[0].ended_ns / 3.20e6 == pytest.approx(published, rel=0.1)


def test_small_workgroups_cut_ahead_of_large_ones() -> None:
    """MM1024 beside a steady MM256 is starved (15.65 ms, 4.9 times alone); a strict queue would not starve it.

    With equal block times the four small blocks of a CU end together and leave room for a large one: jitter is needed.
    """
    large, small = matmuls(RADEON_VII_CUS)
    steady = replace(small, blocks=small.blocks * 3)
    both = replace(program(VEGA, RADEON_VII_CUS, large, steady, engines=4), jitter=0.05)
    starved = run(both, engine="block", dispatch=AMD_QUEUES)
    strict = run(replace(both, sites=(Site(part=None, gpc=0, sms=RADEON_VII_CUS),)), engine="block")
    lockstep = run(replace(both, jitter=0.0), engine="block", dispatch=AMD_QUEUES)
    assert starved.times[0].ended_ns / 3.20e6 > 3.5
    assert strict.times[0].ended_ns / 3.20e6 < 1.2
    assert lockstep.times[0].ended_ns < 0.6 * starved.times[0].ended_ns


def test_dealing_in_order_makes_a_lopsided_partition_slow() -> None:
    """One CU in one shader engine gets a quarter of all workgroups: published 76 to 84 ms against 7.3 evenly spread."""
    large, _ = matmuls(RADEON_VII_CUS)
    even = Program(sm=VEGA, sites=tuple(Site(part=None, gpc=e, sms=8) for e in range(4)), ranks=1, ops=(large,))
    lopsided = replace(even, sites=tuple(Site(part=None, gpc=e, sms=1 if e == 0 else 15) for e in range(4)))
    slow, fair = (run(p, engine="block", dispatch=AMD_QUEUES).end_ns for p in (lopsided, even))
    assert slow / fair > 6  # published: 76 / 7.32 = 10 with other work beside it


def test_class_and_block_engines_deal_alike() -> None:
    large, small = matmuls(8)
    p = program(VEGA, 8, large, small, engines=4)
    ends = [run(p, engine=engine, dispatch=AMD_QUEUES).end_ns for engine in ("class", "block")]
    assert ends[0] == pytest.approx(ends[1], rel=0.05)


# --- sharing HBM -------------------------------------------------------------------------------


def test_proportional_cuts_all_wishes_alike() -> None:
    assert Proportional().shares({0: 30.0, 1: 90.0}, 60.0) == {0: 0.5, 1: 0.5}
    assert Proportional().shares({0: 30.0, 1: 20.0}, 60.0) == {0: 1.0, 1: 1.0}


def test_max_min_meets_small_wishes_in_full() -> None:
    shares = MaxMin().shares({0: 10.0, 1: 90.0, 2: 40.0}, 70.0)
    assert shares[0] == 1.0
    assert shares[1] * 90.0 == pytest.approx(30.0)
    assert shares[2] * 40.0 == pytest.approx(30.0)


def test_engines_share_one_interface() -> None:
    names = {name for name in dir(ClassSms) if not name.startswith("_")}
    only_by_block = {"refill", "soonest"}  # many ends at once: the class engine has few events anyway
    assert names == {name for name in dir(BlockSms) if not name.startswith("_")} - only_by_block
