"""The shim, a scripted driver and a client, compiled once per run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.preload.programs import HERE, Setting, compile_program, driver, shim_library


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shim_library(tmp_path_factory.mktemp("shim") / "shim.so")


@pytest.fixture(scope="session")
def scripted_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return driver(tmp_path_factory.mktemp("driver") / "new")


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("client") / "client", str(HERE / "client.c"))


@pytest.fixture
def setting(client: Path, scripted_driver: Path, shim: Path, tmp_path: Path) -> Setting:
    (tmp_path / "runs").mkdir()
    return Setting(client=client, driver=scripted_driver, shim=shim, home=tmp_path / "runs")
