"""What README and docs show is what happens: commands are run, Python is run, TOML is read, links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from makeway.values.device import parse_device

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def blocks(language: str) -> list[tuple[str, str]]:
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.M | re.S)
    return [(str(page.relative_to(ROOT)), block) for page in PAGES for block in pattern.findall(page.read_text())]


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


PRINTED = [
    (str(page.relative_to(ROOT)), block, shown)
    for page in PAGES
    for block, shown in re.findall(
        r"^```python\n(.*?)^```\n\nIt prints[^\n]*:\n\n~~~text\n(.*?)^~~~", page.read_text(), re.M | re.S
    )
]


@pytest.mark.parametrize(("page", "block", "shown"), PRINTED)
def test_shown_python_prints_what_is_said(page: str, block: str, shown: str) -> None:
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
    assert done.stdout == shown, f"{page}: {done.stderr}"


@pytest.mark.parametrize(("page", "block"), blocks("toml"))
def test_shown_device_files_load(page: str, block: str) -> None:
    assert parse_device(block.encode(), where=page).name == "Mine"


def prose(page: Path) -> str:
    """A page without what is fenced or set in code."""
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "code", text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as repositories and the site make them."""
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


LINKS = [(page, target) for page in PAGES for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page))]


def test_links_inside_the_project_lead_somewhere() -> None:
    for page, target in LINKS:
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), f"{page.relative_to(ROOT)} links to {target}"
        assert not anchor or anchor in anchors(found), f"{page.relative_to(ROOT)} links to {target}"


def test_every_page_of_the_docs_is_linked_from_another() -> None:
    linked = {(page.parent / target.partition("#")[0]).resolve() for page, target in LINKS}
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert f": {name}\n" in nav, f"mkdocs.yml does not list {name}"
        assert page.resolve() in linked, f"no page links to {name}"


def test_the_changelog_names_the_version() -> None:
    import makeway

    assert f"## {makeway.__version__}" in (ROOT / "CHANGELOG.md").read_text()
