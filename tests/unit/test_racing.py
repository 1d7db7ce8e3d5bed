"""Candidates that race in rounds of blocks: what cancels, who stays, and how often chance wins."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.launch.directors import SETTLE, settling_steps
from makeway.decide.analysis.racing import MOST_ROUNDS, standings, still_racing
from makeway.values.control import Chunks, CommBlocks, CommPriority, Control, CopyEngine, SmPartition

logs = st.floats(-1, 1, allow_nan=False)
rounds = st.lists(st.fixed_dictionaries(dict.fromkeys(range(4), logs)), min_size=2, max_size=30)


@given(rounds, st.lists(logs, min_size=30, max_size=30))
def test_what_all_blocks_of_a_round_share_cancels(entries: list[dict[int, float]], shifts: list[float]) -> None:
    moved = [
        {setting: value + shift for setting, value in entry.items()}
        for entry, shift in zip(entries, shifts, strict=False)
    ]
    before, after = standings(entries, 0, [1, 2, 3]), standings(moved, 0, [1, 2, 3])
    for setting in (1, 2, 3):
        assert after[setting].difference == pytest.approx(before[setting].difference, abs=1e-9)
        assert after[setting].error == pytest.approx(before[setting].error, abs=1e-9)


@given(rounds)
def test_two_settings_stand_against_each_other_with_opposite_signs(entries: list[dict[int, float]]) -> None:
    there, back = standings(entries, 0, [1])[1], standings(entries, 1, [0])[0]
    assert there.difference == pytest.approx(-back.difference, abs=1e-9)
    assert not (there.faster(MOST_ROUNDS) and back.faster(MOST_ROUNDS))


@given(rounds)
def test_only_candidates_stay_and_the_fastest_comes_first(entries: list[dict[int, float]]) -> None:
    left = still_racing(entries, 0, [1, 2, 3])
    stand = standings(entries, 0, [1, 2, 3])
    assert left == sorted(left, key=lambda setting: stand[setting].difference)
    assert all(not stand[setting].hopeless for setting in left)
    best = min(stand, key=lambda setting: stand[setting].difference)
    assert (best in left) == (not stand[best].hopeless)


def test_looks_after_every_round_seldom_take_chance_for_a_gain() -> None:
    draw, adopted, races = random.Random(5), 0, 400
    for _ in range(races):
        entries: list[dict[int, float]] = []
        for _ in range(MOST_ROUNDS):
            entries.append({0: draw.gauss(0, 0.1), 1: draw.gauss(0, 0.1)})
            if standings(entries, 0, [1])[1].faster(MOST_ROUNDS):
                adopted += 1
                break
    assert 1 <= adopted <= 0.04 * races


@pytest.mark.parametrize(
    ("before", "after", "there", "back"),
    [
        ((), (), 0, 0),
        ((CopyEngine(), CommPriority()), (CommPriority(), CopyEngine()), 0, 0),
        ((), (CommPriority(),), SETTLE - 1, SETTLE - 1),
        ((CopyEngine(),), (CopyEngine(), SmPartition(1)), SETTLE - 1, SETTLE - 1),
        ((), (CopyEngine(),), SETTLE, SETTLE - 1),
        ((CopyEngine(),), (CopyEngine(), Chunks(2)), SETTLE, SETTLE),
        ((Chunks(2),), (Chunks(4),), SETTLE, SETTLE),
        ((), (CommBlocks(8),), SETTLE, SETTLE),
    ],
)
def test_only_new_buckets_and_channels_need_all_steps_to_settle(
    before: tuple[Control, ...], after: tuple[Control, ...], there: int, back: int
) -> None:
    assert settling_steps(before, after) == there
    assert settling_steps(after, before) == back
