"""The walks through the bands, from the real calls: each command enters each band once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "walks"


@pytest.mark.parametrize(
    "walk",
    [
        "trace",
        "run",
        *(pytest.param(name, marks=[pytest.mark.long, pytest.mark.timeout(300)]) for name in ("plan", "bench")),
    ],
)
def test_a_command_enters_each_band_once(walk: str) -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check", walk], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(each band once)" in done.stdout


def test_an_unknown_walk_is_an_error() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "nowhere"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no walk named nowhere" in done.stderr
