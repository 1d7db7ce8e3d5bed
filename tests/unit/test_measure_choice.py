"""Choosing among settings: never something slower than what people have already."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from makeway.measure.choice import better_baseline, choice, finalist, promising
from makeway.measure.outcome import OVERLAP, TORCHRUN
from makeway.measure.statistics import summary

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


def test_a_clear_gain_is_taken_and_its_size_told() -> None:
    times = {OVERLAP: [100.0] * 6, TORCHRUN: [80.0] * 6, "copy-engine": [60.0] * 6}
    found = choice(times, finalist(times))
    assert (found.name, found.changes) == ("copy-engine", True)
    assert "25.0% less time than overlap_torchrun" in found.reason


def test_what_is_far_behind_in_every_round_is_not_tried_again() -> None:
    times = {OVERLAP: [100.0] * 3, TORCHRUN: [80.0] * 3, "near": [85.0] * 3, "far": [95.0] * 3}
    assert promising(times) == ("near",)
