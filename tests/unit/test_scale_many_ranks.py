"""Jitter by order statistics, and goodput with failures."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.decide.scale.goodput import PUBLISHED_GPU_HOURS_PER_FAILURE, Reliability, goodput
from makeway.decide.scale.jitter import PUBLISHED_JITTER, expected_order, gain_without_slowest, slow_down
from makeway.decide.scale.recorded_jitter import jitter_of, recorded_jitter
from makeway.decide.scale.step import predict_step
from makeway.read.presets import load_cluster, load_model
from makeway.values.cluster import Jitter
from makeway.values.errors import InputError, MakewayError
from makeway.values.layout_word import parse_layout

# NVIDIA/dgxc-benchmarking v25.04, nemotron/README.md: seconds of a step of Nemotron4-15B by number of H100.
BF16 = {16: 2.66, 32: 2.66, 64: 2.67, 128: 2.67, 256: 2.68, 512: 2.71, 1024: 2.74, 2048: 2.78}
FP8 = {16: 1.98, 32: 1.98, 64: 1.98, 128: 1.99, 256: 2.0, 512: 2.02, 1024: 2.03, 2048: 2.09}


def test_the_persistent_spread_is_the_least_squares_fit_of_the_bf16_rows() -> None:
    orders = [expected_order(gpus, gpus) for gpus in BF16]
    times = list(BF16.values())
    middle, mean = sum(orders) / len(orders), sum(times) / len(times)
    covariance = sum((order - middle) * (time - mean) for order, time in zip(orders, times, strict=True))
    slope = covariance / sum((order - middle) ** 2 for order in orders)
    assert slope / (mean - slope * middle) == pytest.approx(PUBLISHED_JITTER.persistent, abs=1e-4)


def test_growth_of_the_fp8_rows_that_were_left_out() -> None:
    for gpus, time in FP8.items():
        predicted = FP8[16] * slow_down(PUBLISHED_JITTER, gpus, reference_gpus=16)
        assert predicted == pytest.approx(time, rel=0.02)


@given(st.floats(0, 0.1), st.floats(0, 0.1), st.integers(1, 10**6))
def test_more_gpus_never_wait_less(transient: float, persistent: float, gpus: int) -> None:
    jitter = Jitter(transient=transient, persistent=persistent)
    assert slow_down(jitter, gpus) >= 1
    assert slow_down(jitter, 2 * gpus) >= slow_down(jitter, gpus)


@given(st.integers(2, 10**5), st.data())
def test_replacing_more_slow_gpus_never_gains_less(gpus: int, data: st.DataObject) -> None:
    removed = data.draw(st.integers(1, gpus - 1))
    gain = gain_without_slowest(PUBLISHED_JITTER, gpus, removed)
    assert 0 <= gain_without_slowest(PUBLISHED_JITTER, gpus, removed - 1) <= gain < 1


def test_expected_maxima_of_normal_values() -> None:
    assert [round(expected_order(ranks, ranks), 2) for ranks in (8, 64, 1024)] == [1.43, 2.34, 3.23]


def test_jitter_is_a_pair_of_shares() -> None:
    with pytest.raises(InputError, match="two shares"):
        Jitter(transient=-0.1, persistent=0.0)


def test_goodput_with_the_failures_of_llama_3() -> None:
    run = goodput(16_384)
    assert run.between_failures_s / 3600 == pytest.approx(54 * 24 / 419)
    assert run.useful > 0.9  # the published effective training time; checkpoint and restart times are assumed


@given(st.integers(1, 200_000), st.floats(0.5, 120), st.floats(0, 600))
def test_shares_of_goodput_add_up_and_no_other_interval_is_better(gpus: int, checkpoint: float, restart: float) -> None:
    cost = Reliability(checkpoint_s=checkpoint, restart_s=restart)
    run = goodput(gpus, cost)
    assert run.useful + run.checkpoints + run.lost == pytest.approx(1)
    assert min(run.useful, run.checkpoints, run.lost) >= -1e-12
    for factor in (0.8, 1.25):
        interval = factor * run.interval_s
        per_failure = run.between_failures_s * math.exp(restart / run.between_failures_s)
        other = interval / (per_failure * math.expm1((interval + checkpoint) / run.between_failures_s))
        assert other <= run.useful * (1 + 1e-9)
    assert goodput(2 * gpus, cost).useful <= run.useful


def test_rare_failures_give_youngs_interval() -> None:
    run = goodput(64, Reliability(checkpoint_s=1.0))
    assert run.interval_s == pytest.approx(math.sqrt(2 * PUBLISHED_GPU_HOURS_PER_FAILURE * 3600 / 64), rel=0.01)


def test_goodput_refuses_free_checkpoints() -> None:
    with pytest.raises(InputError, match="checkpoint cost above 0"):
        Reliability(checkpoint_s=0)


@given(st.floats(0.0, 0.05), st.floats(0.0, 0.05), st.integers(0, 1000))
def test_recorded_steps_give_back_the_spread_they_were_made_with(
    transient: float, persistent: float, seed: int
) -> None:
    numbers = random.Random(seed)
    ranks = [1e9 * (1 + persistent * numbers.gauss()) for _ in range(200)]
    steps = [tuple(round(mean * (1 + transient * numbers.gauss())) for _ in range(20)) for mean in ranks]
    found = jitter_of(steps, source="")
    assert found.transient == pytest.approx(transient, rel=0.2, abs=1e-6)
    # Of 20 steps a rank's mean keeps 0.22 of the transient spread; 200 ranks know the square of that to 10 %, so five
    # standard deviations of what is left over are 0.16 of it.
    assert found.persistent == pytest.approx(persistent, rel=0.3, abs=0.17 * transient + 1e-6)


def test_one_rank_says_nothing_about_how_ranks_vary(tmp_path: Path) -> None:
    kineto = {"traceEvents": [], "schemaVersion": 1}
    (tmp_path / "rank0.json").write_text(json.dumps(kineto))
    with pytest.raises(MakewayError):
        recorded_jitter(tmp_path)


def test_a_clusters_own_jitter_sets_what_all_wait_for() -> None:
    layout = parse_layout("tp=8,gbs=64,sharding=zero1", gpus=64)
    model, plain = load_model("llama-3-8b"), load_cluster("dgx-h100")
    steady = replace(plain, jitter=Jitter(transient=0.0, persistent=0.0, source="made up"))
    still, usual = (predict_step(model, layout, cluster) for cluster in (steady, plain))
    waiting = {line.kind: line.ns for line in usual.ledger}["stragglers"]
    assert usual.step_ns - still.step_ns == pytest.approx(waiting)
    assert any("made up" in sentence for sentence in still.assumed)
