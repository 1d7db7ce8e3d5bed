"""A bench and the published experiment on a simulated GPU: the values of a measured run, with origin "predicted".

Several times come from several draws of block times (seeds), which is what differs from run to run in the model. Where
that would take long, one run with equal block times stands for all, and the result says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from makeway.act.measure.experiment import Experiment, Grid, bench_experiment
from makeway.act.measure.outcome import OVERLAP, PLANNED, SEQUENTIAL, Applied, Bench, VariantResult
from makeway.act.measure.variants import variant_name
from makeway.decide.planning.planner import BUDGET_MS, Planned, make_plan
from makeway.decide.planning.thinning import block_cost_ms
from makeway.model.presets import PresetOptions, load_preset, preset_names
from makeway.model.simulate.compile import model_fact
from makeway.model.simulate.predict import Prediction, Settings, simulate
from makeway.model.simulate.sweep import HONEST_JITTER
from makeway.model.validate.grid import experiment as fitted_experiment
from makeway.values.collective import Collective, CollectiveKind
from makeway.values.control import CommPriority, Control
from makeway.values.device import Device
from makeway.values.errors import InputError, MakewayError, UnknownNameError, suggestion
from makeway.values.plan import Plan
from makeway.values.workload import CollectiveOp, Gemm, Workload

Controls = tuple[Control, ...]
CommTime = Literal["links", "fitted"]

SEEDS = 5
CHEAP_MS = 4_000.0  # of per-block simulation, by planning's fixed costs: more is not spent on a spread
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

    def variant(self, name: str, controls: Controls) -> VariantResult:
        rates = [prediction.overlap_rate for prediction in self.predictions]
        return VariantResult(
            name=name,
            times_ns=tuple(prediction.t_ns for prediction in self.predictions),
            controls=controls,
            overlap_rate=_middle(rates),
            applied=tuple(_applied(control, self.predictions[0]) for control in controls),
        )


def _middle(rates: Sequence[float | None]) -> float | None:
    known = sorted(rate for rate in rates if rate is not None)
    return known[len(known) // 2] if known else None


def _applied(control: Control, prediction: Prediction) -> Applied:
    idle = [reason for reason in prediction.without_effect if reason.startswith(control.name)]
    return Applied(control=control, status="no effect" if idle else "applied", detail="; ".join(idle) or "simulated")


# --- a bench -----------------------------------------------------------------------------------


def simulated_workload(name: str, device: Device, options: PresetOptions | None = None) -> Workload:
    """The workload of that name as a bench runs it: a preset, a pair, or the preset that a short name stands for."""
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


def simulated_bench(
    workload_name: str,
    device: Device,
    *,
    controls: Sequence[Sequence[Control]] = (),
    ranks: int | None = None,
    grid: Grid | None = None,
    tile: tuple[int, int, int] | None = None,
    in_flight: int | None = None,
    iterations: int | None = None,
    library: str | None = None,
    seeds: int = SEEDS,
    plan: bool = True,
    budget_ms: float = BUDGET_MS,
) -> Bench:
    """The bench of a named workload on a simulated device: sequential, overlapped, each set of controls, planned."""
    options = PresetOptions(
        ranks=ranks, grid=grid, tile=tile, in_flight=in_flight, iterations=iterations, library=library
    )
    workload = simulated_workload(workload_name, device, options)
    return bench_workload(workload, device, controls=controls, seeds=seeds, plan=plan, budget_ms=budget_ms)


def bench_workload(
    workload: Workload,
    device: Device,
    *,
    controls: Sequence[Sequence[Control]] = (),
    seeds: int = SEEDS,
    plan: bool = True,
    budget_ms: float = BUDGET_MS,
) -> Bench:
    """The bench of any workload. A set of controls that cannot run on the device is left out, and a note says why."""
    if seeds < 1:
        raise InputError(f"a bench needs at least 1 seed, got {seeds}")
    asked = tuple(dict.fromkeys(tuple(one) for one in controls))
    for one in asked:
        Plan(controls=one)  # controls that cannot hold together are an error
    settings = _settings(workload, device, seeds, len(asked) + 1 + plan)
    plain = _runs(workload, device, (), settings)
    variants, notes = [plain.variant(OVERLAP, ())], [_spread_note(settings)]
    for one in asked:
        try:
            variants.append(_runs(workload, device, one, settings).variant(variant_name(one), one))
        except MakewayError as error:
            notes.append(f"{variant_name(one)} cannot run: {' '.join(str(error).split())}")
    choice = None
    if plan:
        planned = make_plan(workload, device, budget_ms=budget_ms)
        runs = _runs(workload, device, planned.controls, settings) if planned.controls else plain
        variants.append(runs.variant(PLANNED, planned.controls))
        choice = _choice(planned)
    exchanges = {op.collective for op in workload.collectives}
    return Bench(
        on=f"sim:{device.name}",
        ranks=workload.ranks,
        workload=workload.name,
        origin="predicted",
        variants=(_sequential(plain), *variants),
        compute_ns=tuple(prediction.t_compute_ns for prediction in plain.predictions),
        comm_ns=tuple(prediction.t_comm_ns for prediction in plain.predictions),
        exchange=_only(exchanges),
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


def _only(exchanges: set[Collective]) -> Collective | None:
    return next(iter(exchanges)) if len(exchanges) == 1 else None


def _settings(workload: Workload, device: Device, seeds: int, variants: int) -> tuple[Settings, ...]:
    """One run for each seed where per-block simulation is cheap enough; otherwise one with equal block times."""
    cost_ms = block_cost_ms(workload, device, 1) * seeds * (variants + _BASELINE_RUNS)
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
    return _Runs(predictions=tuple(simulate(workload, device, controls, one) for one in settings))


def _choice(planned: Planned) -> str:
    if not planned.controls:
        return "; ".join(["leave as is", *planned.summary])
    return "; ".join([variant_name(planned.controls), *planned.summary])


# --- the published experiment ------------------------------------------------------------------


def simulated_experiment(
    workload_name: str,
    device: Device,
    grids: Sequence[Grid],
    *,
    tile: tuple[int, int, int] | None = None,
    ranks: int | None = None,
    in_flight: int | None = None,
    iterations: int | None = None,
    library: str | None = None,
    comm_time: CommTime = "links",
    progress: Callable[[str], None] = lambda stage: None,
) -> Experiment:
    """arXiv 2606.09200's experiment (cb-ar, cb-a2a, mb-ar, mb-a2a) with and without priority, one run per grid.

    `comm_time` "fitted" takes the all-reduce as long as the fit to the paper's Fig. 2 has it (docs/model.md), as
    `makeway validate` does; "links" prices it by the device's links. A grid beyond the tiles equals the one at them.
    """
    benches: dict[Grid, Bench] = {}
    by_blocks: dict[int, Bench] = {}
    used_tile = tile
    for number, grid in enumerate(grids, 1):
        progress(f"grid {grid[0]}x{grid[1]} ({number} of {len(grids)})")
        options = PresetOptions(
            ranks=ranks, grid=grid, tile=tile, in_flight=in_flight, iterations=iterations, library=library
        )
        workload = simulated_workload(workload_name, device, options)
        if comm_time == "fitted":
            workload = _as_fitted(workload, device)
        gemm = workload.kernels[0].work
        assert isinstance(gemm, Gemm)
        used_tile = gemm.tile
        if gemm.blocks not in by_blocks:
            by_blocks[gemm.blocks] = bench_workload(
                workload, device, controls=((CommPriority(),),), seeds=1, plan=False
            )
        benches[grid] = by_blocks[gemm.blocks]
    if used_tile is None:
        raise InputError("an experiment needs at least one grid; write for example 16x16")
    return bench_experiment(benches, used_tile)


def _as_fitted(workload: Workload, device: Device) -> Workload:
    kinds = {op.collective.kind for op in workload.collectives}
    if kinds != {"all-reduce"}:
        raise InputError(f"only the all-reduce of arXiv 2606.09200 was fitted, not {', '.join(sorted(kinds))}")
    time_ns, found = fitted_experiment(device, 1).collectives[0].time_ns, model_fact(device, "comm_over_compute")
    operations = tuple(
        replace(op, time_ns=time_ns) if isinstance(op, CollectiveOp) else op for op in workload.operations
    )
    origin = f"{found[1]}: {found[0].source}" if found else "no fit is known: as long as the GEMM"
    said = f"The all-reduce is taken to last {time_ns or 0:,.0f} ns ({origin}); what was fitted is not predicted."
    return replace(workload, operations=operations, host_launch_ns=0.0, assumed=(*workload.assumed, said))
