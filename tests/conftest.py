"""Shared set-up: time limits, the hypothesis profile, and real kernels compiled by Triton."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from tests.sharing import once_per_run

settings.register_profile("makeway", deadline=None, max_examples=80, print_blob=True)
settings.register_profile("long", deadline=None, max_examples=400, print_blob=True)  # HYPOTHESIS_PROFILE=long
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "makeway"))

SEED_VARIABLE = "MAKEWAY_TEST_SEED"  # set it to repeat the random draws of a run

TRITON_SCRIPT = Path(__file__).parent / "oracle" / "compile_kernels.py"

# Folders and files whose tests compile with gcc or Triton, or drive a browser; other tests have the limit of
# pyproject.toml, or their own mark.
SLOW_LIMIT_S = 360
FIRST = ("ranks", "attack", "browser", "oracle", "preload")  # long modules first: the workers end together
SLOW = ("browser", "oracle", "preload", "test_docs_site.py", "test_reports.py", "test_torch_triton.py")


def pytest_configure() -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the commands that tests start would compile their modules anew
    os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(2**32)))  # test workers inherit it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: FIRST.index(item.path.parent.name) if item.path.parent.name in FIRST else len(FIRST))
    for item in items:
        if item.get_closest_marker("timeout") is None and not set(SLOW).isdisjoint(item.path.parts):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT_S))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"random draws of this run: {SEED_VARIABLE}={os.environ[SEED_VARIABLE]}")


@pytest.fixture
def draw() -> random.Random:
    """A source of randomness whose seed is printed at the end of the run."""
    return random.Random(int(os.environ[SEED_VARIABLE]))


@pytest.fixture(scope="session")
def triton_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of cubins and hsacos that Triton compiled just now, and Triton's figures beside them.

    Compiled in a process of its own: Triton warns on import, and warnings are errors here.
    """

    def compile_all(out: Path) -> None:
        subprocess.run([sys.executable, str(TRITON_SCRIPT), str(out)], check=True, timeout=300)

    return once_per_run(tmp_path_factory, "triton", compile_all)


@pytest.fixture(scope="session")
def libnccl() -> Path:
    """The real NCCL library of the nvidia-nccl package."""
    import nvidia.nccl

    return Path(next(iter(nvidia.nccl.__path__))) / "lib" / "libnccl.so.2"
