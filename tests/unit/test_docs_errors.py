"""Every message of docs/reference/errors.md is what its command says, word for word, with exit code 2."""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page's commands run: the examples, and the small files that the page names."""
    for name in ("examples", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "profile.sqlite.gz").write_bytes(gzip.compress(b"SQLite format 3\0" + bytes(84)))
    (tmp_path / "pad.toml").write_text('version = 2\n[[control]]\nkind = "pad"\npad_bytes = 1024\nkernel = "*"\n')
    for name in ("monday", "tuesday"):
        shutil.copy(ROOT / "examples/recordings/tp-llama-70b/rank0.json.gz", tmp_path / f"{name}.json.gz")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("command", "message"), ENTRIES, ids=[command for command, _ in ENTRIES])
@pytest.mark.usefixtures("folder")
def test_a_listed_message_is_what_the_command_says(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
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
