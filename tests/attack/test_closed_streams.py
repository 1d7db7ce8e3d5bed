"""A standard stream that is closed or full: no traceback, and the program's exit code is kept."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests.attack import hostile_traces
from tests.attack.running import MAKEWAY, ROOT, TRACEBACK, Ended, run

EXITS_3 = ("sh", "-c", "exit 3")
STREAMS = (">&-", ">/dev/full", "2>&-", "2>/dev/full", ">&- 2>&-", ">/dev/full 2>/dev/full", "<&- >&- 2>&-")


def redirected(streams: str, *command: str | Path) -> Ended:
    return run("sh", "-c", f"exec {shlex.join(map(str, command))} {streams}")


def assert_no_traceback(ended: Ended) -> None:
    for sign in (TRACEBACK, "Exception ignored", "Error: [Errno", "AttributeError"):
        assert sign not in ended.said, ended.said[-600:]


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("as_json", [False, True], ids=["table", "json"])
def test_the_programs_exit_code_is_kept(run_command: tuple[str, ...], streams: str, as_json: bool) -> None:
    ended = redirected(streams, *run_command, *(["--json"] if as_json else []), "--", *EXITS_3)
    assert_no_traceback(ended)
    assert ended.code == 3, ended


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full"])
def test_the_table_never_goes_to_standard_output(run_command: tuple[str, ...], streams: str) -> None:
    ended = redirected(streams, *run_command, "--", "echo", "of the program")
    assert ended.out == "of the program\n"


def test_the_document_does_not_need_standard_error(run_command: tuple[str, ...]) -> None:
    ended = redirected("2>&-", *run_command, "--json", "--", *EXITS_3)
    assert json.loads(ended.out)["exit_code"] == 3


@pytest.mark.parametrize(("closed", "number"), [("<&-", 0), (">&-", 1), ("2>&-", 2)])
def test_a_closed_stream_of_the_program_is_none_of_our_files(
    run_command: tuple[str, ...], tmp_path: Path, closed: str, number: int
) -> None:
    # In two commands: some shells redirect themselves, not the command.
    looks = f"seen=$(readlink /proc/$$/fd/{number}); echo $seen >{tmp_path / 'seen'}; exit 3"
    assert redirected(closed, *run_command, "--", "sh", "-c", looks).code == 3
    assert (tmp_path / "seen").read_text() in ("\n", "/dev/null\n")


@pytest.mark.parametrize("streams", [">&-", ">/dev/full", ">&- 2>&-"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("devices",),
        ("devices", "--json"),
        ("analyze", "{trace}"),
        ("inspect", str(ROOT / "examples" / "matmul.sm_90.cubin")),
        ("export", str(ROOT / "examples" / "cpu-plan.toml"), "--to", "torch"),
        ("run", "--plan", str(ROOT / "examples" / "cpu-plan.toml"), "--dry-run", "--", "true"),
        ("--help",),
    ],
    ids=lambda arguments: " ".join(word.rpartition("/")[2] for word in arguments),
)
def test_a_result_that_cannot_be_written_is_no_traceback(
    tmp_path: Path, arguments: tuple[str, ...], streams: str
) -> None:
    (tmp_path / "trace.json").write_bytes(hostile_traces.ordinary())
    ended = redirected(streams, *MAKEWAY, *(word.format(trace=tmp_path / "trace.json") for word in arguments))
    assert_no_traceback(ended)
    assert ended.code in ((0, 2) if ">&-" in streams else (2,)), ended  # a result that got lost is no success
