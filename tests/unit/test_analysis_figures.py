"""Laws of the figures: what interval unions must conserve, where steps begin and end, and HTA's rules beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.decide.analysis.figures import figures, spans_of_step, step_figures
from makeway.decide.analysis.hta import hta_figures
from makeway.decide.analysis.intervals import cover
from makeway.values.errors import InputError
from makeway.values.timeline import Span, SpanKind, Step, Timeline, covered_ns, overlap_ns, union_ns

NAMES = {"compute": "gemm", "comm": "ncclDevKernel_AllReduce", "copy": "Memcpy PtoP", "memory": "Memcpy DtoH"}


def span(kind: SpanKind, start: int, end: int, *, launched: int | None = None, rank: int = 0) -> Span:
    return Span(
        name=NAMES[kind], kind=kind, stream="7", start_ns=start, end_ns=end, launched_ns=launched, rank=rank
    )  # fmt: skip


intervals = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
spans = st.builds(
    lambda kind, when, launched: span(kind, *when, launched=launched),
    st.sampled_from(get_args(SpanKind)),
    intervals,
    st.none() | st.integers(0, 60),
)
some_spans = st.lists(spans, max_size=12)


def instants(chosen: Sequence[tuple[int, int]]) -> set[int]:
    """Every nanosecond that the intervals cover: the slow and obvious way."""
    return {instant for start, end in chosen for instant in range(start, end)}


def of(chosen: Sequence[Span], *kinds: SpanKind) -> set[int]:
    return instants([(one.start_ns, one.end_ns) for one in chosen if one.kind in kinds])


# --- intervals -----------------------------------------------------------------------------------


@given(st.lists(intervals, max_size=12), st.lists(intervals, max_size=12))
def test_unions_and_overlaps_count_every_nanosecond_once(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    assert covered_ns(one) == len(instants(one))
    assert overlap_ns(one, other) == len(instants(one) & instants(other)) == overlap_ns(other, one)
    assert all(end < start for (_, end), (start, _) in pairwise(union_ns(one)))


@given(st.lists(intervals, max_size=12), intervals)
def test_a_cover_knows_how_much_of_any_interval_it_covers(
    chosen: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    assert cover(chosen).within_ns(*asked) == len(instants(chosen) & instants([asked]))


# --- figures -------------------------------------------------------------------------------------


@given(some_spans)
def test_figures_equal_counting_nanosecond_by_nanosecond(chosen: list[Span]) -> None:
    found = figures(chosen)
    compute, comm, memory = of(chosen, "compute"), of(chosen, "comm", "copy"), of(chosen, "memory")
    ends = [one.end_ns for one in chosen] + [one.start_ns for one in chosen]
    assert (found.compute_ns, found.comm_ns, found.memory_ns) == (len(compute), len(comm), len(memory))
    assert (found.overlap_ns, found.exposed_ns) == (len(comm & compute), len(comm - compute))
    assert found.span_ns == (max(ends) - min(ends) if ends else 0)
    assert found.idle_ns == found.span_ns - len(compute | comm | memory)
    assert found.kernels == sum(one.kind in ("compute", "comm") for one in chosen)
    assert found.comm_kernels == sum(one.kind == "comm" for one in chosen)


@given(some_spans, st.randoms(use_true_random=False), st.integers(0, 10**18))
def test_figures_depend_neither_on_order_nor_on_when_the_clock_began(
    chosen: list[Span], order: Random, later: int
) -> None:
    moved = [replace(one, start_ns=one.start_ns + later, end_ns=one.end_ns + later) for one in chosen]
    order.shuffle(moved)
    assert figures(moved) == figures(chosen)


@given(some_spans, spans)
def test_one_more_kernel_never_shortens_busy_time(chosen: list[Span], more: Span) -> None:
    before, after = figures(chosen), figures([*chosen, more])
    assert after.compute_ns >= before.compute_ns
    assert after.comm_ns >= before.comm_ns
    assert after.overlap_ns >= before.overlap_ns
    assert after.span_ns - after.idle_ns >= before.span_ns - before.idle_ns


def test_a_worked_example() -> None:
    found = figures([span("compute", 0, 10), span("compute", 12, 20), span("comm", 8, 16), span("memory", 25, 30)])
    assert (found.compute_ns, found.comm_ns, found.overlap_ns, found.exposed_ns) == (18, 8, 6, 2)
    assert (found.memory_ns, found.idle_ns, found.span_ns) == (5, 5, 30)
    assert found.overlap_percent == 75.0


def test_nothing_recorded_is_all_zero_and_has_no_percentage() -> None:
    assert (figures([]).span_ns, figures([]).overlap_percent, figures([]).exposed_percent) == (0, None, None)


# --- steps ---------------------------------------------------------------------------------------

STEPS = tuple(Step(number=number, rank=0, start_ns=20 * number, end_ns=20 * number + 15) for number in (0, 1, 2))


def timeline(chosen: Sequence[Span], steps: Sequence[Step] = STEPS) -> Timeline:
    return Timeline(spans=tuple(chosen), origin="imported", steps=tuple(steps))


@given(some_spans)
def test_every_span_belongs_to_the_one_step_that_launched_it_or_to_none(chosen: list[Span]) -> None:
    recorded = timeline(chosen)
    for one in chosen:
        when = one.start_ns if one.launched_ns is None else one.launched_ns
        homes = [
            step.number for step in STEPS if any(one is found for found in spans_of_step(recorded, 0, step.number))
        ]
        assert homes == [step.number for step in STEPS if step.start_ns <= when < step.end_ns]


@given(some_spans)
def test_the_figures_of_a_step_are_those_of_its_spans(chosen: list[Span]) -> None:
    recorded = timeline(chosen)
    assert [step.number for step in step_figures(recorded, 0)] == [0, 1, 2]
    for step in step_figures(recorded, 0):
        assert step.figures == figures(spans_of_step(recorded, 0, step.number))


def test_a_kernel_launched_in_one_step_and_run_in_the_next_counts_where_it_was_launched() -> None:
    late = span("compute", 21, 23, launched=14)
    assert spans_of_step(timeline([late]), 0, 0) == (late,)
    assert spans_of_step(timeline([late]), 0, 1) == ()


def test_other_ranks_have_steps_of_their_own() -> None:
    recorded = timeline([span("compute", 1, 2, rank=1)], [*STEPS, replace(STEPS[0], rank=1)])
    assert step_figures(recorded, 0)[0].figures.kernels == 0
    assert [step.figures.kernels for step in step_figures(recorded, 1)] == [1]


def test_an_unknown_step_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="rank 0 has no step 7; its steps are 0, 1, 2"):
        spans_of_step(timeline([]), 0, 7)
    with pytest.raises(InputError, match="records no profiler steps"):
        spans_of_step(timeline([], []), 0, 7)


# --- HTA's rules ---------------------------------------------------------------------------------


def in_us(one: Span) -> Span:
    return replace(one, start_ns=1000 * one.start_ns, end_ns=1000 * one.end_ns)


@given(some_spans)
def test_on_whole_microseconds_without_steps_hta_differs_only_in_copies_between_gpus(chosen: list[Span]) -> None:
    plain = [in_us(one) for one in chosen if one.kind != "copy"]
    found = hta_figures(timeline(plain, []), 0)
    assert found == (figures(plain) if plain else None)


@given(some_spans)
def test_with_two_steps_hta_counts_only_what_has_a_launch(chosen: list[Span]) -> None:
    plain = [in_us(one) for one in chosen if one.kind != "copy"]
    launched = [one for one in plain if one.launched_ns is not None]
    assert hta_figures(timeline(plain), 0) == hta_figures(timeline(launched, []), 0)
    before = [one for one in launched if one.launched_ns is not None and one.launched_ns < STEPS[-1].start_ns]
    assert hta_figures(timeline(plain), 0, include_last_step=False) == hta_figures(timeline(before, []), 0)


def test_hta_shrinks_fractions_of_a_microsecond_and_lets_short_kernels_count_less_than_nothing() -> None:
    found = hta_figures(timeline([span("compute", 500, 4_700), span("compute", 8_200, 8_900)], []), 0)
    assert found is not None
    assert found.compute_ns == 3_000 - 1_000  # 1 to 4, and 9 to 8


def test_a_kernel_of_negative_length_takes_nothing_from_htas_overlap() -> None:
    found = hta_figures(timeline([span("comm", 500, 20_500), span("compute", 8_200, 8_900)], []), 0)
    assert found is not None
    assert (found.comm_ns, found.compute_ns, found.overlap_ns) == (19_000, -1_000, 0)


def test_hta_knows_collectives_by_the_name_of_nccl_only() -> None:
    other = replace(span("comm", 1000, 2000), name="multimem_all_reduce_kernel")
    waits = replace(span("compute", 3000, 5000), name="SyncKernel")
    found = hta_figures(timeline([other, waits], []), 0)
    assert found is not None
    assert (found.comm_ns, found.compute_ns, found.idle_ns, found.span_ns) == (0, 1000, 1000, 4000)
