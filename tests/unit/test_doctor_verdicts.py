"""Judgement of the self-test on made samples: what must pass passes, and each thing that can be wrong fails."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.doctor.samples import (
    Block,
    ControlRun,
    CopyRun,
    DirectRun,
    PaddedRun,
    PartitionRun,
    PriorityRun,
    RankRun,
    ThreadState,
)
from makeway.act.doctor.verdicts import (
    Check,
    ShimCounts,
    judge_copy,
    judge_direct,
    judge_partition,
    judge_priority,
    judge_residency,
    judge_shim,
    judge_threads,
    overtaken,
    peaks,
)
from makeway.model.residency import pad_range, resident_blocks
from makeway.values.device import load_device
from makeway.values.kernel import KernelResources

CHECK = Check(name="residency", platform="cuda", control="pad", route="python")
THREAD_CHECKS = {
    "own-cores": Check(name="own-cores", platform="cpu", control="own-cores", route="python"),
    "partition=1": Check(name="partition=1", platform="cpu", control="partition", route="python"),
    "priority": Check(name="priority", platform="cpu", control="priority", route="python"),
}
NAME = "NVIDIA H100 80GB HBM3"
BLOCK = KernelResources(threads=128, registers_per_thread=12)
HOLD_NS = 1_000

blocks = st.lists(
    st.builds(lambda sm, start, length: Block(sm, start, start + length), *map(st.integers, (0, 0, 0), (3, 50, 20))),
    max_size=30,
)


def filled(sms: int, per_sm: int, waves: int = 2, first: int = 0) -> tuple[Block, ...]:
    """Blocks as they come: `per_sm` at a time, the next where one ends, each SM a little late."""
    return tuple(
        Block(first + sm, wave * HOLD_NS + sm, (wave + 1) * HOLD_NS + sm)
        for sm in range(sms)
        for wave in range(waves)
        for _ in range(per_sm)
    )


def padded_run(target: int, found: int | None = None) -> PaddedRun:
    """A run whose pad leaves `target` blocks, and whose SMs held `found`."""
    wanted = pad_range(load_device(NAME), BLOCK, target)
    assert wanted is not None
    return PaddedRun(
        device=NAME, block=BLOCK, pad_bytes=wanted.smallest_bytes, blocks=filled(132, found if found else target)
    )


# --- residency -----------------------------------------------------------------------------------


@given(blocks)
def test_a_peak_is_the_most_blocks_that_any_moment_has(found: list[Block]) -> None:
    for sm, peak in peaks(found).items():
        here = [block for block in found if block.sm == sm and block.end_ns > block.start_ns]
        moments = [sum(one.start_ns <= block.start_ns < one.end_ns for one in here) for block in here]
        assert peak == max(moments, default=0)


@given(blocks, st.integers(-100, 100))
def test_peaks_do_not_depend_on_order_or_on_the_clocks_zero(found: list[Block], shift: int) -> None:
    moved = [Block(block.sm, block.start_ns + shift, block.end_ns + shift) for block in reversed(found)]
    assert peaks(moved) == peaks(found)


def test_the_next_block_takes_the_place_of_the_one_that_ends_in_the_same_tick() -> None:
    assert peaks(filled(2, 3, waves=4)) == {0: 3, 1: 3}


def test_residency_is_proved_when_every_pad_gives_what_the_model_says() -> None:
    runs = [padded_run(target) for target in (16, 8, 4, 2, 1)]
    assert resident_blocks(load_device(NAME), BLOCK) == 16
    found = judge_residency(CHECK, runs)
    assert found.status == "proved"
    assert found.expected == found.measured
    assert found.measured.startswith("16 at +0 B, 8 at +")


@pytest.mark.parametrize("wrong", [1, 3, 16])
def test_one_pad_with_another_residency_fails(wrong: int) -> None:
    found = judge_residency(CHECK, [padded_run(8), padded_run(2, wrong)])
    assert found.status == "failed"
    assert found.expected != found.measured


def test_a_single_sm_that_holds_more_fails() -> None:
    run = padded_run(2)
    assert judge_residency(CHECK, [replace(run, blocks=(*run.blocks, Block(7, 0, HOLD_NS)))]).status == "failed"


def test_no_samples_prove_nothing() -> None:
    assert judge_residency(CHECK, [replace(padded_run(2), blocks=())]).status == "failed"
    assert judge_residency(CHECK, []).status == "not tested"


def test_a_device_without_known_limits_is_not_judged() -> None:
    found = judge_residency(CHECK, [replace(padded_run(2), device="H200 NVL")])
    assert found.status == "not tested"
    assert "no limits known" in found.detail


# --- priority, partition, copies -----------------------------------------------------------------


def behind(first_ns: int) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
    return filled(4, 2, waves=8), (Block(0, first_ns, first_ns + HOLD_NS),)


def priority(high_ns: int, equal_ns: int) -> PriorityRun:
    (long_high, high), (long_equal, equal) = behind(high_ns), behind(equal_ns)
    return PriorityRun(long_beside_high=long_high, high=high, long_beside_equal=long_equal, equal=equal)


@pytest.mark.parametrize(
    ("high_ns", "equal_ns", "status"),
    [
        (1_100, 9_000, "proved"),  # after the first wave; without priority after the last
        (9_000, 9_000, "failed"),  # no difference
        (1_100, 1_100, "failed"),  # overtakes, but not by priority
        (6_000, 9_000, "failed"),  # too late to be called priority
        (5_000, 1_100, "failed"),  # worse with priority
    ],
)
def test_priority_is_proved_by_overtaking_and_only_by_that(high_ns: int, equal_ns: int, status: str) -> None:
    assert judge_priority(CHECK, priority(high_ns, equal_ns)).status == status


def test_nothing_is_overtaken_where_nothing_ran() -> None:
    assert overtaken((), (Block(0, 0, 1),)) == overtaken((Block(0, 0, 1),), ()) == 0


@given(st.integers(1, 132), st.integers(1, 132))
def test_a_partition_is_proved_by_exactly_the_sms_that_were_given(given_sms: int, used: int) -> None:
    run = PartitionRun(given_sms=given_sms, device_sms=132, blocks=filled(used, 2))
    assert (judge_partition(CHECK, run).status == "proved") == (given_sms == used)


def test_a_stream_that_uses_the_whole_device_was_not_confined() -> None:
    run = PartitionRun(given_sms=112, device_sms=132, blocks=filled(132, 2))
    assert judge_partition(CHECK, run).detail == "the stream was not confined"


COPY = CopyRun(
    path="GPU 1 to GPU 0",
    size_bytes=2**24,
    held_from_ns=20_000,
    held_until_ns=200_000_000,
    copy_end_ns=900_000,
    intact=True,
)


@pytest.mark.parametrize(
    ("run", "status"),
    [
        (COPY, "proved"),
        (replace(COPY, copy_end_ns=200_900_000), "failed"),  # waited for the SMs
        (replace(COPY, intact=False), "failed"),
        (replace(COPY, copy_end_ns=10_000), "not tested"),  # over before it could be disturbed
    ],
)
def test_a_copy_is_proved_by_ending_while_every_sm_is_held(run: CopyRun, status: str) -> None:
    assert judge_copy(CHECK, run).status == status


# --- the shim ------------------------------------------------------------------------------------


def test_the_shim_is_proved_when_receipts_and_sms_agree() -> None:
    run = padded_run(2)
    told = ShimCounts(seen=2, padded=2, pad_bytes=run.pad_bytes)
    assert judge_shim(CHECK, run, told).status == "proved"
    for wrong in (
        replace(told, padded=1),
        replace(told, seen=0, padded=0),
        replace(told, pad_bytes=run.pad_bytes - 1),
    ):
        assert judge_shim(CHECK, run, wrong).status == "failed"
    assert judge_shim(CHECK, padded_run(2, 16), told).status == "failed"  # it claims what the SMs do not show
    assert judge_shim(CHECK, run, None).status == "failed"


# --- CPU ranks -----------------------------------------------------------------------------------


def states(comm: tuple[int, ...], compute: tuple[int, ...], niceness: int = 0) -> dict[str, ThreadState]:
    return {
        "1": ThreadState(comm=False, cores=compute, niceness=niceness),
        "2": ThreadState(comm=True, cores=comm, niceness=0),
    }


BEFORE = states((0, 1), (0, 1))
PARTED = ControlRun(
    control="partition=1", status="applied", detail="", before=BEFORE, during=states((0,), (1,)), after=BEFORE
)
NICER = replace(PARTED, control="priority", during=states((0, 1), (0, 1), niceness=10))
DIRECT = DirectRun(size_bytes=4096, equal=True, receipt="applied", detail="")


def ranks(*runs: ControlRun, direct: DirectRun = DIRECT) -> list[RankRun]:
    return [RankRun(rank=rank, ranks=2, controls=runs, direct=direct) for rank in range(2)]


@pytest.mark.parametrize(
    ("run", "status"),
    [
        (PARTED, "proved"),
        (NICER, "proved"),
        (replace(PARTED, during=states((0,), (0, 1))), "failed"),  # a core in common
        (replace(PARTED, during={"1": BEFORE["1"]}), "failed"),  # no communication thread to be seen
        (replace(PARTED, after=states((0,), (1,))), "failed"),  # not undone
        (replace(PARTED, status="no effect"), "failed"),
        (replace(PARTED, status="refused", detail="1 core"), "not tested"),
        (replace(NICER, during=BEFORE), "failed"),
    ],
)
def test_a_control_of_threads_is_proved_by_what_linux_shows_and_by_its_undoing(run: ControlRun, status: str) -> None:
    assert judge_threads(THREAD_CHECKS[run.control], ranks(run)).status == status


def test_a_real_time_priority_of_communication_alone_counts_as_priority() -> None:
    first = {"1": BEFORE["1"], "2": replace(BEFORE["2"], realtime=1)}
    assert judge_threads(THREAD_CHECKS["priority"], ranks(replace(NICER, during=first))).status == "proved"
    both = {"1": replace(BEFORE["1"], realtime=1), "2": first["2"]}
    assert judge_threads(THREAD_CHECKS["priority"], ranks(replace(NICER, during=both))).status == "failed"


def test_shorter_slices_of_communication_count_as_priority() -> None:
    short = {"1": BEFORE["1"], "2": replace(BEFORE["2"], slice_ns=100_000)}
    usual = {"1": replace(BEFORE["1"], slice_ns=2_800_000), "2": short["2"]}
    for during in (short, usual):
        assert judge_threads(THREAD_CHECKS["priority"], ranks(replace(NICER, during=during))).status == "proved"
    longer = {"1": replace(BEFORE["1"], slice_ns=50_000), "2": short["2"]}
    assert judge_threads(THREAD_CHECKS["priority"], ranks(replace(NICER, during=longer))).status == "failed"


def test_one_rank_that_fails_is_enough() -> None:
    good, bad = ranks(PARTED)[0], ranks(replace(PARTED, during=BEFORE))[1]
    found = judge_threads(THREAD_CHECKS["partition=1"], [good, bad])
    assert (found.status, found.measured) == ("failed", "seen on 1, undone on 2")


def test_own_cores_are_proved_by_all_threads_of_a_rank_on_cores_that_no_other_rank_uses() -> None:
    def judged(*during: dict[str, ThreadState]) -> str:
        runs = [replace(PARTED, control="own-cores", during=states) for states in during]
        found = [RankRun(rank=rank, ranks=2, controls=(run,), direct=DIRECT) for rank, run in enumerate(runs)]
        return judge_threads(THREAD_CHECKS["own-cores"], found).status

    assert judged(states((0,), (0,)), states((1,), (1,))) == "proved"
    assert judged(states((0, 1), (0, 1)), states((2, 3), (2, 3))) == "proved"
    assert judged(states((0,), (0,)), states((0,), (0,))) == "failed"  # both ranks on one core
    assert judged(states((0,), (1,)), states((2,), (3,))) == "failed"  # a partition instead
    assert judged(BEFORE, BEFORE) == "failed"


@pytest.mark.parametrize(
    ("direct", "status"),
    [
        (DIRECT, "proved"),
        (replace(DIRECT, equal=False), "failed"),
        (replace(DIRECT, receipt="no effect"), "failed"),
        (replace(DIRECT, receipt="refused", equal=False), "not tested"),
    ],
)
def test_direct_copies_are_proved_by_gloos_own_sum(direct: DirectRun, status: str) -> None:
    assert judge_direct(CHECK, ranks(direct=direct)).status == status


def test_without_ranks_nothing_is_tested() -> None:
    assert judge_threads(THREAD_CHECKS["priority"], []).status == judge_direct(CHECK, []).status == "not tested"
