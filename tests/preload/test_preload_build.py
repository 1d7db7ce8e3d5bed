"""Compiling the shim on first use."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from makeway.act.preload import build
from makeway.values.errors import UnsupportedError

CALL = "import sys; from pathlib import Path; from makeway.act.preload.build import library; print(library({}))"


def ask(argument: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CALL.format(argument)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.long
def test_many_processes_at_once_get_one_library(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CALL.format(f"Path({str(tmp_path)!r})")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert len(answers) == 1
    assert [path.name for path in tmp_path.iterdir()] == [Path(answers.pop()).name]


def test_the_cache_is_where_the_desktop_rules_say_and_the_second_call_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Path(ask(XDG_CACHE_HOME=str(tmp_path)).stdout.strip())
    assert first.parent == tmp_path / "makeway"
    before = first.stat().st_mtime_ns
    monkeypatch.setattr(build, "_compile", None)
    assert build.library(first.parent) == first
    assert first.stat().st_mtime_ns == before


def test_without_a_compiler_the_message_says_what_to_do(tmp_path: Path) -> None:
    done = ask(f"Path({str(tmp_path)!r})", PATH=str(tmp_path), CC="")
    assert done.returncode != 0
    assert "no C compiler found" in done.stderr
    assert "Install one" in done.stderr


def test_a_compiler_that_is_named_and_not_there_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(UnsupportedError, match="CC names 'no-such-compiler'"):
        build.library(tmp_path)


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failing = tmp_path / "cc"
    failing.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit 0\necho "no headers here" >&2\nexit 1\n')
    failing.chmod(0o755)
    monkeypatch.setenv("CC", str(failing))
    with pytest.raises(UnsupportedError, match="no headers here"):
        build.library(tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_cache_that_cannot_be_written_is_replaced_by_a_private_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    (tmp_path / "temporary").mkdir()
    done = ask(f"Path({str(tmp_path / 'file' / 'cache')!r})", TMPDIR=str(tmp_path / "temporary"))
    made = Path(done.stdout.strip())
    assert made.is_file()
    assert made.parent.parent == tmp_path / "temporary"
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700


def test_a_private_directory_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    open_to_all = tmp_path / f"makeway-{os.getuid()}"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    done = ask(f"Path({str(tmp_path / 'file' / 'cache')!r})", TMPDIR=str(tmp_path))
    assert Path(done.stdout.strip()).parent != open_to_all
    assert not list(open_to_all.iterdir())


def test_the_sources_are_part_of_the_package() -> None:
    assert {path.suffix for path in build.SHIM.sources} == {".c", ".h"}


@pytest.mark.parametrize("which", ["cache", "cache/makeway"])
def test_a_cache_that_others_can_write_is_not_used_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    cache = tmp_path / "cache" / "makeway"
    cache.mkdir(parents=True)
    (tmp_path / which).chmod(0o775)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(build, "_compile", lambda product, command, target: target)
    said: list[str] = []
    assert build.library(cache, warn=said.append).parent == tmp_path / f"makeway-{os.getuid()}"
    assert said == [f"the cache of compiled libraries is not used: {tmp_path / which} can be written by other users"]
