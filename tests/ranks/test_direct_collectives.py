"""Direct collectives on real ranks: the same bits as Gloo, sums in order of rank, and clear errors when a rank is lost.

The worlds of 1 to 4 ranks run all checks of direct_checks.py; each check is a test here.
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

SCRIPT = Path(__file__).parent / "direct_checks.py"
CHECKS = re.findall(r"^def check_(\w+)", SCRIPT.read_text(), re.M)
WORLDS = [(2, 3), pytest.param((1, 4), marks=pytest.mark.long)]
TIME_LIMIT_S = 360  # a bound, not a claim: the machine may be busy
NOTICED_WITHIN_S = 20  # a third of the group's own time limit: a death is noticed, not waited out
pytestmark = pytest.mark.timeout(TIME_LIMIT_S + 60)
Outcome = list[dict[str, Any]]


def run_worlds(directory: Path, name: str, *worlds: int) -> dict[int, Outcome]:
    """By number of ranks, what each rank found; every rank is ended, whatever happened."""
    command: list[str | Path] = [sys.executable, "-W", "ignore", SCRIPT, directory, name, *map(str, worlds)]
    with subprocess.Popen(command, start_new_session=True) as launcher:
        try:
            launcher.wait(TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)
    results = {ranks: [directory / f"{ranks}-{rank}.json" for rank in range(ranks)] for ranks in worlds}
    return {
        ranks: [json.loads(path.read_text()) if path.exists() else {} for path in paths]
        for ranks, paths in results.items()
    }


@pytest.fixture(scope="module", params=WORLDS, ids=str)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Outcome]:
    return run_worlds(tmp_path_factory.mktemp("worlds"), "all", *request.param)


@pytest.mark.parametrize("check", CHECKS)
def test_on_every_rank(found: dict[int, Outcome], check: str) -> None:
    for ranks, world in found.items():
        for rank, checks in enumerate(world):
            assert check in checks, f"rank {rank} of {ranks} did not come so far"
            assert checks[check] is None, f"rank {rank} of {ranks}: {checks[check]}"


def left_behind(outcome: Outcome) -> list[str]:
    return [path.name for rank in outcome for path in Path("/dev/shm").glob(f"makeway-*-{rank['pid']}-*")]


def test_a_killed_rank_is_named_by_all_others_long_before_the_time_limit(tmp_path: Path) -> None:
    outcome = run_worlds(tmp_path, "a_killed_rank", 3)[3]
    first, killed, third = outcome
    for survivor in (first, third):
        assert survivor["rank"] == 1
        assert "rank 1" in survivor["message"]
        assert survivor["at"] - killed["at"] < NOTICED_WITHIN_S
        assert not survivor["usable"]
        assert "rank 1" in survivor["again"]
    assert left_behind(outcome) == []


def test_a_rank_without_room_fails_all_ranks_with_one_message_and_leaves_nothing(tmp_path: Path) -> None:
    outcome = run_worlds(tmp_path, "a_rank_without_room", 2)[2]
    assert outcome[0]["message"] == outcome[1]["message"]
    assert re.search(r"rank 1 cannot.* MiB of shared memory in /dev/shm.*are free", outcome[0]["message"])
    assert left_behind(outcome) == []


@pytest.mark.long
def test_ranks_with_different_mounts_are_told_so(tmp_path: Path) -> None:
    for rank in run_worlds(tmp_path, "mounts_apart", 2)[2]:
        if "skip" in rank:
            pytest.skip(f"this machine allows no mount namespaces: {rank['skip']}")
        assert "ranks 0 and 1 run on one host but see different mounts of /dev/shm" in rank["message"]
