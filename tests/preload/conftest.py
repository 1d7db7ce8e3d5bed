"""The shim, a scripted driver and a client, compiled once per run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.preload.programs import HERE, Setting, compile_program, driver, shim_library
from tests.sharing import once_per_run


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once_per_run(tmp_path_factory, "shim", lambda out: shim_library(out / "shim.so")) / "shim.so"


@pytest.fixture(scope="session")
def scripted_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once_per_run(tmp_path_factory, "driver", lambda out: driver(out / "new")) / "new"


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return (
        once_per_run(tmp_path_factory, "client", lambda out: compile_program(out / "client", str(HERE / "client.c")))
        / "client"
    )


@pytest.fixture
def setting(client: Path, scripted_driver: Path, shim: Path, tmp_path: Path) -> Setting:
    (tmp_path / "runs").mkdir()
    return Setting(client=client, driver=scripted_driver, shim=shim, home=tmp_path / "runs")
