"""The least time that the order within a step allows: when data can leave, and what waits for all of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.measure.order import Ready, StepOrder, ordered_ns

gaps = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)), min_size=1, max_size=6)


@st.composite
def steps(draw: st.DrawFn) -> StepOrder:
    """A step from a moment on: gradients of some buckets, then the end of backward, then the rest."""
    start = draw(st.integers(0, 10**6))
    now, ready = start, []
    for gap, size in draw(gaps):
        now += gap
        ready.append(Ready(now, size))
    resume = now + draw(st.integers(0, 10**6))
    return StepOrder(start, resume, resume + draw(st.integers(0, 10**6)), tuple(ready))


rounds = st.lists(steps(), min_size=1, max_size=3)


def compute_ns(order: list[StepOrder]) -> float:
    return sum(step.end_ns - step.start_ns for step in order)


@given(rounds)
def test_without_communication_a_round_is_its_compute(order: list[StepOrder]) -> None:
    assert ordered_ns(order, 0.0) == compute_ns(order)


@given(rounds, st.floats(0, 1e7), st.floats(0, 1e7))
def test_more_communication_never_takes_less_and_never_more_than_sequential(
    order: list[StepOrder], less: float, more: float
) -> None:
    less, more = sorted((less, more))
    assert ordered_ns(order, less) <= ordered_ns(order, more) + 1e-3
    assert compute_ns(order) <= ordered_ns(order, more) + 1e-3
    assert ordered_ns(order, more) <= compute_ns(order) + more + 1e-3


@given(rounds, st.floats(0, 1e7))
def test_all_communication_comes_between_the_first_bucket_and_the_rest(order: list[StepOrder], comm_ns: float) -> None:
    outside = sum(step.ready[0].at_ns - step.start_ns + step.end_ns - step.resume_ns for step in order)
    assert ordered_ns(order, comm_ns) >= outside + comm_ns - 1e-3


def test_an_example_by_hand() -> None:
    """20 ms forward; buckets of 3 and 1 parts after 4 and 34 ms of backward, which ends with the second."""
    step = StepOrder(0, 54, 57, (Ready(24, 3), Ready(54, 1)))
    assert ordered_ns([step], 12.0) == pytest.approx(54 + 3 + 3)  # the last bucket's 3 are exposed
    assert ordered_ns([step], 200.0) == pytest.approx(24 + 200 + 3)  # the link is the limit
