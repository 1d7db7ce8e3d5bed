"""Published training steps beside predicted ones: the contract for scripts, bad rows, the errors that are claimed."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from tests.recordings import VALIDATION

from makeway import validate
from makeway.cli.main import main
from makeway.decide.scale.rows import describe
from makeway.decide.scale.validate import SWEEP_TOP, ScaleRow, ScaleValidation, validate_rows, validate_scale
from makeway.values.errors import InputError

TABLES = VALIDATION / "scale"
GOOD = {
    "id": "mine-1", "source": "a run of mine", "device": "H100-SXM5-80GB", "gpus": "64", "nodes_gpus": "8",
    "net_gbps_per_gpu": "400", "model": "Llama", "layers": "32", "hidden": "4096", "ffn": "14336", "heads": "32",
    "kv_heads": "8", "vocab": "128256", "seq": "8192", "tp": "2", "pp": "2", "vp": "1", "cp": "1", "dp": "16",
    "sp": "yes", "mbs": "1", "gbs": "128", "recompute": "none", "precision": "bf16", "schedule": "1f1b",
    "metric": "iteration_s", "value": "4",
}  # fmt: skip


@pytest.fixture(scope="module")
def published() -> ScaleValidation:
    return validate_scale()


def row_of(**changes: str) -> ScaleRow:
    return validate_rows([("mine", [GOOD | changes])]).rows[0]


def test_a_row_of_a_known_device_is_predicted_with_what_it_assumes() -> None:
    row = row_of()
    assert row.covered
    assert row.status == "test"
    assert row.predicted is not None
    assert row.published is not None
    assert 0.3 < row.predicted / row.published < 3
    assert any("software as fast as" in sentence for sentence in row.assumed)


def test_the_same_step_has_one_prediction_in_every_metric() -> None:
    seconds = row_of().predicted
    assert seconds is not None
    assert row_of(metric="iteration_ms").predicted == pytest.approx(1000 * seconds)
    assert row_of(metric="tokens_per_s_per_gpu").predicted == pytest.approx(128 * 8192 / 64 / seconds)
    assert row_of(metric="samples_per_gpu_per_s").predicted == pytest.approx(128 / 64 / seconds)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "TPU-v5p"}, "no facts for device 'TPU-v5p'"),
        ({"layers": ""}, "layers is not given"),
        ({"layers": "many"}, "is not a number"),
        ({"layers": "1e999"}, "is not a number"),
        ({"layers": "nan"}, "is not a number"),
        ({"layers": "99999999999"}, "at most"),
        ({"pp": "1000000", "gpus": "64000000"}, "at most"),
        ({"tp": "3"}, "do not divide"),
        ({"heads": "31", "kv_heads": "31", "hidden": "3968"}, "do not divide by tp"),
        ({"gbs": "100"}, "does not divide"),
        ({"precision": "NVFP4"}, "no 4-bit matrix products"),
        ({"precision": "int3"}, "not modelled"),
        ({"schedule": "chimera"}, "schedule 'chimera'"),
        ({"recompute": "some of it"}, "not modelled"),
        ({"metric": "happiness"}, "not the time, the memory or the bubble"),
        ({"value": "-1"}, "not above 0"),
        ({"value": ""}, "not a number"),
        ({"net_gbps_per_gpu": "fast"}, "is not a number"),
        ({"net_gbps_per_gpu": "-3"}, "not above 0"),
        ({"model": "Llama (tokendrop)"}, "dropped tokens"),
        ({"model": "Nemotron_3_Super"}, "state-space"),
        ({"model": "Qwen3.5-27B"}, "linear-attention"),
        ({"model": "DeepSeekV4 Flash"}, "sparse attention"),
        ({"model": "gpt-oss-20b"}, "sinks and windows"),
        ({"model": "Llama4 Maverick"}, "layers of several kinds"),
        ({"model": "FooNet"}, "an unknown model"),
        ({"model": "FooNet", "params_b": "3"}, "B parameters, not 3 B"),
        ({"params_b": "3"}, "8.03 B parameters, not 3 B"),
        ({"params_b": "8 billion"}, "is not a number"),
        ({"fsdp": "HYBRID_SHARD"}, "fsdp 'hybrid_shard'"),
        ({"sp": "maybe"}, "sp 'maybe'"),
        ({"flags": "cpu offloading"}, "offloading"),
        ({"etp": "4"}, "etp '4': such a column is not known"),
        ({"gpus": "64.5"}, "not a whole number"),
        ({"net_gbps_per_gpu": "nan"}, "not the rate of a network"),
        ({"vp": "3", "schedule": "zbv"}, "holds two parts"),
    ],
)
def test_what_is_not_known_is_not_covered_and_says_why(changes: dict[str, str], reason: str) -> None:
    row = row_of(**changes)
    assert not row.covered
    assert row.predicted is None
    assert reason in row.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "FooNet", "params_b": "8"},
        {"model": "Llama-405B"},
        {"model": "Gemma-7B"},
        {"model": "Qwen2.5-7B"},
        {"model": "Qwen3_8B"},
        {"precision": "float8 tensorwise"},
        {"precision": "BF16 mixed"},
        {"fsdp": "1"},
        {"vocab": "128,256"},
        {"etp": "1"},
    ],
    ids=lambda changes: " ".join(changes.values()),
)
def test_what_is_written_in_another_way_is_covered(changes: dict[str, str]) -> None:
    row = row_of(**changes)
    assert row.covered, row.reason


def test_a_device_that_was_not_calibrated_takes_the_release_of_its_row_and_grows_with_its_power() -> None:
    source = "NVIDIA-NeMo/Megatron-Bridge docs release {} Pre-Training"
    rows = [row_of(device=name, source=source.format("26.04"), precision="FP8") for name in ("GB200", "GB300")]
    assert [row.generation for row in rows] == ["gb200-nemo", "gb200-nemo, scaled to GB300"]
    assert row_of(device="GB300", source=source.format("26.06")).generation == "gb200-nemo-26.06, scaled to GB300"
    slow, fast = (row.predicted or 0.0 for row in rows)
    assert 1.05 < slow / fast < 1400 / 1200


@pytest.mark.parametrize("device", ["MI300X", "H200", "GB300", "L40S", "A100-SXM4-40GB"])
def test_a_device_without_numbers_is_predicted_with_scaled_ones_and_says_so(device: str) -> None:
    row = row_of(device=device, source="a framework that nobody has heard of")
    assert row.covered, row.reason
    assert any("stand in" in sentence or "software as fast as" in sentence for sentence in row.assumed)


def test_what_a_recipe_sets_depends_on_model_device_and_release() -> None:
    experts = {
        "experts": "128",
        "topk": "8",
        "expert_ffn": "1536",
        "ffn": "",
        "tp": "1",
        "pp": "1",
        "ep": "8",
        "dp": "64",
    }
    bridge = GOOD | experts | {"device": "GB200", "model": "Qwen3_235B_a22B", "precision": "MXFP8"}

    def assumed(release: str, **changes: str) -> str:
        source = f"NVIDIA-NeMo/Megatron-Bridge docs release {release} Pre-Training"
        described = describe(bridge | {"source": source} | changes)
        return "; ".join(described.assumed)

    assert "graphs True" in assumed("26.06")
    assert "graphs" not in assumed("26.04.01")
    assert "dispatcher deepep" in assumed("26.04.01")
    assert "dispatcher alltoall, overlap_ep True" in assumed("26.04", device="H100-SXM5-80GB", precision="FP8")


@pytest.mark.parametrize("missing", ["layers", "hidden", "heads", "seq", "tp", "ffn"])
def test_a_row_without_a_column_comes_back_with_the_reason(
    missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {key: value for key, value in GOOD.items() if key != missing}
    table = tmp_path / "mine.csv"
    table.write_text(",".join(kept) + "\n" + ",".join(kept.values()) + "\n")
    assert main(["validate", "--data", str(table), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert (row["covered"], row["predicted"], row["reason"]) == (False, None, f"{missing} is not given")
    assert {"id", "metric", "published", "assumed"} <= set(row)


def test_memory_and_bubbles_of_a_row_are_predicted(published: ScaleValidation) -> None:
    assert published.memory
    assert all(abs(item.error) <= 0.10 for item in published.memory)
    bubbles = [row for row in published.rows if row.covered and row.metric.startswith("bubble_rate")]
    assert len(bubbles) >= 40
    assert all(abs((row.predicted or 0.0) - (row.published or 0.0)) <= 0.004 for row in bubbles)


def test_peers_and_unseen_software_are_beside_our_own_error(published: ScaleValidation) -> None:
    assert any(item.name.startswith("SimuMax") and item.peer_ms for item in published.peers)
    assert any("calculon" in item.name for item in published.peers)
    own = {row.generation for row in published.rows if row.status == "calibration"}
    assert len(published.unseen) >= len(own)


@pytest.mark.parametrize(
    "mangled",
    [
        "id,device,gpus,model,layers,hidden,seq,tp,pp,metric,value\n",
        "id,device,gpus,model,layers,hidden,seq,tp,pp,metric,value\n,,,,,,,,,,\n",
        "id,device,gpus,model,layers,hidden,seq,tp,pp,metric,value\nx,B200,0,-1,1e9,nan,inf,0,0,iteration_s,1\n",
        "id,device,gpus,model,layers,hidden,seq,tp,pp,metric,value\n" + "<script>," * 40 + "\n",
        "id,device,gpus\nx,B200,8\n",
    ],
    ids=["no-rows", "empty", "numbers", "hostile", "columns"],
)
def test_mangled_tables_end_in_rows_or_in_one_message(
    mangled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine.csv"
    table.write_text(mangled)
    code = main(["validate", "scale", "--data", str(table), "--json"])
    streams = capsys.readouterr()
    if code == 0:
        assert all(not row["covered"] and row["reason"] for row in json.loads(streams.out)["rows"])
    else:
        assert code == 2
        assert "Traceback" not in streams.err
        assert streams.err.strip()


def test_scripts_read_rows_and_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "mine.csv"
    text = io.StringIO()
    writer = csv.DictWriter(text, GOOD)
    writer.writeheader()
    writer.writerows([GOOD, GOOD | {"id": "mine-2", "device": "\x1b[31mGPU"}])
    table.write_text(text.getvalue())
    assert main(["validate", "--data", str(table), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    good, bad = document["rows"]
    assert {"id", "metric", "published", "predicted", "covered", "reason", "assumed"} <= set(good)
    assert (good["id"], good["metric"], good["published"], good["covered"]) == ("mine-1", "iteration_s", 4.0, True)
    assert bad["covered"] is False
    assert bad["predicted"] is None
    assert bad["reason"]
    assert document["summary"][0]["rows"] == 1
    assert main(["validate", "scale", "--data", str(tmp_path)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_scale_is_asked_for_alone() -> None:
    with pytest.raises(InputError, match="scale alone"):
        validate(["scale", "dma"])


def test_dense_steps_that_nothing_was_fitted_to_are_as_close_as_the_docs_say(published: ScaleValidation) -> None:
    test = next(item for item in published.summary if item.name == "dense NVIDIA rows, test")
    assert test.rows >= 150
    assert test.mean_error <= 0.10
    assert test.close >= 0.80


def test_rows_of_one_layout_calibrate_or_test_together(published: ScaleValidation) -> None:
    statuses: dict[tuple[str, ...], set[str]] = {}
    for row in published.rows:
        if row.covered and row.table == "simumax_b200_node":
            statuses.setdefault((row.generation, row.case), set()).add(row.status)
    assert all(len(kinds) == 1 for kinds in statuses.values())
    assert {kind for kinds in statuses.values() for kind in kinds} == {"calibration", "test"}


def test_every_row_that_is_not_covered_says_why(published: ScaleValidation) -> None:
    assert all(row.reason for row in published.rows if not row.covered)
    assert all(row.predicted for row in published.rows if row.covered)


@pytest.mark.long
@pytest.mark.skipif(not TABLES.is_dir(), reason=f"no tables of published steps in {TABLES}")
def test_all_tables_with_those_that_stay_outside_the_package() -> None:
    every = validate_scale(TABLES)
    test = next(item for item in every.summary if item.name == "dense NVIDIA rows, test")
    assert test.mean_error <= 0.10
    assert test.close >= 0.80
    sweeps = {item.name: item for item in every.sweeps}
    wanted = next(item for name, item in sweeps.items() if "39.1B" in name and "512 GPUs" in name)
    assert wanted.layouts == 47
    assert wanted.rank <= SWEEP_TOP
