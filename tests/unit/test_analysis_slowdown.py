"""Laws of slow-down: what is compared with what, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.decide.analysis.causes import slowed_causes
from makeway.decide.analysis.slowdown import LEAST_ALONE_NS, slowdowns
from makeway.values.kernel import KernelResources, Launch
from makeway.values.timeline import Span, SpanKind

LAUNCH = Launch(blocks=512, threads=256, resources=KernelResources(threads=256, registers_per_thread=64))
PERIOD = 1_000_000


def kernel(place: int, duration_ns: int, *, name: str = "gemm", launch: Launch | None = LAUNCH) -> Span:
    start = place * PERIOD
    return Span(name=name, kind="compute", stream="7", start_ns=start, end_ns=start + duration_ns, launch=launch)


def framed(*spans: Span) -> list[Span]:
    """The spans, each kernel between the same others, as in a layer that repeats."""
    around = (-4_000, -2_000, 0, 2_000)
    return [
        *spans,
        *(
            replace(one, name="norm", start_ns=at + offset, end_ns=at + offset + 1_000)
            for one in spans
            if one.kind == "compute"
            for at, offset in zip((one.start_ns, one.start_ns, one.end_ns, one.end_ns), around, strict=True)
        ),
    ]


def beside(one: Span, share: float, *, kind: SpanKind = "comm") -> Span:
    """Communication during the last part of a kernel."""
    length = round(one.duration_ns * share)
    return Span(name="nccl", kind=kind, stream="20", start_ns=one.end_ns - length, end_ns=one.end_ns)


durations = st.lists(st.integers(8 * LEAST_ALONE_NS, 11 * LEAST_ALONE_NS), min_size=3, max_size=9)


@given(durations, durations, st.floats(0.51, 1.0))
def test_medians_of_both_sides_are_compared(alone: list[int], shared: list[int], share: float) -> None:
    quiet = [kernel(place, duration) for place, duration in enumerate(alone)]
    busy = [kernel(100 + place, duration) for place, duration in enumerate(shared)]
    comm = [beside(one, share) for one in busy]
    found = slowdowns(framed(*quiet, *busy, *comm), 0)
    (group,) = found.groups
    assert (group.alone_samples, group.beside_samples) == (len(alone), len(shared))
    assert (group.alone_ns, group.beside_ns) == (median(alone), median(shared))
    assert 0 <= group.beside_spread_ns <= max(shared) - min(shared)
    assert found.covered_ns == found.overlapped_ns == sum(one.duration_ns for one in comm)


@given(durations, st.integers(1, 4))
def test_a_kernel_that_always_takes_so_many_times_as_long_shows_that_ratio(alone: list[int], times: int) -> None:
    quiet = [kernel(place, duration // 8) for place, duration in enumerate(alone, start=1)]
    busy = [kernel(100 + place, times * (duration // 8)) for place, duration in enumerate(alone)]
    found = slowdowns(framed(*quiet, *busy, *(beside(one, 1.0) for one in busy)), 0)
    for group in found.groups:  # none where the kernel is too short to compare
        assert group.ratio == pytest.approx(times)
        assert group.cost_ns == pytest.approx((times - 1) * group.alone_ns * len(alone))
    assert len(found.groups) == (median(one.duration_ns for one in quiet) >= LEAST_ALONE_NS)


def runs(count: int, *, at: int, duration_ns: int = 50_000, launch: Launch | None = LAUNCH) -> list[Span]:
    return [kernel(at + place, duration_ns, launch=launch) for place in range(count)]


def test_partly_overlapped_kernels_count_as_neither() -> None:
    quiet, partly = runs(3, at=0), runs(3, at=100, duration_ns=80_000)
    found = slowdowns(framed(*quiet, *partly, *(beside(one, 0.5) for one in partly)), 0)
    assert (found.groups, found.covered_ns) == ((), 0)
    assert found.overlapped_ns == 3 * 40_000


@pytest.mark.parametrize(("alone", "shared"), [(2, 9), (9, 2), (0, 9), (9, 0)])
def test_two_samples_are_too_few(alone: int, shared: int) -> None:
    busy = runs(shared, at=100)
    assert slowdowns(framed(*runs(alone, at=0), *busy, *(beside(one, 1.0) for one in busy)), 0).groups == ()


def test_kernels_below_twenty_microseconds_are_left_out() -> None:
    busy = runs(3, at=100, duration_ns=30_000)
    short = runs(3, at=0, duration_ns=LEAST_ALONE_NS - 1)
    enough = runs(3, at=0, duration_ns=LEAST_ALONE_NS)
    comm = [beside(one, 1.0) for one in busy]
    assert slowdowns(framed(*short, *busy, *comm), 0).groups == ()
    assert len(slowdowns(framed(*enough, *busy, *comm), 0).groups) == 1


@pytest.mark.parametrize(
    "other",
    [
        replace(LAUNCH, blocks=256),
        replace(LAUNCH, resources=KernelResources(threads=256, registers_per_thread=128)),
        None,
    ],
)
def test_another_grid_or_other_resources_are_another_kernel_and_none_recorded_is_none(other: Launch | None) -> None:
    busy = runs(3, at=100, launch=other)
    assert slowdowns(framed(*runs(3, at=0), *busy, *(beside(one, 1.0) for one in busy)), 0).groups == ()


def test_copies_between_gpus_count_as_communication_and_other_copies_do_not() -> None:
    quiet, busy = runs(3, at=0), runs(3, at=100, duration_ns=90_000)
    (group,) = slowdowns(framed(*quiet, *busy, *(beside(one, 1.0, kind="copy") for one in busy)), 0).groups
    assert group.ratio == pytest.approx(1.8)
    assert slowdowns(framed(*quiet, *busy, *(beside(one, 1.0, kind="memory") for one in busy)), 0).overlapped_ns == 0


def test_the_costliest_kernel_comes_first_and_other_ranks_stay_out() -> None:
    spans: list[Span] = []
    for name, slow in (("mild", 60_000), ("bad", 200_000)):
        busy = [kernel(300 + place + 10 * len(name), slow, name=name) for place in range(3)]
        spans += [kernel(place + 10 * len(name), 50_000, name=name) for place in range(3)]
        spans += [*busy, *(beside(one, 1.0) for one in busy)]
    assert [group.kernel for group in slowdowns(framed(*spans), 0).groups] == ["bad", "mild"]
    assert slowdowns(spans, 1) == slowdowns([], 1)


# --- what is refused as evidence ---------------------------------------------------------------


def test_a_copy_of_another_size_between_other_kernels_is_other_work() -> None:
    """As CatArrayBatchedCopy: one name and grid, 3 us in the layers and 63 us beside the gather of all of them."""
    quiet = framed(*(kernel(place, 30_000, name="CatArrayBatchedCopy") for place in range(6)))
    busy = [kernel(100 + place, 629_000, name="CatArrayBatchedCopy") for place in range(4)]
    around = [replace(one, name="pack", start_ns=one.start_ns - 9_000, end_ns=one.start_ns - 8_000) for one in busy]
    result = slowdowns([*quiet, *busy, *around, *(beside(one, 1.0) for one in busy)], 0)
    assert [group.kernel for group in result.groups] == []
    (refused,) = result.refused
    assert refused.ratio == pytest.approx(20.97, abs=0.01)
    assert "different places" in refused.why


def test_recorded_input_sizes_part_work_of_one_name_and_place() -> None:
    quiet = [replace(one, inputs=1) for one in runs(4, at=0)]
    busy = [replace(one, inputs=2) for one in runs(4, at=100, duration_ns=90_000)]
    comm = [beside(one, 1.0) for one in busy]
    assert slowdowns(framed(*quiet, *busy, *comm), 0).groups == ()
    same = [replace(one, inputs=1) for one in busy]
    (group,) = slowdowns(framed(*quiet, *same, *comm), 0).groups
    assert group.ratio == pytest.approx(1.8)


def test_a_persistent_kernel_in_several_roles_is_refused() -> None:
    """As cast_back_impl: one grid whatever the size, so its times alone fall into clusters."""
    roles = (40_000, 160_000)
    quiet = [kernel(place, roles[place % 2], name="cast_back_impl") for place in range(8)]
    busy = [kernel(100 + place, 160_000, name="cast_back_impl") for place in range(4)]
    result = slowdowns(framed(*quiet, *busy, *(beside(one, 1.0) for one in busy)), 0)
    assert result.groups == ()
    (refused,) = result.refused
    assert "clusters" in refused.why


def test_where_steps_repeat_a_kernel_is_compared_at_its_place_in_the_step() -> None:
    """The second launch of each step does four times the work, and communication always runs beside it."""
    spans: list[Span] = []
    for step in range(4):
        spans += [kernel(10 * step, 50_000), kernel(10 * step + 1, 200_000)]
    comm = [beside(one, 1.0) for one in spans[1::2]]
    steps = [10 * step * PERIOD for step in range(4)]
    assert slowdowns(framed(*spans, *comm), 0, step_starts_ns=steps).groups == ()
    assert len(slowdowns(framed(*spans, *comm), 0, step_starts_ns=steps).refused) == 1


def test_times_that_overlap_are_no_slow_down() -> None:
    quiet = [kernel(place, 50_000 + 3_000 * place) for place in range(6)]
    busy = [kernel(100 + place, 55_000 + 3_000 * place) for place in range(6)]
    (group,) = slowdowns(framed(*quiet, *busy, *(beside(one, 1.0) for one in busy)), 0).groups
    assert not group.separated
    assert slowed_causes(slowdowns(framed(*quiet, *busy, *(beside(one, 1.0) for one in busy)), 0), 0) == ()
