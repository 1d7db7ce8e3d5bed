"""Laws of the division of cores between compute and communication."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from makeway.act.cpu.cores import Division, divided

cores_counts, ranks_counts, asked = st.integers(1, 64), st.integers(1, 8), st.integers(0, 70)


@given(cores_counts, ranks_counts, asked)
def test_compute_and_communication_never_share_a_core_and_take_no_other(cores: int, ranks: int, comm: int) -> None:
    for rank in range(ranks):
        if (division := divided(range(cores), comm, rank=rank, ranks=ranks)) is not None:
            assert len(division.comm) == comm
            assert division.compute
            assert not {*division.comm} & {*division.compute}
            assert {*division.comm, *division.compute} <= {*range(cores)}
            assert division.threads >= 1


@given(cores_counts, ranks_counts, asked)
def test_ranks_share_all_their_cores_or_none(cores: int, ranks: int, comm: int) -> None:
    divisions = [divided(range(cores), comm, rank=rank, ranks=ranks) for rank in range(ranks)]
    if divisions[0] is None:
        assert divisions == [None] * ranks
        return
    everywhere = [core for each in divisions if each is not None for core in (*each.comm, *each.compute)]
    if divisions[0].sharing == 1:
        assert len({*everywhere}) == len(everywhere)
    else:
        assert len({*everywhere}) * ranks == len(everywhere)


@given(cores_counts, ranks_counts, asked)
def test_it_is_possible_exactly_when_a_core_is_left_for_each_side(cores: int, ranks: int, comm: int) -> None:
    assert (divided(range(cores), comm, rank=0, ranks=ranks) is not None) == (1 <= comm < cores)


def test_two_ranks_on_two_cores_share_one_for_communication_and_one_for_compute() -> None:
    for rank in (0, 1):
        assert divided((0, 1), 1, rank=rank, ranks=2) == Division(comm=(0,), compute=(1,), threads=1, sharing=2)


def test_two_ranks_on_eight_cores_keep_apart() -> None:
    assert divided(range(8), 1, rank=1, ranks=2) == Division(comm=(4,), compute=(5, 6, 7), threads=3, sharing=1)
