"""What a calibrated host is predicted to take for each variant of a pair, before it is measured.

The model of `makeway.decide.planning.host`, for rounds of several steps: in a steady pipeline every step overlaps; in
the loop of arXiv 2606.09200 the first GEMM and the last collective of a round have nothing beside them. Pieces cost a
latency each. Priority and partition are not in the model: they get no prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from makeway.act.measure.choice import HOPELESS
from makeway.act.measure.job import Job
from makeway.act.measure.link import Rate
from makeway.act.measure.names import family, pair_collective
from makeway.act.measure.outcome import Bench
from makeway.act.measure.variants import Mode, Setting, fair_threads
from makeway.decide.planning.host import HostStep, carrier_rates, predict_host_step
from makeway.model.presets import load_preset
from makeway.values.collective import Collective
from makeway.values.control import Chunks, Control, CopyEngine
from makeway.values.device import Device, load_device
from makeway.values.errors import InputError
from makeway.values.units import MIB, ceil_to
from makeway.values.workload import Gemm

# As makeway.act.measure.ranks.balance has them, which loads torch; a test holds them equal.
OWN_BYTES, OWN_SCALE, UNIT_DEPTH, LEAST_DEPTH, MOST_DEPTH, DEPTH_STEP = 8 * MIB, 1 / 16, 256, 16, 1 << 14, 16
_ANY_DEVICE = "A100-SXM4-80GB"  # shapes and sizes of a preset are the same for every device
_ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One step of a pair on a calibrated host, and how the steps of a round follow one another."""

    device: Device
    step: HostStep
    steady: bool
    threads: int  # of each rank, for which the model holds: a fair share of the cores

    def round_ns(self, mode: Mode, controls: Sequence[Control], steps: int) -> float | None:
        """A round of so many steps; None for controls that are not in the model."""
        carrier, pieces = "gloo", 1
        for control in controls:
            if isinstance(control, CopyEngine):
                carrier = "direct"
            elif isinstance(control, Chunks):
                pieces = control.pieces
            else:
                return None
        rates = carrier_rates(self.device, carrier, self.step.collective.kind)  # type: ignore[arg-type]
        wire, ranks = self.step.collective.wire_bytes, self.step.collective.ranks
        link = self.step.link_bytes_per_s if carrier == "gloo" else None
        comm_ns = rates.alone_ns(wire, ranks, link) + (pieces - 1) * rates.latency_ns
        compute_ns = predict_host_step(self.device, self.step).compute_ns
        beside_ns = max(comm_ns, compute_ns + wire * rates.cpu_ns_per_byte)
        match mode:
            case "compute":
                return steps * compute_ns
            case "comm":
                return steps * comm_ns
            case "sequential":
                return steps * (compute_ns + comm_ns)
            case "overlap" if self.steady:
                return steps * beside_ns
            case "overlap":
                return (steps - 1) * beside_ns + compute_ns + comm_ns

    def setting_ns(self, setting: Setting, steps: int) -> float | None:
        """A round of a setting; None where its threads are not those of the model."""
        return self.round_ns(setting.mode, setting.controls, steps) if setting.threads == self.threads else None


def forecast(job: Job, device: Device, *, ranks: int, cores: int, rate: Rate | None) -> tuple[Job, Forecast]:
    """The forecast for a job, and the job that it holds for.

    A pair whose depth nobody gave gets the one that balances it by prediction, in place of one measured on the ranks.
    """
    if family(job.workload) not in ("pair", "published"):
        raise InputError(f"--device predicts a GEMM beside a collective, not {job.workload}; leave it out")
    if ranks < 2:
        raise InputError("a prediction needs 2 ranks or more: one alone exchanges nothing")
    link = rate.bits_per_s / 8 if rate else None
    threads = fair_threads(cores, ranks)
    if family(job.workload) == "published":
        step = replace(_published_step(job, ranks), link_bytes_per_s=link)
        steady = job.workload.startswith("conccl")
        return job, Forecast(device=device, step=step, steady=steady, threads=threads)
    kind, size = pair_collective(job.workload), job.size_bytes or OWN_BYTES
    outputs = size / _ELEMENT_BYTES / (ranks if kind == "all-gather" else 1)
    collective = Collective(kind=kind, size_bytes=size, ranks=ranks)

    def of_depth(depth: int) -> HostStep:
        return HostStep(flops=2 * outputs * depth, outputs=outputs, collective=collective, link_bytes_per_s=link)

    if job.scale is None:
        job = replace(job, scale=_balanced_depth(device, of_depth(0), of_depth(1)) / UNIT_DEPTH)
    assert job.scale is not None
    step = of_depth(max(round(job.scale * UNIT_DEPTH), 1))
    return job, Forecast(device=device, step=step, steady=True, threads=threads)


def _published_step(job: Job, ranks: int) -> HostStep:
    workload, scale = load_preset(job.workload, load_device(_ANY_DEVICE)), job.scale or OWN_SCALE
    work = next(kernel.work for kernel in workload.kernels if isinstance(kernel.work, Gemm))
    moved = workload.collectives[0].collective
    outputs = work.m * work.n * scale**2
    return HostStep(
        flops=2 * outputs * work.k * scale,
        outputs=outputs,
        collective=Collective(kind=moved.kind, size_bytes=max(round(moved.size_bytes * scale**2), 1), ranks=ranks),
    )


def _balanced_depth(device: Device, flat: HostStep, unit: HostStep) -> int:
    """K at which compute takes as long as the collective: compute grows by as much for each of K."""
    at_zero, at_one = predict_host_step(device, flat), predict_host_step(device, unit)
    depth = (at_zero.comm_ns - at_zero.compute_ns) / (at_one.compute_ns - at_zero.compute_ns)
    return ceil_to(min(max(round(depth), LEAST_DEPTH), MOST_DEPTH), DEPTH_STEP)


def in_predicted_order(job: Job, found: Forecast) -> tuple[Job, tuple[str, ...]]:
    """The job with its candidates in predicted order, without those predicted to be hopeless, and what was dropped.

    Candidates that the model does not know come last, in the order they had.
    """
    plain_ns = found.round_ns("overlap", (), job.steps)
    assert plain_ns is not None
    times = {one.name: found.setting_ns(one, job.steps) for one in job.candidates}
    best_ns = min((time for time in times.values() if time is not None), default=plain_ns)
    limit_ns = min(best_ns, plain_ns) * (1 + HOPELESS)
    kept, notes = [], []
    for one in sorted(job.candidates, key=lambda one: times[one.name] or float("inf")):
        time = times[one.name]
        if time is None or time <= limit_ns:
            kept.append(one)
        else:
            slower = time / min(best_ns, plain_ns) - 1
            notes.append(
                f"{one.name} was not tried: predicted {slower:.0%} slower than the best on {found.device.name}"
            )
    return replace(job, candidates=tuple(kept)), tuple(notes)


def with_predictions(bench: Bench, job: Job, found: Forecast, notes: Sequence[str]) -> Bench:
    """The bench with the predicted time beside each measured one that the model covers."""
    by_name = {setting.name: setting for setting in job.settings}
    fair = job.settings[0].threads
    variants = []
    for variant in bench.variants:
        setting = by_name.get(variant.name)
        if setting is None:  # planned: what was chosen
            setting = Setting(name=variant.name, controls=variant.controls, threads=variant.threads or fair)
        variants.append(replace(variant, predicted_ns=found.setting_ns(setting, bench.exchanges)))
    said = f"predicted by the calibration of {found.device.name}: docs/bench.md has the formula"
    return replace(bench, variants=tuple(variants), notes=(*bench.notes, said, *notes))
