"""Generated pages and figures are what their scripts make of the code as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def made(script: str, out: Path) -> dict[str, str]:
    subprocess.run([sys.executable, ROOT / "scripts" / script, out], check=True, env=dict(os.environ))
    return {path.name: path.read_text(encoding="utf-8") for path in out.iterdir()}


@pytest.mark.parametrize(("script", "folder"), [("docs-reference", "reference"), ("figures", "figures")])
def test_what_is_committed_is_what_the_script_writes(script: str, folder: str, tmp_path: Path) -> None:
    found = made(script, tmp_path)
    assert found
    for name, text in found.items():
        assert (DOCS / folder / name).read_text(encoding="utf-8") == text, f"stale: run scripts/{script}"


def test_every_figure_is_drawn_by_the_script_and_shown_on_a_page(tmp_path: Path) -> None:
    shown = {
        name
        for page in DOCS.rglob("*.md")
        for name in re.findall(r"!\[[^\]]+\]\((?:\.\./)?figures/([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    drawings = {path.name for path in (DOCS / "figures").glob("*.svg")}
    assert {name for name in shown if name.endswith(".svg")} == drawings == set(made("figures", tmp_path))


def test_bands_in_the_figure_of_the_idea_exist() -> None:
    bands = set(re.findall(r"\b([a-z]+)/", re.sub(r"<[^>]*>", " ", (DOCS / "figures" / "idea.svg").read_text())))
    assert len(bands) == 6
    assert all((ROOT / "src" / "makeway" / band).is_dir() for band in bands), bands


def test_the_reference_names_every_command_and_public_name() -> None:
    import makeway
    from makeway.cli.main import COMMANDS

    commands = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    assert all(f"\n## makeway {name}\n" in commands for name in COMMANDS)
    names = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    assert all(f"\n### {name}\n" in names for name in makeway.__all__ if name != "__version__")
