"""`makeway export`: the contract for scripts, where the text goes, and wrong input."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from makeway.cli.main import main

PLAN = """\
version = 2
[for]
library = "nccl-2.27.5/ring-simple"
[[control]]
kind = "priority"
[[control]]
kind = "comm-blocks"
blocks = 8
[[control]]
kind = "chunks"
pieces = 4
"""


@pytest.fixture
def plan(tmp_path: Path) -> str:
    file = tmp_path / "plan.toml"
    file.write_text(PLAN)
    return str(file)


def test_export_keeps_its_contract(capsys: pytest.CaptureFixture[str], plan: str) -> None:
    assert main(["export", plan, "--to", "env", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert list(document)[:3] == ["schema", "makeway", "verdict"]
    assert document["verdict"] == "env carries 2 of the plan's 3 controls"
    assert {"target", "carrier", "text", "carried", "not_carried"} < document.keys()
    assert document["target"] == "env"
    assert "export NCCL_MAX_CTAS=8\n" in document["text"]
    assert [entry["control"] for entry in document["carried"]] == ["priority", "comm-blocks=8"]
    assert document["carried"][1]["settings"] == ["NCCL_MIN_CTAS=8", "NCCL_MAX_CTAS=8"]
    [refusal] = document["not_carried"]
    assert refusal["control"] == "chunks=4"
    assert "splits its collectives itself" in refusal["reason"]
    assert captured.err == ""


def test_text_goes_to_stdout_or_to_a_file(capsys: pytest.CaptureFixture[str], plan: str, tmp_path: Path) -> None:
    assert main(["export", plan, "--to", "env"]) == 0
    shown = capsys.readouterr().out
    assert main(["export", plan, "--to", "env", "--out", "-"]) == 0
    assert capsys.readouterr().out == shown
    out = tmp_path / "comm.env"
    assert main(["export", plan, "--to", "env", "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith("env carries 2 of the plan's 3 controls")
    assert out.read_text() == shown
    out.unlink()
    assert main(["export", plan, "--to", "env", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == out.read_text() == shown


def test_a_plan_may_come_from_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(PLAN))
    assert main(["export", "-", "--to", "nccl-tuner"]) == 0
    assert "allreduce,262144,18446744073709551615,ring,simple,8,-1,-1" in capsys.readouterr().out


def test_a_version_and_groups_reach_the_export(capsys: pytest.CaptureFixture[str], plan: str) -> None:
    assert main(["export", plan, "--to", "env", "--library", "nccl-2.16"]) == 0
    assert "export NCCL_MAX_NCHANNELS=8" in capsys.readouterr().out
    assert main(["export", plan, "--to", "megatron", "--groups", "ep"]) == 0
    out = capsys.readouterr().out
    assert "\nep:\n" in out
    assert "\ndp:\n" not in out


@pytest.mark.parametrize("more", [[], ["--out", "xla.env"], ["--json"]])
def test_a_target_that_carries_nothing_says_so_first_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "plan.toml"
    file.write_text('version = 1\n[[control]]\nkind = "SmemPad"\npad_bytes = 1024\n')
    assert main(["export", str(file), "--to", "xla", *more]) == 2
    captured = capsys.readouterr()
    verdict = "xla does not carry the plan's one control"
    if more == ["--json"]:
        assert json.loads(captured.out)["verdict"] == verdict
    else:
        assert captured.out == ""
        assert captured.err.startswith(f"makeway export: {verdict}")
        assert "pad=1KiB: a pad belongs to the launch" in captured.err
    assert not (tmp_path / "xla.env").exists()


def test_a_plan_without_controls_is_no_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text("version = 2\n")
    assert main(["export", str(file), "--to", "env"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "The plan has no controls" in captured.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.toml", "--to", "env"], "cannot read plan 'missing.toml'"),
        (["PLAN", "--to", "environment"], "no export target 'environment'"),
        (["PLAN", "--to", "env", "--library", "latest"], "cannot read library 'latest'"),
        (["PLAN", "--to", "env", "--groups", "dp"], "process groups are Megatron's"),
        (["PLAN", "--to", "megatron", "--groups", ""], "is no name of a Megatron process group"),
        (["PLAN", "--to", "env", "--out", "/nowhere/at/all"], "cannot write /nowhere/at/all"),
        (["NEWER", "--to", "env"], "it comes from a newer makeway"),
        (["TWICE", "--to", "env"], "priority is set twice"),
    ],
)
def test_wrong_input_gets_one_clear_message_and_exit_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    twice = 'version = 2\n[[control]]\nkind = "priority"\n[[control]]\nkind = "priority"\n'
    for name, content in (("PLAN", PLAN), ("NEWER", "version = 9\n"), ("TWICE", twice)):
        (tmp_path / name).write_text(content)
    file = str(tmp_path / arguments[0]) if arguments[0].isupper() else arguments[0]
    assert main(["export", file, *arguments[1:]]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err
