"""`makeway plan`: the contract for scripts, plan files, traces, comparison, and wrong input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.recordings import RECORDINGS, needs_recordings

from makeway.cli.main import main
from makeway.read.plan_file import load_plan

TRACES = RECORDINGS
OWN = Path(__file__).parents[2] / "examples" / "recordings" / "tp-llama-70b"
PAIR = ["gemm-ar", "--device", "H100-SXM5-80GB"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["plan", *map(str, arguments), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["plan", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_the_document_keeps_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, *PAIR)
    keys = (
        "controls", "t_naive_ms", "t_plan_ms", "t_ideal_ms", "share_of_ideal_naive", "share_of_ideal_plan", "rejected",
        "baselines", "reasons", "t_sequential_ms", "leave_as_is", "error_of_difference", "error_basis", "policies",
    )  # fmt: skip
    assert all(key in document for key in keys)
    assert document["origin"] == "predicted"
    assert document["t_plan_ms"] < document["t_naive_ms"]
    assert main(["simulate", *PAIR, "--json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    assert document["t_naive_ms"] == simulated["t_ms"]
    assert document["t_sequential_ms"] == simulated["t_sequential_ms"]
    assert document["t_ideal_ms"] == simulated["ideal_ms"]
    assert document["share_of_ideal_naive"] == simulated["share_of_ideal"]
    assert {"naive", "conccl-sp", "conccl-rp", "conccl-dma", "cui-pericas"} <= set(document["baselines"])


def test_the_same_question_gives_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.toml", "b.toml"):
        assert main(["plan", *PAIR, "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.toml").read_bytes() == (tmp_path / "b.toml").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.toml", "b.toml"]
    plan = load_plan(tmp_path / "a.toml")
    assert plan.controls
    assert plan.made_for is not None
    assert plan.made_for.device == "H100-SXM5-80GB"
    capsys.readouterr()
    assert main(["plan", *PAIR, "--out", "-"]) == 0
    assert capsys.readouterr().out == (tmp_path / "a.toml").read_text()
    assert main(["simulate", *PAIR, "--plan", str(tmp_path / "a.toml"), "--json"]) == 0


def test_a_published_heuristic_can_be_followed(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, *PAIR, "--heuristic", "conccl-sp")
    assert [item["control"] for item in document["controls"]] == ["priority", "comm-first"]
    assert "did you mean 'conccl-sp'?" in refused(capsys, *PAIR, "--heuristic", "concl-sp")


def test_a_forced_control_is_in_the_plan_or_names_what_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, *PAIR, "--control", "comm-blocks=8")
    assert "comm-blocks=8" in [item["control"] for item in document["controls"]]
    message = refused(capsys, *PAIR, "--control", "pad=200KiB")
    assert "shared memory" in message


@pytest.mark.parametrize(
    ("path", "device"),
    [
        (OWN, "A100-SXM4-80GB"),
        pytest.param(
            TRACES / "torchrec" / "straggler_sleep_w4", "V100-SXM2-16GB", marks=[needs_recordings, pytest.mark.long]
        ),
    ],
    ids=["own", "torchrec"],
)
def test_a_recorded_step_gets_a_plan_or_the_reason_why_none_helps(
    path: Path, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = answer(capsys, path)
    assert document["leave_as_is"]
    assert document["controls"] == []
    assert document["reasons"][0].startswith("Leave as is")
    assert document["device"] == device


@pytest.mark.long
@needs_recordings
def test_what_a_trace_does_not_show_is_not_planned(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, TRACES / "torchrec" / "straggler_sleep_w4")
    rejected = {item["control"].partition("=")[0]: item["reason"] for item in document["rejected"]}
    assert "which data" in rejected["comm-first"]
    assert "not recorded" in rejected["copy-engine"]
    assert document["share_of_ideal_plan"] is None or document["share_of_ideal_plan"] >= 0


@needs_recordings
def test_traces_that_make_no_workload_say_why(capsys: pytest.CaptureFixture[str]) -> None:
    for path, why in (
        ("mi300x_w8_rank0_rccl", "no registers and shared memory recorded"),
        ("h100_w1_owlv2_no_nccl", "no collective"),
    ):
        document = answer(capsys, TRACES / "tracelens" / f"{path}.json.gz")
        assert why in document["reasons"][0]
        assert document["controls"] == []
    assert "pass --device" in refused(capsys, TRACES / "hta" / "w128_sampled_rank0.json.gz")


def test_two_plans_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.toml").write_text('version = 2\n[[control]]\nkind = "priority"\n')
    (tmp_path / "b.toml").write_text('version = 2\n[[control]]\nkind = "partition"\ncomm_sms = 24\n')
    both = ["--compare", tmp_path / "a.toml", tmp_path / "b.toml"]
    document = answer(capsys, *both, *PAIR)
    assert (document["added"], document["removed"]) == (["partition=24"], ["priority"])
    assert document["change_ms"] != 0
    assert answer(capsys, *both)["change_ms"] is None
    assert main(["plan", *map(str, both)]) == 0
    assert "give the workload and --device" in capsys.readouterr().out
    assert main(["plan", *map(str, both), *PAIR]) == 0
    assert "partition=24" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a preset"),
        (["gemm-ar"], "--device is needed"),
        (["gemm-arr", "--device", "A40"], "did you mean"),
        (["gemm-ar", "--device", "A41"], "did you mean"),
        ([*PAIR, "--library", "mccl-1.0/ring"], "mccl-1.0"),
        ([*PAIR, "--control", "partition=8"], "add comm-blocks=8"),
        ([*PAIR, "--control", "prority"], "did you mean"),
        ([*PAIR, "--out", "/nowhere/at/all.toml"], "/nowhere"),
        ([*PAIR, "--step", "3"], "--step is for traces"),
        (["missing.json"], "missing.json does not exist, and no preset has that name"),
        (["missing.json"], "Presets: cb-ar, cb-a2a"),
        (["gemm-arr"], "did you mean 'gemm-ar'?"),
        ([*PAIR, "--control", "comm-blocks=8", "--control", "comm-blocks=9"], "twice"),
        (["missing.toml", "--device", "A40"], "missing.toml"),
        ([__file__, "--ranks", "8"], "--ranks is for workloads"),
    ],
)
def test_wrong_input_gets_one_clear_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, *arguments)


def test_an_empty_workload_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.toml").write_text('name = "nothing"\n')
    assert "no operations" in refused(capsys, tmp_path / "empty.toml", "--device", "A40")


def test_another_library_version_is_planned_with_its_own_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    old = answer(capsys, *PAIR, "--library", "nccl-2.21.5")
    assert old["t_plan_ms"] > 0
    assert answer(capsys, *PAIR, "--library", "nccl-2.21.5/ring-simple")["t_plan_ms"] == old["t_plan_ms"]
