"""Compression around a real data-parallel program: two ranks, Gloo, torchrun."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.ranks.test_run_ddp import ENDED_WITHIN_S, PROGRAM, TORCHRUN, losses, run

from makeway.read.plan_file import dump_plan
from makeway.values.control import parse_control
from makeway.values.plan import Plan

pytestmark = pytest.mark.timeout(2 * ENDED_WITHIN_S)
RUN = (sys.executable, "-m", "makeway", "run", "--json", "--strict", "--plan")


@pytest.mark.long
@pytest.mark.parametrize(
    ("word", "least", "most"),
    [("compress=topk:0.05", 0.09, 0.11), pytest.param("compress=bf16", 0.49, 0.51, marks=pytest.mark.long)],
)
def test_gradients_are_compressed_on_both_ranks_and_results_change(
    word: str, least: float, most: float, tmp_path: Path
) -> None:
    path, program = tmp_path / "plan.toml", (PROGRAM, "--width", "256")  # no two losses are equal by chance
    path.write_text(dump_plan(Plan(controls=(parse_control(word),))))
    code, out, said = run(*RUN, str(path), "--", *TORCHRUN, *program)
    assert code == 0, said
    (control,) = json.loads(out)["controls"]
    assert [receipt["rank"] for receipt in control["receipts"]] == [0, 1]
    for receipt in control["receipts"]:
        share = receipt["evidence"]["bytes after"] / receipt["evidence"]["bytes before"]
        assert least < share < most
        assert "results change" in receipt["detail"]
    assert "compress is lossy" in said
    lossy, stock = losses(said), losses(run(*TORCHRUN, *program)[1])
    assert len(lossy) == len(stock) == 16
    for mine, theirs in zip(lossy, stock, strict=True):
        before_any_gradient = " step 0 " in theirs
        assert (mine == theirs) == before_any_gradient


@pytest.mark.long
def test_tuning_tries_every_method_and_prints_the_loss_beside_each(tmp_path: Path) -> None:
    tune = (
        sys.executable,
        "-m",
        "makeway",
        "run",
        "--tune",
        "--allow-lossy",
        "--tune-share",
        "0.5",
        "--job-steps",
        "600",
    )
    document = tmp_path / "tuned.json"
    program = (*TORCHRUN, PROGRAM, "--steps", "600", "--width", "64", "--wait-ms", "10")
    code, _, said = run(*tune, "--out", str(document), "--", *program)
    assert code == 0, said
    tuned = json.loads(document.read_text())
    assert tuned["problem"] is None
    methods = {control.partition(":")[0] for item in tuned["losses"] for control in item["controls"]}
    assert methods == {"compress=bf16", "compress=fp16", "compress=powersgd", "compress=topk"}
