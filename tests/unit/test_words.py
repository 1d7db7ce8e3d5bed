"""The project's words: phrases that nobody says are gone, and vague names live for three lines at most."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VAGUE = {"found", "one", "told", "words"}
LINES = 3
PHRASES = (
    "how-manieth", "cannot be had", "be had", "by which way in", "held against", "hold against", "one after the other",
    "the worst of strict", "told", "one's own", "as it were", "thereof", "wherein", "for want of", "in no wise",
)  # fmt: skip
SOURCES = sorted((ROOT / "src" / "makeway").rglob("*.py"))
PROSE = sorted(
    [
        *(ROOT / "examples").rglob("*.py"),
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)


def uses(function: ast.FunctionDef) -> dict[str, list[int]]:
    """The lines on which each vague name is used in a function."""
    lines: dict[str, list[int]] = {}
    for node in ast.walk(function):
        name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else None
        if name in VAGUE:
            lines.setdefault(name, []).append(node.lineno)  # type: ignore[attr-defined]
    return lines


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src" / "makeway")))
def test_a_vague_name_lives_for_three_lines_at_most(path: Path) -> None:
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    long_lived = [
        f"{name} in {function.name}, line {min(lines)}"
        for function in functions
        for name, lines in uses(function).items()
        if max(lines) - min(lines) > LINES
    ]
    assert not long_lived
    assert not [function.name for function in functions if function.name.strip("_") in VAGUE]


@pytest.mark.parametrize("phrase", PHRASES)
def test_nobody_says_this(phrase: str) -> None:
    pattern = re.compile(r"\b" + r"\s+".join(map(re.escape, phrase.split())) + r"\b", re.IGNORECASE)
    said = [str(path.relative_to(ROOT)) for path in (*SOURCES, *PROSE) if pattern.search(path.read_text("utf-8"))]
    assert not said
