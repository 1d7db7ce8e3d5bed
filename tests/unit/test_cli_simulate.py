"""`makeway simulate`: the contract for scripts, sweeps, and wrong input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from makeway.cli.main import main

PAIR = ["simulate", "gemm-ar", "--device", "H100-SXM5-80GB"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_simulate_keeps_its_contract(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, *PAIR, "--control", "priority")
    keys = ("t_compute_ms", "t_comm_ms", "t_sequential_ms", "t_ms", "ideal_ms", "share_of_ideal", "overlap_rate")
    assert all(document[key] > 0 for key in keys)
    assert document["origin"] == "predicted"
    assert document["controls"] == ["priority"]
    assert document["ideal_ms"] == max(document["t_compute_ms"], document["t_comm_ms"])
    assert document["t_sequential_ms"] == pytest.approx(document["t_compute_ms"] + document["t_comm_ms"], rel=1e-3)
    assert {span["kind"] for span in document["spans"]} == {"compute", "comm"}
    assert sum(held["sms"] for held in document["residency"] if held["time_ms"] == 0) == 132


def test_priority_helps_a_long_gemm_and_says_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    naive = answer(capsys, *PAIR)
    urgent = answer(capsys, *PAIR, "--control", "priority")
    assert naive["share_of_ideal"] < 0.3 < urgent["share_of_ideal"]


def test_text_output_shows_the_unconfirmed_policies_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PAIR, "--control", "priority", "--verbose"]) == 0
    out = capsys.readouterr().out
    for text in ("(predicted)", "of the ideal gain", "strict", "backfill", "proportional", "max-min", "assumed:"):
        assert text in out


def test_a_plan_file_in_place_of_a_workload_says_where_it_belongs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('version = 1\n[[control]]\nkind = "CommPriority"\n')
    assert main(["simulate", str(plan), "--device", "H200"]) == 2
    assert "this is a plan file, not a workload; pass it with --plan" in capsys.readouterr().err
    assert main([*PAIR, "--plan", str(plan), "--control", "priority"]) == 2
    assert "priority is set twice" in capsys.readouterr().err


def test_presets_are_listed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--list", "--json"], ["--json", "--list"]):
        with pytest.raises(SystemExit) as stopped:
            main(["simulate", *flags])
        assert stopped.value.code == 0
        assert "gemm-ar" in {preset["name"] for preset in json.loads(capsys.readouterr().out)["presets"]}


@pytest.mark.parametrize(("kind", "points"), [("priority", 2), ("comm-blocks", 10), ("pad", 1)])
def test_sweeps_run_one_knob_over_its_values(kind: str, points: int, capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, *PAIR, "--sweep", kind)
    assert len(document["points"]) >= points
    assert all("t_ms" in point or "error" in point for point in document["points"])
    assert main([*PAIR, "--sweep", kind]) == 0
    assert "█" in capsys.readouterr().out


def test_the_published_grid_can_be_swept(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, "simulate", "cb-ar", "--device", "A40", "--sweep", "grid", "--iterations", "2")
    assert len(document["points"]) == 49


def test_a_plan_file_and_options_reach_the_simulator(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('version = 2\n[[control]]\nkind = "comm-blocks"\nblocks = 8\n')
    planned = answer(
        capsys, *PAIR, "--plan", str(plan), "--dispatch", "backfill", "--hbm", "max-min", "--jitter", "0.02"
    )
    assert planned["controls"] == ["comm-blocks=8"]
    assert (planned["dispatch"], planned["hbm"], planned["engine"]) == ("backfill", "max-min", "block")
    skewed = answer(capsys, *PAIR, "--control", "comm-first", "--skew-us", "100", "--ranks", "4")
    assert {span["rank"] for span in skewed["spans"]} == {0, 1}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulate", "gemm-arr", "--device", "H200"], "did you mean 'gemm-ar'"),
        (["simulate", "missing.toml", "--device", "H200"], "cannot read workload 'missing.toml'"),
        (["simulate", "gemm-ar", "--device", "CPU-host"], "CPU host"),
        ([*PAIR, "--control", "magic"], "unknown control 'magic'"),
        ([*PAIR, "--control", "copy-engine"], "cannot add"),
        ([*PAIR, "--control", "partition=132"], "leave none"),
        ([*PAIR, "--grid", "2by2"], "write for example --grid 64x64"),
        ([*PAIR, "--jitter", "-1"], "jitter must be at least 0"),
        ([*PAIR, "--engine", "class", "--jitter", "0.1"], "class engine has no jitter"),
        ([*PAIR, "--ranks", "1"], "ranks must be a whole number of 2 or more"),
        ([*PAIR, "--ranks", "4096"], "4,096 ranks; the simulator models one node, at most 8 H100-SXM5-80GB"),
        ([*PAIR, "--skew-us", "-5"], "--skew-us cannot be negative, got -5"),
        ([*PAIR, "--control", "pad=1KiB", "--control", "pad=2KiB"], "pad is set twice for the same kernels"),
        ([*PAIR, "--control", "partition=0"], "partition=0 leaves communication no SM"),
        (["simulate", "missing.toml", "--device", "H200", "--grid", "2x2"], "--grid is for presets"),
        ([*PAIR, "--plan", "missing.toml"], "cannot read plan 'missing.toml'"),
        (["validate", "--data", "missing.csv"], "cannot read table 'missing.csv'"),
    ],
)
def test_wrong_input_gets_one_clear_message_and_exit_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err
