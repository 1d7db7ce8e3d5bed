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
from makeway.act.measure.names import family, pair_collective, published_pair
from makeway.act.measure.outcome import Bench
from makeway.act.measure.sizes import (
    DEFAULT_BYTES,
    DEFAULT_SCALE,
    ELEMENT_BYTES,
    UNIT_DEPTH,
    depth_at,
    rounded_depth,
    scaled_rows,
)
from makeway.act.measure.variants import Mode, Variant, fair_threads
from makeway.decide.planning.host import HostStep, carrier_rates, predict_host_step
from makeway.values.collective import Collective
from makeway.values.control import Chunks, Control, CopyEngine
from makeway.values.device import Device
from makeway.values.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One step of a pair on a calibrated host, and whether the steps of a round form a steady pipeline."""

    device: Device
    step: HostStep
    steady: bool
    threads: int  # per rank that the model holds for: a fair share of the cores

    def round_ns(self, mode: Mode, controls: Sequence[Control], steps: int) -> float | None:
        """The time of a round of `steps` steps; None for controls that are not in the model."""
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

    def variant_ns(self, variant: Variant, steps: int) -> float | None:
        """The time of a round of a variant; None where its threads are not those of the model."""
        return self.round_ns(variant.mode, variant.controls, steps) if variant.threads == self.threads else None


def forecast(job: Job, device: Device, *, cores: int) -> tuple[Job, Forecast]:
    """The forecast for a job, and the job that it holds for.

    A pair without a depth gets the one that balances it by prediction, in place of one measured on the ranks.
    """
    if family(job.workload) not in ("pair", "published"):
        raise InputError(f"--device predicts a GEMM beside a collective, not {job.workload}; leave it out")
    assert job.ranks is not None
    ranks, link = job.ranks, job.link.bits_per_s / 8 if job.link else None
    threads = fair_threads(cores, ranks)
    if family(job.workload) == "published":
        step = replace(_published_step(job, ranks), link_bytes_per_s=link)
        steady = job.workload.startswith("conccl")
        return job, Forecast(device=device, step=step, steady=steady, threads=threads)
    kind, size = pair_collective(job.workload), job.size_bytes or DEFAULT_BYTES
    outputs = size / ELEMENT_BYTES / (ranks if kind == "all-gather" else 1)
    collective = Collective(kind=kind, size_bytes=size, ranks=ranks)

    def of_depth(depth: int) -> HostStep:
        return HostStep(flops=2 * outputs * depth, outputs=outputs, collective=collective, link_bytes_per_s=link)

    if job.scale is None:
        job = replace(job, scale=_balanced_depth(device, of_depth(0), of_depth(1)) / UNIT_DEPTH)
    assert job.scale is not None
    return job, Forecast(device=device, step=of_depth(depth_at(job.scale)), steady=True, threads=threads)


def _published_step(job: Job, ranks: int) -> HostStep:
    gemm, collective = published_pair(job.workload)
    scale = job.scale or DEFAULT_SCALE
    outputs = scaled_rows(gemm.m, scale, ranks) * gemm.n * scale
    size_bytes = max(round(collective.size_bytes * scale**2), 1)
    return HostStep(
        flops=2 * outputs * gemm.k * scale,
        outputs=outputs,
        collective=Collective(kind=collective.kind, size_bytes=size_bytes, ranks=ranks),
    )


def _balanced_depth(device: Device, flat: HostStep, unit: HostStep) -> int:
    """K at which compute takes as long as the collective; compute grows linearly with K."""
    at_zero, at_one = predict_host_step(device, flat), predict_host_step(device, unit)
    return rounded_depth((at_zero.comm_ns - at_zero.compute_ns) / (at_one.compute_ns - at_zero.compute_ns))


def in_predicted_order(job: Job, predicted: Forecast) -> tuple[Job, tuple[str, ...]]:
    """The job with its candidates in predicted order, without the hopeless ones, and a note on each of those.

    Candidates that the model does not know come last, in the order they had.
    """
    steps = job.round_steps
    plain_ns = predicted.round_ns("overlap", (), steps)
    assert plain_ns is not None
    times = {variant.name: predicted.variant_ns(variant, steps) for variant in job.candidates}
    best_ns = min([plain_ns, *(time for time in times.values() if time is not None)])
    kept, notes = [], []
    for variant in sorted(job.candidates, key=lambda variant: times[variant.name] or float("inf")):
        time = times[variant.name]
        if time is None or time <= best_ns * (1 + HOPELESS):
            kept.append(variant)
        else:
            slower = f"predicted {time / best_ns - 1:.0%} slower than the best on {predicted.device.name}"
            notes.append(f"{variant.name} was not tried: {slower}")
    return replace(job, candidates=tuple(kept)), tuple(notes)


def with_predictions(bench: Bench, job: Job, predicted: Forecast, notes: Sequence[str]) -> Bench:
    """The bench with the predicted time beside each measured one that the model covers."""
    by_name = {variant.name: variant for variant in job.variants}
    fair = job.variants[0].threads
    results = []
    for result in bench.variants:
        variant = by_name.get(result.name)
        if variant is None:  # planned: what was chosen
            variant = Variant(name=result.name, controls=result.controls, threads=result.threads or fair)
        results.append(replace(result, predicted_ns=predicted.variant_ns(variant, bench.exchanges)))
    source = f"predicted by the calibration of {predicted.device.name}: docs/bench.md has the formula"
    return replace(bench, variants=tuple(results), notes=(*bench.notes, source, *notes))
