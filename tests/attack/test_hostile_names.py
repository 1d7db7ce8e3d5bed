"""Names of kernels, devices, files and processes: shown whole, and never more than text to a terminal."""

from __future__ import annotations

import io
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.attack.hostile_traces import NCCL, ordinary
from tests.attack.running import MAKEWAY, ROOT, Ended, run

from makeway.cli.main import main

CUBIN = ROOT / "examples" / "matmul.sm_90.cubin"
HSACO = ROOT / "examples" / "matmul.gfx90a.hsaco"
EXAMPLES = settings(max_examples=25)

MARKUP = ("[/foo]", "k[lambda0]", "[link=http://127.0.0.1/]k[/link]", "[red]k", "\\[k]", "[", "[/]", ":smile:", "k[0]")
CONTROLS = (
    "\x1b[31mk",
    "\x1b]8;;http://127.0.0.1/\x07k",
    "k\x9b31m",
    "k\nl",
    "k\rl",
    "k\x7f",
    "k\x00l",
    "\u202ek",
    "\u2028",
)
# Short enough to be shown whole, and without a backslash: an escape may have to double it.
markup = (
    st.lists(st.sampled_from([*"[]/=: k", *MARKUP]), min_size=1, max_size=6)
    .map("".join)
    .filter(lambda name: name.strip() and len(name) <= 50 and "\\" not in name)
)
hostile = st.lists(st.sampled_from([*MARKUP, *CONTROLS, "k", " "]), min_size=1, max_size=4).map("".join)


def asked(*arguments: str | Path) -> Ended:
    """A command in this process; one that raises has failed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Ended(code=code, out=out.getvalue(), err=err.getvalue(), seconds=0.0)


def assert_only_text(ended: Ended) -> None:
    strange = {char for char in ended.said if not char.isprintable() and char != "\n"}
    assert strange == set(), ended.said


def packed(text: str) -> str:
    """Without blanks and line ends: tables wrap."""
    return re.sub(r"\s+", "", text)


def texts_of(value: object) -> Iterator[str]:
    """All texts of a JSON document."""
    match value:
        case str():
            yield value
        case list():
            yield from (text for item in value for text in texts_of(item))
        case dict():
            yield from (text for item in value.values() for text in texts_of(item))


@contextmanager
def trace(compute: str = "gemm", comm: str = NCCL, **header: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "trace.json")
        path.write_bytes(ordinary(compute, comm, **header))
        yield path


@contextmanager
def renamed(binary: Path, name: bytes) -> Iterator[Path]:
    """A binary whose kernel bears another name of the same length."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, binary.name)
        path.write_bytes(binary.read_bytes().replace(b"matmul", name))
        yield path


# --- kernels -----------------------------------------------------------------------------------


@EXAMPLES
@given(hostile)
@example("[/foo]")
@example("\x1b[2J\x1b]0;owned\x07")
@example("k\x9b31mk")
@example("one\ntwo")
def test_a_kernels_name_in_an_analysis_is_only_text(name: str) -> None:
    with trace(compute=name) as path:
        ended = asked("analyze", path, "--no-what-if")
    assert ended.code == 0
    assert_only_text(ended)


@EXAMPLES
@given(markup)
@example("k[lambda]")
@example("[/foo]")
@example("[link=http://127.0.0.1/]k[/link]")
def test_a_kernels_name_in_an_analysis_is_whole(name: str) -> None:
    with trace(compute=name) as path:
        ended = asked("analyze", path, "--no-what-if")
    assert packed(name) in packed(ended.out)


@EXAMPLES
@given(hostile)
@example(f"{NCCL}\x1b[31m[/foo]\n")
def test_a_collectives_name_in_an_analysis_is_only_text(name: str) -> None:
    with trace(comm=f"ncclDevKernel_{name}") as path:
        ended = asked("analyze", path)
    assert ended.code == 0
    assert_only_text(ended)


@EXAMPLES
@given(hostile.filter(lambda name: name.strip() and len(name) <= 50))
@example("k\x9b\u202e")
def test_a_name_in_a_document_is_only_text_and_reads_back(name: str) -> None:
    with trace(compute=name) as path:
        ended = asked("analyze", path, "--no-what-if", "--json")
    assert_only_text(ended)
    assert any(packed(name) in packed(text) for text in texts_of(json.loads(ended.out)))


@pytest.mark.parametrize("name", [b"[/foo]", b"[red]k", b"[a=b]k", b"k[0]kk"])
@pytest.mark.parametrize("binary", [CUBIN, HSACO], ids=["cubin", "hsaco"])
def test_a_kernels_name_in_a_binary_is_whole(binary: Path, name: bytes) -> None:
    with renamed(binary, name) as path:
        ended = asked("inspect", path)
    assert ended.code == 0
    assert name.decode() in ended.out


@EXAMPLES
@given(st.text(alphabet="[]/=k\x1b\x07\n\r\x7f<>", min_size=6, max_size=6))
@example("\x1b[31mk")
@example("k\nk\rkk")
def test_a_kernels_name_in_a_binary_is_only_text(name: str) -> None:
    for binary in (CUBIN, HSACO):
        with renamed(binary, name.encode()) as path:
            assert_only_text(asked("inspect", path))


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("name", ["[link=http://127.0.0.1/]k[/link]", "\x1b]8;;http://127.0.0.1/\x07k", "k\x9b31m"])
def test_a_name_is_no_link_on_a_terminal(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    out = _Terminal()
    with trace(compute=name) as path, redirect_stdout(out), redirect_stderr(io.StringIO()):
        main(["analyze", str(path), "--no-what-if"])
    uncoloured = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())  # our own colours
    assert {char for char in uncoloured if not char.isprintable() and char != "\n"} == set()


# --- devices and files -------------------------------------------------------------------------


@EXAMPLES
@given(hostile)
@example("[/foo]")
@example("NVIDIA \x1b[31m\n")
def test_a_devices_name_is_only_text(name: str) -> None:
    with trace(device=name) as path:
        ended = asked("analyze", path)
    assert ended.code in (0, 2)
    assert_only_text(ended)


@EXAMPLES
@given(markup)
@example("[/foo]")
def test_a_devices_name_is_whole(name: str) -> None:
    with trace(device=name) as path:
        ended = asked("analyze", path)
    assert packed(name) in packed(ended.said)


@EXAMPLES
@given(
    hostile.map(lambda name: name.replace("/", "|").replace("\0", "")).filter(lambda name: name not in ("", ".", ".."))
)
@example("\x1b[31mtrace\n.json")
@example("[|foo].json")
def test_a_files_name_is_only_text(name: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, name)
        for arguments in (("analyze", path), ("inspect", path), ("export", path, "--to", "env"), ("devices", path)):
            assert_only_text(asked(*arguments))  # there is no such file
        path.write_bytes(ordinary())
        assert_only_text(asked("analyze", path, "--no-what-if"))
        assert_only_text(asked("inspect", path))
        assert_only_text(asked("export", path, "--to", "env"))
        good = Path(place, "rank0.json")
        good.write_bytes(ordinary())
        path.write_bytes(b"no trace")
        assert_only_text(asked("analyze", place))  # a note says what was passed over


@settings(max_examples=10)
@given(hostile)
def test_what_a_file_begins_with_is_only_text(content: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "plan.toml")
        for text in (content, f'version = 1\n"{content}" = 1\n', json.dumps({content: 1})):
            path.write_text(text)
            assert_only_text(asked("analyze", path))
            assert_only_text(asked("export", path, "--to", "env"))


# --- programs under a plan ---------------------------------------------------------------------


def test_what_a_program_leaves_is_only_text(run_command: tuple[str, ...], tmp_path: Path, cpu_plan: Path) -> None:
    """The name of a process that outlives the program, and a receipt that the program wrote itself."""
    sleeper = tmp_path / "\x1b[31mred\nk"
    shutil.copy(shutil.which("sleep") or "", sleeper)
    error = "\x1b]0;owned\x07[/foo]\nline"
    receipt = json.dumps({"pid": 1, "rank": 0, "backend": None, "error": error, "receipts": []})
    (tmp_path / "receipt").write_text(receipt)
    script = f'cp {tmp_path}/receipt "$MAKEWAY_RECEIPTS/torch-1.json"; "$SLEEPER" 60 >/dev/null 2>&1 & exit 3'
    env_command = ("env", f"SLEEPER={sleeper}", "sh", "-c", script)
    ended = run(*MAKEWAY, "run", "--plan", cpu_plan, "--", *env_command)
    assert ended.code == 3, ended
    assert "red" in ended.err
    assert "[/foo]" in ended.err
    assert_only_text(ended)


@pytest.mark.parametrize("name", ["no\x1b[31msuch", "no\nsuch", "[/foo]"])
def test_a_program_that_is_not_there_is_only_text(run_command: tuple[str, ...], name: str) -> None:
    ended = asked(*run_command[3:], "--", name)
    assert ended.code == 2
    assert_only_text(ended)


def test_strange_words_on_the_command_line_are_only_text(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["\x1b[31m"],
        ["devices", "\x1b[31m\n"],
        ["devices", "--\x1b[31m"],
        ["devices", "a", "\x1b[31mb"],
    ):
        try:
            code = main(arguments)
        except SystemExit as end:
            code = int(str(end.code))
        captured = capsys.readouterr()
        assert code == 2
        assert_only_text(Ended(code=code, out=captured.out, err=captured.err, seconds=0.0))
