"""Ranks as processes: whatever goes wrong, one message names it, and nothing is left running or lying about."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import free_port, hearing

from makeway.act.measure.bench import cores
from makeway.act.measure.job import Job
from makeway.act.measure.launch import RANK_COMMAND, Limits, RankFailedError, run_ranks
from makeway.act.measure.link import LOOPBACK, paced_link, parse_rate
from makeway.act.measure.variants import fixed_variants
from makeway.act.measure.wire import encode_job

MARK = "MAKEWAY_TEST_MARK"
SMALL = ("gemm-ar", "--size", "256KiB", "--scale", "0.5", "--repeats", "2", "--warmup", "1", "--no-plan")
ENDLESS = ("gemm-ar", "--size", "256KiB", "--scale", "0.5", "--repeats", "100000", "--no-plan")
ENDED_WITHIN_S = 60  # a bound, not a claim: the machine may be busy
RAN_WITHIN_S = 240
pytestmark = pytest.mark.timeout(RAN_WITHIN_S + ENDED_WITHIN_S)


class Started:
    """A `makeway bench` whose processes can be told from all others by a mark in their environment."""

    def __init__(self, temporary: Path, *command: str) -> None:
        self.mark = uuid.uuid4().hex
        self.temporary = temporary
        self.seen: set[int] = set()
        self.process = subprocess.Popen(
            hearing(*command),
            env={**os.environ, MARK: self.mark, "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def alive(self) -> dict[int, dict[str, str]]:
        """The environment of every living process with our mark."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    raw = (entry / "environ").read_bytes().decode(errors="replace")
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                except OSError:
                    continue
                variables = dict(pair.split("=", 1) for pair in raw.split("\0") if "=" in pair)
                if variables.get(MARK) == self.mark and state != "Z":
                    found[int(entry.name)] = variables
        self.seen |= set(found)
        return found

    def rank(self, number: int) -> int:
        return next(pid for pid, variables in self.alive().items() if variables.get("RANK") == str(number))

    def until(self, word: str) -> None:
        """Reads progress until it says `word`."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if word in line:
                return
        raise AssertionError(f"ended before it said {word!r}")

    def messages(self) -> tuple[int, list[str]]:
        """Exit code and messages; fails when it takes too long or leaves something behind."""
        _, said = self.process.communicate(timeout=ENDED_WITHIN_S)
        self.assert_nothing_left()
        return self.process.returncode, [line for line in said.splitlines() if line.startswith("makeway")]

    def assert_nothing_left(self) -> None:
        until = time.monotonic() + ENDED_WITHIN_S
        while self.alive() and time.monotonic() < until:
            time.sleep(0.05)
        assert not self.alive()
        assert list(self.temporary.iterdir()) == []
        # makeway-NAMESPACE-PROCESS-...: the name of a segment of shared memory says which process made it.
        left = [name for name in os.listdir("/dev/shm") if name.startswith("makeway-")]
        assert not [name for name in left if int(name.split("-")[2]) in self.seen]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    begun: list[Started] = []

    def started(*arguments: str, command: tuple[str, ...] = (sys.executable, "-m", "makeway", "bench")) -> Started:
        begun.append(Started(tmp_path, *command, *arguments))
        return begun[-1]

    yield started
    for one in begun:
        for pid in one.alive():
            os.kill(pid, signal.SIGKILL)
        one.process.communicate()


Start = Callable[..., Started]


@pytest.mark.long  # test_bench_workloads.py has one of 2 ranks
@pytest.mark.parametrize("ranks", [2, 4])
def test_any_number_of_ranks_gives_one_verified_document(start: Start, ranks: int) -> None:
    bench = start(*SMALL, "--ranks", str(ranks), "--json")
    out, said = bench.process.communicate(timeout=RAN_WITHIN_S)
    assert bench.process.returncode == 0, said
    found: dict[str, Any] = json.loads(out)
    assert (found["ranks"], found["verified"], found["on"]) == (ranks, True, "cpu")
    assert {"sequential", "overlap", "overlap_torchrun"} <= set(found["variants"])
    assert all(variant["n"] == 2 for variant in found["variants"].values())
    bench.assert_nothing_left()


@pytest.mark.long
def test_ranks_that_torchrun_started_print_once(start: Start, tmp_path: Path) -> None:
    torchrun = (str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2", "--master-port")
    bench = start(*SMALL, "--json", command=(*torchrun, str(free_port()), "-m", "makeway", "bench"))
    out, said = bench.process.communicate(timeout=RAN_WITHIN_S)
    assert bench.process.returncode == 0, said
    assert json.loads(out)["ranks"] == 2  # one document: two would not parse


def test_a_link_needs_ranks_of_our_own(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from makeway.cli.main import main

    monkeypatch.setenv("RANK", "0")
    assert main(["bench", "--link", "2gbit"]) == 2
    assert "leave torchrun out" in capfd.readouterr().err


def test_a_killed_rank_ends_all_and_is_named(start: Start) -> None:
    bench = start(*ENDLESS, "--control", "copy-engine")
    bench.until("round 2 of")
    os.kill(bench.rank(1), signal.SIGKILL)
    code, messages = bench.messages()
    assert code == 2
    assert len(messages) == 1
    assert "rank 1 of 2 was killed by SIGKILL at 'round" in messages[0]


@pytest.mark.long
def test_a_rank_that_stands_still_is_named(start: Start) -> None:
    bench = start(*ENDLESS, "--timeout", "5")
    bench.until("round 2 of")
    os.kill(bench.rank(1), signal.SIGSTOP)
    code, messages = bench.messages()
    assert code == 2
    assert len(messages) == 1
    assert "rank 1 of 2 did not reach a collective in time" in messages[0]
    assert "stopped" in messages[0]


@pytest.mark.parametrize("moment", [pytest.param("start", marks=pytest.mark.long), "round 2 of"])
def test_ctrl_c_ends_all_ranks(start: Start, moment: str) -> None:
    bench = start(*ENDLESS)
    bench.until(moment)
    bench.process.send_signal(signal.SIGINT)
    code, messages = bench.messages()
    assert code == 130
    assert messages == ["makeway bench: interrupted; all ranks have been ended"]


@pytest.mark.parametrize(
    "more", [("--control", "copy-engine"), pytest.param(("--link", "1gbit"), marks=pytest.mark.long)]
)
def test_ranks_end_with_the_process_that_started_them(start: Start, more: tuple[str, ...]) -> None:
    bench = start(*ENDLESS, *more)
    bench.until("round 2 of")
    assert len(bench.alive()) >= 3  # with two ranks, and what holds the link
    bench.process.kill()
    bench.process.communicate(timeout=ENDED_WITHIN_S)
    bench.assert_nothing_left()


# --- the launcher itself -----------------------------------------------------------------------


def small_job(ranks: int) -> bytes:
    variants = fixed_variants(cores(), ranks)
    return encode_job(Job(workload="gemm-ar", variants=variants, repeats=1, warmup=0, scale=0.5, size_bytes=1 << 16))


def python_as(rank: int, instead: str) -> tuple[str, ...]:
    """A rank's command, but for one rank that does something else."""
    return ("sh", "-c", f'[ "$RANK" = {rank} ] && {instead}; exec "$@"', "sh", *RANK_COMMAND)


@pytest.mark.long
def test_a_rank_that_never_starts_is_named() -> None:
    with pytest.raises(RankFailedError, match=r"^rank 1 of 2 did not join the others within 6 s"):
        run_ranks(2, python_as(1, "exec sleep 60"), job=small_job(2), limits=Limits(start_s=6))


def test_a_rank_that_ends_at_once_is_named_with_its_last_output() -> None:
    with pytest.raises(RankFailedError, match="rank 1 of 2 ended with exit code 3 at 'its start'; its last output: oh"):
        run_ranks(2, python_as(1, "{ echo oh >&2; exit 3; }"), job=small_job(2))


def test_a_command_that_does_not_exist_is_an_error_of_rank_0() -> None:
    with pytest.raises(RankFailedError, match="rank 0 could not be started"):
        run_ranks(2, ("/nonexistent/python",), job=small_job(2))


# --- paced links -------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", ["200mbit", "1gbit"])
def test_a_paced_link_lets_through_no_more_than_its_rate(rate: str) -> None:
    """From below a busy machine decides, and benchmarks show it; unpaced, the loopback gives several Gbit/s."""
    with paced_link(parse_rate(rate)) as link:
        if not link.paced:
            pytest.skip(link.description)
        assert link.measured_bits_per_s is not None
        assert 0 < link.measured_bits_per_s < 1.2 * parse_rate(rate).bits_per_s
        holder = link.prefix[link.prefix.index("--target") + 1]
    assert not Path(f"/proc/{holder}").exists()


@pytest.mark.long
def test_ranks_on_a_paced_link_are_held_to_it(start: Start) -> None:
    with paced_link(parse_rate("1gbit")) as link:
        if not link.paced:
            pytest.skip(link.description)
    bench = start(*SMALL, "--size", "2MiB", "--link", "200mbit", "--json")
    out, said = bench.process.communicate(timeout=RAN_WITHIN_S)
    assert bench.process.returncode == 0, said
    found = json.loads(out)
    assert found["link"].startswith("loopback paced to 200 Mbit/s")
    # Two ranks send 2 MiB each: together they cannot have taken less than the link allows, but for its first burst.
    sent_bits = 2 * 8 * (found["collective"]["bytes"] - 128 * 1024)
    assert found["isolated"]["comm_ms"] / 4 >= sent_bits / 200e6 * 1e3 * 0.95
    bench.assert_nothing_left()


def test_a_plain_loopback_is_not_called_paced() -> None:
    assert not LOOPBACK.paced
