"""How far the model is from Fig. 2 of arXiv 2606.09200, and how far simpler predictors are."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import combinations
from math import log2
from statistics import fmean, median
from typing import Any

from makeway.model.validate.grid import CHOICES, SEEN, SOURCE, GridCell, published_device, time_ratio
from makeway.model.validate.rows import Row, Summary, mean_absolute_error
from makeway.values.device import Device
from makeway.values.facts import data_files, parse_toml

# Resident warps that saturate an SM, as tried: what leaving a device out chooses from.
WARPS = (8.0, 10.0, 12.0, 14.0, 16.0)
# The all-reduce, relative to the GEMM, that each map would choose for itself: a diagnosis, not a prediction.
IMPLIED_COMM = {"A40": 0.4, "A100": 1.4, "MI250X": 0.03}
GRID_FILE = "grid_errors.toml"
SENSITIVE = (64, 256, 512)  # blocks at which the spread matters most, and that take seconds only
_SISTERS = {"A40": "A100", "A100": "A40", "MI250X": "A100", "H100": "A100"}
_By = Mapping[int, float]  # by blocks


def by_device(table: Sequence[GridCell]) -> dict[str, list[GridCell]]:
    """The cells of each device, in the order of the table."""
    groups: dict[str, list[GridCell]] = defaultdict(list)
    for cell in table:
        groups[cell.device].append(cell)
    return dict(groups)


def grid_summaries(table: Sequence[GridCell], rows: Sequence[Row], published: Sequence[GridCell]) -> list[Summary]:
    """The error per device beside simpler predictors, which take their sister's map from the published ones."""
    groups, known = by_device(table), by_device(published)
    summaries = []
    for name, group in groups.items():
        own = [row for row in rows if row.device == name]
        if own:
            summaries.append(
                Summary(
                    source=SOURCE,
                    device=name,
                    rows=len(group),
                    mae=mean_absolute_error(own),
                    largest=max(abs(row.error) for row in own),
                    baselines=_baselines(name, group, known),
                    note=_note(name, group),
                )
            )
    return summaries


def _note(name: str, group: Sequence[GridCell]) -> str:
    distinct = len({cell.blocks for cell in group})
    basis = f"{len(CHOICES)} choices shared by all devices were made" if name in SEEN else "nothing was chosen"
    return f"{distinct} distinct predictions for {len(group)} cells; {basis} with this map in sight"


def _baselines(name: str, group: Sequence[GridCell], known: Mapping[str, Sequence[GridCell]]) -> dict[str, float]:
    device, mean = published_device(name), fmean(cell.ratio for cell in group)
    floor = by_blocks(group, median)
    errors = {
        "floor: best model that sees only X*Y": error(group, floor.__getitem__),
        "constant mean of this map": error(group, lambda blocks: mean),
    }
    sister = _SISTERS.get(name, "A100")
    written = written_errors() if group == known.get(name) else {}
    if written:
        errors["the model, this map left out of every choice"] = written["left_out"][name]
    if sister in known and sister != name:
        curve = by_blocks(known[sister], fmean)
        ratio = published_device(sister).sms / device.sms
        errors[f"copy of {sister}'s map"] = error(group, lambda blocks: at(curve, blocks))
        errors[f"{sister}'s map, knee moved by the SM counts"] = error(group, lambda blocks: at(curve, blocks * ratio))
    if name in IMPLIED_COMM:
        length = IMPLIED_COMM[name]
        errors[f"calibration: an all-reduce of {length:g} GEMMs, as this map implies"] = error(
            group, lambda blocks: time_ratio(device, blocks, comm_over_compute=length)
        )
    if written:
        grids = ", ".join(map(str, SENSITIVE))
        for spread, value in written["spread"][name].items():
            errors[f"all blocks spread by {100 * float(spread):g} %, at {grids} blocks"] = value
    return errors


@cache
def written_errors() -> Mapping[str, Any]:
    """Errors that take minutes, as scripts/model-error last wrote them."""
    return parse_toml(data_files("validation").joinpath(GRID_FILE).read_text(), where=GRID_FILE)


def error(group: Sequence[GridCell], predicted: Callable[[int], float]) -> float:
    """Mean absolute error of a predictor that sees the number of blocks."""
    return fmean(abs(predicted(cell.blocks) - cell.ratio) for cell in group)


def by_blocks(group: Sequence[GridCell], middle: Callable[[Sequence[float]], float]) -> dict[int, float]:
    """The published ratio of each number of blocks."""
    values: dict[int, list[float]] = defaultdict(list)
    for cell in group:
        values[cell.blocks].append(cell.ratio)
    return {blocks: middle(ratios) for blocks, ratios in sorted(values.items())}


def at(curve: _By, blocks: float) -> float:
    """A curve between its points, linear in the logarithm of the blocks; level beyond its ends."""
    known = sorted(curve)
    place = bisect_left(known, blocks)
    if place == 0 or place == len(known):
        return curve[known[min(place, len(known) - 1)]]
    low, high = known[place - 1], known[place]
    part = log2(blocks / low) / log2(high / low)
    return curve[low] + part * (curve[high] - curve[low])


# --- leave one device out ----------------------------------------------------------------------


def warps_without(name: str, known: Mapping[str, Sequence[GridCell]]) -> float:
    """The saturating warps that the maps of the other devices choose."""
    others = {other: cells for other, cells in known.items() if other != name}
    return min(WARPS, key=lambda warps: fmean(_error_with(other, cells, warps) for other, cells in others.items()))


def left_out_error(name: str, known: Mapping[str, Sequence[GridCell]]) -> float:
    """The error of the model on a device whose map chose nothing."""
    return _error_with(name, known[name], warps_without(name, known))


def _error_with(name: str, group: Sequence[GridCell], warps: float) -> float:
    device = published_device(name)
    return error(group, lambda blocks: time_ratio(device, blocks, saturating_warps=warps))


def difference_errors(device: Device, group: Sequence[GridCell], warps: float) -> list[float]:
    """Errors of the difference between two grids, of every two, in sequential times."""
    misses = {
        blocks: time_ratio(device, blocks, saturating_warps=warps) - ratio
        for blocks, ratio in by_blocks(group, fmean).items()
    }
    return [abs(misses[first] - misses[second]) for first, second in combinations(misses, 2)]
