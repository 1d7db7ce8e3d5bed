"""`demo`: the whole story on this machine, GPU or not: real ranks, published experiments, one step with its plan."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from makeway.act.measure.bench import run_bench
from makeway.act.measure.experiment import PAPER_SIDES, Experiment
from makeway.act.measure.job import Grid, Job
from makeway.act.measure.link import parse_rate
from makeway.act.measure.outcome import Bench
from makeway.act.measure.simulated import simulated_experiment
from makeway.decide.analysis.analyze import Analysis, analysis_of
from makeway.decide.planning.planner import plan as make_plan
from makeway.model.presets import load_preset
from makeway.model.simulate.predict import simulate
from makeway.model.validate.conccl import ladder_rows
from makeway.model.validate.grid import PAPER_DEVICES, published_device
from makeway.model.validate.rows import Row, published_csv
from makeway.values.control import Control
from makeway.values.device import load_device
from makeway.values.errors import MakewayError
from makeway.values.timeline import Rank

Progress = Callable[[str], None]

_WORKLOAD, _LINKS = "gemm-ar", (None, "2gbit")
_QUICK_SIDES = (4, 16, 64, 256)
_STEP, _STEP_DEVICE = "tp-llama-70b", "A100-SXM4-80GB"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMap:
    """The published experiment on one simulated device, beside the paper's own numbers where it has them."""

    name: str  # as the paper calls the device
    experiment: Experiment
    published: Mapping[Grid, float]  # TimeRatio

    @property
    def error(self) -> float | None:
        """Mean absolute error over the published grids."""
        errors = [abs(self.experiment.cell(grid).time_ratio - ratio) for grid, ratio in self.published.items()]
        return sum(errors) / len(errors) if errors else None

    @property
    def best_priority(self) -> float:
        """The lowest normalised time, with priority over without."""
        return min(cell.normalised_time or 1.0 for cell in self.experiment.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One step: what analysis says about it, and what planning would set."""

    name: str
    analysis: Analysis
    plan: tuple[Control, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Everything the demo did; real ranks that could not run are missing, with the reason."""

    benches: tuple[Bench, ...]  # of one workload, over several links
    no_bench: str | None
    maps: tuple[DeviceMap, ...]
    ladder: tuple[Row, ...]
    recording: Recording
    seconds: float

    @property
    def best(self) -> Bench | None:
        """The bench with the largest gain over its baseline."""
        gains = {number: bench.gain.relative for number, bench in enumerate(self.benches) if bench.gain is not None}
        return self.benches[min(gains, key=lambda number: gains[number])] if gains else None


def demo(*, quick: bool = False, progress: Progress | None = None) -> Demo:
    """Run all parts of the demo; `quick` leaves the real ranks out, and most grids."""
    report = progress or (lambda stage: None)
    started = time.monotonic()
    benches, no_bench = ((), "left out by --quick") if quick else _real_ranks(report)
    maps = tuple(_device_map(name, _QUICK_SIDES if quick else PAPER_SIDES, report) for name in PAPER_DEVICES)
    report("simulating ConCCL's ladder on MI300X")
    ladder = tuple(row for row in ladder_rows(load_device("MI300X")) if row.unit == "%")
    report(f"analysing and planning a step of {_STEP} on {_STEP_DEVICE}")
    return Demo(
        benches=benches,
        no_bench=no_bench,
        maps=maps,
        ladder=ladder,
        recording=_recording(),
        seconds=time.monotonic() - started,
    )


def _real_ranks(progress: Progress) -> tuple[tuple[Bench, ...], str | None]:
    """GEMM beside all-reduce on two processes, over memory and over a paced loopback; or the reason why not."""
    if importlib.util.find_spec("torch") is None:
        return (), "torch is not installed (pip install 'makeway[torch]')"
    benches: list[Bench] = []
    for link in _LINKS:
        progress(f"measuring {_WORKLOAD} on 2 real ranks, {f'over {link}' if link else 'same host'}")
        rate = parse_rate(link) if link else None
        job = Job(workload=_WORKLOAD, ranks=2, link=rate, repeats=8, trial_rounds=3, timeout_s=60)
        try:
            benches.append(run_bench(job))
        except MakewayError as error:
            return tuple(benches), str(error).partition("\n")[0]
    return tuple(benches), None


def _device_map(name: str, sides: tuple[int, ...], progress: Progress) -> DeviceMap:
    progress(f"simulating the published experiment on {name}")
    grids = tuple((x, y) for y in sides for x in sides)
    job = Job(workload="cb-ar", on=f"sim:{published_device(name).name}", grids=grids)
    rows = [row for row in published_csv("grid_time_ratio.csv") if row["device"] == name]
    published = {(int(row["grid_x"]), int(row["grid_y"])): float(row["time_ratio"]) for row in rows}
    return DeviceMap(
        name=name,
        experiment=simulated_experiment(job),
        published={grid: published[grid] for grid in grids if grid in published},
    )


def _recording() -> Recording:
    """A simulated step, analysed as a recorded one would be."""
    device = load_device(_STEP_DEVICE)
    workload = load_preset(_STEP, device)
    predicted = simulate(workload, device).timeline
    timeline = replace(predicted, ranks=(Rank(rank=0, device=device.name, world=workload.ranks),))
    return Recording(
        name=f"{_STEP} on {_STEP_DEVICE}",
        analysis=analysis_of([timeline], what_if=False),
        plan=make_plan(workload, device).controls,
    )
