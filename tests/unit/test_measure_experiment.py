"""Grids and tiles as words, experiments over them, and the GEMM of X x Y blocks on a CPU."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.measure.experiment import (
    CPU_SIDES,
    PAPER_SIDES,
    Experiments,
    bench_experiment,
    experiments,
    parse_grids,
    parse_tiles,
)
from makeway.act.measure.job import Grid, Tile
from makeway.act.measure.outcome import Bench, VariantResult
from makeway.act.measure.variants import OVERLAP, SEQUENTIAL
from makeway.show.experiment import experiments_data
from makeway.values.errors import InputError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch without numpy warns when it is loaded
    torch: Any = pytest.importorskip("torch")
    from makeway.act.measure.ranks.pairs import Blocks, Pairs, PairShape

sides = st.integers(1, 4096)


# --- words --------------------------------------------------------------------------------------


@given(st.lists(st.tuples(sides, sides), min_size=1, max_size=6, unique=True))
def test_grids_read_as_they_are_written(grids: list[Grid]) -> None:
    assert parse_grids(",".join(f"{x}x{y}" for x, y in grids)) == tuple(grids)


def test_the_papers_grids_are_all_pairs_of_its_sides() -> None:
    assert len(parse_grids("paper")) == len(PAPER_SIDES) ** 2
    assert parse_grids("squares", CPU_SIDES) == ((2, 2), (4, 4), (8, 8))
    assert set(parse_grids("squares")) < set(parse_grids("paper"))


@pytest.mark.parametrize("text", ["", "0x4", "4x0", "4", "4x4x4", "4x-4", "4x4;8x8", "4x4,", "2x2,2x2", "all"])
def test_what_is_no_grid_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--grid"):
        parse_grids(text)


def test_tiles_have_three_sides() -> None:
    assert parse_tiles("64x64x32,64x64x64") == ((64, 64, 32), (64, 64, 64))
    with pytest.raises(InputError, match="--tile: cannot use '64x64'"):
        parse_tiles("64x64")


# --- experiments -------------------------------------------------------------------------------------


def measured(time_ns: float, *, wrong: str | None = None) -> Bench:
    return Bench(
        on="cpu",
        ranks=2,
        workload="cb-ar",
        origin="measured",
        variants=(
            VariantResult(name=SEQUENTIAL, times_ns=(2 * time_ns,)),
            VariantResult(name=OVERLAP, times_ns=(time_ns,), wrong=wrong),
        ),
        compute_ns=(time_ns,),
        comm_ns=(time_ns,),
    )


def swept(grids: tuple[Grid, ...], tiles: tuple[Tile, ...]) -> Experiments:
    return experiments(grids, tiles, lambda grid, tile: measured(float(grid[0] * tile[2])))


def test_experiments_run_every_grid_for_every_tile_and_say_where_they_are() -> None:
    ran: list[tuple[Grid, Tile]] = []
    said: list[str] = []

    def run(grid: Grid, tile: Tile) -> Bench:
        ran.append((grid, tile))
        return measured(1.0)

    experiments([(2, 2), (4, 4)], [(64, 64, 32), (64, 64, 64)], run, said.append)
    assert ran == [(grid, tile) for tile in ((64, 64, 32), (64, 64, 64)) for grid in ((2, 2), (4, 4))]
    assert said[1] == "tile 64x64x32, grid 4x4 (2 of 2)"


def test_tiles_are_compared_with_the_first() -> None:
    found = swept(((2, 2), (4, 4)), ((64, 64, 32), (64, 64, 64)))
    assert found.tile_ratios == {(64, 64, 64): {(2, 2): 2.0, (4, 4): 2.0}}
    data = experiments_data(found)
    assert [one["tile"] for one in data["experiments"]] == [[64, 64, 32], [64, 64, 64]]
    assert data["tile_ratios"][0]["cells"][1] == {"grid_x": 4, "grid_y": 4, "ratio": 2.0}


def test_experiments_need_tiles_that_differ() -> None:
    with pytest.raises(InputError, match="none twice"):
        swept(((2, 2),), ((64, 64, 32), (64, 64, 32)))


def test_one_wrong_result_makes_the_experiment_unverified_and_is_named() -> None:
    made = bench_experiment({(2, 2): measured(1.0), (4, 4): measured(1.0, wrong="rank 1: gemm 0")}, (64, 64, 32))
    assert made.verified is False
    assert "grid 4x4, overlap: rank 1: gemm 0" in made.notes
    assert bench_experiment({(2, 2): measured(1.0)}, (64, 64, 32)).verified is True


# --- the GEMM of X x Y blocks on a CPU -----------------------------------------------------------

blocks = st.builds(
    lambda x, y, m, n: Blocks(grid=(x, y), tile=(m, n, 32)),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from((8, 16, 64)),
    st.sampled_from((8, 16, 64)),
)


@given(blocks, st.integers(1, 200), st.integers(1, 200))
def test_the_parts_of_a_result_cover_it_once_and_none_is_empty(made: Blocks, m: int, n: int) -> None:
    seen = torch.zeros(m, n)
    for rows, columns in made.parts(m, n):
        assert seen[rows, columns].numel()
        seen[rows, columns] += 1
    assert bool((seen == 1).all())
    across, down = made.counts(m, n)
    assert len(made.parts(m, n)) == across * down <= made.grid[0] * made.grid[1]
    assert across <= -(-n // made.tile[1])
    assert down <= -(-m // made.tile[0])


@pytest.mark.long
@given(blocks, st.sampled_from((1, 2, 4)))
def test_a_gemm_in_blocks_gives_the_same_bits_whole_or_in_pieces(made: Blocks, pieces: int) -> None:
    shape = PairShape(m=48, n=40, k=24, kind="all-reduce", size_bytes=48 * 40 * 4, carries_result=True)
    world: Any = SimpleNamespace(rank=0, ranks=1)
    pairs, plain = Pairs(world, shape, 2, steady=True, blocks=made), Pairs(world, shape, 2, steady=True)
    for stage, other in zip(pairs.stages, plain.stages, strict=True):
        for piece in range(pieces):
            stage.compute(slice(piece * 48 // pieces, (piece + 1) * 48 // pieces))
        other.compute(slice(0, 48))
    for mine, theirs in zip(pairs._products, plain._products, strict=True):
        assert torch.equal(mine, theirs)
    across, down = made.counts(48, 40)
    assert f"in {across}x{down} calls" in pairs.description
