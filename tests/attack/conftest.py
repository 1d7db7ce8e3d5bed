"""Fixtures of the attack suite, and the mark of what takes too long for every run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.attack.running import MAKEWAY, ROOT
from tests.attack.shim_programs import Binaries, binaries

LONG_VARIABLE = "MAKEWAY_TEST_LONG"  # set it to run what is marked `long`


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"long: takes minutes; runs with {LONG_VARIABLE}=1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get(LONG_VARIABLE):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason=f"takes minutes; set {LONG_VARIABLE}=1"))


@pytest.fixture(scope="session")
def compiled() -> Binaries:
    """The programs of the shim matrix."""
    return binaries()


@pytest.fixture
def second_user() -> None:
    """Only root may act as somebody else."""
    if os.getuid() != 0:
        pytest.skip("only root can run a command as a second user")


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that other users can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="makeway-attack-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def empty_plan(tmp_path: Path) -> Path:
    """A plan without controls."""
    path = tmp_path / "empty.toml"
    path.write_text("version = 1\n")
    return path


@pytest.fixture(scope="session")
def cpu_plan() -> Path:
    return ROOT / "examples" / "cpu-plan.toml"


@pytest.fixture
def run_command(empty_plan: Path) -> tuple[str, ...]:
    """`makeway run` with a plan without controls, up to the program."""
    return (*MAKEWAY, "run", "--plan", str(empty_plan))
