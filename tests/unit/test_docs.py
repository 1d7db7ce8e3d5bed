"""What README and docs show is what happens: commands are run, Python is run, TOML is read, links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from makeway.device import parse_device

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")]


def blocks(language: str) -> list[tuple[str, str]]:
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.M | re.S)
    return [(page.name, block) for page in PAGES for block in pattern.findall(page.read_text())]


@pytest.mark.parametrize(("page", "block"), blocks("console"))
def test_a_shown_command_prints_what_is_shown(page: str, block: str) -> None:
    command, _, expected = block.removeprefix("$ ").partition("\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.stdout == expected, page
    assert done.stderr == ""


@pytest.mark.parametrize(("page", "block"), blocks("python"))
def test_shown_python_runs(page: str, block: str) -> None:
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{page}: {done.stderr}"
    assert done.stdout


@pytest.mark.parametrize(("page", "block"), blocks("toml"))
def test_shown_device_files_load(page: str, block: str) -> None:
    assert parse_device(block.encode(), where=page).name == "Mine"


def test_links_inside_the_project_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_changelog_names_the_version() -> None:
    import makeway

    assert f"## {makeway.__version__}" in (ROOT / "CHANGELOG.md").read_text()
