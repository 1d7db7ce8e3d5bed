"""Every worked example has a program, a page and its output; programs use public names only.

tests/unit/test_docs.py runs the commands of the pages and compares what they print; tests/ranks runs the job.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
WORKED = sorted(page.parent for page in EXAMPLES.glob("*/README.md"))
PROGRAMS = sorted([*EXAMPLES.glob("*.py"), *(path for folder in WORKED for path in folder.glob("*.py"))])


def test_there_are_five_worked_examples_and_the_index_links_them() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert len(WORKED) == 5
    assert all(f"]({folder.name}/README.md)" in index for folder in WORKED)


@pytest.mark.parametrize("folder", WORKED, ids=lambda folder: folder.name)
def test_the_page_of_an_example_shows_what_its_program_prints(folder: Path) -> None:
    page = (folder / "README.md").read_text(encoding="utf-8")
    (program,) = folder.glob("*.py")
    command = rf"^[`~]{{3}}console\n\$ [^\n]*{program.relative_to(ROOT)}[^\n]*\n"
    shown = re.findall(command + r"((?:(?!```|~~~).*\n)+)", page, re.M)
    assert shown


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_an_example_imports_public_names_only(program: Path) -> None:
    for node in ast.walk(ast.parse(program.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("makeway"):
            assert node.module in ("makeway", "makeway.torch", "makeway.show.text")  # the last renders a public report
        elif isinstance(node, ast.Import):
            assert not any(name.name.startswith("makeway.") for name in node.names)
