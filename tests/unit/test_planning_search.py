"""The search: never worse than its seeds, near the best of all points, and ten times wider it finds the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from makeway.decide.planning.candidates import candidates
from makeway.decide.planning.control_sets import Candidates
from makeway.decide.planning.memo import SearchMemo
from makeway.decide.planning.score import Controls, QuickScorer, Score, dispatch_policies
from makeway.decide.planning.search import best_by_kinds, breadth, chosen, fastest, search, simplifications
from makeway.model.residency import resident_blocks
from makeway.values.collective import Collective
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    Control,
    CopyEngine,
    LaunchOrder,
    SmemPad,
    SmPartition,
)
from makeway.values.device import load_device
from makeway.values.kernel import KernelResources
from makeway.values.workload import CollectiveOp, KernelOp, Measured, Workload

DEVICES = ("A40", "A100-SXM4-80GB", "H100-SXM5-80GB", "MI250X", "MI300X")
few = settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])
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


def pair(case: tuple[str, KernelResources, float, str, float, bool]) -> tuple[Workload, QuickScorer]:
    name, resources, waves, kind, ratio, persistent = case
    device = load_device(name)
    library = "rccl-5.4.3/generic" if device.vendor == "amd" else "nccl-2.32.3/ring-simple"
    count = max(1, round(waves * resident_blocks(device, resources) * device.sms))
    kernel = KernelOp(name="k", resources=resources, work=Measured(time_ns=1e6, blocks=count), persistent=persistent)
    exchange = Collective(kind=kind, size_bytes=2**27, ranks=8)  # type: ignore[arg-type]
    comm = CollectiveOp(name="c", collective=exchange, library=library, time_ns=ratio * 1e6)
    workload = Workload(name="pair", operations=(kernel, comm), ranks=8)
    return workload, QuickScorer(workload, device, dispatch_policies(device)[0])


ONE = ("A100-SXM4-80GB", KernelResources(threads=512, registers_per_thread=32), 5.0, "all-gather", 0.8, False)


def trimmed(offered: Candidates, points: int) -> Candidates:
    axes = [list(axis) for axis in offered.axes]
    while (fewer := replace(offered, axes=tuple(tuple(axis) for axis in axes if axis))).points > points:
        longest = max(axes, key=len)
        del longest[len(longest) // 2]
    return fewer


def all_points(offered: Candidates) -> set[Controls]:
    points = set()
    for options in product(*((None, *axis) for axis in offered.axes)):
        controls: Controls = ()
        for option in options:
            controls = offered.replaced(controls, option) if option else controls
        points.add(offered.point(controls))
    return points


def best_of(scores: dict[Controls, Score]) -> Score:
    return min(scores.values(), key=fastest)


@pytest.mark.long
@few
@given(cases)
def test_a_search_is_never_worse_than_its_seeds_or_than_nothing(case) -> None:  # type: ignore[no-untyped-def]
    workload, scorer = pair(case)
    offered = candidates(workload, scorer.device)
    seeds = ((CommPriority(),), (LaunchOrder(), SmPartition(16)), (CommBlocks(8),))
    scores = search(scorer.time_ns, offered, seeds, breadth(2, crowded=False))
    for seed in ((), *seeds):
        t_ns = scorer.time_ns(offered.point(seed))
        assert t_ns is None or best_of(scores).t_ns <= t_ns


SHAPES = [(128, 222, 48), (256, 98, 48), (512, 32, 0), (256, 64, 16), (256, 40, 1)]


def sample() -> list[tuple[str, KernelResources, float, str, float, bool]]:
    """Fixed workloads on every device."""
    cells = list(enumerate(product(DEVICES, SHAPES)))[::2]
    return [
        (
            name,
            KernelResources(threads=shape[0], registers_per_thread=shape[1], smem_bytes=shape[2] * 1024),
            (1.0, 2.5, 5.0)[index % 3],
            ("all-gather", "all-reduce")[index % 2],
            (0.3, 0.8, 1.5)[index % 3],
            index % 7 == 0,
        )
        for index, (name, shape) in cells
    ]


def test_the_search_finds_the_best_of_all_within_a_percent() -> None:
    gaps = []
    for case in sample()[::2]:
        workload, scorer = pair(case)
        offered = trimmed(candidates(workload, scorer.device), SMALL_SPACE)
        found = best_of(search(scorer.time_ns, offered, (), breadth(2, crowded=False))).t_ns
        times = [t_ns for point in all_points(offered) if (t_ns := scorer.time_ns(point)) is not None]
        gaps.append(found / min(times) - 1)
    assert sum(gap <= 0.01 for gap in gaps) >= 0.95 * len(gaps)


@pytest.mark.parametrize("cells", [slice(0, 1), pytest.param(slice(None), marks=pytest.mark.long)], ids=repr)
def test_a_wider_search_finds_the_same(cells: slice) -> None:
    changes = []
    for case in sample()[cells]:
        workload, scorer = pair(case)
        offered = candidates(workload, scorer.device)
        normal, wide = (
            best_of(search(scorer.time_ns, offered, (), breadth(2, crowded=False, effort=effort))).t_ns
            for effort in (1, 10)
        )
        changes.append(normal / wide - 1)
    assert min(changes) >= 0
    assert sum(change < 0.005 for change in changes) >= 0.95 * len(changes)


@few
@given(cases)
def test_the_same_search_twice_scores_the_same_sets_in_the_same_order(case) -> None:  # type: ignore[no-untyped-def]
    runs = []
    for _ in range(2):
        workload, scorer = pair(case)
        runs.append(search(scorer.time_ns, candidates(workload, scorer.device), (), breadth(2, crowded=True)))
    assert list(runs[0].items()) == list(runs[1].items())


def test_a_search_made_before_simulates_nothing() -> None:
    workload, scorer = pair(ONE)
    offered = candidates(workload, scorer.device)
    question = ("a test of the memo", workload, offered)
    memo = SearchMemo(question)
    first = search(memo.replayed(scorer.time_ns), offered, (), breadth(2, crowded=True))
    memo.keep()

    def never(controls: Controls) -> float:
        raise AssertionError(controls)

    assert search(SearchMemo(question).replayed(never), offered, (), breadth(2, crowded=True)) == first


def scored(t_ns: float, *controls: Control) -> Score:
    return Score(controls=controls, t_ns=t_ns)


def test_ties_go_to_fewer_controls_then_to_less_intrusive_ones() -> None:
    two, copy, hint = (
        scored(100.0, CommPriority(), CommBlocks(8)),
        scored(100.1, CopyEngine()),
        scored(100.2, CommPriority()),
    )
    assert chosen([two, copy, hint]) is hint
    assert chosen([two, copy]) is copy
    assert chosen([two, scored(100.1, Chunks(2)), copy]) is copy
    assert chosen([scored(100.0, CopyEngine("one-engine")), copy]) is copy  # which no carrier sets
    assert chosen([two, scored(101.0)]) is two  # no tie: one percent


def test_the_best_of_each_combination_of_kinds_is_kept() -> None:
    slow, fast = scored(3.0, CommBlocks(8)), scored(2.0, CommBlocks(4))
    other = scored(2.5, SmemPad(1024, "a"), SmemPad(2048, "b"))
    more = scored(1.999, CommBlocks(4), CommPriority())  # no better than with blocks alone
    assert best_by_kinds([slow, fast, other, more]) == [fast, other]


def test_a_partition_is_left_out_alone_and_with_its_channels() -> None:
    pair_of = (CommBlocks(8), SmPartition(8))
    rests = [rest for _, rest in simplifications((CommPriority(), *pair_of), ())]
    assert (CommPriority(),) in rests
    assert (CommPriority(), CommBlocks(8)) in rests
    assert [rest for _, rest in simplifications(pair_of, pair_of)] == []
    assert (CopyEngine(),) in [rest for _, rest in simplifications((CopyEngine("one-engine", True),), ())]


@pytest.mark.parametrize("forced", [CommBlocks(8), SmPartition(24)], ids=repr)
def test_forced_controls_are_in_every_set(forced: Control) -> None:
    workload, scorer = pair(ONE)
    offered = candidates(workload, scorer.device, forced=(forced,))
    scores = search(scorer.time_ns, offered, ((CommPriority(),),), breadth(2, crowded=False))
    assert all(forced in controls for controls in scores)
