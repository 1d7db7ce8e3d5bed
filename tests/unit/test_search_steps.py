"""The steps of a search, on times that are written down: what is scored, in which order, and what is chosen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from makeway.decide.planning.control_sets import Candidates, exclusive, ordered
from makeway.decide.planning.score import Controls, Score
from makeway.decide.planning.search import (
    TIE,
    Breadth,
    _spread,
    best_by_kinds,
    breadth,
    chosen,
    intrusiveness,
    search,
    simplifications,
)
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Control,
    CopyEngine,
    LaunchOrder,
    SmemPad,
    SmPartition,
)

URGENT, FIRST = CommPriority(), LaunchOrder()
BLOCKS = tuple((CommBlocks(count),) for count in (2, 4, 8, 16, 24, 32))
PARTITIONS = ((SmPartition(8), CommBlocks(8)), (SmPartition(24),))


def offered(*axes: tuple[Controls, ...], forced: Controls = (), copies: bool = False) -> Candidates:
    return Candidates(axes=axes, forced=forced, rejected=(), all_on_copy_engines=copies, pad_room="")


ALL = offered(((URGENT,),), ((FIRST,),), BLOCKS, PARTITIONS)


def by(times: dict[Control, float]) -> Callable[[Controls], float]:
    """A time of 1,000 less what each control saves."""
    return lambda controls: 1_000.0 - sum(times.get(control, 0.0) for control in controls)


# --- what is scored ----------------------------------------------------------------------------


def test_nothing_and_the_seeds_are_always_scored() -> None:
    seeds = ((URGENT, FIRST), (CommBlocks(12),))
    scores = search(by({}), ALL, seeds, Breadth(values=1, kinds=0, beam=0, finalists=1))
    assert list(scores) == [(), *seeds]


def test_all_combinations_of_kinds_are_scored_with_coarse_values() -> None:
    scores = search(by({}), ALL, (), Breadth(values=1, kinds=2, beam=0, finalists=1))
    middle, wide = CommBlocks(16), (SmPartition(24),)
    assert set(scores) == {
        (), (URGENT,), (FIRST,), (middle,), wide, (URGENT, FIRST), (URGENT, middle), (URGENT, *wide),
        (FIRST, middle), (FIRST, *wide), (middle, *wide),
    }  # fmt: skip
    assert len(search(by({}), ALL, (), Breadth(values=1, kinds=1, beam=0, finalists=1))) == 5


def test_coarse_values_are_the_middles_of_equal_parts() -> None:
    assert [_spread(BLOCKS, count) for count in (1, 2, 3)] == [
        [BLOCKS[3]],
        [BLOCKS[1], BLOCKS[4]],
        [BLOCKS[1], BLOCKS[3], BLOCKS[5]],
    ]
    assert _spread(BLOCKS, 6) == list(BLOCKS)
    assert _spread(BLOCKS, 9) == list(BLOCKS)


def test_descent_finds_the_best_value_of_every_axis() -> None:
    saves: dict[Control, float] = {URGENT: 100.0, FIRST: -50.0, CommBlocks(4): 80.0, CommBlocks(16): 20.0}
    narrow = search(by(saves), ALL, (), Breadth(values=1, kinds=1, beam=0, finalists=1))
    assert (URGENT, CommBlocks(4)) not in narrow
    scores = search(by(saves), ALL, (), Breadth(values=1, kinds=1, beam=1, finalists=1))
    assert min(scores.values(), key=lambda score: score.t_ns) == Score(controls=(URGENT, CommBlocks(4)), t_ns=820.0)


def test_descent_drops_what_does_not_help_and_goes_on_until_nothing_improves() -> None:
    """Chunks pay only with the partition, which pays only without priority."""

    def time_of(controls: Controls) -> float:
        kinds = {type(control) for control in controls}
        if kinds == {SmPartition, Chunks}:
            return 500.0
        if kinds == {SmPartition}:
            return 800.0
        return 900.0 if kinds == {CommPriority, SmPartition} else 1_000.0 + len(kinds)

    axes = offered(((Chunks(2),),), ((URGENT,),), ((SmPartition(24),),))
    scores = search(time_of, axes, ((URGENT, SmPartition(24)),), Breadth(values=1, kinds=0, beam=1, finalists=1))
    assert min(scores.values(), key=lambda score: score.t_ns).controls == (SmPartition(24), Chunks(2))


def test_what_cannot_run_is_asked_once_and_has_no_score() -> None:
    asked: list[Controls] = []

    def time_of(controls: Controls) -> float | None:
        asked.append(controls)
        return None if URGENT in controls else 1_000.0

    scores = search(time_of, ALL, ((URGENT,),), Breadth(values=2, kinds=2, beam=3, finalists=1))
    assert not any(URGENT in controls for controls in scores)
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize(
    ("operations", "crowded", "kinds", "beam"),
    [(2, False, 3, 4), (64, False, 3, 4), (65, False, 1, 1), (2, True, 2, 2), (400, False, 1, 1), (65, True, 1, 1)],
)
def test_slow_workloads_are_searched_less_widely(operations: int, crowded: bool, kinds: int, beam: int) -> None:
    width = breadth(operations, crowded=crowded)
    assert (width.kinds, width.beam) == (kinds, beam)
    wide = breadth(operations, crowded=crowded, effort=10)
    assert wide == Breadth(values=width.values + 2, kinds=kinds + 1, beam=3 * beam, finalists=2 * width.finalists)


# --- what is chosen ----------------------------------------------------------------------------


def scored(t_ns: float, *controls: Control) -> Score:
    return Score(controls=controls, t_ns=t_ns)


@pytest.mark.parametrize(("behind", "ties"), [(0.9 * TIE, True), (1.1 * TIE, False)])
def test_times_within_a_third_of_a_percent_tie(behind: float, ties: bool) -> None:
    assert TIE == 0.003
    best, simple = scored(1_000.0, URGENT, CommBlocks(8)), scored(1_000.0 * (1 + behind), URGENT)
    assert chosen([best, simple]) is (simple if ties else best)
    assert best_by_kinds([best, simple]) == ([simple] if ties else [best, simple])


def test_ties_go_to_fewer_then_to_milder_controls_then_to_the_faster() -> None:
    pair, copies, urgent = scored(1_000.0, URGENT, FIRST), scored(1_000.0, CopyEngine()), scored(1_001.0, URGENT)
    assert chosen([pair, copies, urgent]) is urgent
    assert chosen([pair, copies]) is copies
    assert chosen([scored(1_001.0, CommBlocks(8)), scored(1_000.0, CommBlocks(4))]).controls == (CommBlocks(4),)
    mild: list[Control] = [
        URGENT,
        CommBlocks(8),
        SmemPad(1024),
        SmPartition(8),
        CopyEngine(),
        CopyEngine("one-engine"),
        Chunks(2),
    ]
    assert sorted(mild, key=intrusiveness) == mild
    assert intrusiveness(CopyEngine("one-engine")) < intrusiveness(Chunks(2))


def test_the_fastest_set_of_each_combination_is_a_finalist_the_fastest_first() -> None:
    scores = [scored(900.0, URGENT), scored(800.0, CommBlocks(8)), scored(850.0, CommBlocks(4)), scored(1_000.0)]
    assert best_by_kinds(scores) == [scores[1], scores[0], scores[3]]
    pads = [scored(700.0, SmemPad(1, "a")), scored(690.0, SmemPad(1, "b"))]
    assert best_by_kinds(pads) == [pads[1], pads[0]]  # kernels apart


# --- sets --------------------------------------------------------------------------------------


def test_a_partition_takes_the_place_of_channels_and_channels_that_of_a_partitions() -> None:
    assert ALL.replaced((URGENT, CommBlocks(16)), PARTITIONS[0]) == (URGENT, *PARTITIONS[0])
    assert ALL.replaced(PARTITIONS[0], (CommBlocks(4),)) == (SmPartition(8), CommBlocks(4))
    assert ALL.without((URGENT, CommBlocks(4), SmPartition(24)), BLOCKS) == (URGENT, SmPartition(24))
    assert ALL.points == 2 * 2 * 7 * 3


def test_required_controls_are_in_every_point_and_idle_ones_in_none() -> None:
    forced = offered(BLOCKS, forced=(CommBlocks(8),))
    assert forced.point((CommBlocks(4), URGENT)) == (URGENT, CommBlocks(8))
    copies = offered(BLOCKS, copies=True)
    assert copies.point((URGENT, CommBlocks(4), CommThreads(128), FIRST, CopyEngine())) == (FIRST, CopyEngine())
    assert copies.point((URGENT, CommBlocks(4))) == (URGENT, CommBlocks(4))
    some = offered(BLOCKS)  # a collective stays on SMs
    assert some.point((URGENT, CopyEngine())) == (URGENT, CopyEngine())
    kept = offered(BLOCKS, forced=(URGENT,), copies=True)
    assert kept.point((CopyEngine(),)) == (URGENT, CopyEngine())


def test_two_of_a_kind_exclude_each_other_unless_for_different_kernels() -> None:
    assert exclusive(CommBlocks(4), CommBlocks(8))
    assert not exclusive(CommBlocks(4), URGENT)
    assert not exclusive(SmemPad(1, "a"), SmemPad(2, "b"))
    assert exclusive(SmemPad(1, "a"), SmemPad(2, "a"))
    assert exclusive(SmemPad(1, "*"), SmemPad(2, "a"))
    assert exclusive(SmemPad(1, "a"), SmemPad(2, "*"))
    assert ordered((Chunks(2), CommBlocks(4), FIRST, URGENT)) == (URGENT, FIRST, CommBlocks(4), Chunks(2))


def test_each_control_can_be_left_out_a_partition_with_its_channels_and_copies_made_plainer() -> None:
    channels, partition = CommBlocks(8), SmPartition(8)
    assert list(simplifications((URGENT, channels, partition), (URGENT,))) == [
        ((channels,), (URGENT, partition)),
        ((partition,), (URGENT, channels)),
        ((channels, partition), (URGENT,)),
    ]
    special = CopyEngine("one-engine")
    assert list(simplifications((special,), ())) == [((special,), ()), ((special,), (CopyEngine(),))]
    assert list(simplifications((CopyEngine(),), ())) == [((CopyEngine(),), ())]
    assert list(simplifications((channels, partition), (partition,))) == [((channels,), (partition,))]
