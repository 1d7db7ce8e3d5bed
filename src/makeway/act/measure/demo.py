"""`demo`: what makeway does, in four acts: a job on this machine, a GPU, the papers, a cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from makeway.act.measure.demo_job import JobStory, job_story, train_script
from makeway.act.measure.experiment import PAPER_SIDES, Experiment
from makeway.act.measure.job import Grid, Job
from makeway.act.measure.simulated import simulated_experiment
from makeway.decide.planning.planner import plan as make_plan
from makeway.decide.scale.outcome import ScaleCurve
from makeway.decide.scale.sweep import sweep_gpus, sweep_request
from makeway.model.presets import load_preset
from makeway.model.room import RoomAnswer, make_room
from makeway.model.simulate.predict import Prediction, simulate
from makeway.model.validate.conccl import ladder_rows
from makeway.model.validate.grid import published_device
from makeway.model.validate.rows import Row, published_csv
from makeway.read.fanout import OpenExecutor, engine, spread
from makeway.read.presets import load_cluster, load_model
from makeway.values.control import CommBlocks, CommPriority, Control, CopyEngine, LaunchOrder, SmPartition
from makeway.values.device import Device, load_device
from makeway.values.errors import MakewayError
from makeway.values.plan import Plan
from makeway.values.workload import Workload

Progress = Callable[[str, float], None]  # what comes next, and the seconds that are left of all

_QUICK_SIDES = (4, 16, 64, 256)
_GPU, _LAYER = "H100-SXM5-80GB", "gemm-ar"
_MODEL, _CLUSTER = "llama-3-70b", "dgx-h100"
_GPUS, _QUICK_GPUS = (16, 64, 256, 1024, 4096, 16384), (16, 512, 16384)
# Seconds on two cores without a cache; only the time left is computed from them.
_JOB_S, _GPU_S, _PAPERS_S, _CLUSTER_S = 95.0, 8.0, 25.0, 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStory:
    """One layer on one simulated GPU: why the collective waits, and what each control changes."""

    device: Device
    workload: Workload
    room: RoomAnswer
    plain: Prediction
    controlled: tuple[tuple[tuple[Control, ...], Prediction], ...]
    refused: tuple[tuple[Control, str], ...]  # controls that cannot be set there, with the reason
    plan: Plan

    @property
    def planned(self) -> Prediction | None:
        """The prediction under the plan; None where the plan is to leave things as they are."""
        return next((made for controls, made in self.controlled if controls == self.plan.controls), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMap:
    """The published experiment on one simulated device, beside the paper's own numbers."""

    name: str  # as the paper calls the device
    experiment: Experiment
    published: Mapping[Grid, float]  # TimeRatio

    @property
    def errors(self) -> dict[Grid, float]:
        """Predicted less published, in % of the sequential time."""
        ours = self.experiment.values("time_ratio")
        return {grid: 100 * (ours[grid] - ratio) for grid, ratio in self.published.items()}

    @property
    def error(self) -> float:
        """Mean absolute error over the published grids, as a ratio."""
        return sum(map(abs, self.errors.values())) / len(self.errors) / 100

    @property
    def largest(self) -> tuple[Grid, float]:
        """The grid that is missed most, and its error in % of the sequential time."""
        return max(self.errors.items(), key=lambda item: abs(item[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Everything the demo did; what could not run is missing, with the reason."""

    job: JobStory
    gpu: GpuStory
    maps: tuple[DeviceMap, ...]
    ladder: tuple[Row, ...]
    cluster: ScaleCurve
    seconds: float


def demo(*, quick: bool = False, progress: Progress | None = None) -> Demo:
    """Run the four acts; `quick` leaves the job out, and most of the papers and of the cluster."""
    started = time.monotonic()
    tell = _Progress(progress, [_GPU_S, _PAPERS_S / 5, _CLUSTER_S] if quick else [_GPU_S, _PAPERS_S, _CLUSTER_S])
    if quick:
        job = JobStory(program=("torchrun", train_script().name), why_not="left out by --quick")
    else:
        job = job_story(tell.job)
    tell.next(f"the GPU: {_LAYER} on a simulated {_GPU} under each control")
    gpu = _gpu_story()
    tell.next("the papers: published experiments on simulated GPUs")
    maps = device_maps(_QUICK_SIDES if quick else PAPER_SIDES)
    ladder = tuple(row for row in ladder_rows(load_device("MI300X")) if row.unit == "%")
    tell.next(f"the cluster: {_MODEL} on up to {_GPUS[-1]:,} simulated GPUs")
    return Demo(
        job=job,
        gpu=gpu,
        maps=maps,
        ladder=ladder,
        cluster=_cluster(_QUICK_GPUS if quick else _GPUS),
        seconds=time.monotonic() - started,
    )


class _Progress:
    """Tells what comes next and how long the rest takes."""

    def __init__(self, progress: Progress | None, rest_s: Sequence[float]) -> None:
        self._progress = progress or (lambda stage, left_s: None)
        self._rest_s = list(rest_s)
        self._job_until = time.monotonic() + _JOB_S

    def job(self, stage: str, seconds: float) -> None:
        """A stage of the job, which takes so long; later ones are as long as planned."""
        self._progress(stage, max(self._job_until - time.monotonic(), seconds) + sum(self._rest_s))

    def next(self, stage: str) -> None:
        self._progress(stage, sum(self._rest_s))
        self._rest_s = self._rest_s[1:]


# --- the GPU -----------------------------------------------------------------------------------------


def _gpu_story() -> GpuStory:
    """One GEMM and one all-reduce: alone, plainly overlapped, under each control, and as planned."""
    device = load_device(_GPU)
    workload = load_preset(_LAYER, device)
    plan = make_plan(workload, device)
    kernel = max(workload.kernels, key=lambda launch: launch.work.blocks)
    sets: dict[tuple[Control, ...], None] = dict.fromkeys(
        [(CommBlocks(8),), (LaunchOrder(),), (CommPriority(),), (CopyEngine(),), (CommBlocks(8), SmPartition(8))]
    )
    if plan.controls:
        sets[plan.controls] = None
    controlled, refused = [], []
    for controls in sets:
        try:
            controlled.append((controls, simulate(workload, device, controls)))
        except MakewayError as error:
            refused.append((controls[0], str(error).partition("\n")[0]))
    return GpuStory(
        device=device,
        workload=workload,
        room=make_room(device, kernel.resources, workload.collectives[0].library),
        plain=simulate(workload, device),
        controlled=tuple(controlled),
        refused=tuple(refused),
        plan=plan,
    )


# --- the papers --------------------------------------------------------------------------------------


def device_maps(sides: tuple[int, ...]) -> tuple[DeviceMap, ...]:
    """The experiment on every device whose map is published."""
    names = tuple(dict.fromkeys(row["device"] for row in published_csv("grid_time_ratio.csv")))
    work = partial(_device_map, sides=sides)
    results = enumerate(map(work, names)) if (pool := _pool()) is None else spread(work, names, pool)
    maps = dict(results)
    return tuple(maps[place] for place in range(len(names)))


def _device_map(name: str, sides: tuple[int, ...]) -> DeviceMap:
    rows = [row for row in published_csv("grid_time_ratio.csv") if row["device"] == name]
    published = {(int(row["grid_x"]), int(row["grid_y"])): float(row["time_ratio"]) for row in rows}
    grids = tuple((x, y) for y in sides for x in sides if (x, y) in published)
    job = Job(workload="cb-ar", on=f"sim:{published_device(name).name}", grids=grids)
    return DeviceMap(
        name=name, experiment=simulated_experiment(job), published={grid: published[grid] for grid in grids}
    )


# --- the cluster -------------------------------------------------------------------------------------


def _cluster(gpus: Sequence[int]) -> ScaleCurve:
    """The fastest layout at each number of GPUs, on all cores."""
    request = sweep_request(load_model(_MODEL), load_cluster(_CLUSTER), gpus, layout=None, global_batch=None)
    return sweep_gpus(request, gpus, open_executor=_pool())


def _pool() -> OpenExecutor | None:
    """A process for each core; None on a single one."""
    cores = len(os.sched_getaffinity(0))
    return engine("local", jobs=cores) if cores > 1 else None
