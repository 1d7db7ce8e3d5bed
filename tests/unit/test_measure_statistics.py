"""Repeated times: laws of summaries and of paired comparisons."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.measure.statistics import LEAST_PAIRS, compared, summary
from makeway.values.errors import InputError

times = st.lists(st.integers(1, 10**12).map(float), min_size=1, max_size=40)


@given(times)
def test_a_summary_lies_within_the_times(values: list[float]) -> None:
    found = summary(values)
    assert min(values) <= found.low_ns <= found.median_ns <= found.high_ns <= max(values)
    assert found.n == len(values)
    assert 0 <= found.outliers < len(values)


@given(times, st.randoms(use_true_random=False))
def test_the_order_of_rounds_does_not_change_a_summary(values: list[float], shuffle: object) -> None:
    mixed = list(values)
    shuffle.shuffle(mixed)  # type: ignore[attr-defined]
    assert summary(mixed) == summary(values)


@given(times, st.integers(2, 1000))
def test_a_summary_scales_with_its_times(values: list[float], factor: int) -> None:
    scaled = summary([value * factor for value in values])
    assert scaled.median_ns == pytest.approx(summary(values).median_ns * factor)
    assert scaled.spread_ns == pytest.approx(summary(values).spread_ns * factor)


def test_one_time_far_out_is_counted_and_does_not_move_the_median() -> None:
    calm = summary([10.0, 11.0, 12.0, 13.0, 14.0])
    disturbed = summary([10.0, 11.0, 12.0, 13.0, 1000.0])
    assert (calm.outliers, disturbed.outliers) == (0, 1)
    assert disturbed.median_ns == calm.median_ns == 12.0


def test_without_times_there_is_no_summary() -> None:
    with pytest.raises(InputError, match="at least one repetition"):
        summary([])


@given(times)
def test_nothing_is_faster_than_itself(values: list[float]) -> None:
    same = compared(values, values)
    assert (same.relative, same.faster, same.clearly_faster) == (0.0, 0, False)


@given(st.lists(st.integers(1, 10**12).map(float), min_size=LEAST_PAIRS, max_size=40), st.floats(0.5, 0.98))
def test_what_takes_less_in_every_round_is_clearly_faster(values: list[float], share: float) -> None:
    quick = [value * share for value in values]
    assert compared(quick, values).clearly_faster
    assert not compared(values, quick).clearly_faster


@given(st.integers(1, LEAST_PAIRS - 1))
def test_few_rounds_are_never_enough(rounds: int) -> None:
    assert not compared([50.0] * rounds, [100.0] * rounds).clearly_faster


@pytest.mark.parametrize(("faster", "clear"), [(8, True), (7, False), (4, False)])
def test_how_many_of_eight_rounds_must_agree(faster: int, clear: bool) -> None:
    quick = [90.0] * faster + [101.0] * (8 - faster)
    assert compared(quick, [100.0] * 8).clearly_faster == clear


def test_a_gain_in_half_of_the_rounds_is_noise() -> None:
    assert not compared([50.0, 50.0, 150.0, 150.0], [100.0] * 4).clearly_faster


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=40))
def test_a_verdict_is_what_the_interval_leaves_no_doubt_about(ratios: list[float]) -> None:
    result = compared([100.0 * ratio for ratio in ratios], [100.0] * len(ratios))
    assert (result.verdict == "faster") == (result.high is not None and result.high < 0)
    assert (result.verdict == "slower") == (result.low is not None and result.low > 0)
    assert result.verdict == "faster" or not result.clearly_faster


def test_a_gain_too_small_to_be_worth_a_change_is_shown_but_not_taken() -> None:
    result = compared([99.5] * 8, [100.0] * 8)
    assert (result.verdict, result.clearly_faster) == ("faster", False)


def test_times_of_different_rounds_cannot_be_paired() -> None:
    with pytest.raises(InputError, match="same rounds"):
        compared([1.0], [1.0, 2.0])


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=40))
def test_the_interval_of_a_paired_difference_holds_its_median(ratios: list[float]) -> None:
    result = compared([100.0 * ratio for ratio in ratios], [100.0] * len(ratios))
    if len(ratios) < 6:
        assert result.low is None
        assert result.high is None
    else:
        assert result.low is not None
        assert result.high is not None
        assert result.low <= result.relative <= result.high


def test_the_interval_covers_the_true_difference_as_often_as_it_says() -> None:
    draw = random.Random(7)
    covered = 0
    for _ in range(1000):
        noisy = [110.0 * draw.lognormvariate(0, 0.1) for _ in range(12)]
        result = compared(noisy, [100.0] * 12)
        assert result.low is not None
        assert result.high is not None
        covered += result.low <= 0.1 <= result.high
    assert covered >= 0.95 * 1000 - 3 * (1000 * 0.95 * 0.05) ** 0.5
    assert covered < 1000  # an interval that always covers says nothing
