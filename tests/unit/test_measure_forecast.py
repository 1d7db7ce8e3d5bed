"""Predictions beside measurements on a CPU host: laws of a round, the order of candidates, and what is dropped."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.measure.calibrate import Calibration
from makeway.act.measure.host_forecast import Forecast, forecast, in_predicted_order, with_predictions
from makeway.act.measure.job import Job
from makeway.act.measure.link import Rate
from makeway.act.measure.outcome import Bench, VariantResult
from makeway.act.measure.sizes import DEPTH_STEP, UNIT_DEPTH
from makeway.act.measure.variants import OVERLAP, PLANNED, SEQUENTIAL, Variant, variant_name
from makeway.show.bench import bench_data
from makeway.values.control import Chunks, CommPriority, Control, CopyEngine
from makeway.values.device import HOST_CARRIERS, HOST_KINDS, Device, host_fact_key, load_device
from makeway.values.errors import InputError, UnsupportedError

ROUND = {"latency_ns": 1e5, "ns_per_byte": 1.0, "cpu_ns_per_byte": 0.5}
STEPS = 4


def host() -> Device:
    """Two cores; copies are four times as fast as Gloo."""
    facts = {
        host_fact_key(carrier, kind, quantity): value * (0.25 if carrier == "direct" else 1.0)
        for carrier in HOST_CARRIERS
        for kind in HOST_KINDS
        for quantity, value in ROUND.items()
    }
    return Calibration(facts={"fp32_flops_per_s": 100e9, **facts}, cores=2, rounds=7, machine="made up").device


def variant(*controls: Control, threads: int = 1) -> Variant:
    return Variant(name=variant_name(controls) or OVERLAP, controls=controls, threads=threads)


def job(workload: str = "gemm-ar", **more: Any) -> Job:
    fixed = (Variant(name=SEQUENTIAL, mode="sequential"), variant(), variant(CommPriority()))
    return Job(workload=workload, variants=fixed, ranks=2, steps=STEPS, **more)


def predicted(asked: Job) -> tuple[Job, Forecast]:
    return forecast(asked, host(), cores=2)


workloads = st.sampled_from(("gemm-ar", "gemm-ag", "gemm-a2a", "cb-ar", "mb-a2a", "conccl-20"))
scales = st.floats(0.01, 0.2)
rates = st.none() | st.builds(Rate, st.integers(10**7, 10**11))


@given(workloads, scales, rates, st.integers(1, 20), st.sampled_from(((), (CopyEngine(),), (Chunks(4),))))
def test_no_round_beats_its_longer_part(
    workload: str, scale: float, rate: Rate | None, steps: int, controls: tuple[Control, ...]
) -> None:
    found = predicted(job(workload, scale=scale, link=rate))[1]
    times = [found.round_ns(mode, controls, steps) for mode in ("compute", "comm", "overlap")]
    compute, comm, overlap = [time or 0 for time in times]
    assert overlap >= max(compute, comm) * (1 - 1e-9) > 0


@given(workloads, scales, st.integers(2, 8))
def test_pieces_cost_a_latency_each_and_never_gain_in_the_model(workload: str, scale: float, pieces: int) -> None:
    found = predicted(job(workload, scale=scale))[1]
    whole, cut = (found.round_ns("comm", controls, STEPS) or 0 for controls in ((), (Chunks(pieces),)))
    assert cut - whole == pytest.approx(STEPS * (pieces - 1) * ROUND["latency_ns"])


@pytest.mark.parametrize("workload", ["gemm-ar", "gemm-ag", "gemm-a2a"])
def test_a_pair_without_a_depth_is_balanced_to_within_one_step_of_depth(workload: str) -> None:
    asked, found = predicted(job(workload))
    assert asked.scale is not None
    compute, comm = (found.round_ns(mode, (), STEPS) or 0 for mode in ("compute", "comm"))
    step_ns = compute * DEPTH_STEP / (asked.scale * UNIT_DEPTH)
    assert abs(compute - comm) <= step_ns
    assert predicted(job(workload, scale=2.0))[0].scale == 2.0


def test_what_the_model_does_not_know_has_no_prediction() -> None:
    found = predicted(job())[1]
    assert found.round_ns("overlap", (CommPriority(),), STEPS) is None
    assert found.variant_ns(variant(threads=2), STEPS) is None
    assert found.variant_ns(variant(), STEPS) is not None


def test_candidates_come_in_predicted_order_the_unknown_last_and_the_hopeless_not_at_all() -> None:
    candidates = (variant(CommPriority()), variant(Chunks(2)), variant(CopyEngine()))
    asked, found = predicted(job(candidates=candidates, scale=0.1))
    ordered, notes = in_predicted_order(asked, found)
    assert [one.controls for one in ordered.candidates] == [(CopyEngine(),), (CommPriority(),)]
    (note,) = notes
    assert note.startswith("chunks=2 was not tried: predicted ")


def test_predictions_stand_beside_the_measured_times() -> None:
    asked, found = predicted(job(scale=1.0))
    variants = (
        VariantResult(name=SEQUENTIAL, times_ns=(5.0,), threads=1),
        VariantResult(name=OVERLAP, times_ns=(4.0,), threads=1),
        VariantResult(name="priority", times_ns=(4.0,), threads=1, controls=(CommPriority(),)),
        VariantResult(name=PLANNED, times_ns=(3.0,), threads=1, controls=(CopyEngine(),)),
    )
    plain = Bench(
        on="cpu",
        ranks=2,
        workload="gemm-ar",
        origin="measured",
        variants=variants,
        compute_ns=(2.0,),
        comm_ns=(3.0,),
        exchanges=STEPS,
    )
    with_times = with_predictions(plain, asked, found, ["dropped"])
    data = bench_data(with_times)
    times = {name: variant["predicted_ms"] for name, variant in data["variants"].items()}
    assert times["priority"] is None
    assert times[PLANNED] < times[OVERLAP] < times[SEQUENTIAL]
    assert times[SEQUENTIAL] == pytest.approx((found.round_ns("sequential", (), STEPS) or 0) / 1e6)
    assert with_times.notes[-1] == "dropped"
    assert {variant["predicted_ms"] for variant in bench_data(plain)["variants"].values()} == {None}


def test_what_cannot_be_predicted_says_why() -> None:
    with pytest.raises(InputError, match="not ddp; leave it out"):
        predicted(job("ddp"))
    with pytest.raises(UnsupportedError, match="doctor --calibrate"):
        forecast(job(), load_device("A40"), cores=2)


def test_sizes_and_depths_are_those_of_the_ranks() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch without numpy warns when it is loaded
        pytest.importorskip("torch")
        from makeway.act.measure.ranks.pairs import published_shape, result_shape
    for workload in ("cb-ar", "conccl-20"):
        shape, step = published_shape(workload, 1 / 16, 2), predicted(job(workload))[1].step
        assert step.flops == pytest.approx(2 * shape.m * shape.n * shape.k, rel=0.05)
        assert step.collective.size_bytes == pytest.approx(shape.size_bytes, rel=0.1)
    pair, found = result_shape("all-gather", 8 * 2**20, 256, 2), predicted(replace(job("gemm-ag"), scale=1.0))[1].step
    assert found.flops == pytest.approx(2 * pair.m * pair.n * pair.k)
