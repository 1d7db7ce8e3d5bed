"""makeway.torch on real ranks: unmodified programs under a plan, and calls from Python; the results are torch's own.

The worlds of 1 to 3 ranks run all checks of torch_checks.py; each check is a test here.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "torch_checks.py"
CHECKS = re.findall(r"^def ((?:api|check)_\w+)", SCRIPT.read_text(), re.M)
WORLDS = [(2,), pytest.param((1, 3), marks=pytest.mark.long)]
TIME_LIMIT_S = 360  # a bound, not a claim: the machine may be busy
pytestmark = pytest.mark.timeout(TIME_LIMIT_S + 60)
Outcome = list[dict[str, Any]]


@pytest.fixture(scope="module", params=WORLDS, ids=str)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Outcome]:
    """By number of ranks, what each rank found; every rank is ended, whatever happened."""
    directory = tmp_path_factory.mktemp("worlds")
    command: list[str | Path] = [sys.executable, "-W", "ignore", SCRIPT, directory, *map(str, request.param)]
    with subprocess.Popen(command, start_new_session=True) as launcher:
        try:
            launcher.wait(TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)
    results = {ranks: [directory / f"{ranks}-{rank}.json" for rank in range(ranks)] for ranks in request.param}
    return {
        ranks: [json.loads(path.read_text()) if path.exists() else {} for path in paths]
        for ranks, paths in results.items()
    }


@pytest.mark.parametrize("check", CHECKS)
def test_on_every_rank(found: dict[int, Outcome], check: str) -> None:
    for ranks, world in found.items():
        for rank, checks in enumerate(world):
            assert check in checks, f"rank {rank} of {ranks} did not come so far"
            assert checks[check] is None, f"rank {rank} of {ranks}: {checks[check]}"
