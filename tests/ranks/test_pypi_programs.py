"""Programs from PyPI that nobody here wrote, unmodified: the five commands on two ranks of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.hosts import calibration
from tests.ranks.pypi_programs import PROGRAMS, environ_of, fetched
from tests.ranks.test_programs import MAKEWAY
from tests.ranks.test_run_ddp import ENDED_WITHIN_S, ROOT, run

pytestmark = pytest.mark.timeout(6 * ENDED_WITHIN_S)
CPU_PLAN = str(ROOT / "examples" / "cpu-plan.toml")
STEPS = 240
TRAINERS = [name for name in PROGRAMS if name != "accelerate"]  # the programs that train one model from start to end


@pytest.mark.long
@pytest.mark.parametrize("name", TRAINERS)
def test_a_program_from_pypi_goes_through_the_five_commands(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program, site = PROGRAMS[name], tmp_path / "site"
    if (problem := fetched(program.packages, site)) is not None:
        pytest.skip(problem)
    environ = environ_of(program, site)
    program.prepare(tmp_path, environ)
    recorded, plan, host = str(tmp_path / "recorded"), str(tmp_path / "plan.toml"), tmp_path / "host.toml"
    host.write_text(calibration().text)
    code, _, said = run(*MAKEWAY, "record", "--out", recorded, "--", *program.command(tmp_path, 30), **environ)
    assert code == 0, said
    assert "5 steps of 2 ranks recorded" in said
    code, out, said = run(*MAKEWAY, "analyze", recorded, "--json")
    assert code == 0, said
    analysis = json.loads(out)
    assert len(analysis["ranks"]) == 2
    assert not [item["text"] for item in analysis["advice"] if "CUDA" in item["text"] or "GPU" in item["text"]]
    code, _, said = run(
        *MAKEWAY, "plan", recorded, "--device", str(host), "--control", "copy-engine", "--for", "run", "--out", plan
    )
    assert code == 0, said
    for kind in (
        ("--plan", plan, "--compare", "--compare-steps", "200"),
        ("--tune", "--tune-share", "0.4", "--job-steps", str(STEPS)),
    ):
        document, job = tmp_path / f"{kind[0]}.json", program.command(tmp_path, STEPS)
        code, _, said = run(*MAKEWAY, "run", *kind, "--out", str(document), "--", *job, **environ)
        assert code == 0, said
        answer = json.loads(document.read_text())
        assert answer["problem"] is None
        assert answer["steps"] > 90
        statuses = {receipt["status"] for control in answer["receipts"] for receipt in control["receipts"]}
        assert statuses <= {"applied"}
        assert statuses or "--tune" in kind  # which may adopt nothing


def test_accelerates_own_self_test_passes_under_a_plan(tmp_path: Path) -> None:
    """It makes models, optimizers and states anew many times, checks its results, and counts processes."""
    program, document = PROGRAMS["accelerate"], tmp_path / "run.json"
    command = program.command(tmp_path, 0)
    environ = environ_of(program, tmp_path)
    code, _, said = run(*MAKEWAY, "run", "--plan", CPU_PLAN, "--out", str(document), "--", *command, **environ)
    assert code == 0, said
    answer = json.loads(document.read_text())
    assert {item["control"]: item["status"] for item in answer["controls"]} == {
        "copy-engine": "applied",
        "priority": "applied",
    }
