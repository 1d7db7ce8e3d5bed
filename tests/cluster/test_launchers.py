"""`makeway run` around and inside real Open MPI and real Slurm: receipts of all ranks, and the launcher's own ends."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.cluster.daemons import ROOT, environment, no_mpi
from tests.processes import free_port, hearing

PROGRAM = str(ROOT / "tests" / "ranks" / "programs" / "ddp_train.py")
TRAIN = (sys.executable, PROGRAM, "--steps", "3")
MAKEWAY = (sys.executable, "-m", "makeway", "run", "--plan", str(ROOT / "examples" / "cpu-plan.toml"))
MPIRUN, SRUN = ("mpirun", "-np", "2"), ("srun", "--quiet", "-n", "2")
AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
ENDED_WITHIN_S = 100
pytestmark = pytest.mark.timeout(2 * ENDED_WITHIN_S)
needs_mpi = pytest.mark.skipif(no_mpi is not None, reason=no_mpi or "")
Launcher = tuple[tuple[str, ...], dict[str, str]]


@pytest.fixture(params=[pytest.param("mpirun", marks=needs_mpi), "srun"])
def launcher(request: pytest.FixtureRequest) -> Launcher:
    """A command that starts two ranks, and its variables."""
    if request.param == "mpirun":
        return MPIRUN, AS_ROOT
    return SRUN, request.getfixturevalue("slurm")


def variables(own: Mapping[str, str]) -> dict[str, str]:
    return environment(OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), **own)


def ran(command: Sequence[str], own: Mapping[str, str], *, cwd: Path | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=ENDED_WITHIN_S, cwd=cwd, env=variables(own)
    )
    return done.returncode, done.stdout, done.stderr


def losses(out: str) -> list[str]:
    return sorted(line for line in out.splitlines() if " loss " in line)


def on_each_rank(*command: str) -> tuple[str, ...]:
    """The command, with the rank in place of each %."""
    return "sh", "-c", f"exec {shlex.join(command)}".replace("%", "${OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}")


def check_applied(document: Path, ranks: list[int]) -> None:
    """Both controls of the plan were applied on exactly these ranks."""
    controls = json.loads(document.read_text())["controls"]
    assert [control["control"] for control in controls] == ["copy-engine", "priority"]
    for control in controls:
        assert [(one["rank"], one["status"]) for one in control["receipts"]] == [(rank, "applied") for rank in ranks]


@pytest.mark.long
@needs_mpi
def test_around_mpirun_every_rank_is_reported_and_the_code_is_mpiruns(tmp_path: Path) -> None:
    document = tmp_path / "ran.json"
    command = (*MAKEWAY, "--out", str(document), "--", *MPIRUN, *TRAIN, "--last-rank-ends", "3")
    code, out, said = ran(command, AS_ROOT)
    assert code == 3, said  # mpirun passes the code of a rank on, unlike torchrun
    assert len(losses(out)) == 6
    check_applied(document, [0, 1])


@pytest.mark.parametrize(
    "launcher", [pytest.param("mpirun", marks=[needs_mpi, pytest.mark.long]), "srun"], indirect=True
)
def test_inside_a_launcher_every_rank_reports_its_own(launcher: Launcher, tmp_path: Path) -> None:
    launch, own = launcher
    command = on_each_rank(*MAKEWAY, "--out", "%.json", "--", *TRAIN, "--last-rank-ends", "3")
    code, out, said = ran((*launch, *command), own, cwd=tmp_path)
    assert code == 3, said
    assert len(losses(out)) == 6
    for number in (0, 1):
        check_applied(tmp_path / f"{number}.json", [number])
    assert "makeway run (rank 0): exit code 0; 2 of 2 controls applied" in said
    assert "makeway run (rank 1): exit code 3; 2 of 2 controls applied" in said


@pytest.mark.long
def test_around_srun_in_a_batch_script_all_ranks_are_one_run(slurm: dict[str, str], tmp_path: Path) -> None:
    """A batch script has a SLURM_PROCID, and is no rank for all that."""
    inner = shlex.join((*MAKEWAY, "--out", "ran.json", "--", *SRUN, *TRAIN, "--last-rank-ends", "3"))
    script, code = tmp_path / "job.sh", tmp_path / "code"
    os.mkfifo(code)
    script.write_text(f"#!/bin/sh\n#SBATCH --ntasks=2\n#SBATCH --output=said.txt\n{inner}\necho $? > code\n")
    assert ran(("sbatch", "--quiet", str(script)), slurm, cwd=tmp_path)[0] == 0
    ended = code.read_text()  # waits; `sbatch --wait` asks every half a minute
    said = (tmp_path / "said.txt").read_text()
    assert ended == "3\n", said
    assert len(losses(said)) == 6
    assert "makeway run: exit code 3; 2 of 2 controls applied" in said
    check_applied(tmp_path / "ran.json", [0, 1])


# --- ends, of programs that load nothing ------------------------------------------------------------

WAITS = "trap 'echo ended; exit 7' TERM INT; echo ready; while :; do sleep 0.1; done"


def ended_by(number: signal.Signals, command: Sequence[str], own: Mapping[str, str]) -> tuple[int, set[str]]:
    """Code and lines of a command that gets a signal once both ranks are ready.

    Each line once: mpirun that ends may drop the last words of a rank, with makeway or without it.
    """
    process = subprocess.Popen(
        hearing(*command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=variables(own)
    )
    try:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(2)]
        process.send_signal(number)
        out, _ = process.communicate(timeout=ENDED_WITHIN_S)
    finally:
        process.kill()
        process.communicate()
    return process.returncode, {*first, *out.splitlines(keepends=True)}


@pytest.mark.parametrize(
    "ends", ["kill -9 $$", *(pytest.param(end, marks=pytest.mark.long) for end in ("exit 5", "kill $$"))]
)
def test_the_end_of_a_rank_gives_the_launchers_own_code(launcher: Launcher, ends: str) -> None:
    launch, own = launcher
    program = ("sh", "-c", ends)
    plain = ran((*launch, *program), own)[0]
    assert plain != 0
    assert ran((*MAKEWAY, "--", *launch, *program), own)[0] == plain
    assert ran((*launch, *MAKEWAY, "--", *program), own)[0] == plain


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_ends_launcher_and_ranks_as_without_makeway(launcher: Launcher, number: signal.Signals) -> None:
    launch, own = launcher
    if launch is SRUN and number == signal.SIGINT:
        pytest.skip("srun wants a second Ctrl-C within a second")
    program = ("sh", "-c", WAITS)
    assert ended_by(number, (*MAKEWAY, "--", *launch, *program), own) == ended_by(number, (*launch, *program), own)


# --- comparing --------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("where", ["around", "inside"])
def test_steps_are_compared_around_and_inside_launchers(launcher: Launcher, where: str, tmp_path: Path) -> None:
    launch, own = launcher
    document = tmp_path / "compared.json"
    compare = (*MAKEWAY, "--compare", "--compare-steps", "180", "--receipts", str(tmp_path / "receipts"))
    train = (sys.executable, PROGRAM, "--steps", "200")
    if where == "around":
        code, _, said = ran((*compare, "--out", str(document), "--", *launch, *train), own)
    else:
        code, _, said = ran((*launch, *on_each_rank(*compare, "--out", "%.json", "--", *train)), own, cwd=tmp_path)
        document = tmp_path / "0.json"
        other = json.loads((tmp_path / "1.json").read_text())
        assert other["problem"] == "the comparison is with rank 0: the makeway that started it reports it"
    assert code == 0, said
    compared = json.loads(document.read_text())
    assert compared["problem"] is None
    assert compared["pairs"] >= 8
    assert os.listdir(tmp_path / "receipts")
