"""Faults in the middle of a trial: the program ends as without makeway, controls are undone, the log is kept."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.ranks.test_run_ddp import ENDED_WITHIN_S, MAKEWAY, PROGRAM, TORCHRUN, losses, run

from makeway.act.cpu.segments import owner_of

pytestmark = pytest.mark.timeout(3 * ENDED_WITHIN_S)
STEPS = 200
TRIALS = {
    "compare": (*MAKEWAY, "--compare", "--compare-steps", "180"),
    "tune": (
        sys.executable, "-m", "makeway", "run", "--tune", "--tune-share", "0.5", "--job-steps", str(STEPS)
    ),
}  # fmt: skip
AT = 40  # both trials have begun to switch by then
# Gloo hangs after a restart where torchrun keeps its store, with makeway or without it.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


SIGNS = {
    "exception": "InjectedError: injected",
    "SIGINT": "KeyboardInterrupt",
    "SIGKILL": "(SIGKILL)",
    "SIGTERM": "(SIGTERM)",
}


def faulty(fault: str, *, steps: int = STEPS, restarts: int = 0) -> tuple[str, ...]:
    """The command whose ranks meet the fault."""
    again = ("--max-restarts", str(restarts)) if restarts else ()
    return (*TORCHRUN, *again, PROGRAM, "--steps", str(steps), "--width", "64", "--wait-ms", "5",
            "--fault", fault, "--at", str(AT))  # fmt: skip


def tried(trial: str, command: tuple[str, ...], place: Path) -> tuple[int, str, str, dict[str, Any]]:
    """Code, output, messages and JSON document of a trial; `run` fails where a process is left."""
    document, kept = place / "trial.json", place / "receipts"
    more = ("--log", str(place / "tried.jsonl")) if trial == "tune" else ()
    code, out, said = run(
        *TRIALS[trial], *more, "--out", str(document), "--receipts", str(kept), "--", *command, **OWN_STORE
    )
    ranks = {int(path.stem.removeprefix("steps-")) for path in kept.glob("steps-*.json")}
    assert ranks
    assert shared_segments(ranks) == set()
    if trial == "tune":
        assert (place / "tried.jsonl").exists()
    return code, out, said, json.loads(document.read_text())


def shared_segments(pids: set[int]) -> set[str]:
    """Those that these processes made: other tests may run at this moment."""
    names = {path.name: owner_of(path.name) for path in Path("/dev/shm").glob("makeway-*")}
    return {name for name, owner in names.items() if owner is not None and owner.pid in pids}


def blocks(kept: Path) -> int:
    """Blocks of steps in the log of rank 0; of several attempts, in that with most."""
    logs = [json.loads(path.read_text()) for path in kept.glob("steps-*.json")]
    return max(len(log["blocks"]) for log in logs)


@pytest.mark.long
def test_a_restart_after_an_exception_compares_again(tmp_path: Path) -> None:
    code, out, said, compared = tried("compare", faulty("exception", restarts=1), tmp_path)
    assert code == 0, said
    assert said.count("InjectedError: injected") >= 1
    assert len(losses(out)) >= 2 * STEPS + AT
    assert compared["problem"] is None
    assert compared["pairs"] >= 8
    assert any("restarted" in note for note in compared["notes"])


@pytest.mark.long
@pytest.mark.parametrize("trial", ["compare", "tune"])
def test_a_program_that_catches_its_fault_finds_its_own_settings_again(trial: str, tmp_path: Path) -> None:
    code, out, said, document = tried(trial, faulty("caught"), tmp_path)
    assert code == document["exit_code"] == 1, said
    assert out.count(f"niceness [{os.nice(0)}]\n") == 2
    assert said.count("exitcode  : 4") >= 1


@pytest.mark.long
@pytest.mark.parametrize("trial", TRIALS)
@pytest.mark.parametrize("fault", ["exception", "SIGKILL", "SIGINT", "SIGTERM", "stop", "restart"])
def test_every_fault_ends_as_without_makeway(trial: str, fault: str, tmp_path: Path) -> None:
    command = faulty("SIGKILL", restarts=1) if fault == "restart" else faulty(fault)
    plain_code, plain_out, plain_said = run(*command, **OWN_STORE)
    code, out, said, document = tried(trial, command, tmp_path)
    assert code == document["exit_code"] == plain_code, said
    assert (code == 0) == (fault in ("stop", "restart"))
    if sign := SIGNS.get(fault):  # the other rank may see the fault, or torchrun's SIGTERM
        assert sign in said
        assert sign in plain_said
    if code == 0:
        assert set(losses(out)) == set(losses(plain_out))
        assert document["problem"] is None
    else:  # the other rank may or may not have ended its step
        common = [line for line in losses(plain_out) if int(line.split()[3]) <= AT]
        assert set(common) <= set(losses(out))
    assert blocks(tmp_path / "receipts") >= 1
