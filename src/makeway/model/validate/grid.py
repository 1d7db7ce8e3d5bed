"""Fig. 2 of arXiv 2606.09200: time of plain overlap over sequential, by the GEMM's grid.

The experiment is the preset cb-ar as every command runs it: the all-reduce takes what the device's links give it, and
no number belongs to one device. Cells of devices that the model cannot run are listed with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from makeway.model.presets import PresetOptions, load_preset
from makeway.model.simulate.predict import Prediction, Settings, simulate
from makeway.model.validate.rows import Row, Uncovered
from makeway.values.control import CommPriority, Control
from makeway.values.device import Device, load_device
from makeway.values.errors import MakewayError
from makeway.values.facts import Fact
from makeway.values.workload import CollectiveOp, Gemm, Workload

SOURCE = "arXiv 2606.09200 Fig. 2"
# The names of the paper's Table 1 and the devices they stand for.
PAPER_DEVICES = {"A40": "A40", "A100": "A100-SXM4-40GB", "H100": "H100-SXM5-80GB", "MI250X": "MI250X"}
# The devices whose maps the choices of the model were made on.
SEEN = ("A40", "A100", "MI250X")
# What was chosen with the maps in sight; docs/model.md, section 9, says what else was tried.
CHOICES = (
    "10 iterations", "4 GEMMs in flight on NVIDIA", "2 on AMD", "12 warps saturate an SM", "soft saturation on AMD",
    "64 operations per clock and SM", "FP32", "256 threads", "32 registers on NVIDIA", "64 on AMD",
    "16 KiB of shared memory", "16 collective blocks on NVIDIA", "32 on AMD", "strict dispatch on NVIDIA",
    "cut-ahead on AMD", "blocks of one wave end in order", "streams go before events", "no latency between operations",
    "X x Y is the grid",
)  # fmt: skip
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

    @property
    def case(self) -> str:
        return f"grid {self.x} x {self.y}"


def cells(table: Sequence[Mapping[str, str]]) -> list[GridCell]:
    """The cells of a table with columns device, grid_y, grid_x, time_ratio."""
    return [GridCell(row["device"], int(row["grid_x"]), int(row["grid_y"]), float(row["time_ratio"])) for row in table]


def published_device(name: str) -> Device:
    """The device that the paper's name stands for; any other name must be exact."""
    return load_device(PAPER_DEVICES.get(name, name))


def grid_rows(table: Sequence[GridCell]) -> tuple[list[Row], list[Uncovered]]:
    """Every cell beside the model's, and those that the model cannot predict."""
    rows: list[Row] = []
    uncovered: list[Uncovered] = []
    for cell in table:
        try:
            predicted = time_ratio(published_device(cell.device), cell.blocks)
        except MakewayError as error:
            reason = " ".join(str(error).split())
            uncovered.append(Uncovered(SOURCE, cell.device, cell.case, cell.ratio, reason))
            continue
        rows.append(
            Row(
                source=SOURCE,
                device=cell.device,
                case=cell.case,
                published=cell.ratio,
                predicted=predicted,
                status="fitted" if cell.device in SEEN else "predicted",
                assumed=(
                    "choices shared by all devices were made with this map in sight"
                    if cell.device in SEEN
                    else "from the device's facts alone",
                ),
            )
        )
    return rows, uncovered


# --- the experiment itself ---------------------------------------------------------------------


def experiment(device: Device, blocks: int, *, comm_over_compute: float | None = None) -> Workload:
    """cb-ar with `blocks` GEMM blocks; `comm_over_compute` sets the all-reduce's time relative to a full GEMM's."""
    side = min(blocks, _TILES)
    workload = load_preset("cb-ar", device, PresetOptions(grid=(side, blocks // side)))
    if comm_over_compute is None:
        return workload
    gemm = workload.kernels[0].work
    assert isinstance(gemm, Gemm)
    assert device.fp32_flops_per_s is not None
    time_ns = comm_over_compute * gemm.flops / gemm.efficiency / device.fp32_flops_per_s * 1e9
    return replace(
        workload,
        operations=tuple(
            replace(op, time_ns=time_ns) if isinstance(op, CollectiveOp) else op for op in workload.operations
        ),
    )


def run_experiment(
    device: Device, blocks: int, *, priority: bool = False, settings: Settings | None = None
) -> Prediction:
    """One run of the published experiment, the same as `makeway simulate cb-ar` gives."""
    controls: tuple[Control, ...] = (CommPriority(),) if priority else ()
    return simulate(experiment(device, blocks), device, controls, settings)


@cache
def _ratio(
    device: str, blocks: int, warps: float | None, comm_over_compute: float | None, jitter: float | None
) -> float:
    known = load_device(device)
    if warps is not None:
        fact = Fact(value=warps, source="another choice, for comparison", unconfirmed=None)
        known = replace(known, facts={**known.facts, "saturating_warps": fact})
    workload = experiment(known, blocks, comm_over_compute=comm_over_compute)
    prediction = simulate(workload, known, (), Settings(jitter=jitter))
    return prediction.t_ns / prediction.t_sequential_ns


def time_ratio(
    device: Device,
    blocks: int,
    *,
    saturating_warps: float | None = None,
    comm_over_compute: float | None = None,
    jitter: float | None = None,
) -> float:
    """Predicted t_overlap / t_sequential with equal priorities; other values than the model's own for comparison."""
    return _ratio(device.name, blocks, saturating_warps, comm_over_compute, jitter)
