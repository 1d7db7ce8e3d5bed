"""Laws of the division of cores between compute and communication."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.cpu.cores import Division, Placement, Seat, divided, neighbouring, seat_of, share_of

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


@given(cores_counts, ranks_counts)
def test_every_rank_has_as_many_cores_of_its_own_or_none_has_any(cores: int, ranks: int) -> None:
    shares = [share_of(range(cores), rank=rank, ranks=ranks) for rank in range(ranks)]
    if cores < ranks:
        assert shares == [None] * ranks
        return
    taken = [core for share in shares for core in share or ()]
    assert len({*taken}) == len(taken) == cores // ranks * ranks
    assert len({len(share or ()) for share in shares}) == 1
    assert {*taken} <= {*range(cores)}


def test_two_ranks_on_eight_cores_keep_apart() -> None:
    assert divided(range(8), 1, rank=1, ranks=2) == Division(comm=(4,), compute=(5, 6, 7), threads=3, sharing=1)


# --- which ranks share cores --------------------------------------------------------------------


def placed(*ranks: tuple[str, tuple[int, ...]]) -> list[Placement]:
    return [Placement(host=host, cores=cores) for host, cores in ranks]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(((0, 1), (2, 3), (4,)))), min_size=1, max_size=9))
def test_ranks_with_the_same_cores_of_a_host_sit_together_and_no_others(
    ranks: list[tuple[str, tuple[int, ...]]],
) -> None:
    seats = [seat_of(rank, placed(*ranks)) for rank in range(len(ranks))]
    for place in {*ranks}:
        together = [seat for seat, other in zip(seats, ranks, strict=True) if other == place]
        assert together == [Seat(rank=rank, ranks=len(together)) for rank in range(len(together))]


def test_a_launcher_that_binds_each_rank_leaves_nothing_to_divide() -> None:
    bound = placed(("host", (0, 1)), ("host", (2, 3)))
    assert [seat_of(rank, bound) for rank in (0, 1)] == [Seat(rank=0, ranks=1)] * 2


def test_cores_that_ranks_share_in_part_only_are_not_divided() -> None:
    for rank in (0, 1):
        assert "different cores" in (seat_of(rank, placed(("host", (0, 1)), ("host", (1, 2)))).unclear or "")


@pytest.fixture
def two_sockets(tmp_path: Path) -> Path:
    """Two packages of two cores with two threads each, numbered as Linux does: first the first thread of every core."""
    for cpu in range(8):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology.parent / f"node{cpu // 2 % 2}").mkdir()
        (topology / "physical_package_id").write_text(f"{cpu // 2 % 2}\n")
        (topology / "core_id").write_text(f"{cpu % 2}\n")
    return tmp_path


def test_a_share_is_one_socket_with_both_threads_of_its_cores(two_sockets: Path) -> None:
    cores = neighbouring(range(8), two_sockets)
    assert cores == (0, 4, 1, 5, 2, 6, 3, 7)
    assert [share_of(cores, rank=rank, ranks=2) for rank in (0, 1)] == [(0, 4, 1, 5), (2, 6, 3, 7)]
    assert divided(cores, 1, rank=1, ranks=2) == Division(comm=(2,), compute=(6, 3, 7), threads=3, sharing=1)


def test_without_a_topology_cores_stand_by_number(tmp_path: Path) -> None:
    assert neighbouring((3, 1, 2), tmp_path) == (1, 2, 3)
