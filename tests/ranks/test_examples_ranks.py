"""The job of examples/ddp_on_cpu, and the four commands of the README as they are written there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ranks.test_run_ddp import ENDED_WITHIN_S, MAKEWAY, TORCHRUN, run

ROOT = Path(__file__).parents[2]
JOB = str(ROOT / "examples" / "ddp_on_cpu" / "train.py")
PRINTED = re.compile(r"loss [0-9.]+, weights ([0-9a-f]{16}), [0-9.]+ ms per step")
pytestmark = pytest.mark.timeout(2 * ENDED_WITHIN_S)


@pytest.mark.long
def test_the_job_computes_the_same_under_a_plan_to_the_bit() -> None:
    command = (*TORCHRUN, JOB, "--steps", "6", "--width", "64")
    weights = []
    for before in ((), (*MAKEWAY, "--")):
        code, out, said = run(*before, *command)
        assert code == 0, said
        weights += PRINTED.findall(out)
    assert len(weights) == 2
    assert weights[0] == weights[1]
    assert "2 of 2 controls applied" in said


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_four_commands_of_the_readme_end_in_a_verdict(tmp_path: Path) -> None:
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\$ (makeway [^\n]*)", shown, re.M)
    commands = [line for line in lines if re.search(r"ddp_on_cpu|recorded|plan.toml", line)]
    assert [line.split()[1] for line in commands] == ["record", "analyze", "plan", "run"]
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    for line in commands:
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stderr[-2000:]}"
    assert re.search(r"(faster|slower|no difference shown)", done.stderr)
