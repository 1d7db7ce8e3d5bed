"""Fixtures of the attack suite."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.attack.running import MAKEWAY, ROOT
from tests.attack.shim_programs import Binaries, binaries


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
