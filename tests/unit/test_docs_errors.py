"""Every message of docs/reference/errors.md is what its command says, word for word, with exit code 2."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from makeway.cli.main import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "errors.md"
ENTRIES = re.findall(r"^~~~console\n\$ (makeway .*?)\n(.*?)^~~~$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def pattern(message: str) -> str:
    """The message as a pattern; " ..." at the end of a line stands for the rest of it."""
    parts = (line.partition(" ...") for line in message.split("\n"))
    return "\n".join(re.escape(line) + (".*" if more else "") for line, more, _ in parts)


@pytest.mark.parametrize(("command", "message"), ENTRIES, ids=[command for command, _ in ENTRIES])
def test_a_listed_message_is_what_the_command_says(
    command: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    try:
        code = main(shlex.split(command)[1:])
    except SystemExit as ended:  # options that argparse refuses
        code = int(ended.code or 0)
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert re.fullmatch(pattern(message), said.err), said.err


def test_each_message_is_followed_by_what_to_do() -> None:
    after = re.split(r"(?ms)^~~~console\n.*?^~~~$", PAGE.read_text(encoding="utf-8"))[1:]
    assert len(after) == len(ENTRIES) >= 30
    assert all(re.match(r"\n\n[A-Z\[`]", words) for words in after)
