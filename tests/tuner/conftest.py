"""The tuner plugin and our driver of its interface, compiled once per run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sharing import once_per_run
from tests.tuner.programs import Bench, compile_driver, compile_plugin


def _compile(where: Path) -> None:
    compile_driver(where / "driver")
    compile_plugin(where / "plugin.so")


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Bench:
    made = once_per_run(tmp_path_factory, "tuner", _compile)
    return Bench(driver=made / "driver", plugin=made / "plugin.so", home=tmp_path)
