"""A bench and the published experiment on a simulated GPU, with origin "predicted".

Every time is one prediction, the same that `makeway simulate` gives for the same workload and controls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

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
from makeway.model.simulate.predict import Prediction, simulate
from makeway.model.simulate.spread import BLOCK_SPREAD
from makeway.values.collective import CollectiveKind
from makeway.values.control import CommPriority, Control
from makeway.values.device import Device
from makeway.values.errors import InputError, MakewayError, UnknownNameError, suggestion
from makeway.values.receipt import Receipt
from makeway.values.workload import CollectiveOp, Gemm, Workload

Progress = Callable[[str], None]

_ONE_RUN = (
    f"predicted by one run, the same as by `makeway simulate`, with {BLOCK_SPREAD:.0%} spread of block times: links, "
    "clocks and hosts do not vary in it"
)
# Pairs that `makeway bench` has and the presets do not: the example pair with another collective.
_PAIRS: dict[str, CollectiveKind] = {
    "gemm-ag": "all-gather",
    "gemm-a2a": "all-to-all",
    "gemm-rs": "reduce-scatter",
}
_EXAMPLE_PAIR = "gemm-ar"
# What a bench on real ranks trains small, simulated at the size of a real layer.
_LAYERS = {"ddp": "ddp-llama-7b", "fsdp2": "fsdp-llama-7b", "tp": "tp-llama-70b", "ep": "ep-moe"}


def _result(name: str, prediction: Prediction) -> VariantResult:
    return VariantResult(
        name=name,
        times_ns=(prediction.t_ns,),
        controls=prediction.controls,
        overlap_rate=prediction.overlap_rate,
        receipts=tuple(receipt for control in prediction.controls for receipt in _idle(control, prediction)),
    )


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


def simulated_bench(job: Job) -> Bench:
    """The bench of a job on a simulated device: sequential, overlapped, each set of controls, planned."""
    device = job.simulated_device
    workload = simulated_workload(job.workload, device, _preset_options(job, job.grid, job.tile))
    return bench_workload(workload, device, controls=job.controls, plan=job.plan)


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
    plan: bool = True,
) -> Bench:
    """The bench of any workload. A set of controls that cannot run on the device is left out, and a note says why."""
    plain = simulate(workload, device)
    results, notes = [_result(OVERLAP, plain)], [_ONE_RUN]
    for variant in controlled_variants(controls):
        try:
            results.append(_result(variant.name, simulate(workload, device, variant.controls)))
        except MakewayError as error:
            notes.append(f"{variant.name} cannot run: {' '.join(str(error).split())}")
    choice = None
    if plan:
        planned = make_plan(workload, device).controls
        results.append(_result(PLANNED, simulate(workload, device, planned)))
        choice = variant_name(planned) or f"leave as is ({OVERLAP}): no candidate is predicted to be clearly faster"
    collectives = {op.collective for op in workload.collectives}
    return Bench(
        on=f"sim:{device.name}",
        ranks=workload.ranks,
        workload=workload.name,
        origin="predicted",
        variants=(_sequential(plain), *results),
        compute_ns=(plain.t_compute_ns,),
        comm_ns=(plain.t_comm_ns,),
        exchange=collectives.pop() if len(collectives) == 1 else None,
        exchanges=max(len(workload.collectives), 1),
        link=device.link,
        choice=choice,
        timeline=plain.timeline,
        notes=(*notes, *plain.assumed),
    )


def _sequential(plain: Prediction) -> VariantResult:
    """Every operation by itself, added up: nothing runs beside anything."""
    return VariantResult(name=SEQUENTIAL, times_ns=(plain.t_sequential_ns,), overlap_rate=0.0)


# --- the published experiment ------------------------------------------------------------------


def simulated_experiments(job: Job, *, progress: Progress = lambda stage: None) -> Experiments:
    """The experiment of a job for each of its tiles."""
    tiles = job.tiles or (None,)
    return Experiments(experiments=tuple(simulated_experiment(job, tile=tile, progress=progress) for tile in tiles))


def simulated_experiment(job: Job, *, tile: Tile | None = None, progress: Progress = lambda stage: None) -> Experiment:
    """arXiv 2606.09200's experiment (cb-ar, cb-a2a, mb-ar, mb-a2a) with and without priority, one run per grid.

    A grid beyond the tiles equals the one at them.
    """
    device = job.simulated_device
    benches: dict[Grid, Bench] = {}
    by_blocks: dict[int, Bench] = {}
    for number, grid in enumerate(job.grids, 1):
        progress(f"grid {by_sides(grid)} ({number} of {len(job.grids)})")
        workload = simulated_workload(job.workload, device, _preset_options(job, grid, tile))
        gemm = workload.kernels[0].work
        assert isinstance(gemm, Gemm)
        tile = gemm.tile
        if gemm.blocks not in by_blocks:
            by_blocks[gemm.blocks] = bench_workload(workload, device, controls=((CommPriority(),),), plan=False)
        benches[grid] = by_blocks[gemm.blocks]
    if tile is None:
        raise InputError("an experiment needs at least one grid; write for example 16x16")
    return bench_experiment(benches, tile)
