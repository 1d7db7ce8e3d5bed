"""The error of differences between settings, by architecture: what a plan's gain must exceed to mean anything.

Computed from published tables that chose nothing in the prediction. `scripts/model-error` writes data/model-error.toml,
which planning reads, and data/validation/grid_errors.toml, which `validate` shows: both take minutes to compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from makeway.model.validate.conccl import PUBLISHED as LADDER
from makeway.model.validate.conccl import ladder, without_fit
from makeway.model.validate.grid import GridCell, cells, published_device, time_ratio
from makeway.model.validate.grid_errors import (
    SENSITIVE,
    by_device,
    difference_errors,
    left_out_error,
    warps_without,
)
from makeway.model.validate.rows import published_csv
from makeway.values.device import Device, load_device

PLANNING_FILE = "model-error.toml"
SPREADS = (0.0, 0.02, 0.06, 0.10, 0.20)  # of all blocks, for the sensitivity
LADDER_IDEAL = 1.62  # speed-up over sequential: ConCCL's plain overlap is 1.13 times as fast, and 21 % of ideal


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceError:
    """The mean absolute error of a difference between two settings of one device, in sequential times."""

    arch: str
    value: float
    basis: str


def published_cells() -> dict[str, list[GridCell]]:
    """The maps of Fig. 2 that are known, by device."""
    return by_device(cells(published_csv("grid_time_ratio.csv")))


def grid_difference_error(name: str, known: Mapping[str, Sequence[GridCell]]) -> DifferenceError:
    """Over every two grids of one device of Fig. 2, its own map left out of every choice."""
    device = published_device(name)
    errors = difference_errors(device, known[name], warps_without(name, known))
    basis = f"Fig. 2 of arXiv 2606.09200 on {name}, {len(errors)} pairs of grids, its own map left out"
    return _error(device, errors, basis)


def ladder_difference_error() -> DifferenceError:
    """Over every two steps of ConCCL's ladder on MI300X, without the numbers fitted to it."""
    device = load_device("MI300X")
    steps = ladder(without_fit(device)).steps
    misses = [_time(steps[step]) - _time(published) for step, published in LADDER.items()]
    basis = "ConCCL's ladder (arXiv 2412.14335) on MI300X, 10 pairs of steps, without the numbers fitted to it"
    return _error(device, [abs(first - second) for first, second in combinations(misses, 2)], basis)


def _time(share_of_ideal: float) -> float:
    """t / t_sequential at a share of ideal in percent."""
    return 1.0 / (1.0 + share_of_ideal / 100 * (LADDER_IDEAL - 1.0))


def _error(device: Device, errors: Sequence[float], basis: str) -> DifferenceError:
    return DifferenceError(arch=device.arch, value=round(fmean(errors), 4), basis=basis)


def spread_error(name: str, group: Sequence[GridCell], spread: float) -> float:
    """The error at some grids if all blocks spread so much, whatever their length."""
    device = published_device(name)
    kept = [cell for cell in group if cell.blocks in SENSITIVE]
    return fmean(abs(time_ratio(device, cell.blocks, jitter=spread) - cell.ratio) for cell in kept)


# --- the two files -----------------------------------------------------------------------------


def planning_toml() -> str:
    """What planning reads: the error of differences by architecture."""
    known = published_cells()
    lines = [
        "# How far the model is off when it compares two settings of one device: the mean absolute error of the",
        "# difference of t / t_sequential between any two settings of a published table that chose nothing in the",
        "# prediction. By architecture; a device of another takes the widest. Written by scripts/model-error.",
    ]
    for each in (*(grid_difference_error(name, known) for name in known), ladder_difference_error()):
        lines += ["", f"[errors.{each.arch}]", f"value = {each.value}"]
        lines += [f'basis = "{each.basis}"']
    return "\n".join(lines) + "\n"


def grid_toml() -> str:
    """What validate shows beside Fig. 2: errors with the device left out, and by the spread of all blocks."""
    known = published_cells()
    lines = ["# Errors of Fig. 2 of arXiv 2606.09200. Written by scripts/model-error.", ""]
    lines += ["# Mean absolute error over all cells, the device's own map left out of every choice.", "[left_out]"]
    lines += [f"{name} = {round(left_out_error(name, known), 4)}" for name in known]
    for name, group in known.items():
        grids = ", ".join(map(str, SENSITIVE))
        lines += ["", f"# The error at {grids} blocks if all blocks spread so much.", f"[spread.{name}]"]
        lines += [f'"{spread:g}" = {round(spread_error(name, group, spread), 4)}' for spread in SPREADS]
    return "\n".join(lines) + "\n"
