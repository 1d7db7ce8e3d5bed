"""The least time that the order within a step, and processors, allow: laws, and schedules that try to beat it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.measure.order import CommAlone, Moment, Ready, StepOrder, ordered_ns

CORES = 2
Order = list[StepOrder]


@st.composite
def worlds(draw: st.DrawFn) -> list[Order]:
    """Steps of two ranks of one thread each: buckets become ready, backward ends, then comes the rest."""
    sizes = draw(st.lists(st.lists(st.integers(1, 10**6), min_size=1, max_size=5), min_size=1, max_size=3))
    gap = st.integers(0, 10**6)
    ranks = []
    for _ in range(2):
        now, steps = draw(gap), []
        for of_step in sizes:
            start, ready = now, []
            for size in of_step:
                now += draw(gap)
                ready.append(Ready(Moment(now, now), size))
            resume = now + draw(gap)
            now = resume + draw(gap)
            steps.append(StepOrder(Moment(start, start), Moment(resume, resume), Moment(now, now), tuple(ready)))
        ranks.append(steps)
    return ranks


@st.composite
def comms(draw: st.DrawFn) -> CommAlone:
    """Its processor time is what its own time has room for, at most."""
    time_ns = draw(st.floats(0, 1e7))
    return CommAlone(time_ns, draw(st.floats(0, CORES)) * time_ns)


def compute_ns(ranks: list[Order]) -> float:
    return max(steps[-1].end.at_ns - steps[0].start.at_ns for steps in ranks)


@given(worlds())
def test_without_communication_a_rank_by_itself_takes_its_compute(ranks: list[Order]) -> None:
    for steps in ranks:
        assert ordered_ns([steps], CommAlone(0.0)) == pytest.approx(compute_ns([steps]))


@given(worlds(), comms())
def test_waiting_for_other_ranks_never_makes_a_round_shorter(ranks: list[Order], comm: CommAlone) -> None:
    for cores in (None, CORES):
        alone = max(ordered_ns([steps], comm, cores=cores) for steps in ranks)
        assert ordered_ns(ranks, comm, cores=cores) >= alone * (1 - 1e-9)


@given(worlds(), st.floats(0, 1e7), st.floats(0, 1e7))
def test_more_communication_never_takes_less_and_never_more_than_sequential(
    ranks: list[Order], less: float, more: float
) -> None:
    less, more = sorted((less, more))
    assert ordered_ns(ranks, CommAlone(less)) <= ordered_ns(ranks, CommAlone(more)) + 1e-3
    assert compute_ns(ranks) <= ordered_ns(ranks, CommAlone(more)) + 1e-3
    assert ordered_ns(ranks, CommAlone(more)) <= ordered_ns(ranks, CommAlone(0.0)) + more + 1e-3


@given(worlds(), st.floats(0, 1e7))
def test_all_communication_comes_between_the_first_bucket_and_the_rest(ranks: list[Order], comm_ns: float) -> None:
    for steps in ranks:
        outside = sum(
            step.ready[0].when.at_ns - step.start.at_ns + step.end.at_ns - step.resume.at_ns for step in steps
        )
        assert ordered_ns(ranks, CommAlone(comm_ns)) >= outside + comm_ns - 1e-3


@given(worlds(), comms())
def test_with_processors_it_is_no_less_than_order_or_processors_by_themselves(
    ranks: list[Order], comm: CommAlone
) -> None:
    joint = ordered_ns(ranks, comm, cores=CORES)
    assert joint >= ordered_ns(ranks, comm) - 1e-3
    compute_cpu_ns = sum(steps[-1].end.cpu_ns - steps[0].start.cpu_ns for steps in ranks)
    assert joint >= (compute_cpu_ns + comm.cpu_ns) / CORES - 1e-3


@given(worlds(), comms())
def test_with_enough_processors_only_the_order_counts(ranks: list[Order], comm: CommAlone) -> None:
    assert ordered_ns(ranks, comm, cores=10**9) == pytest.approx(ordered_ns(ranks, comm))


@given(worlds(), comms(), st.integers(0, 10**6))
def test_no_schedule_takes_less(ranks: list[Order], comm: CommAlone, seed: int) -> None:
    assert scheduled_ns(ranks, comm, random.Random(seed)) >= ordered_ns(ranks, comm, cores=CORES) * (1 - 1e-9) - 1e-3


def test_an_example_by_hand() -> None:
    """20 ms forward; buckets of 3 and 1 parts after 4 and 34 ms of backward, which ends with the second."""
    ready = Ready(Moment(24, 24), 3), Ready(Moment(54, 54), 1)
    step = StepOrder(Moment(0, 0), Moment(54, 54), Moment(57, 57), ready)
    assert ordered_ns([[step]], CommAlone(12.0)) == pytest.approx(54 + 3 + 3)  # the last bucket's 3 are exposed
    assert ordered_ns([[step]], CommAlone(200.0)) == pytest.approx(24 + 200 + 3)  # the link is the limit
    # On the one core, 6 of the first bucket's 9 delay the backward pass, and the last bucket's 3 are exposed.
    assert ordered_ns([[step]], CommAlone(12.0, 8.0), cores=1) == pytest.approx(54 + 6 + 3 + 3)


def test_a_schedule_that_prefers_communication_reaches_it() -> None:
    """Else the limit would be loose: two equal ranks on two cores, with buckets that are sent when they are ready."""
    ready = Ready(Moment(24, 24), 3), Ready(Moment(54, 54), 1)
    step = StepOrder(Moment(0, 0), Moment(54, 54), Moment(57, 57), ready)
    ranks, comm = [[step, later(step, 57)], [step, later(step, 57)]], CommAlone(24.0, 32.0)
    assert scheduled_ns(ranks, comm, None) == pytest.approx(ordered_ns(ranks, comm, cores=CORES))


def later(step: StepOrder, by_ns: int) -> StepOrder:
    def moved(moment: Moment) -> Moment:
        return Moment(moment.at_ns + by_ns, moment.cpu_ns + by_ns)

    ready = tuple(Ready(moved(each.when), each.size_bytes) for each in step.ready)
    return StepOrder(moved(step.start), moved(step.resume), moved(step.end), ready)


def scheduled_ns(ranks: list[Order], comm: CommAlone, luck: random.Random | None) -> float:
    """A schedule of the round on the cores: by chance at every event, or always communication first.

    Compute of a rank takes one core at full speed. The communication of a bucket starts when every rank has it and the
    one before is over; at full speed it takes its part of `comm`, and its processor time from the cores.
    """
    total = sum(ready.size_bytes for step in ranks[0] for ready in step.ready)
    work = [compute_pieces(steps) for steps in ranks]  # of each rank: how long, and how many buckets must be back
    sizes = [ready.size_bytes for step in ranks[0] for ready in step.ready]
    cores_of_comm = comm.cpu_ns / comm.time_ns if comm.time_ns else 0.0
    at, sent, now = [0] * len(ranks), 0, 0.0
    left: list[float] = [pieces[0][0] for pieces in work]
    left_of_comm = sizes[0] / total * comm.time_ns
    while True:
        finished = [at[rank] == len(work[rank]) for rank in range(len(ranks))]
        if all(finished) and sent == len(sizes):
            return now
        demands: dict[int, float] = {}  # by rank; -1: communication
        for rank, pieces in enumerate(work):
            if not finished[rank] and sent >= pieces[at[rank]][1]:
                demands[rank] = 1.0
        if sent < len(sizes) and all(at[rank] > made_by(work[rank], sent) for rank in range(len(ranks))):
            demands[-1] = cores_of_comm
        speeds = shared_by_luck(demands, luck) if luck is not None else communication_first(demands)
        ends = [(left_of_comm if user < 0 else left[user]) / speed for user, speed in speeds.items() if speed > 0]
        passed = min(ends)
        now += passed
        for user, speed in speeds.items():
            if user < 0:
                left_of_comm -= passed * speed
                if left_of_comm <= 1e-9:
                    sent += 1
                    left_of_comm = sizes[sent] / total * comm.time_ns if sent < len(sizes) else 0.0
            else:
                left[user] -= passed * speed
                if left[user] <= 1e-9:
                    at[user] += 1
                    left[user] = work[user][at[user]][0] if at[user] < len(work[user]) else 0.0


def shared_by_luck(demands: dict[int, float], luck: random.Random) -> dict[int, float]:
    """The cores for one after another, in an order by chance: how fast each goes."""
    speeds, free = {}, float(CORES)
    for user in luck.sample(sorted(demands), len(demands)):
        taken = min(demands[user], free)
        free -= taken
        speeds[user] = taken / demands[user] if demands[user] else 1.0
    return speeds


def communication_first(demands: dict[int, float]) -> dict[int, float]:
    """All that communication can use, and the rest in equal parts for the ranks: how fast each goes."""
    computing = [user for user in demands if user >= 0]
    each = min(1.0, (CORES - demands.get(-1, 0.0)) / len(computing)) if computing else 0.0
    return {user: 1.0 if user < 0 else each for user in demands}


def compute_pieces(steps: Order) -> list[tuple[float, int, int | None]]:
    """Compute of a rank in pieces: its time, the buckets that must be back first, and the bucket that it makes."""
    pieces: list[tuple[float, int, int | None]] = []
    bucket = back = 0
    for step in steps:
        now = step.start.at_ns
        for ready in step.ready:
            pieces.append((ready.when.at_ns - now, back, bucket))
            now, bucket = ready.when.at_ns, bucket + 1
        pieces.append((step.resume.at_ns - now, back, None))
        back = bucket
        pieces.append((step.end.at_ns - step.resume.at_ns, back, None))
    return pieces


def made_by(pieces: list[tuple[float, int, int | None]], bucket: int) -> int:
    """The piece that makes a bucket."""
    return next(number for number, piece in enumerate(pieces) if piece[2] == bucket)
