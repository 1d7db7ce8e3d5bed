"""Every program in examples/ runs, says something, and uses public names only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
ALONE = [
    path for path in PROGRAMS if "torchrun" not in path.read_text(encoding="utf-8")
]  # tests/ranks starts the others


def test_there_are_examples() -> None:
    assert len(PROGRAMS) >= 2


@pytest.mark.parametrize("program", ALONE, ids=lambda path: path.name)
def test_an_example_runs_without_warnings(program: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_an_example_imports_public_names_only(program: Path) -> None:
    for node in ast.walk(ast.parse(program.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("makeway"):
            assert node.module in ("makeway", "makeway.torch", "makeway.show.text")  # the last renders a public report
        elif isinstance(node, ast.Import):
            assert not any(name.name.startswith("makeway.") for name in node.names)
