"""`makeway run` around a real data-parallel program: two ranks, Gloo, torchrun, and a plan for CPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import free_port, hearing

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(__file__).parent / "programs" / "ddp_train.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
MAKEWAY = (sys.executable, "-m", "makeway", "run", "--plan", str(ROOT / "examples" / "cpu-plan.toml"))
MARK = "MAKEWAY_TEST_MARK"
ENDED_WITHIN_S = 180  # a bound, not a claim: the machine may be busy
pytestmark = pytest.mark.timeout(2 * ENDED_WITHIN_S)


class Started:
    """A command whose processes are recognised by a mark in their environment."""

    def __init__(self, *command: str, **environ: str) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            hearing(*command),
            env={**os.environ, "OMP_NUM_THREADS": "1", **environ, MARK: self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def until(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if word in line:
                return
        raise AssertionError(f"ended before it said {word!r}: {self.process.communicate()}")

    def alive(self) -> dict[int, str]:
        """Command line of every living process with our mark."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    marked = f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if marked and state != "Z":
                        found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
                except OSError:
                    continue
        return found

    def ended(self) -> tuple[int, str, str]:
        """Exit code, standard output and messages; fails when it takes too long or leaves something running."""
        out, said = self.process.communicate(timeout=ENDED_WITHIN_S)
        assert self.alive() == {}
        return self.process.returncode, out, said


@pytest.fixture
def started() -> Iterator[list[Started]]:
    running: list[Started] = []
    yield running
    for one in running:
        for pid in one.alive():
            os.kill(pid, signal.SIGKILL)
        one.process.communicate()


def run(*command: str, **environ: str) -> tuple[int, str, str]:
    return Started(*command, **environ).ended()


def losses(out: str) -> list[str]:
    return sorted(line for line in out.splitlines() if " loss " in line)


@pytest.fixture(scope="module")
def plain() -> list[str]:
    """The losses of both ranks without makeway."""
    code, out, said = run(*TORCHRUN, PROGRAM)
    assert code == 0, said
    assert len(losses(out)) == 16
    return losses(out)


def test_controls_are_applied_on_both_ranks_and_losses_are_the_same(plain: list[str]) -> None:
    code, out, said = run(*MAKEWAY, "--json", "--strict", "--", *TORCHRUN, PROGRAM)
    document = json.loads(out)
    assert code == 0, document
    assert losses(said) == plain
    assert document["all_applied"]
    copies, priority = document["controls"]
    assert [copies["control"], priority["control"]] == ["copy-engine", "priority"]
    for control in (copies, priority):
        assert [receipt["rank"] for receipt in control["receipts"]] == [0, 1]
        assert {receipt["carrier"] for receipt in control["receipts"]} == {"torch on CPU"}
    assert all("gradient buckets" in receipt["detail"] for receipt in copies["receipts"])
    assert all(receipt["evidence"]["gradient buckets"] > 0 for receipt in copies["receipts"])
    assert document["notes"] == []


@pytest.mark.long
def test_makeway_on_each_rank_reports_its_own(plain: list[str]) -> None:
    code, out, said = run(*TORCHRUN, "--no-python", *MAKEWAY, "--", sys.executable, PROGRAM)
    assert code == 0, said
    assert losses(out) == plain
    for rank in (0, 1):
        assert f"makeway run (rank {rank}): exit code 0; 2 of 2 controls applied" in said
        assert any(line.split()[:3] == ["copy-engine", "applied", str(rank)] for line in said.splitlines())


@pytest.mark.long
@pytest.mark.parametrize(("ends", "expected"), [pytest.param("3", 3, marks=pytest.mark.long), ("SIGKILL", -9)])
def test_the_end_of_a_rank_is_passed_on(ends: str, expected: int) -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    code, out, said = run(*MAKEWAY, "--", sys.executable, PROGRAM, "--steps", "2", "--last-rank-ends", ends, **alone)
    assert code == expected
    assert len(losses(out)) == 2
    assert "makeway run (rank 0): " in said


@pytest.mark.long
def test_a_rank_that_fails_under_torchrun_gives_torchruns_code() -> None:
    code, out, said = run(*MAKEWAY, "--", *TORCHRUN, PROGRAM, "--steps", "2", "--last-rank-ends", "3")
    assert code == 1  # as without makeway: torchrun has one code for all failures of ranks
    assert len(losses(out)) == 4
    assert "makeway run: exit code 1; " in said
    assert any(line.split()[:3] == ["copy-engine", "applied", "0-1"] for line in said.splitlines())


@pytest.mark.long
def test_ctrl_c_in_the_middle_ends_all_ranks(started: list[Started]) -> None:
    job = Started(*MAKEWAY, "--", *TORCHRUN, PROGRAM, "--steps", "0")
    started.append(job)
    job.until("rank 1 step 3 ")
    job.process.send_signal(signal.SIGINT)
    code, _, said = job.ended()
    assert code == 1  # torchrun's own, for the signal that it caught
    assert "makeway run: exit code 1; " in said
    assert said.count("Received 2 death signal") + said.count("Received Signals.SIGINT death signal") == 1
    assert "\ncopy-engine  applied " in said


@pytest.mark.long
def test_ranks_do_not_outlive_a_torchrun_that_was_killed(started: list[Started]) -> None:
    job = Started(*MAKEWAY, "--", *TORCHRUN, PROGRAM, "--steps", "0")
    started.append(job)
    job.until("rank 1 step 3 ")
    agent = next(pid for pid, line in job.alive().items() if "--standalone" in line and " makeway run " not in line)
    os.kill(agent, signal.SIGKILL)
    code, _, said = job.ended()
    assert code == -signal.SIGKILL
    assert "was still running when the program ended, and was ended by SIGTERM" in " ".join(said.split())
