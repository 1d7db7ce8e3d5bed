"""The errors that planning and validate read are those that the published tables give now."""

from __future__ import annotations

import pytest

from makeway.model.validate.grid_errors import SENSITIVE, at, left_out_error, warps_without, written_errors
from makeway.model.validate.model_error import (
    PLANNING_FILE,
    grid_difference_error,
    grid_toml,
    planning_toml,
    published_cells,
    spread_error,
)
from makeway.values.facts import data_files, parse_toml


def written(name: str, directory: str = "") -> str:
    return data_files(directory).joinpath(name).read_text()


def test_the_error_of_differences_on_a40_is_the_one_written() -> None:
    error = grid_difference_error("A40", published_cells())
    row = parse_toml(written(PLANNING_FILE), where=PLANNING_FILE)["errors"][error.arch]
    assert row == {"value": error.value, "basis": error.basis}


def test_the_error_with_a40_left_out_and_with_equal_block_times_are_those_written() -> None:
    known = published_cells()
    assert round(left_out_error("A40", known), 4) == written_errors()["left_out"]["A40"]
    assert round(spread_error("A40", known["A40"], 0.0), 4) == written_errors()["spread"]["A40"]["0"]


@pytest.mark.long
def test_all_errors_are_those_that_scripts_model_error_writes() -> None:
    assert planning_toml() == written(PLANNING_FILE)
    assert grid_toml() == written("grid_errors.toml", "validation")


def test_a_left_out_map_cannot_change_what_is_chosen_for_its_device() -> None:
    """The choice for a device is the same whatever its own cells say."""
    known = published_cells()
    upside_down = {**known, "A40": [type(cell)(cell.device, cell.x, cell.y, 1 - cell.ratio) for cell in known["A40"]]}
    assert warps_without("A40", known) == warps_without("A40", upside_down)


def test_a_curve_is_met_at_its_points_between_them_and_beyond() -> None:
    curve = {4: 0.3, 16: 0.5, 64: 0.9}
    assert [at(curve, blocks) for blocks in (1, 4, 8, 16, 32, 64, 1000)] == pytest.approx(
        [0.3, 0.3, 0.4, 0.5, 0.7, 0.9, 0.9]
    )
    assert set(SENSITIVE) <= {cell.blocks for cell in published_cells()["A40"]}
