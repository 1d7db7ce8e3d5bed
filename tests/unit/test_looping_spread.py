"""Blocks that loop over tiles spread by a number of cycles, not by a part of their length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.model.presets import PresetOptions, load_preset
from makeway.model.simulate.predict import Settings, simulate
from makeway.model.simulate.spread import BLOCK_SPREAD, ORDERED_SPREAD, SPREAD_CYCLES, looping_spread
from makeway.values.device import load_device

A40 = load_device("A40")
lengths = st.floats(1.0, 1e9)


@given(st.floats(0.001, 0.5), lengths, lengths)
def test_longer_blocks_never_spread_more_and_none_spreads_more_than_asked(
    most: float, length: float, other: float
) -> None:
    short, long = sorted((length, other))
    assert looping_spread(most, long) <= looping_spread(most, short) <= most


@given(lengths)
def test_a_spread_is_as_many_cycles_until_it_is_too_small_to_change_the_order_of_ends(length: float) -> None:
    spread = looping_spread(1.0, length)
    assert spread == 0.0 or ORDERED_SPREAD <= spread == min(SPREAD_CYCLES / length, 1.0)


def test_long_blocks_end_in_order_unless_a_spread_is_asked_for() -> None:
    workload = load_preset("cb-ar", A40, PresetOptions(grid=(8, 8)))
    plain, asked = simulate(workload, A40), simulate(workload, A40, (), Settings(jitter=0.02))
    assert (plain.jitter, plain.engine) == (0.0, "class")
    assert (asked.jitter, asked.engine) == (0.02, "block")
    assert asked.t_ns != plain.t_ns


def test_products_of_one_tile_per_block_keep_the_spread_of_all_blocks() -> None:
    assert simulate(load_preset("gemm-ar", A40), A40).jitter == BLOCK_SPREAD


def test_the_grid_that_is_asked_for_and_the_whole_grid_are_one_run() -> None:
    asked = simulate(load_preset("cb-ar", A40, PresetOptions(grid=(128, 128))), A40)
    assert asked.t_ns == pytest.approx(simulate(load_preset("cb-ar", A40), A40).t_ns, rel=1e-12)
