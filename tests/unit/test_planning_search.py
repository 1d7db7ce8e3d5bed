"""The search: never worse than its seeds, near the best of all points, simple where it can be."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from makeway.decide.planning.candidates import Candidates, candidates
from makeway.decide.planning.score import Score, Scorer, dispatch_policies
from makeway.decide.planning.search import TIE, best, chosen, removals
from makeway.model.residency import resident_blocks
from makeway.values.collective import Collective
from makeway.values.control import Chunks, CommBlocks, CommPriority, Control, CopyEngine, LaunchOrder, SmPartition
from makeway.values.device import load_device
from makeway.values.kernel import KernelResources
from makeway.values.workload import CollectiveOp, KernelOp, Measured, Workload

DEVICES = ("A40", "A100-SXM4-80GB", "H100-SXM5-80GB", "MI250X", "MI300X")
few = settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
SMALL_SPACE = 150

blocks = st.builds(
    KernelResources,
    threads=st.sampled_from([128, 256, 512]),
    registers_per_thread=st.sampled_from([32, 64, 98, 128]),
    smem_bytes=st.sampled_from([0, 16 * 1024, 32 * 1024, 48 * 1024]),
)
cases = st.tuples(
    st.sampled_from(DEVICES),
    blocks,
    st.sampled_from([0.5, 1.0, 2.5, 5.0]),
    st.sampled_from(["all-gather", "all-reduce"]),
    st.floats(0.1, 2.0),
    st.booleans(),
)


def pair(case: tuple[str, KernelResources, float, str, float, bool]) -> tuple[Workload, Scorer]:
    name, resources, waves, kind, ratio, persistent = case
    device = load_device(name)
    library = "rccl-5.4.3/generic" if device.vendor == "amd" else "nccl-2.32.3/ring-simple"
    count = max(1, round(waves * resident_blocks(device, resources) * device.sms))
    kernel = KernelOp(name="k", resources=resources, work=Measured(time_ns=1e6, blocks=count), persistent=persistent)
    exchange = Collective(kind=kind, size_bytes=2**27, ranks=8)  # type: ignore[arg-type]
    comm = CollectiveOp(name="c", collective=exchange, library=library, time_ns=ratio * 1e6)
    workload = Workload(name="pair", operations=(kernel, comm), ranks=8)
    return workload, Scorer(workload, device, dispatch_policies(device))


def trimmed(offered: Candidates, points: int) -> Candidates:
    axes = [list(axis) for axis in offered.axes]
    while (fewer := replace(offered, axes=tuple(tuple(axis) for axis in axes if axis))).points > points:
        longest = max(axes, key=len)
        del longest[len(longest) // 2]
    return fewer


def best_of_all(scorer: Scorer, offered: Candidates) -> float:
    points = (offered.point([v for v in values if v]) for values in product(*((None, *axis) for axis in offered.axes)))
    scores = [scorer.attempt(point) for point in points]
    return min(score.t_ns for score in scores if isinstance(score, Score))


@few
@given(cases)
def test_a_search_is_never_worse_than_its_seeds_or_than_nothing(case) -> None:  # type: ignore[no-untyped-def]
    workload, scorer = pair(case)
    offered = candidates(workload, scorer.device)
    seeds = ((CommPriority(),), (LaunchOrder(), SmPartition(16)), (CommBlocks(8),))
    result = best(scorer, offered, seeds=seeds, budget_ms=30)
    for seed in ((), *seeds):
        if isinstance(score := scorer.attempt(offered.point(seed)), Score):
            assert result.best.t_ns <= score.t_ns * (1 + (TIE if seed == () else 0))


@few
@given(cases)
def test_no_control_is_kept_that_is_worth_nothing(case) -> None:  # type: ignore[no-untyped-def]
    workload, scorer = pair(case)
    offered = candidates(workload, scorer.device)
    result = best(scorer, offered, budget_ms=60)
    least = min(score.t_ns for score in result.scores.values())
    for _, rest in removals(result.best.controls, ()):
        without = scorer.attempt(offered.point(rest))
        assert isinstance(without, str) or without.t_ns > least * (1 + TIE)


@cache
def sample() -> list[tuple[float, int, int]]:
    """Fixed workloads: how much slower the fast search is than the best of all, what it scored, how many there are."""
    gaps = []
    shapes = [(128, 222, 48), (256, 98, 48), (512, 32, 0), (256, 64, 16), (256, 40, 1)]
    for index, (name, shape) in list(enumerate(product(DEVICES, shapes)))[::2]:
        resources = KernelResources(threads=shape[0], registers_per_thread=shape[1], smem_bytes=shape[2] * 1024)
        kind, waves, ratio = (
            ("all-gather", "all-reduce")[index % 2],
            (1.0, 2.5, 5.0)[index % 3],
            (0.3, 0.8, 1.5)[index % 3],
        )
        workload, scorer = pair((name, resources, waves, kind, ratio, index % 7 == 0))
        offered = trimmed(candidates(workload, scorer.device), SMALL_SPACE)
        fast = best(scorer, offered, budget_ms=40)
        gaps.append((fast.best.t_ns / best_of_all(scorer, offered) - 1, fast.evaluations, offered.points))
    return gaps


def test_the_fast_search_finds_the_best_of_all_within_a_percent() -> None:
    worse = [gap for gap, _, _ in sample()]
    assert sum(gap <= 0.01 for gap in worse) >= 0.95 * len(worse)


def test_the_fast_search_tries_a_part_of_the_points_only() -> None:
    assert sum(tried for _, tried, _ in sample()) < 0.5 * sum(points for _, _, points in sample())


def test_small_spaces_are_tried_whole() -> None:
    workload, scorer = pair(
        ("A100-SXM4-80GB", KernelResources(threads=512, registers_per_thread=32), 5.0, "all-gather", 0.8, False)
    )
    offered = trimmed(candidates(workload, scorer.device), 48)
    result = best(scorer, offered, budget_ms=10_000)
    assert result.complete
    assert not result.stopped_early
    assert result.best.t_ns <= best_of_all(scorer, offered) * (1 + TIE)


@few
@given(cases, st.sampled_from([20.0, 50.0]))
def test_the_same_search_twice_scores_the_same_sets_in_the_same_order(case, budget_ms: float) -> None:  # type: ignore[no-untyped-def]
    runs = []
    for _ in range(2):
        workload, scorer = pair(case)
        runs.append(best(scorer, candidates(workload, scorer.device), budget_ms=budget_ms))
    assert list(runs[0].scores.items()) == list(runs[1].scores.items())
    assert runs[0].best == runs[1].best


def scored(t_ns: float, *controls: Control) -> Score:
    return Score(controls=controls, by_dispatch=(("strict", t_ns),))


def test_ties_go_to_fewer_controls_then_to_less_intrusive_ones() -> None:
    two, copy, hint = (
        scored(100.0, CommPriority(), CommBlocks(8)),
        scored(100.1, CopyEngine()),
        scored(100.2, CommPriority()),
    )
    assert chosen([two, copy, hint]) is hint
    assert chosen([two, copy]) is copy
    assert chosen([two, scored(100.1, Chunks(2)), copy]) is copy
    assert chosen([two, scored(101.0)]) is two  # no tie: one percent


def test_a_tie_never_lets_a_seed_win() -> None:
    simple, seed = scored(100.2), scored(100.1, CommPriority(), CommBlocks(8))
    assert chosen([simple, seed]) is simple
    assert chosen([simple, seed], floor=[seed]) is seed


def test_stopping_early_is_said() -> None:
    workload, scorer = pair(
        ("A100-SXM4-80GB", KernelResources(threads=512, registers_per_thread=32), 5.0, "all-gather", 0.8, False)
    )
    result = best(scorer, candidates(workload, scorer.device), budget_ms=5)
    assert result.stopped_early
    assert not result.complete


@pytest.mark.parametrize("forced", [CommBlocks(8), SmPartition(24)], ids=repr)
def test_forced_controls_are_in_every_set(forced: Control) -> None:
    workload, scorer = pair(
        ("A100-SXM4-80GB", KernelResources(threads=512, registers_per_thread=32), 5.0, "all-gather", 0.8, False)
    )
    result = best(
        scorer, candidates(workload, scorer.device, forced=(forced,)), seeds=((CommPriority(),),), budget_ms=20
    )
    assert all(forced in controls for controls in result.scores)
