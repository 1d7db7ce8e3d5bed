"""The same question has the same digits, whoever asks: simulate, plan, sweep, bench, what-if, demo."""

from __future__ import annotations

import json

import pytest

from makeway.act.measure.demo import _device_map
from makeway.act.measure.job import Job
from makeway.act.measure.simulated import simulated_bench, simulated_experiment
from makeway.act.measure.variants import OVERLAP, SEQUENTIAL
from makeway.decide.analysis.recorded import RecordedStep
from makeway.decide.analysis.what_if import what_if
from makeway.decide.planning.planner import plan
from makeway.model.presets import PresetOptions, load_preset, preset_names
from makeway.model.simulate.predict import MOST_BLOCKS, Settings, simulate
from makeway.model.simulate.spread import BLOCK_SPREAD
from makeway.model.simulate.sweep import sweep, with_alternatives
from makeway.model.validate.grid import published_device
from makeway.show.json import json as as_json
from makeway.show.report import report_of
from makeway.values.control import CommPriority
from makeway.values.device import Device, device_names, load_device
from makeway.values.errors import MakewayError
from makeway.values.workload import Workload

CASES = (
    ("gemm-ar", "H100-SXM5-80GB"),
    pytest.param("tp-llama-70b", "MI300X", marks=pytest.mark.long),
    pytest.param("ddp-llama-7b", "A100-SXM4-80GB", marks=pytest.mark.long),
    ("conccl-20", "MI250X"),
)
PRIORITY = (CommPriority(),)


@pytest.mark.parametrize(("preset", "device"), CASES)
def test_every_command_gives_equal_digits(preset: str, device: str) -> None:
    assert_one_answer(preset, load_device(device))


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_ten_times_the_effort_changes_no_verdict_and_hardly_a_time() -> None:
    apart = {}
    for name in ("H100-SXM5-80GB", "A100-SXM4-80GB", "MI300X"):
        device = load_device(name)
        for preset in preset_names():
            workload = load_preset(preset, device)
            normal, wide = (plan(workload, device, effort=effort) for effort in (1, 10))
            assert normal.predicted is not None and wide.predicted is not None  # noqa: PT018
            assert normal.search is not None and wide.search is not None  # noqa: PT018
            same = normal.search.leave_as_is == wide.search.leave_as_is
            apart[preset, name] = abs(normal.predicted.t_plan_ns / wide.predicted.t_plan_ns - 1) if same else 1.0
    changed = {cell: change for cell, change in apart.items() if change >= 0.005}
    assert len(changed) <= 0.05 * len(apart), changed


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_every_command_gives_equal_digits_for_all_presets_on_all_devices() -> None:
    devices = [device for device in map(load_device, device_names()) if device.limits]
    asked = 0
    for device in devices:
        for preset in preset_names():
            try:
                simulate(load_preset(preset, device), device)
            except MakewayError:
                continue  # the preset does not run there: every command says so
            assert_one_answer(preset, device)
            asked += 1
    assert asked > 3 * len(devices)


def assert_one_answer(preset: str, device: Device) -> None:
    workload = load_preset(preset, device)
    naive, urgent = simulate(workload, device), simulate(workload, device, PRIORITY)
    baselines = (naive.t_naive_ns, naive.t_sequential_ns, naive.ideal_ns, naive.share_of_ideal_naive)
    assert (urgent.t_naive_ns, urgent.t_sequential_ns, urgent.ideal_ns, urgent.share_of_ideal_naive) == baselines
    assert naive.t_ns == naive.t_naive_ns

    swept = [outcome.prediction for outcome in sweep("priority", workload, device).outcomes]
    assert [prediction.t_ns for prediction in swept if prediction] == [naive.t_ns, urgent.t_ns]

    bench = simulated_bench(Job(workload=preset, on=f"sim:{device.name}", controls=(PRIORITY,), plan=False))
    assert bench.variant(OVERLAP).median_ns == naive.t_ns
    assert bench.variant("priority").median_ns == urgent.t_ns
    assert bench.variant(SEQUENTIAL).median_ns == naive.t_sequential_ns
    assert bench.ideal_ns == naive.ideal_ns
    assert bench.share_of_ideal(OVERLAP) == naive.share_of_ideal_naive

    planned = plan(workload, device)
    assert planned.predicted is not None
    assert planned.predicted.t_naive_ns == round(naive.t_ns)
    documents = [json.loads(as_json(report_of(answer))) for answer in (planned, naive)]
    equal = ("t_naive_ms", "t_sequential_ms", "t_ideal_ms", "share_of_ideal_naive")
    assert [documents[0][key] for key in equal] == [documents[1][key] for key in equal]

    answers = what_if(as_recorded(workload, device), PRIORITY)
    assert answers.replay.predicted_ns == naive.t_ns
    assert answers.outcomes[0].gain_ns == naive.t_ns - urgent.t_ns


def as_recorded(workload: Workload, device: Device) -> RecordedStep:
    return RecordedStep(
        workload=workload,
        device=device,
        rank=0,
        origin_ns=0,
        recorded_ns=1,
        kernels=len(workload.kernels),
        collectives=(),
        sizes_known=True,
    )


def test_the_demo_shows_what_a_bench_of_the_experiment_shows() -> None:
    grids = ((4, 4), (16, 4), (4, 16), (16, 16))
    job = Job(workload="cb-ar", on=f"sim:{published_device('A40').name}", grids=grids)
    assert _device_map("A40", (4, 16)).experiment.cells == simulated_experiment(job).cells


def test_the_first_alternative_is_the_prediction_itself() -> None:
    device = load_device("H100-SXM5-80GB")
    prediction = simulate(load_preset("gemm-ar", device), device, PRIORITY)
    first = with_alternatives(prediction, Settings()).alternatives[0]
    assert (first.dispatch, first.hbm) == (prediction.dispatch, prediction.hbm)
    assert (first.t_ns, first.share_of_ideal) == (prediction.t_ns, prediction.share_of_ideal)


def test_recording_what_sms_hold_changes_no_time() -> None:
    device = load_device("H100-SXM5-80GB")
    workload = load_preset("gemm-ar", device)
    plain, recorded = simulate(workload, device), simulate(workload, device, (), Settings(record=True))
    assert recorded.timeline.spans == plain.timeline.spans
    assert (recorded.t_ns, plain.timeline.holdings) == (plain.t_ns, ())
    assert 10 < len({held.time_ns for held in recorded.timeline.holdings}) < 300


def test_the_defaults_are_the_block_engine_with_the_evidenced_spread() -> None:
    device = load_device("A100-SXM4-80GB")
    workload = load_preset("gemm-ar", device)
    prediction = simulate(workload, device)
    assert (prediction.engine, prediction.jitter) == ("block", BLOCK_SPREAD)
    assert prediction.t_ns == simulate(workload, device, (), Settings(engine="block", jitter=BLOCK_SPREAD)).t_ns
    assert simulate(workload, device, (), Settings(engine="class")).jitter == 0.0


def test_what_is_too_large_for_the_block_engine_goes_to_the_fluid_one(monkeypatch: pytest.MonkeyPatch) -> None:
    device = load_device("A100-SXM4-80GB")
    workload = load_preset("gemm-ar", device)
    full = simulate(workload, device, PRIORITY)
    assert full.blocks < MOST_BLOCKS
    monkeypatch.setattr("makeway.model.simulate.predict.MOST_BLOCKS", 1000)
    large = simulate(workload, device, PRIORITY)
    assert (large.engine, large.jitter, large.ideal_ns) == ("fluid", BLOCK_SPREAD, full.ideal_ns)
    assert large.t_ns == pytest.approx(full.t_ns, rel=0.02)
    several = simulate(load_preset("cb-ar", device, PresetOptions(grid=(64, 64))), device)
    assert (several.engine, several.jitter, several.fallback) == ("class", 0.0, None)


def test_json_carries_the_contracts_keys() -> None:
    device = load_device("H100-SXM5-80GB")
    prediction = simulate(load_preset("gemm-ar", device), device, PRIORITY)
    document = json.loads(as_json(report_of(prediction)))
    assert document["t_ideal_ms"] == document["ideal_ms"] == round(prediction.ideal_ns / 1e6, 6)
    assert document["t_naive_ms"] > document["t_ms"]
    assert document["share_of_ideal_naive"] < document["share_of_ideal"]
