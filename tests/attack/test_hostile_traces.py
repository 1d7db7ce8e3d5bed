"""`analyze` and its kin end soon, in linear time and with one message, whatever file they are given."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.attack import hostile_traces
from tests.attack.running import MAKEWAY, TRACEBACK, Ended, run

from makeway.cli.main import main

CPU_LIMIT_S = 20
GENEROUS = 2.0  # times what linear growth allows


def limited(*, address_space: int | None = None) -> Callable[[], None]:
    """Processor time and, where given, memory are bounded: a busy machine changes nothing, a hog harms nobody."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
        if address_space is not None:
            resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

    return limit


def assert_refused(ended: Ended) -> None:
    """Exit code 2 and a message of a few lines."""
    assert TRACEBACK not in ended.said, ended.err[-400:]
    assert ended.code == 2, ended
    assert ended.out == ""
    assert ended.err.startswith("makeway ")
    assert len(ended.err) < 1000


def processor_s(*arguments: str | Path) -> float:
    """The processor time of a command in a process of its own: what other tests left in this one costs nothing."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = run(*MAKEWAY, *arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.code is not None, ended
    assert TRACEBACK not in ended.said, ended
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def assert_linear(least_s: float, small_s: float, large_s: float, factor: float) -> None:
    """`least_s`: what next to no input takes."""
    small_s, large_s = max(small_s - least_s, 0.05), large_s - least_s
    assert large_s < GENEROUS * factor * small_s, f"{factor:g} times the input takes {large_s / small_s:.1f}"


# --- files that are no files -------------------------------------------------------------------


@pytest.mark.parametrize("what", ["fifo", "/dev/zero", "/dev/tty"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, what: str) -> None:
    path = Path(what)
    if what == "fifo":
        path = tmp_path / "trace.json"
        os.mkfifo(path)
    limit = limited(address_space=1 << 30)
    ended = run(*MAKEWAY, "analyze", path, limit_s=8, prepare=limit)
    assert ended.code is not None, "waits for ever"
    assert_refused(ended)


def test_a_fifo_beside_good_traces_is_passed_over_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(hostile_traces.ordinary())
    os.mkfifo(tmp_path / "rank1.json")
    ended = run(*MAKEWAY, "analyze", tmp_path, "--json", limit_s=8)
    assert ended.code == 0, ended
    document = json.loads(ended.out)
    assert len(document["ranks"]) == 1
    assert any("rank1.json" in note for note in document["notes"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--plan", "{zero}", "--", "true"),
        ("export", "{zero}", "--to", "env"),
        ("simulate", "gemm-ar", "--device", "A100-SXM4-80GB", "--plan", "{zero}"),
        ("simulate", "{zero}", "--device", "A100-SXM4-80GB"),
        ("devices", "{zero}"),
        ("inspect", "{zero}"),
        ("analyze", "{trace}", "--comm-names", "{zero}"),
        ("validate", "--data", "{zero}"),
    ],
    ids=lambda arguments: " ".join(arguments[:3]),
)
def test_an_endless_file_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    (tmp_path / "trace.json").write_bytes(hostile_traces.ordinary())
    words = [word.format(zero=tmp_path / "zero.toml", trace=tmp_path / "trace.json") for word in arguments]
    assert_refused(run(*MAKEWAY, *words, prepare=limited(address_space=1 << 30)))


def test_an_endless_standard_input_is_refused() -> None:
    command = f"{' '.join(MAKEWAY)} export - --to env </dev/zero"
    assert_refused(run("sh", "-c", command, prepare=limited(address_space=1 << 30)))


def test_a_name_that_does_not_fit_into_memory_is_refused(tmp_path: Path) -> None:
    path = hostile_traces.one_long_name(tmp_path / "trace.json.gz", 128 << 20)
    assert_refused(run(*MAKEWAY, "analyze", path, limit_s=60, prepare=limited(address_space=400 << 20)))


# --- growth ------------------------------------------------------------------------------------


def test_time_grows_with_blanks_no_faster_than_they_do(tmp_path: Path) -> None:
    paths = [hostile_traces.blanks(tmp_path / f"{size}.gz", size << 20) for size in (1, 4, 32)]
    least, small, large = (processor_s("analyze", path) for path in paths)
    assert_linear(least, small, large, factor=31 / 3)


def test_time_grows_with_streams_no_faster_than_they_do(tmp_path: Path) -> None:
    times = []
    for streams in (10, 1000, 10_000):
        (tmp_path / "trace.json").write_bytes(hostile_traces.many_streams(streams))
        times.append(processor_s("analyze", "--no-what-if", tmp_path / "trace.json"))
    least, small, large = times
    assert_linear(least, small, large, factor=10)


def test_many_events_at_one_time_end_soon(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(hostile_traces.at_one_time(2000, 9))
    ended = run(*MAKEWAY, "analyze", tmp_path / "trace.json", "--json", limit_s=90, prepare=limited())
    assert ended.code == 0, f"over {CPU_LIMIT_S} s of processor time: {ended}"
    assert json.loads(ended.out)["ranks"][0]["comm_kernels"] == 1000


# --- what-ifs that fail ------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 40])
@pytest.mark.parametrize("more", [(), ("--no-what-if",)], ids=["what-if", "no-what-if"])
def test_a_what_if_that_fails_costs_no_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rounds: int, more: tuple[str, ...]
) -> None:
    (tmp_path / "trace.json").write_bytes(hostile_traces.in_a_circle(rounds))
    code = main(["analyze", str(tmp_path / "trace.json"), "--json", *more])
    captured = capsys.readouterr()
    assert code == 0, captured.err[:300]
    (rank,) = json.loads(captured.out)["ranks"]
    assert (rank["kernels"], rank["comm_kernels"]) == (2 * rounds + 1, rounds)
    assert rank["exposed_ms"] == pytest.approx(0.2 * rounds)
    assert max(map(len, captured.err.splitlines()), default=0) < 500
