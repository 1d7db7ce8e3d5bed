"""Causes: laws on any timeline, then one small timeline for each cause that a reader can check by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.decide.analysis.causes import cause_groups, rank_causes, slowed_causes, with_waiting
from makeway.decide.analysis.figures import figures
from makeway.decide.analysis.findings import Cause, Matched, Slowdown, Slowdowns
from makeway.decide.analysis.lateness import LATE_NS
from makeway.decide.analysis.matching import match_collectives
from makeway.decide.analysis.streams import StreamView, ready_ns
from makeway.values.device import load_device
from makeway.values.kernel import KernelResources, Launch
from makeway.values.timeline import Rank, Span, SpanKind, Timeline, Wait

A100 = load_device("A100-SXM4-80GB")
GEMM = KernelResources(threads=256, registers_per_thread=128, smem_bytes=49_152)  # 2 blocks per SM: all registers
NCCL = KernelResources(threads=640, registers_per_thread=96, smem_bytes=42_024)


def launch(resources: KernelResources, blocks: int) -> Launch:
    return Launch(blocks=blocks, threads=resources.threads, resources=resources)


def compute(start_us: int, end_us: int, *, blocks: int = 4_000, launched_us: int | None = 0, stream: str = "7") -> Span:
    return Span(
        name="gemm",
        kind="compute",
        stream=stream,
        start_ns=start_us * 1_000,
        end_ns=end_us * 1_000,
        launch=launch(GEMM, blocks),
        launched_ns=None if launched_us is None else launched_us * 1_000,
    )


def comm(start_us: int, end_us: int, *, launched_us: int | None = 0, stream: str = "20", rank: int = 0) -> Span:
    return Span(
        name="ncclDevKernel_AllReduce",
        kind="comm",
        stream=stream,
        rank=rank,
        start_ns=start_us * 1_000,
        end_ns=end_us * 1_000,
        launch=launch(NCCL, 24),
        launched_ns=None if launched_us is None else launched_us * 1_000,
    )


def timeline(*spans: Span, waits: tuple[Wait, ...] | None = None) -> Timeline:
    return Timeline(spans=spans, origin="imported", ranks=(Rank(rank=0),), waits=waits)


def late(*spans: Span, waits: tuple[Wait, ...] | None = None) -> list[Cause]:
    return [cause for cause in rank_causes(timeline(*spans, waits=waits), 0, A100) if cause.of == "late"]


def exposed(*spans: Span, waits: tuple[Wait, ...] | None = None) -> list[Cause]:
    return [cause for cause in rank_causes(timeline(*spans, waits=waits), 0, A100) if cause.of == "exposed"]


# --- laws --------------------------------------------------------------------------------------


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    kinds: list[SpanKind] = ["compute", "comm", "copy", "memory"]
    spans: list[Span] = []
    for stream in draw(st.lists(st.sampled_from(["7", "20", "21", "25"]), min_size=1, max_size=4, unique=True)):
        at = draw(st.integers(0, 500))
        for _ in range(draw(st.integers(0, 8))):
            start = at + draw(st.integers(0, 200))
            end = start + draw(st.integers(0, 400))
            kind = draw(st.sampled_from(kinds))
            launched = draw(st.none() | st.integers(0, start))
            blocks = draw(st.sampled_from([1, 64, 108, 216, 5_000]))
            make = comm if kind == "comm" else compute
            span = make(start, end, launched_us=launched, stream=stream)
            spans.append(replace(span, kind=kind, launch=launch(GEMM if kind == "compute" else NCCL, blocks)))
            at = end
    return timeline(*spans)


@given(timelines())
def test_exposed_causes_add_up_to_the_exposed_time(recorded: Timeline) -> None:
    causes = [cause for cause in rank_causes(recorded, 0, A100) if cause.of == "exposed"]
    assert sum(cause.time_ns for cause in causes) == figures(recorded.spans).exposed_ns


@given(timelines())
def test_exposed_pieces_are_disjoint(recorded: Timeline) -> None:
    causes = [cause for cause in rank_causes(recorded, 0, A100) if cause.of == "exposed"]
    ordered = sorted(causes, key=lambda cause: cause.at_ns)
    for one, other in pairwise(ordered):
        assert one.at_ns + one.time_ns <= other.at_ns


@given(timelines())
def test_a_late_collective_is_explained_from_ready_to_start_and_nothing_more(recorded: Timeline) -> None:
    view = StreamView(recorded, 0)
    expected = 0
    for span in view.spans:
        ready = ready_ns(view, span)
        if span.kind in ("comm", "copy") and ready is not None and span.start_ns - ready > LATE_NS:
            expected += span.start_ns - ready
    causes = [cause for cause in rank_causes(recorded, 0, A100) if cause.of == "late"]
    assert sum(cause.time_ns for cause in causes) == expected


@given(timelines())
def test_undetermined_causes_say_what_to_record(recorded: Timeline) -> None:
    for cause in rank_causes(recorded, 0, A100):
        assert (cause.kind == "undetermined") == (cause.confidence == "low")
        assert cause.evidence
        if cause.kind == "undetermined":
            assert cause.record_next


@given(timelines(), st.integers(1, 300))
def test_waiting_for_a_rank_moves_exposed_time_and_loses_none(recorded: Timeline, transfer_us: int) -> None:
    members = [span for span in recorded.spans if span.kind == "comm" and span.duration_ns > transfer_us * 1_000]
    other = [replace(span, rank=1, start_ns=span.end_ns - transfer_us * 1_000) for span in members]
    matching = match_collectives({0: members, 1: other})
    before = rank_causes(recorded, 0, A100)
    after = with_waiting(before, matching)
    for of in ("late", "exposed"):
        assert sum(c.time_ns for c in after if c.of == of) == sum(c.time_ns for c in before if c.of == of)
    waited = sum(c.time_ns for c in after if c.kind == "straggler")
    assert waited <= sum(matched.waiting_ns(0) for matched in matching.matched)


@given(timelines())
def test_groups_keep_the_time_of_their_members(recorded: Timeline) -> None:
    causes = rank_causes(recorded, 0, A100)
    groups = cause_groups(causes)
    assert sum(group.time_ns for group in groups) == sum(cause.cost_ns for cause in causes)
    assert sum(group.count for group in groups) == len(causes)


# --- late: worked examples ---------------------------------------------------------------------


def test_a_collective_let_in_by_the_tail_of_a_full_kernel_had_no_room() -> None:
    (cause,) = late(compute(0, 1_000), comm(900, 2_000))
    assert (cause.kind, cause.confidence, cause.time_ns) == ("no-room", "high", 900_000)
    assert cause.resource == "registers"
    assert cause.short_by is not None
    assert cause.kernel == "gemm"


def test_a_kernel_that_leaves_sms_free_means_a_dependency() -> None:
    (cause,) = late(compute(0, 1_000, blocks=64), comm(1_003, 2_000))
    assert (cause.kind, cause.confidence) == ("dependency", "high")
    assert "64 blocks on 108 SMs" in cause.evidence


def test_a_full_drain_that_was_let_pass_means_a_dependency() -> None:
    (cause,) = late(compute(0, 500), compute(500, 1_000), comm(1_003, 2_000, launched_us=10))
    assert cause.kind == "dependency"
    assert "had room 1 time " in cause.evidence


def test_after_a_missed_drain_a_kernel_launched_later_is_not_blamed() -> None:
    kinds = [
        cause.kind
        for cause in late(compute(0, 500), compute(500, 1_000, launched_us=200), comm(900, 2_000, launched_us=10))
    ]
    assert kinds == ["dependency", "undetermined"]


def test_a_start_right_after_a_kernel_launched_before_could_be_either() -> None:
    (cause,) = late(compute(0, 1_000), comm(1_003, 2_000, launched_us=10))
    assert cause.kind == "undetermined"
    assert cause.record_next is not None
    assert "sync" in cause.record_next


def test_a_kernel_launched_after_the_collective_cannot_be_what_it_waits_for() -> None:
    (cause,) = late(compute(0, 1_000, launched_us=5), comm(1_003, 2_000, launched_us=1))
    assert (cause.kind, cause.confidence) == ("no-room", "medium")


def test_a_recorded_wait_settles_it() -> None:
    wait = Wait(rank=0, stream="20", asked_ns=5_000, on_stream="7", recorded_ns=4_000)
    (cause,) = late(compute(0, 1_000), comm(1_003, 2_000, launched_us=10), waits=(wait,))
    assert (cause.kind, cause.confidence) == ("dependency", "high")


def test_recorded_waits_without_one_for_the_collective_prove_the_lack_of_room() -> None:
    (cause,) = late(compute(0, 1_000), comm(1_003, 2_000, launched_us=10), waits=())
    assert (cause.kind, cause.confidence) == ("no-room", "high")


def test_resources_that_are_not_recorded_leave_it_undetermined() -> None:
    bare = Launch(blocks=4_000, threads=256)
    (cause,) = late(replace(compute(0, 1_000), launch=bare), comm(900, 2_000))
    assert cause.kind == "undetermined"
    assert "registers" in (cause.record_next or "")


def test_an_idle_gpu_shows_a_dependency_even_on_an_unknown_device() -> None:
    causes = rank_causes(timeline(compute(0, 10), comm(900, 2_000)), 0, None)
    assert [cause.kind for cause in causes if cause.of == "late"] == ["dependency"]


def test_a_prompt_start_has_no_late_cause() -> None:
    assert late(compute(0, 1_000), comm(15, 2_000)) == []


# --- exposed: worked examples ------------------------------------------------------------------


def test_compute_on_the_same_stream_is_serialised() -> None:
    (cause,) = exposed(comm(0, 500, stream="7"), compute(500, 900))
    assert (cause.kind, cause.confidence, cause.time_ns) == ("serialised", "high", 500_000)


def test_compute_queued_early_that_starts_right_after_waited_for_the_collective() -> None:
    (cause,) = exposed(comm(0, 500), compute(502, 900, launched_us=0))
    assert (cause.kind, cause.confidence) == ("dependency", "medium")


def test_compute_launched_late_is_the_hosts_doing_until_then() -> None:
    causes = exposed(comm(0, 500), compute(502, 900, launched_us=400))
    assert [(cause.kind, cause.time_ns) for cause in causes] == [("launch-bound", 400_000), ("dependency", 100_000)]


def test_compute_launched_after_the_end_leaves_open_whether_the_host_waited() -> None:
    (cause,) = exposed(comm(0, 500), compute(700, 900, launched_us=650))
    assert (cause.kind, cause.confidence) == ("launch-bound", "medium")


def test_the_end_of_the_record_is_undetermined() -> None:
    (cause,) = exposed(comm(0, 500))
    assert cause.kind == "undetermined"


def test_the_rank_that_came_last_is_named() -> None:
    recorded = timeline(comm(0, 500), compute(502, 900))
    matching = match_collectives({0: [comm(0, 500)], 3: [comm(400, 500, rank=3)]})
    causes = [cause for cause in with_waiting(rank_causes(recorded, 0, A100), matching) if cause.of == "exposed"]
    assert [(cause.kind, cause.time_ns) for cause in causes] == [("straggler", 400_000), ("dependency", 100_000)]
    assert "rank 3" in causes[0].evidence


def test_a_matched_collective_knows_who_waited_how_long() -> None:
    matched = Matched(name="x", members=((0, 0, 500), (1, 100, 500), (2, 450, 510)))
    assert (matched.transfer_ns, matched.last_rank, matched.waiting_ns(0)) == (60, 2, 440)


@pytest.mark.parametrize(("beside", "kinds"), [(104_000.0, []), (150_000.0, ["contention"])])
def test_a_kernel_slower_beside_communication_is_contention(beside: float, kinds: list[str]) -> None:
    group = Slowdown(
        kernel="gemm",
        rank=0,
        blocks=64,
        alone_ns=100_000.0,
        alone_spread_ns=2_000.0,
        alone_samples=5,
        beside_ns=beside,
        beside_spread_ns=3_000.0,
        beside_samples=4,
    )
    causes = slowed_causes(Slowdowns(groups=(group,), covered_ns=1, overlapped_ns=1), 0)
    assert [cause.kind for cause in causes] == kinds
    assert sum(cause.time_ns for cause in causes) == (200_000 if kinds else 0)
