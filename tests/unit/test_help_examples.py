"""Examples in --help run as they are, where they need no file, rank or GPU of the reader's own."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from makeway.cli.main import COMMANDS, main

_OWN = re.compile(  # files and programs of the reader
    r"\.toml|\.json|\.sqlite|\.so|\.cubin|\.hsaco|\.fatbin|\.env|\.summary|traces/|recording/"
    r"|torchrun|doctor --calibrate"
)
_SLOW = ("bench", "demo", "validate", "view")  # real ranks, minutes, a server: their own tests run them


def examples() -> list[str]:
    found = []
    for command in COMMANDS:
        text = re.sub(r"\\\n\s+", "", import_module(f"makeway.cli.{command}").EXAMPLES)
        for line in re.findall(rf"^  (makeway {command}\b.*)$", text, re.M):
            words = re.split(r"  +", line)[0]  # what follows wide space explains
            if not _OWN.search(words) and command not in _SLOW and "--sweep" not in words:
                found.append(words)
    return found


@pytest.mark.parametrize("example", examples())
def test_an_example_of_help_runs(
    example: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some write a file
    try:
        code = main(shlex.split(example)[1:])
    except SystemExit as ended:  # options that list and stop
        code = int(ended.code or 0)
    assert code == 0, capsys.readouterr().err
