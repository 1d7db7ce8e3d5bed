"""A bench and the published experiment on a simulated GPU, with origin "predicted".

Several times come from several draws of block times (seeds): all that differs from run to run in the model. Where that
takes too long, one run with equal block times stands for all, and the result says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from makeway.act.measure.experiment import Experiment, Experiments, bench_experiment, by_sides
from makeway.act.measure.job import Grid, Job, Tile
from makeway.act.measure.outcome import Bench, VariantResult
from makeway.act.measure.variants import (
    OVERLAP,
    PLANNED,
    SEQUENTIAL,
    Controls,
    controlled_variants,
    variant_name,
)
from makeway.decide.planning.planner import plan as make_plan
from makeway.model.presets import PresetOptions, load_preset, preset_names
from makeway.model.simulate.compile import model_fact
from makeway.model.simulate.predict import Prediction, Settings, simulate
from makeway.model.simulate.sweep import HONEST_JITTER
from makeway.model.validate.grid import experiment as fitted_experiment
from makeway.values.collective import CollectiveKind
from makeway.values.control import CommPriority, Control
from makeway.values.device import Device
from makeway.values.errors import InputError, MakewayError, UnknownNameError, suggestion
from makeway.values.receipt import Receipt
from makeway.values.workload import CollectiveOp, Gemm, Workload

Progress = Callable[[str], None]
CommTime = Literal["links", "fitted"]

SEEDS = 5
BLOCK_MS = 0.03  # per-block engine: one block; seen on one core of a shared server (2026), rounded up
CHEAP_MS = 4_000.0  # of per-block simulation, by this fixed cost: more is not spent on a spread
_BASELINE_RUNS = 4  # sequential, compute and comm alone cost about so many runs besides
# Pairs that `makeway bench` has and the presets do not: the example pair with another collective.
_PAIRS: dict[str, CollectiveKind] = {"gemm-ag": "all-gather", "gemm-a2a": "all-to-all"}
_EXAMPLE_PAIR = "gemm-ar"
# What a bench on real ranks trains small, simulated at the size of a real layer.
_LAYERS = {"ddp": "ddp-llama-7b", "fsdp2": "fsdp-llama-7b", "tp": "tp-llama-70b", "ep": "ep-moe"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """The same controls under each seed."""

    predictions: tuple[Prediction, ...]

    def result(self, name: str, controls: Controls) -> VariantResult:
        rates = [prediction.overlap_rate for prediction in self.predictions]
        return VariantResult(
            name=name,
            times_ns=tuple(prediction.t_ns for prediction in self.predictions),
            controls=controls,
            overlap_rate=_middle(rates),
            receipts=tuple(receipt for control in controls for receipt in _idle(control, self.predictions[0])),
        )


def _middle(rates: Sequence[float | None]) -> float | None:
    known = sorted(rate for rate in rates if rate is not None)
    return known[len(known) // 2] if known else None


def _idle(control: Control, prediction: Prediction) -> Iterator[Receipt]:
    """A receipt for a control that changes nothing; a simulation applies nothing, so it gives no other."""
    reasons = [reason for reason in prediction.without_effect if reason.startswith(control.name)]
    if reasons:
        yield Receipt(control=control, status="no effect", detail="; ".join(reasons), carrier="simulation")


# --- a bench -----------------------------------------------------------------------------------


def simulated_workload(name: str, device: Device, options: PresetOptions | None = None) -> Workload:
    """The workload of a bench by name: a preset, a pair, or the preset that a short name stands for."""
    options = options or PresetOptions()
    if name in _PAIRS:
        return _pair(name, device, options)
    if name not in (known := (*_PAIRS, *_LAYERS, *preset_names())):
        raise UnknownNameError(f"no workload {name!r}{suggestion(name, known)}\nKnown: {', '.join(known)}")
    return load_preset(_LAYERS.get(name, name), device, options)


def _pair(name: str, device: Device, options: PresetOptions) -> Workload:
    plain, kind = load_preset(_EXAMPLE_PAIR, device, options), _PAIRS[name]

    def other(op: CollectiveOp) -> CollectiveOp:
        library = op.library
        if kind == "all-to-all" and options.library is None:  # NCCL's all-to-all is made of sends and receives
            library = library.replace("/ring-simple", "/sendrecv")
        return replace(op, collective=replace(op.collective, kind=kind), library=library)

    operations = tuple(other(op) if isinstance(op, CollectiveOp) else op for op in plain.operations)
    return replace(plain, name=name, operations=operations)


def simulated_bench(job: Job, *, seeds: int = SEEDS) -> Bench:
    """The bench of a job on a simulated device: sequential, overlapped, each set of controls, planned."""
    device = job.simulated_device
    workload = simulated_workload(job.workload, device, _preset_options(job, job.grid, job.tile))
    return bench_workload(workload, device, controls=job.controls, seeds=seeds, plan=job.plan)


def _preset_options(job: Job, grid: Grid | None, tile: Tile | None) -> PresetOptions:
    return PresetOptions(
        ranks=job.ranks,
        grid=grid,
        tile=tile,
        in_flight=job.in_flight,
        iterations=job.steps,
        library=job.library,
    )


def bench_workload(
    workload: Workload,
    device: Device,
    *,
    controls: Iterable[Controls] = (),
    seeds: int = SEEDS,
    plan: bool = True,
) -> Bench:
    """The bench of any workload. A set of controls that cannot run on the device is left out, and a note says why."""
    if seeds < 1:
        raise InputError(f"a bench needs at least 1 seed, got {seeds}")
    named = controlled_variants(controls)
    settings = _settings(workload, device, seeds, len(named) + 1 + plan)
    plain = _runs(workload, device, (), settings)
    results, notes = [plain.result(OVERLAP, ())], [_spread_note(settings)]
    for variant in named:
        try:
            results.append(_runs(workload, device, variant.controls, settings).result(variant.name, variant.controls))
        except MakewayError as error:
            notes.append(f"{variant.name} cannot run: {' '.join(str(error).split())}")
    choice = None
    if plan:
        planned = make_plan(workload, device).controls
        runs = _runs(workload, device, planned, settings) if planned else plain
        results.append(runs.result(PLANNED, planned))
        choice = variant_name(planned) or f"leave as is ({OVERLAP}): no candidate is predicted to be clearly faster"
    collectives = {op.collective for op in workload.collectives}
    return Bench(
        on=f"sim:{device.name}",
        ranks=workload.ranks,
        workload=workload.name,
        origin="predicted",
        variants=(_sequential(plain), *results),
        compute_ns=tuple(prediction.t_compute_ns for prediction in plain.predictions),
        comm_ns=tuple(prediction.t_comm_ns for prediction in plain.predictions),
        exchange=collectives.pop() if len(collectives) == 1 else None,
        exchanges=max(len(workload.collectives), 1),
        link=device.link,
        choice=choice,
        timeline=plain.predictions[0].timeline,
        notes=(*notes, *plain.predictions[0].assumed),
    )


def _sequential(plain: _Runs) -> VariantResult:
    """Every operation by itself, added up: nothing runs beside anything."""
    times = tuple(prediction.t_sequential_ns for prediction in plain.predictions)
    return VariantResult(name=SEQUENTIAL, times_ns=times, overlap_rate=0.0)


def _settings(workload: Workload, device: Device, seeds: int, variants: int) -> tuple[Settings, ...]:
    """One run for each seed where per-block simulation is cheap enough; otherwise one with equal block times."""
    blocks = sum(kernel.work.blocks for kernel in workload.kernels)
    cost_ms = blocks * BLOCK_MS * seeds * (variants + _BASELINE_RUNS)
    if seeds == 1 or cost_ms > CHEAP_MS:
        return (Settings(),)
    return tuple(Settings(engine="block", jitter=HONEST_JITTER, seed=seed) for seed in range(seeds))


def _spread_note(settings: tuple[Settings, ...]) -> str:
    if len(settings) == 1:
        return "predicted by one run with equal block times: the spread is not known"
    return (
        f"the spread is that of {len(settings)} draws of block times with a standard deviation of {HONEST_JITTER:.0%}: "
        "links, clocks and hosts do not vary in it"
    )


def _runs(workload: Workload, device: Device, controls: Controls, settings: Sequence[Settings]) -> _Runs:
    return _Runs(predictions=tuple(simulate(workload, device, controls, each) for each in settings))


# --- the published experiment ------------------------------------------------------------------


def simulated_experiments(job: Job, *, progress: Progress = lambda stage: None) -> Experiments:
    """The experiment of a job for each of its tiles."""
    tiles = job.tiles or (None,)
    return Experiments(experiments=tuple(simulated_experiment(job, tile=tile, progress=progress) for tile in tiles))


def simulated_experiment(
    job: Job, *, tile: Tile | None = None, comm_time: CommTime = "links", progress: Progress = lambda stage: None
) -> Experiment:
    """arXiv 2606.09200's experiment (cb-ar, cb-a2a, mb-ar, mb-a2a) with and without priority, one run per grid.

    `comm_time` "fitted" takes the all-reduce as long as the fit to the paper's Fig. 2 has it (docs/model.md), as
    `makeway validate` does; "links" prices it by the device's links. A grid beyond the tiles equals the one at them.
    """
    device = job.simulated_device
    benches: dict[Grid, Bench] = {}
    by_blocks: dict[int, Bench] = {}
    for number, grid in enumerate(job.grids, 1):
        progress(f"grid {by_sides(grid)} ({number} of {len(job.grids)})")
        workload = simulated_workload(job.workload, device, _preset_options(job, grid, tile))
        if comm_time == "fitted":
            workload = _as_fitted(workload, device)
        gemm = workload.kernels[0].work
        assert isinstance(gemm, Gemm)
        tile = gemm.tile
        if gemm.blocks not in by_blocks:
            by_blocks[gemm.blocks] = bench_workload(
                workload, device, controls=((CommPriority(),),), seeds=1, plan=False
            )
        benches[grid] = by_blocks[gemm.blocks]
    if tile is None:
        raise InputError("an experiment needs at least one grid; write for example 16x16")
    return bench_experiment(benches, tile)


def _as_fitted(workload: Workload, device: Device) -> Workload:
    kinds = {op.collective.kind for op in workload.collectives}
    if kinds != {"all-reduce"}:
        raise InputError(f"only the all-reduce of arXiv 2606.09200 was fitted, not {', '.join(sorted(kinds))}")
    time_ns, fit = fitted_experiment(device, 1).collectives[0].time_ns, model_fact(device, "comm_over_compute")
    operations = tuple(
        replace(op, time_ns=time_ns) if isinstance(op, CollectiveOp) else op for op in workload.operations
    )
    origin = f"{fit[1]}: {fit[0].source}" if fit else "no fit is known: as long as the GEMM"
    note = f"The all-reduce is taken to last {time_ns or 0:,.0f} ns ({origin}); what was fitted is not predicted."
    return replace(workload, operations=operations, host_launch_ns=0.0, assumed=(*workload.assumed, note))
