"""Fig. 2 of arXiv 2606.09200: time of plain overlap over sequential, by the GEMM's grid.

Two numbers per device are fitted: how many warps saturate an SM, and how long the all-reduce takes
relative to the GEMM (the paper gives no absolute times). A device without them borrows them (model_fact).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, median

from makeway.model.presets import PresetOptions, load_preset
from makeway.model.simulate.compile import fitted_devices, model_fact, model_number
from makeway.model.simulate.predict import Prediction, Settings, simulate
from makeway.model.validate.rows import Row, Summary, mean_absolute_error
from makeway.values.control import CommPriority, Control
from makeway.values.device import Device, load_device
from makeway.values.workload import CollectiveOp, Gemm, Workload

SOURCE = "arXiv 2606.09200 Fig. 2"
# The names of the paper's Table 1 and the devices they stand for.
PAPER_DEVICES = {"A40": "A40", "A100": "A100-SXM4-40GB", "H100": "H100-SXM5-80GB", "MI250X": "MI250X"}
_FITTED_KEYS = ("saturating_warps", "comm_over_compute")
_TILES = 128  # 8192 / 64: a larger grid has no more blocks


@dataclass(frozen=True, slots=True)
class GridCell:
    """One cell of the heat map."""

    device: str
    x: int
    y: int
    ratio: float

    @property
    def blocks(self) -> int:
        return min(self.x, _TILES) * min(self.y, _TILES)


def cells(table: Sequence[Mapping[str, str]]) -> list[GridCell]:
    """The cells of a table with columns device, grid_y, grid_x, time_ratio."""
    return [GridCell(row["device"], int(row["grid_x"]), int(row["grid_y"]), float(row["time_ratio"])) for row in table]


def published_device(name: str) -> Device:
    """The device that the paper's name stands for; any other name must be exact."""
    return load_device(PAPER_DEVICES.get(name, name))


def grid_rows(table: Sequence[GridCell]) -> list[Row]:
    """Every cell beside the model's."""
    return [
        Row(
            source=SOURCE,
            device=cell.device,
            case=f"grid {cell.x} x {cell.y}",
            published=cell.ratio,
            predicted=time_ratio(published_device(cell.device), cell.blocks),
            status=_status(published_device(cell.device)),
            assumed=_assumed(published_device(cell.device)),
        )
        for cell in table
    ]


def grid_summaries(table: Sequence[GridCell], rows: Sequence[Row]) -> list[Summary]:
    """The error per device, and the error of the best model that sees only the number of blocks."""
    by_device: dict[str, list[GridCell]] = defaultdict(list)
    for cell in table:
        by_device[cell.device].append(cell)
    return [
        Summary(
            source=SOURCE,
            device=name,
            rows=len(group),
            mae=mean_absolute_error([row for row in rows if row.device == name]),
            largest=max(abs(row.error) for row in rows if row.device == name),
            baselines=_baselines(name, group, by_device),
            note="; ".join(_assumed(published_device(name))),
        )
        for name, group in by_device.items()
    ]


def _status(device: Device) -> str:
    return "fitted" if all(key in device.facts for key in _FITTED_KEYS) else "borrowed"


def _assumed(device: Device) -> tuple[str, ...]:
    sentences = []
    for key in _FITTED_KEYS:
        owned = model_fact(device, key)
        owner = f"{owned[1]}'s" if owned and owned[1] != device.name else "its own"
        sentences.append(f"{key} {owned[0].value if owned else 'default'} ({owner})")
    return tuple(sentences)


def _baselines(name: str, group: list[GridCell], tables: Mapping[str, list[GridCell]]) -> dict[str, float]:
    ratios = [cell.ratio for cell in group]
    by_blocks: dict[int, list[float]] = defaultdict(list)
    for cell in group:
        by_blocks[cell.blocks].append(cell.ratio)
    device = published_device(name)
    errors = {
        "floor: best model that sees only X*Y": fmean(abs(c.ratio - median(by_blocks[c.blocks])) for c in group),
        "constant mean": fmean(abs(ratio - fmean(ratios)) for ratio in ratios),
        "numbers of the other devices": fmean(abs(time_ratio_without_own(device, c.blocks) - c.ratio) for c in group),
    }
    sister = next((other for other in ("A100", "A40", "MI250X", "H100") if other != name and other in tables), None)
    if sister is not None:
        copied = {(cell.x, cell.y): cell.ratio for cell in tables[sister]}
        shared = [cell for cell in group if (cell.x, cell.y) in copied]
        errors[f"copy of {sister}'s table"] = fmean(abs(copied[cell.x, cell.y] - cell.ratio) for cell in shared)
    return errors


# --- the experiment itself ---------------------------------------------------------------------


def experiment(device: Device, blocks: int) -> Workload:
    """cb-ar with `blocks` GEMM blocks and the all-reduce at its fitted length relative to the GEMM."""
    side = min(blocks, _TILES)
    workload = load_preset("cb-ar", device, PresetOptions(grid=(side, blocks // side)))
    ratio = model_number(device, "comm_over_compute", 1.0)
    gemm = workload.kernels[0].work
    assert isinstance(gemm, Gemm)
    assert device.fp32_flops_per_s is not None
    time_ns = ratio * gemm.flops / gemm.efficiency / device.fp32_flops_per_s * 1e9
    operations = tuple(
        replace(op, time_ns=time_ns) if isinstance(op, CollectiveOp) else op for op in workload.operations
    )
    return replace(workload, operations=operations, host_launch_ns=0.0)


def run_experiment(
    device: Device, blocks: int, *, priority: bool = False, settings: Settings | None = None
) -> Prediction:
    """One run of the published experiment."""
    controls: tuple[Control, ...] = (CommPriority(),) if priority else ()
    return simulate(experiment(device, blocks), device, controls, settings or Settings(engine="class"))


@cache
def _ratio(device_name: str, blocks: int, own: bool) -> float:
    device = load_device(device_name)
    if not own:
        device = without_own_numbers(device)
    prediction = run_experiment(device, blocks)
    return prediction.t_ns / prediction.t_sequential_ns


def time_ratio(device: Device, blocks: int) -> float:
    """Predicted t_overlap / t_sequential with equal priorities."""
    return _ratio(device.name, blocks, True)


def time_ratio_without_own(device: Device, blocks: int) -> float:
    """The same, with the numbers of the other fitted devices instead of its own."""
    return _ratio(device.name, blocks, False)


def without_own_numbers(device: Device) -> Device:
    """The device with each fitted number replaced by the mean of the other devices': of its vendor if there are any."""
    facts = dict(device.facts)
    for key in _FITTED_KEYS:
        others = [other for other in fitted_devices(key) if other.name != device.name]
        same = [other for other in others if other.vendor == device.vendor] or others
        values = [float(value) for other in same if not isinstance(value := other.facts[key].value, tuple)]
        facts[key] = replace(same[0].facts[key], value=fmean(values))
    return replace(device, facts=facts)
