"""Choosing among variants: never something slower than what people have already."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from makeway.act.measure.choice import better_baseline, choice, finalist, promising
from makeway.act.measure.statistics import summary
from makeway.act.measure.variants import OVERLAP, TORCHRUN

ROUNDS = 6
row = st.lists(st.integers(50, 200).map(float), min_size=ROUNDS, max_size=ROUNDS)
trials = st.fixed_dictionaries({OVERLAP: row, TORCHRUN: row, "priority": row, "chunks=4": row})


@given(trials)
def test_what_is_chosen_is_no_slower_than_the_better_baseline(times: dict[str, list[float]]) -> None:
    found = choice(times, finalist(times))
    base = summary(times[better_baseline(times)]).median_ns
    if found.changes:
        for name in (OVERLAP, TORCHRUN):
            pairs = zip(times[found.name], times[name], strict=True)
            assert sum(time < other for time, other in pairs) == ROUNDS
    else:
        assert summary(times[found.name]).median_ns == base


@given(trials)
def test_the_finalist_is_always_promising(times: dict[str, list[float]]) -> None:
    best = finalist(times)
    assert best is None or best in promising(times)


@given(trials)
def test_baselines_are_never_candidates(times: dict[str, list[float]]) -> None:
    assert not {OVERLAP, TORCHRUN} & {*promising(times), finalist(times)}


def test_leave_as_is_is_said_when_nothing_helps() -> None:
    times = {OVERLAP: [100.0] * 6, TORCHRUN: [80.0] * 6, "priority": [81.0] * 6}
    found = choice(times, finalist(times))
    assert (found.name, found.changes) == (TORCHRUN, False)
    assert found.reason.startswith("leave as is (overlap_torchrun)")


def test_a_clear_gain_is_taken_with_the_comparisons_that_decided() -> None:
    times = {OVERLAP: [100.0] * 6, TORCHRUN: [80.0] * 6, "copy-engine": [60.0] * 6}
    found = choice(times, finalist(times))
    assert (found.name, found.changes) == ("copy-engine", True)
    assert found.reason == "copy-engine: clearly faster than overlap and overlap_torchrun"
    assert found.against[TORCHRUN].relative == -0.25
    assert (found.against[OVERLAP].faster, found.against[OVERLAP].n) == (6, 6)


@given(st.lists(st.tuples(st.integers(50, 200), st.integers(50, 200)), min_size=1, max_size=9))
def test_the_better_baseline_is_never_slower_in_most_rounds(pairs: list[tuple[int, int]]) -> None:
    times = {OVERLAP: [float(one) for one, _ in pairs], TORCHRUN: [float(other) for _, other in pairs]}
    base = better_baseline(times)
    other = TORCHRUN if base == OVERLAP else OVERLAP
    won = sum(time < rival for time, rival in zip(times[base], times[other], strict=True))
    lost = sum(time > rival for time, rival in zip(times[base], times[other], strict=True))
    assert won >= lost


def test_one_slow_round_does_not_change_the_better_baseline() -> None:
    """By median the first would win: 104 against 105."""
    times = {OVERLAP: [101.0, 104.0, 112.0], TORCHRUN: [100.0, 105.0, 106.0]}
    assert summary(times[OVERLAP]).median_ns < summary(times[TORCHRUN]).median_ns
    assert better_baseline(times) == TORCHRUN


def test_rounds_of_the_trial_count_between_the_baselines() -> None:
    trials = {OVERLAP: [100.0] * 5, TORCHRUN: [80.0] * 5}
    confirmation = {OVERLAP: [90.0, 90.0], TORCHRUN: [95.0, 95.0]}
    assert choice(confirmation, None).name == OVERLAP
    assert choice(confirmation, None, trials=trials).name == TORCHRUN


def test_rounds_of_the_trial_do_not_count_for_the_candidate() -> None:
    trials = {OVERLAP: [200.0] * 5, TORCHRUN: [200.0] * 5}
    confirmation = {OVERLAP: [100.0] * 6, TORCHRUN: [100.0] * 6, "priority": [101.0] * 6}
    assert not choice(confirmation, "priority", trials=trials).changes


def test_what_is_far_behind_in_every_round_is_not_tried_again() -> None:
    times = {OVERLAP: [100.0] * 3, TORCHRUN: [80.0] * 3, "near": [85.0] * 3, "far": [95.0] * 3}
    assert promising(times) == ("near",)
