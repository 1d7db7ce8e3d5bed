"""The director of `run --tune` on simulated step times: what it adopts, what it spends, and when it tries again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from makeway.act.launch.candidates import OVER_NETWORK, candidate_sets
from makeway.act.launch.directors import director_of
from makeway.act.launch.step_files import Block
from makeway.act.launch.tune_run import tune_settings
from makeway.act.launch.tuning import LOST, Tuning
from makeway.values.support import support_table

STEP_NS = 50_000_000
MEETING_NS = 2_000_000
Slowness = Callable[[int], Sequence[float]]  # of every setting over the first, at a step


@dataclass
class Job:
    """A job whose step times follow from the setting in force, with noise; `settle`: the cost of a switch in steps."""

    director: Tuning
    total_ns: float = 0.0
    untuned_ns: float = 0.0
    steps: int = 0

    def run(self, steps: int, slowness: Slowness, *, noise: float, seed: int, settle: float = 0.5) -> Job:
        draw = random.Random(seed)
        blocks: list[Block] = []
        following = self.director.next(blocks)
        times: list[int] = []
        self.counted: list[int] = []
        for step in range(steps):
            shared = STEP_NS * draw.lognormvariate(0, noise)
            extra = settle * STEP_NS if following.switches and not times else 0.0
            self.total_ns += MEETING_NS if not times else 0
            time_ns = shared * slowness(step)[following.setting] + extra
            self.total_ns += time_ns
            self.untuned_ns += shared * slowness(step)[0]
            times.append(int(time_ns))
            if len(times) == following.steps:
                block = Block(setting=following.setting, times_ns=tuple(times), dropped=following.dropped,
                              tag=following.tag, overhead_ns=MEETING_NS)  # fmt: skip
                if following.brief:
                    brief = (int(median(block.measured_ns)),)
                    block = Block(setting=following.setting, times_ns=brief, tag=following.tag, steps=len(times),
                                  overhead_ns=MEETING_NS)  # fmt: skip
                blocks.append(block)
                times = []
                following = self.director.next(blocks)
                self.counted.append(following.setting)
        self.steps, self.blocks = steps, blocks
        return self


def tuned(slowness: Sequence[float], *, steps: int = 2000, noise: float = 0.03, seed: int = 0, known: bool = True,
          share: float = 0.05, start_ns: int = 0) -> Job:  # fmt: skip
    director = Tuning(len(slowness), share=share, job_steps=steps if known else None, seed=seed)
    director.prepare(refused=[], start_ns=start_ns)
    return Job(director).run(steps, lambda step: slowness, noise=noise, seed=seed)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("slowness", [(1, 1, 1, 1, 1, 1), (1, 1.1, 1.3, 1.02, 1.5, 2.0), (1, 3, 3, 3, 3, 3)])
def test_where_nothing_helps_2000_steps_cost_at_most_2_percent_more(slowness: Sequence[float], known: bool) -> None:
    ratios = [(job := tuned(slowness, seed=seed, known=known)).total_ns / job.untuned_ns for seed in range(40)]
    assert max(ratios) <= 1.02


@pytest.mark.parametrize("start_share", [0.004, 0.01, 0.015])
@pytest.mark.parametrize("slowness", [(1, 1, 1, 1, 1, 1), (1, 1.1, 1.3, 1.02, 1.5, 2.0), (1, 3, 3, 3, 3, 3)])
def test_a_start_that_costs_much_leaves_less_for_trials(slowness: Sequence[float], start_share: float) -> None:
    start_ns = int(start_share * 2000 * STEP_NS)
    for seed in range(20):
        job = tuned(slowness, seed=seed, start_ns=start_ns)
        assert job.total_ns + start_ns <= 1.02 * job.untuned_ns
        assert (job.director.explored == 0) == (start_share == 0.015)


def test_a_larger_share_pays_for_trials_whatever_the_start_has_cost() -> None:
    job = tuned((1, 0.7, 1.1), steps=300, share=0.5, start_ns=300 * STEP_NS)
    assert job.director.incumbent == 1


def test_what_a_job_cannot_have_takes_no_step_and_leaves_more_for_the_others() -> None:
    director = Tuning(5, share=0.05, job_steps=2000, seed=0)
    director.prepare(refused=[1, 3], start_ns=0)
    job = Job(director).run(2000, lambda step: (1, 0.5, 1.3, 0.5, 0.8), noise=0.03, seed=0)
    assert {block.setting for block in job.blocks} == {0, 2, 4}
    assert director.incumbent == 4
    nothing_left = Tuning(2, share=0.05, job_steps=2000, seed=0)
    nothing_left.prepare(refused=[1], start_ns=0)
    assert {block.setting for block in Job(nothing_left).run(500, lambda _: (1, 1), noise=0.1, seed=0).blocks} == {0}


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_equal_settings_are_hardly_ever_adopted(noise: float) -> None:
    adopted = sum(tuned((1,) * 6, seed=seed, noise=noise).director.incumbent != 0 for seed in range(100))
    assert adopted <= 3


@pytest.mark.parametrize("gain", [0.15, 0.3])
def test_a_clearly_faster_setting_is_adopted_and_pays(gain: float) -> None:
    jobs = [tuned((1, 1.2, 1 - gain, 1, 1.05, 1.4), seed=seed) for seed in range(20)]
    assert sum(job.director.incumbent == 2 for job in jobs) >= 19
    assert all(job.total_ns < job.untuned_ns * (1 - gain / 3) for job in jobs if job.director.incumbent == 2)


def test_a_job_of_unknown_length_is_tuned_as_it_grows() -> None:
    job = tuned((1, 1.2, 0.7, 1, 1.05, 1.4), steps=4000, known=False)
    assert job.director.incumbent == 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.5, 3.0), min_size=1, max_size=6),
    st.floats(0.01, 0.2),
    st.floats(0.0, 0.2),
    st.integers(0, 1000),
    st.booleans(),
)
def test_exploration_stays_within_its_share_and_a_slower_setting_is_never_kept(
    others: list[float], share: float, noise: float, seed: int, known: bool
) -> None:
    job = tuned((1.0, *others), share=share, noise=noise, seed=seed, known=known)
    director = job.director
    assert director.explored <= share * 2000
    slowest_block = 8 * STEP_NS * max(1.0, *others)
    assert director.lost_ns <= LOST * share * max(director.spent_ns, 2000 * STEP_NS * 2) + 8 * slowest_block
    assert (1.0, *others)[director.incumbent] <= 1.02
    replayed = Tuning(director.settings, share=share, job_steps=director.job_steps, seed=seed)
    for count in range(len(job.blocks) + 1):
        replayed.next(job.blocks[:count])
    assert replayed.events == director.events
    assert replayed.incumbent == director.incumbent


def test_a_drift_of_the_step_time_starts_another_trial() -> None:
    director = Tuning(3, share=0.1, job_steps=None, seed=0)

    def slowness(step: int) -> Sequence[float]:
        return (1, 0.7, 1.1) if step < 4000 else (1, 1.5, 0.8)

    Job(director).run(16000, slowness, noise=0.02, seed=0)
    adopted = [event.setting for event in director.events if event.what == "adopted"]
    assert adopted[0] == 1
    assert any(event.what == "drift" for event in director.events)
    assert director.incumbent == 2


def test_a_steady_job_is_left_alone_after_its_trial() -> None:
    job = tuned((1, 1.2, 1.3), steps=6000)
    assert not [event for event in job.director.events if event.what == "drift"]
    assert len(job.blocks) < 200


def test_a_stall_of_the_machine_does_not_use_up_the_budget() -> None:
    director = Tuning(3, share=0.1, job_steps=2000, seed=0)

    def slowness(step: int) -> Sequence[float]:
        stalled = 600.0 if step == 15 else 1.0
        return stalled, 0.8 * stalled, 1.1 * stalled

    Job(director).run(2000, slowness, noise=0.02, seed=0)
    assert director.incumbent == 1


def test_the_warm_up_is_no_part_of_the_job_that_shares_are_taken_of() -> None:
    director = director_of(tune_settings(share=0.4, job_steps=240, warm_up=5))
    assert isinstance(director, Tuning)
    assert director.job_steps == 235


def test_every_set_that_is_tried_reaches_an_unmodified_program() -> None:
    carried = support_table()["torch on CPU"].run
    sets = candidate_sets(64, allow_lossy=True)
    assert {control.name for controls in sets for control in controls} <= set(carried)
    assert len(set(sets)) == len(sets)


def test_sets_for_a_network_are_left_out_by_number_unless_the_user_asks_for_one() -> None:
    settings = tune_settings()
    assert {settings.controls[number] for number in settings.over_network} == set(OVER_NETWORK)
    asked = tune_settings(OVER_NETWORK[0])
    assert asked.controls[1] == OVER_NETWORK[0]
    assert {asked.controls[number] for number in asked.over_network} == set(OVER_NETWORK[1:])
