"""Launchers of ranks: MPI gets options that export the variables, and others are left alone."""

from __future__ import annotations

import pytest

from makeway.act.launch.mpi import with_exports

SETTINGS = {"NCCL_MAX_CTAS": "16", "PYTHONPATH": "/hook:/mine"}
OPEN_MPI = "mpirun (Open MPI) 4.1.4\n"
HYDRA = "HYDRA build details:\n    Version:  4.1\n"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.11\n"


def no_version(program: str) -> str:
    raise AssertionError(f"{program} was asked for its version")


@pytest.mark.parametrize("printed", [OPEN_MPI, "prterun (PRRTE) 3.0.2\n"])
def test_open_mpi_exports_each_name(printed: str) -> None:
    launched = with_exports(["/opt/bin/mpirun", "-np", "4", "prog", "-x"], SETTINGS, {}, lambda program: printed)
    assert launched.arguments == (
        "/opt/bin/mpirun",
        "-x",
        "NCCL_MAX_CTAS",
        "-x",
        "PYTHONPATH",
        "-np",
        "4",
        "prog",
        "-x",
    )
    assert launched.note is None


def test_what_the_user_exports_is_not_exported_twice() -> None:
    command = ["mpirun", "-x", "NCCL_MAX_CTAS", "-x", "PYTHONPATH=/own", "prog"]
    launched = with_exports(command, SETTINGS, {}, lambda program: OPEN_MPI)
    assert launched.arguments == tuple(command)
    assert launched.note == "mpirun itself sets PYTHONPATH: kept"


@pytest.mark.parametrize("printed", [HYDRA, INTEL])
def test_hydra_gets_pairs_which_leave_the_inherited_environment_alone(printed: str) -> None:
    launched = with_exports(["mpiexec", "-n", "2", "prog"], SETTINGS, {}, lambda program: printed)
    pairs = ("-genv", "NCCL_MAX_CTAS", "16", "-genv", "PYTHONPATH", "/hook:/mine")
    assert launched.arguments == ("mpiexec", *pairs, "-n", "2", "prog")


def test_an_unknown_mpirun_is_left_alone_and_said_so() -> None:
    launched = with_exports(["mpirun", "prog"], SETTINGS, {}, lambda program: "Platform MPI 9\n")
    assert launched.arguments == ("mpirun", "prog")
    assert "neither Open MPI nor Hydra" in str(launched.note)


@pytest.mark.parametrize("command", [["torchrun", "mpirun"], ["srun", "-n", "2", "prog"], ["srun", "--export=ALL,A=1"]])
def test_starters_that_hand_everything_on_are_left_alone(command: list[str]) -> None:
    launched = with_exports(command, SETTINGS, {}, no_version)
    assert launched.arguments == tuple(command)
    assert launched.note is None


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        (["srun", "--export=NONE", "p"], {}),
        (["srun", "--export", "NONE", "p"], {}),
        (["srun", "p"], {"SLURM_EXPORT_ENV": "NONE"}),
    ],
)
def test_an_srun_that_exports_nothing_is_said(command: list[str], environ: dict[str, str]) -> None:
    assert "srun exports NONE only" in str(with_exports(command, SETTINGS, environ, no_version).note)
