"""Pairs of blocks: how often chance gets a verdict, what is found, and which block comes next."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from makeway.act.launch.compare_run import STEPS
from makeway.act.launch.directors import MEASURED, NOISE_PAIRS, SETTLE, WITH, WITHOUT, Comparing, of_blocks
from makeway.act.launch.step_files import Block
from makeway.decide.analysis.alternation import (
    ERROR,
    Alternation,
    alternation,
    look_level,
    looks,
    paired_difference,
)

FIRST_SEED = 5_000  # drawn before these jobs were looked at; 0 to 649 served to choose ERROR and FIRST_LOOK


def step_times(rng: random.Random) -> Iterator[float]:
    """Logarithms of step times on a shared host: correlated noise, single late steps, bursts of load, drift."""
    noise = drift = burst = 0.0
    left = 0
    while True:
        noise = 0.5 * noise + 0.06 * math.sqrt(0.75) * rng.gauss(0, 1)
        drift += rng.gauss(0, 0.003)
        left -= 1
        if left < 0 and rng.random() < 0.01:
            left, burst = rng.randint(5, 30), rng.uniform(0.1, 0.6)
        late = rng.uniform(0.2, 1.5) if rng.random() < 0.03 else 0.0
        yield noise + drift + late + (burst if left > 0 else 0.0)


def compared(slower: float, seed: int) -> tuple[Alternation, int]:
    """A comparison by the director itself, of a simulated job; and the setting that it leaves."""
    times, director = step_times(random.Random(seed)), Comparing(steps=STEPS, seed=seed)
    blocks: list[Block] = []
    while not (following := director.next(blocks)).last:
        factor = 1 + slower if following.setting == WITH else 1.0
        series = tuple(int(5e7 * math.exp(next(times)) * factor) for _ in range(following.steps))
        blocks.append(Block(setting=following.setting, times_ns=series, dropped=following.dropped, tag=following.tag))
    assert sum(len(block.times_ns) for block in blocks) <= STEPS
    return of_blocks(blocks, most_pairs=director.most_pairs), following.setting


def test_of_20_jobs_without_a_difference_at_most_one_gets_a_verdict() -> None:
    verdicts = [compared(0.0, FIRST_SEED + job)[0].verdict for job in range(20)]
    assert sum(verdict != "no difference shown" for verdict in verdicts) <= 1


@pytest.mark.parametrize("slower", [0.1, 0.2])
def test_10_and_20_percent_are_found_in_20_of_20(slower: float) -> None:
    for job in range(20):
        seen, left = compared(slower, FIRST_SEED + job)
        assert seen.verdict == "slower"
        assert left == WITHOUT
        assert seen.difference.low is not None
        assert seen.difference.low > 0


def test_a_faster_plan_stays_in_force() -> None:
    seen, left = compared(-0.15, 1)
    assert seen.verdict == "faster"
    assert left == WITH


@pytest.mark.long
@pytest.mark.timeout(900)
def test_chance_gets_a_verdict_in_at_most_1_percent() -> None:
    verdicts = [compared(0.0, 2 * FIRST_SEED + job)[0].verdict for job in range(1000)]
    assert sum(verdict != "no difference shown" for verdict in verdicts) <= 16  # 1 %, and two standard errors


# --- laws ----------------------------------------------------------------------------------------


logs = st.floats(-1, 1, allow_nan=False)
durations_ns = st.integers(1, 10**9)


@given(st.lists(logs, min_size=3, max_size=40), st.floats(-0.5, 0.5))
def test_the_estimate_lies_in_its_interval_and_moves_with_the_values(pairs: list[float], shift: float) -> None:
    shown = paired_difference(pairs, level=0.99)
    assert shown.low is not None
    assert shown.high is not None
    assert shown.low <= shown.estimate <= shown.high
    moved = paired_difference([value + shift for value in pairs], level=0.99)
    assert moved.estimate == pytest.approx(shown.estimate + shift, abs=1e-9)
    turned = paired_difference([-value for value in pairs], level=0.99)
    assert turned.low == pytest.approx(-shown.high, abs=1e-9)


@given(
    st.lists(
        st.tuples(st.lists(durations_ns, min_size=1, max_size=4), st.lists(durations_ns, min_size=1, max_size=4)),
        min_size=1,
    )
)
def test_the_steps_that_are_shown_differ_by_the_estimate(pairs: list[tuple[list[int], list[int]]]) -> None:
    shown = alternation(pairs, [], most_pairs=50)
    assert shown.step_ns is not None
    without_ns, with_ns = shown.step_ns
    assert with_ns / without_ns == pytest.approx(math.exp(shown.difference.estimate))
    every = [time for pair in pairs for side in pair for time in side]
    assert all(min(every) * (1 - 1e-9) <= time <= max(every) * (1 + 1e-9) for time in shown.step_ns)


@given(st.integers(8, 400), st.data())
def test_the_interval_of_an_early_look_is_the_wider_one(most: int, data: st.DataObject) -> None:
    early, late = sorted((data.draw(st.integers(1, most)), data.draw(st.integers(1, most))))
    assert 1 - ERROR <= look_level(most, most) <= look_level(late, most) <= look_level(early, most) <= 1


@pytest.mark.parametrize("most", [8, 20, 59])
@pytest.mark.parametrize("part", [1.0, 0.45])
def test_all_looks_at_a_random_walk_err_in_at_most_1_percent(most: int, part: float) -> None:
    """With the spread known, so that only the number of looks matters; also of a job that ends after a part of them."""
    rng, jobs, wrong = random.Random(most), 5_000, 0
    end = max(8, round(part * most))
    taken = sorted({*(count for count in looks(most) if count <= end), end})
    reaches = {count: -NormalDist().inv_cdf((1 - look_level(count, most)) / 2) for count in taken}
    for _ in range(jobs):
        at, reached = 0.0, False
        for count, before in zip(reaches, (0, *reaches), strict=False):
            at += rng.gauss(0, math.sqrt(count - before))
            reached = reached or abs(at) > reaches[count] * math.sqrt(count)
        wrong += reached
    assert wrong <= ERROR * jobs + 3 * math.sqrt(ERROR * jobs)
    assert wrong > (0.4 if part == 1 else 0.1) * ERROR * jobs  # little of the error is given away


@given(st.integers(0, 400))
def test_looks_ascend_to_the_last_pair(most: int) -> None:
    counts = looks(most)
    assert list(counts) == sorted(set(counts))
    assert not counts or counts[-1] == most


def test_between_looks_there_is_no_verdict_until_the_job_has_ended() -> None:
    pairs = [((100, 101, 99), (200 + number, 201, 199)) for number in range(9)]
    at_look, after = (alternation(pairs[:count], [], most_pairs=30) for count in (8, 9))
    assert alternation(pairs, [], most_pairs=30, ended=True).verdict == "slower"
    assert alternation(pairs[:7], [], most_pairs=30, ended=True).verdict == "no difference shown"
    assert at_look.verdict == "slower"
    assert at_look.over
    assert after.difference.shown
    assert after.verdict == "no difference shown"


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.integers(200, 600))
def test_each_pair_has_both_settings_and_noise_comes_first(seed: int, steps: int) -> None:
    director = Comparing(steps=steps, seed=seed)
    blocks: list[Block] = []
    while not (following := director.next(blocks)).last:
        blocks.append(
            Block(
                setting=following.setting,
                times_ns=(7,) * following.steps,
                dropped=following.dropped,
                tag=following.tag,
            )
        )
        assert following.dropped == (SETTLE if following.switches else 0)
        assert director.next(blocks) == Comparing(steps=steps, seed=seed).next(blocks)
    noise, paired = blocks[: 2 * NOISE_PAIRS], blocks[2 * NOISE_PAIRS :]
    assert {block.setting for block in noise} == {WITHOUT}
    for first, second in zip(paired[::2], paired[1::2], strict=True):
        assert {first.setting, second.setting} == {WITHOUT, WITH}
    assert len(paired) == 2 * director.most_pairs
    assert all(len(block.measured_ns) == MEASURED for block in blocks)
    used = sum(block.count for block in blocks)
    assert steps - 2 * (SETTLE + MEASURED) < used <= steps
