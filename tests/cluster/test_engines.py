"""The same answer, byte for byte, from local processes, Dask workers, MPI ranks, Slurm jobs and shards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.daemons import ROOT, dask_cluster, environment, why_not

EXAMPLE = ROOT / "examples" / "recordings" / "tp-llama-70b"
MAKEWAY = (sys.executable, "-m", "makeway")
ANALYZE = ("analyze", str(EXAMPLE), "--json", "--no-cache")
WORK = (sys.executable, "-m", "tests.cluster.work")
SQUARES = str([(number, number * number) for number in range(6)])
pytestmark = pytest.mark.timeout(240)

no_dask, no_mpi, no_submitit = why_not("distributed"), why_not("mpirun", "mpi4py"), why_not("submitit")


def answer(on: str, folder: Path, **variables: str) -> str:
    return output([*MAKEWAY, *ANALYZE, "--on", on], folder, **variables)


def output(command: list[str], folder: Path, **variables: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=200, cwd=folder, env=environment(**variables)
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> str:
    return answer("local", tmp_path_factory.mktemp("local"))


def squares(on: str, folder: Path, **variables: str) -> str:
    shown = output([*WORK, on, str(folder / "died"), "6"], folder, **variables).strip()
    assert (folder / "died").exists()
    return shown


@pytest.mark.skipif(no_dask is not None, reason=no_dask or "")
def test_dask_workers_give_the_local_answer_and_survive_a_death(local: str, tmp_path: Path) -> None:
    with dask_cluster(tmp_path) as address:
        assert answer(f"dask://{address}", tmp_path) == local
        assert squares(f"dask://{address}", tmp_path) == SQUARES


@pytest.mark.skipif(no_mpi is not None, reason=no_mpi or "")
def test_mpi_ranks_give_the_local_answer(local: str, tmp_path: Path) -> None:
    ranks = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3")
    assert output([*ranks, *MAKEWAY, *ANALYZE, "--on", "mpi"], tmp_path) == local


@pytest.mark.skipif(no_mpi is not None, reason=no_mpi or "")
def test_mpi_ranks_end_when_there_is_nothing_to_read(tmp_path: Path) -> None:
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", *MAKEWAY, "analyze", "nowhere"]
    done = subprocess.run(
        [*command, "--on", "mpi"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("no file or directory") == 1


@pytest.mark.skipif(no_submitit is not None, reason=no_submitit or "")
def test_slurm_jobs_give_the_local_answer_and_survive_a_death(
    local: str, slurm: dict[str, str], tmp_path: Path
) -> None:
    assert answer("slurm", tmp_path, **slurm) == local
    assert squares("slurm", tmp_path, **slurm) == SQUARES
    assert list(tmp_path.glob(".makeway-slurm-*")) == []


@pytest.mark.long
def test_a_missing_scheduler_is_one_clear_message(tmp_path: Path) -> None:
    command = [*MAKEWAY, "analyze", str(EXAMPLE), "--on", "dask://127.0.0.1:1"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, cwd=tmp_path, env=environment(), check=False
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert ("no Dask scheduler answers" in done.stderr) or ("pip install 'makeway[dask]'" in done.stderr)
