"""Pages for readers in a hurry: no sentence of README, index, concepts, how-to pages and examples is above 30 words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_WORDS = 30
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "docs/index.md", "docs/concepts.md", "docs/limits.md")),
        *(ROOT / "docs" / "how-to").glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)


def sentences(text: str) -> Iterator[str]:
    """Sentences of a page in Markdown: of paragraphs, list items, cells of tables and headings; never of code."""
    text = re.sub(r"^(```|~~~).*?^\1", "\n", text, flags=re.M | re.S)
    text = re.sub(r"^    .*$", "", text, flags=re.M)
    text = re.sub(r"`[^`\n]*`", "code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)\s]*\)", r"\1", text)
    for piece in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\. ))|(?<=\S)\s*\|\s*", text):
        yield from re.split(r"(?<=[.!?])(?<!Fig\.)(?<! al\.)[*)]*\s+", " ".join(piece.split()))


def words(sentence: str) -> int:
    return len(re.findall(r"\S*\w\S*", sentence))


def test_sentences_are_found_and_counted() -> None:
    page = (
        "# Title\n\nOne two. Is it `a b c`?\n\n- item [one](x.md)\n- two, 3.5 %\n\n~~~\ncode. here.\n~~~\n| a b | c |\n"
    )
    assert [words(found) for found in sentences(page) if words(found)] == [1, 2, 3, 2, 2, 2, 1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_is_long(page: Path) -> None:
    long = [found for found in sentences(page.read_text(encoding="utf-8")) if words(found) > MOST_WORDS]
    assert not long
