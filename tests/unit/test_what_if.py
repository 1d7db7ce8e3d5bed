"""A recorded step as a workload, replayed: laws of the conversion, and steps whose replay can be checked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from makeway.decide.analysis.findings import NO_MATCHING, Advice
from makeway.decide.analysis.matching import match_collectives
from makeway.decide.analysis.recorded import MOST_OPERATIONS, recorded_step, with_arrivals
from makeway.decide.analysis.what_if import (
    MOST_JUDGED_BLOCKS,
    NOT_JUDGED,
    Outcome,
    Replay,
    WhatIf,
    standard_controls,
    what_if,
    with_gains,
)
from makeway.model.simulate.predict import Settings, predicted_run
from makeway.values.control import CommPriority, SmPartition
from makeway.values.device import load_device
from makeway.values.errors import UnsupportedError
from makeway.values.kernel import KernelResources, Launch
from makeway.values.timeline import Exchange, Rank, Span, Timeline
from makeway.values.workload import CollectiveOp, KernelOp, Measured

A100 = load_device("A100-SXM4-80GB")
GEMM = KernelResources(threads=256, registers_per_thread=128, smem_bytes=49_152)
NCCL = KernelResources(threads=640, registers_per_thread=96, smem_bytes=42_024)
WAVE = 2 * A100.sms  # blocks of GEMM that run at once


def gemm(
    start_us: float, end_us: float, *, launched_us: float = 0.0, blocks: int = 10 * WAVE, name: str = "gemm"
) -> Span:
    return Span(
        name=name,
        kind="compute",
        stream="7",
        start_ns=round(start_us * 1e3),
        end_ns=round(end_us * 1e3),
        launch=Launch(blocks=blocks, threads=256, resources=GEMM),
        launched_ns=round(launched_us * 1e3),
    )


def ring(start_us: float, end_us: float, *, launched_us: float = 0.0, rank: int = 0) -> Span:
    return Span(
        name="ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        kind="comm",
        stream="20",
        rank=rank,
        start_ns=round(start_us * 1e3),
        end_ns=round(end_us * 1e3),
        launch=Launch(blocks=24, threads=640, resources=NCCL),
        launched_ns=round(launched_us * 1e3),
        exchange=Exchange(kind="all-reduce", in_bytes=1 << 24, out_bytes=1 << 24),
    )


def timeline(*spans: Span) -> Timeline:
    return Timeline(spans=spans, origin="imported", ranks=(Rank(rank=0, world=8),))


def test_what_followed_a_collective_at_once_waits_for_it_and_the_replay_keeps_the_time() -> None:
    step = recorded_step(timeline(gemm(0, 1_000), ring(1_002, 1_500), gemm(1_502, 2_500)), 0, device=A100)
    first, exchange, second = step.workload.operations
    assert isinstance(exchange, CollectiveOp)
    assert exchange.after == (first.name,)
    assert second.after == (exchange.name,)
    answers = what_if(step)
    assert answers.replay.error == pytest.approx(0.0, abs=0.01)
    gains = {type(outcome.control): outcome.gain_ns for outcome in answers.outcomes}
    assert gains[CommPriority] == pytest.approx(0.0, abs=1.0)


def test_the_replays_timeline_lies_over_the_record_by_its_clock_and_number() -> None:
    clock_us = 5_000_000
    spans = tuple(
        replace(span, rank=3, start_ns=span.start_ns + clock_us * 1_000, end_ns=span.end_ns + clock_us * 1_000,
                launched_ns=clock_us * 1_000)
        for span in (gemm(0, 1_000), ring(1_002, 1_500), gemm(1_502, 2_500))
    )  # fmt: skip
    recorded = Timeline(spans=spans, origin="imported", ranks=(Rank(rank=3, world=8),))
    replay = what_if(recorded_step(recorded, 3, device=A100)).replay
    assert replay.timeline is not None
    drawn = sorted(replay.timeline.spans, key=lambda span: span.start_ns)
    assert {span.rank for span in drawn} == {3}
    assert drawn[-1].end_ns - drawn[0].start_ns == pytest.approx(replay.predicted_ns, abs=2)
    for was, found in zip(spans, drawn, strict=True):
        assert abs(was.start_ns - found.start_ns) < 0.02 * 2_500_000


def test_overlap_in_the_record_stays_overlap_in_the_replay() -> None:
    """24 of 108 SMs go to the collective for most of the second kernel, which the record's time includes already."""
    spans = (gemm(0, 1_000), ring(1_002, 1_900), gemm(1_010, 2_010, launched_us=1_008))
    answers = what_if(recorded_step(timeline(*spans), 0, device=A100))
    sequential = (1_000 + 898 + 1_000) / 2_010 - 1.0
    assert 0.0 <= answers.replay.error < sequential / 2


def test_the_host_launches_as_recorded() -> None:
    late = gemm(5_000, 6_000, launched_us=4_990)
    step = recorded_step(timeline(gemm(0, 1_000), ring(1_002, 1_500), late), 0, device=A100)
    assert what_if(step).replay.predicted_ns == pytest.approx(5_990e3, rel=0.01)


def test_a_collective_takes_its_transfer_time_after_the_last_rank_came() -> None:
    mine, theirs = ring(1_002, 3_000), ring(2_900, 3_000, rank=1)
    step = recorded_step(timeline(gemm(0, 1_000), mine), 0, device=A100)
    arrived = with_arrivals(step, match_collectives({0: [mine], 1: [theirs]}))
    (exchange,) = arrived.workload.collectives
    assert exchange.time_ns == 100_000.0
    assert exchange.launched_ns == 2_900_000.0
    assert what_if(arrived).replay.error == pytest.approx(0.0, abs=0.02)


def test_a_matching_without_this_rank_changes_nothing() -> None:
    step = recorded_step(timeline(gemm(0, 1_000), ring(1_002, 3_000)), 0, device=A100)
    assert with_arrivals(step, NO_MATCHING) == step


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 900), st.integers(1, 30))
def test_many_kernels_become_few_operations_with_the_same_time(kernels: int, length_us: int) -> None:
    spans = [gemm(i * length_us, (i + 1) * length_us, blocks=64, name=f"k{i % 7}") for i in range(kernels)]
    end = kernels * length_us
    step = recorded_step(timeline(*spans, ring(end + 2, end + 500)), 0, device=A100)
    assert len(step.workload.operations) <= MOST_OPERATIONS
    assert step.kernels == kernels + 1
    total = sum(
        op.work.time_ns for op in step.workload.operations if isinstance(op, KernelOp) and isinstance(op.work, Measured)
    )
    assert total == pytest.approx(end * 1e3)


def test_kernels_alone_in_the_record_lend_their_time() -> None:
    spans = (gemm(0, 1_000), ring(1_002, 1_500), gemm(1_502, 2_900))
    step = recorded_step(timeline(*spans), 0, device=A100, alone_ns={("gemm", 10 * WAVE): 900_000.0})
    times = [
        op.work.time_ns for op in step.workload.operations if isinstance(op, KernelOp) and isinstance(op.work, Measured)
    ]
    assert times == [900_000.0, 900_000.0]


def test_a_record_without_collectives_or_resources_says_why_it_cannot_be_replayed() -> None:
    with pytest.raises(UnsupportedError, match="no collective"):
        recorded_step(timeline(gemm(0, 10)), 0, device=A100)
    bare = replace(gemm(0, 10), launch=Launch(blocks=8, threads=256))
    with pytest.raises(UnsupportedError, match="no registers and shared memory"):
        recorded_step(timeline(bare, ring(12, 20)), 0, device=A100)


def test_advice_takes_the_best_predicted_gain_of_its_controls() -> None:
    advice = Advice(
        text="x", why="y", at_most_ns=100, line="exposed: no room", cause="no-room", controls=(CommPriority(),)
    )
    answers = WhatIf(
        rank=0,
        device="A100",
        replay=Replay(recorded_ns=1_000, predicted_ns=1_010.0),
        outcomes=(Outcome(control=CommPriority(), gain_ns=40.0),),
        assumed=(),
    )
    (item,) = with_gains((advice,), answers, no_answers=None, ranks=())
    assert (item.predicted_gain_ns, item.why_no_gain) == (40.0, None)
    worse = replace(answers, outcomes=(Outcome(control=CommPriority(), gain_ns=-3.0),))
    (item,) = with_gains((advice,), worse, no_answers=None, ranks=())
    assert item.predicted_gain_ns is None
    assert item.controls == ()
    assert "priority loses" in (item.why_no_gain or "")
    (item,) = with_gains((advice,), None, no_answers="not requested", ranks=())
    assert item.why_no_gain == "not simulated: not requested"
    more = replace(answers, outcomes=(Outcome(control=CommPriority(), gain_ns=400.0),))
    (item,) = with_gains((advice,), more, no_answers=None, ranks=())
    assert item.predicted_gain_ns == 100.0  # no more than its line can give


@pytest.mark.parametrize(("predicted", "trusted"), [(1_050.0, True), (1_200.0, False), (880.0, False)])
def test_a_replay_far_off_is_not_trusted(predicted: float, trusted: bool) -> None:
    assert Replay(recorded_ns=1_000, predicted_ns=predicted).trusted is trusted


# --- what is in force already ------------------------------------------------------------------


def urgent(span: Span, priority: int) -> Span:
    return replace(span, priority=priority)


def test_a_priority_that_the_library_sets_itself_is_not_recommended() -> None:
    spans = (urgent(gemm(0, 1_000), 0), urgent(ring(500, 1_500), -1), urgent(gemm(1_000, 2_000), 0))
    step = recorded_step(timeline(*spans), 0, device=A100)
    assert [item.control for item in step.in_force] == [CommPriority()]
    outcome = next(item for item in what_if(step).outcomes if item.control == CommPriority())
    assert outcome.gain_ns is None
    assert "already in force" in (outcome.why_not or "")
    same = (urgent(gemm(0, 1_000), 0), urgent(ring(500, 1_500), 0))
    assert recorded_step(timeline(*same), 0, device=A100).in_force == ()


def test_sms_that_persistent_kernels_leave_free_are_set_apart_already() -> None:
    blocks = A100.sms - 20
    names = ("attention", "grouped_gemm")
    spans = [gemm(1_000 * at, 1_000 * at + 900, blocks=blocks, name=names[at % 2]) for at in range(4)]
    step = recorded_step(timeline(*spans, ring(500, 1_500)), 0, device=A100)
    assert [item.control for item in step.in_force] == [SmPartition(20)]
    assert "88 blocks on 108 SMs" in step.in_force[0].evidence
    assert not any(isinstance(control, SmPartition) for control in standard_controls(step))
    alone = [replace(span, name="one_small_kernel") for span in spans]
    assert recorded_step(timeline(*alone, ring(500, 1_500)), 0, device=A100).in_force == ()


def test_what_if_simulates_a_bounded_number_of_operations() -> None:
    step = recorded_step(timeline(gemm(0, 1_000), ring(1_002, 1_500), gemm(1_502, 2_500)), 0, device=A100)
    outcomes = what_if(step, most_operations=2 * len(step.workload.operations)).outcomes
    simulated = [item for item in outcomes if item.gain_ns is not None]
    assert len(simulated) == 1
    assert all("makeway plan" in (item.why_not or "") for item in outcomes if item.gain_ns is None)


def test_a_bounded_what_if_leaves_steps_of_many_blocks_to_the_class_engine_and_says_so() -> None:
    step = recorded_step(timeline(gemm(0, 1_000), ring(1_002, 1_500), gemm(1_502, 2_500)), 0, device=A100)
    first, *others = step.workload.operations
    assert isinstance(first, KernelOp)
    assert isinstance(first.work, Measured)
    large = replace(first, work=replace(first.work, blocks=MOST_JUDGED_BLOCKS))
    many = replace(step, workload=replace(step.workload, operations=(large, *others)))
    bound = 100 * len(step.workload.operations)
    assert NOT_JUDGED not in what_if(step, most_operations=bound).assumed
    answers = what_if(many, most_operations=bound)
    assert NOT_JUDGED in answers.assumed
    equal = predicted_run(many.workload, A100, (), Settings(engine="class")).result
    assert answers.replay.predicted_ns == equal.end_ns - min(times.started_ns for times in equal.times)
