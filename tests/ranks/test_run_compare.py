"""`makeway record` and `makeway run --compare` around a real data-parallel program: two ranks, Gloo, torchrun."""

from __future__ import annotations

import gzip
import json
import signal
import sys
from pathlib import Path

import pytest
from tests.ranks.test_run_ddp import ENDED_WITHIN_S, MAKEWAY, PROGRAM, TORCHRUN, Started, losses, run, started

from makeway.decide.analysis.analyze import analyze

__all__ = ["started"]
pytestmark = pytest.mark.timeout(2 * ENDED_WITHIN_S)
STEPS = 180  # at most compared
RECORD = (sys.executable, "-m", "makeway", "record")
COMPARE = (*MAKEWAY, "--compare", "--compare-steps", str(STEPS))


@pytest.fixture(scope="module")
def plain() -> list[str]:
    """The losses of both ranks without makeway."""
    code, out, said = run(*TORCHRUN, PROGRAM, "--steps", "200")
    assert code == 0, said
    return losses(out)


def test_steps_alternate_and_losses_are_the_same(plain: list[str], tmp_path: Path) -> None:
    document, page = tmp_path / "compared.json", tmp_path / "compared.html"
    kept = tmp_path / "receipts"
    outputs = ("--out", str(document), "--html", str(page), "--receipts", str(kept))
    code, out, said = run(*COMPARE, *outputs, "--", *TORCHRUN, PROGRAM, "--steps", "200")
    assert code == 0, said
    assert losses(out) == plain
    compared = json.loads(document.read_text())
    assert compared["verdict"] in ("faster", "slower", "no difference shown")
    assert compared["problem"] is None
    assert compared["left"] == ("with" if compared["verdict"] == "faster" else "without")
    low, high = compared["interval_pct"]
    assert low <= compared["difference_pct"] <= high
    assert compared["steps"] == 6 * compared["pairs"] >= 48
    assert [block["side"] for block in compared["blocks"][:6]] == ["without"] * 6
    assert {receipt["status"] for control in compared["receipts"] for receipt in control["receipts"]} == {"applied"}
    assert compared["exit_code"] == 0
    assert "step-times" in page.read_text()
    assert len(list(kept.glob("steps-*.json"))) == 2  # the log is kept


@pytest.mark.long
def test_a_control_that_sleeps_is_found_and_fails_the_limit(tmp_path: Path) -> None:
    empty = tmp_path / "empty.toml"
    empty.write_text("version = 2\n")
    command = (sys.executable, "-m", "makeway", "run", "--plan", str(empty), "--compare", "--fail-if", "slower")
    code, _, said = run(
        *command, "--json", "--", *TORCHRUN, PROGRAM, "--steps", "420", "--width", "64", MAKEWAY_TEST_SLEEP="3"
    )
    assert code == 1, said
    assert "makeway run: a step is +" in said


@pytest.mark.long
def test_ctrl_c_in_the_middle_of_a_trial_ends_all_ranks(started: list[Started]) -> None:
    job = Started(*COMPARE, "--", *TORCHRUN, PROGRAM, "--steps", "0")
    started.append(job)
    job.until("rank 1 step 40 ")
    job.process.send_signal(signal.SIGINT)
    code, _, said = job.ended()
    assert code == 1  # torchrun's own, for the signal that it caught
    assert "makeway run: exit code 1; " in said


@pytest.mark.long
def test_whole_runs_alternate_for_controls_that_are_read_at_the_start(tmp_path: Path) -> None:
    document = tmp_path / "compared.json"
    code, out, said = run(
        *MAKEWAY, "--compare-runs", "2", "--out", str(document), "--", *TORCHRUN, PROGRAM, "--steps", "20"
    )
    assert code == 0, said
    assert len(losses(out)) == 4 * 2 * 20
    compared = json.loads(document.read_text())
    assert compared["by"] == "runs"
    assert sorted(block["side"] for block in compared["blocks"]) == ["with", "with", "without", "without"]


# --- record ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_every_rank_is_recorded_and_the_files_can_be_analyzed(plain: list[str], tmp_path: Path) -> None:
    where = tmp_path / "recording"
    code, out, said = run(*RECORD, "--out", str(where), "--", *TORCHRUN, PROGRAM, "--steps", "18")
    assert code == 0, said
    assert losses(out) == [line for line in plain if int(line.split()[3]) < 18]
    assert sorted(path.name for path in where.iterdir()) == ["rank0.json.gz", "rank1.json.gz"]
    assert f"Next: makeway analyze {where}" in said.splitlines()  # however long the path is
    analysis = analyze([where], jobs=1)
    assert len(analysis.ranks) == 2
    again, _, refused = run(*RECORD, "--out", str(where), "--", "true")
    assert again == 2
    assert "has a recording already" in refused


@pytest.mark.long
def test_python_calls_are_recorded_when_asked_for(tmp_path: Path) -> None:
    few = ("--warm-up", "1", "--steps", "1")
    for where, options in ((tmp_path / "plain", ()), (tmp_path / "stacks", ("--stacks",))):
        code, _, said = run(*RECORD, *options, *few, "--out", str(where), "--", *TORCHRUN, PROGRAM, "--steps", "6")
        assert code == 0, said
        for path in where.iterdir():
            assert (b'"python_function"' in gzip.decompress(path.read_bytes())) == bool(options)
        assert len(analyze([where], jobs=1).ranks) == 2


@pytest.mark.long
def test_a_program_without_enough_steps_says_so(tmp_path: Path) -> None:
    code, _, said = run(*RECORD, "--out", str(tmp_path), "--json", "--", *TORCHRUN, PROGRAM, "--steps", "13")
    assert code == 0, said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0.json.gz", "rank1.json.gz"]
    other = tmp_path / "other"
    code, _, said = run(*RECORD, "--out", str(other), "--", *TORCHRUN, PROGRAM, "--steps", "3", "--last-rank-ends", "3")
    assert code == 1  # the program's
    assert "the program made 3 steps" in " ".join(said.split())
