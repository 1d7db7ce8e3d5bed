"""`makeway run --tune` around a real data-parallel program: two ranks, Gloo, torchrun."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.ranks.test_run_ddp import ENDED_WITHIN_S, PROGRAM, TORCHRUN, losses, run

from makeway.read.plan_file import load_plan

pytestmark = pytest.mark.timeout(2 * ENDED_WITHIN_S)
TUNE = (sys.executable, "-m", "makeway", "run", "--tune", "--tune-share", "0.5", "--job-steps", "300")
STEPS = ("--steps", "300", "--width", "1024", "--wait-ms", "10")  # a switch is a small part of the job


def test_controls_are_tried_in_the_job_and_its_losses_stay_the_same(tmp_path: Path) -> None:
    code, out, said = run(*TORCHRUN, PROGRAM, *STEPS)
    assert code == 0, said
    plain = losses(out)
    document, plan, log = tmp_path / "tuned.json", tmp_path / "plan.toml", tmp_path / "tried.jsonl"
    outputs = ("--out", str(document), "--plan-out", str(plan), "--log", str(log))
    code, out, said = run(*TUNE, *outputs, "--", *TORCHRUN, PROGRAM, *STEPS, "--last-rank-ends", "0")
    assert code == 0, said
    assert losses(out) == plain
    tuned = json.loads(document.read_text())
    assert tuned["problem"] is None
    assert 0 < tuned["explored_share"] <= 0.5
    assert {control for item in tuned["tried"] for control in item["controls"]} >= {"copy-engine", "priority"}
    assert all(item["controls"] in tuned["candidates"] for item in tuned["tried"] if item["what"] != "drift")
    refused = {tuple(item["controls"]): item["reason"] for item in tuned["refused"]}
    assert set(refused) == {("priority", "chunks=8"), ("own-cores", "priority", "chunks=8")}
    assert all("these share memory" in reason for reason in refused.values())
    assert [json.loads(line) for line in log.read_text().splitlines()] == tuned["tried"]
    adopted = [item["controls"] for item in tuned["tried"] if item["what"] == "adopted"]
    assert tuned["plan"] == (adopted[-1] if adopted else [])
    assert len(load_plan(plan).controls) == len(tuned["plan"])
    assert {control["control"] for control in tuned["receipts"]} == set(tuned["plan"])


def test_three_ranks_add_up_in_the_same_order_whatever_is_tried(tmp_path: Path) -> None:
    """Sums of more than two numbers round by their order: that of Gloo's ring, over buckets as torch lays them out."""
    ranks, steps = (*TORCHRUN[:-1], "3"), ("--steps", "150", "--width", "1024", "--wait-ms", "10")
    code, out, said = run(*ranks, PROGRAM, *steps)
    assert code == 0, said
    plain = losses(out)
    document, plan = tmp_path / "tuned.json", tmp_path / "chunks.toml"
    plan.write_text('version = 2\n[[control]]\nkind = "chunks"\npieces = 8\n')
    code, out, said = run(*TUNE, "--plan", str(plan), "--out", str(document), "--", *ranks, PROGRAM, *steps)
    assert code == 0, said
    assert losses(out) == plain
    tuned = json.loads(document.read_text())
    assert tuned["explored_steps"] > 0
    reasons = {tuple(item["controls"]): item["reason"] for item in tuned["refused"]}
    assert all("3 ranks" in reason for controls, reason in reasons.items() if "chunks=8" not in controls)
    assert "other buckets" in reasons["chunks=8",]
