"""The plugin under our own driver of the tuner interface, in every version of it."""

from __future__ import annotations

import mmap
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tuner.programs import (
    ALL_GATHER,
    ALL_REDUCE,
    LL,
    MIB,
    NVLS,
    RING,
    SIMPLE,
    TREE,
    VERSIONS,
    Bench,
)

from makeway.act.tuner.channels import (
    COLLECTIVES,
    FILE_BYTES,
    HEADER,
    LARGEST_BYTES,
    ChannelRule,
    encode_file,
    rules_of,
)
from makeway.act.tuner.live import calls_so_far, published, replace_rules, set_channels, take_back
from makeway.act.tuner.tally import UNKNOWN, read_tallies
from makeway.values.control import CommBlocks
from makeway.values.errors import DataFileError, InputError
from makeway.values.plan import Plan

OWN = (0, RING, SIMPLE)  # the driver's table makes ring and simple the cheapest
EIGHT = encode_file(rules_of(Plan(controls=(CommBlocks(8),))), most_channels=8)
LARGE = 8 * 32 * 1024  # where eight channels have work


@pytest.mark.parametrize("version", VERSIONS)
def test_large_calls_get_the_channels_of_the_plan_and_small_ones_keep_their_own(bench: Bench, version: int) -> None:
    steps = ("comm", 8, "call", ALL_REDUCE, LARGE - 1, "call", ALL_REDUCE, LARGE, "call", ALL_GATHER, 1 << 40, "end")
    asked = bench.ask(version, *steps, rules=EIGHT)
    assert asked.answers == (OWN, (8, RING, SIMPLE), (8, RING, SIMPLE))
    tally = asked.tally
    assert (tally.interface, tally.communicators, tally.ranks, tally.calls) == (version, 1, 8, 3)
    assert sum(row.channels_set for row in tally.counts) == 2
    choice = UNKNOWN if version == 2 else "ring-simple"
    assert [row.own for row in tally.counts] == [((choice, 1),)] * 3
    assert not asked.stderr


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_low_latency_protocols_are_left_alone(bench: Bench, version: int) -> None:
    asked = bench.ask(version, "comm", 8, "cost", RING, LL, 1, "call", ALL_REDUCE, MIB, rules=EIGHT)
    assert asked.answers == ((0, RING, LL),)
    assert [(row.own, row.left_to_ll, row.channels_set) for row in asked.tally.counts] == [((("ring-ll", 1),), 1, 0)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_rule_may_choose_algorithm_and_protocol_by_collective_and_size(bench: Bench, version: int) -> None:
    rule = ChannelRule(collective="all-reduce", max_bytes=MIB, channels=4, algorithm="tree", protocol="simple")
    rules = encode_file((rule,), most_channels=8)
    calls = ((ALL_REDUCE, MIB), (ALL_REDUCE, MIB + 1), (ALL_GATHER, MIB))
    asked = bench.ask(version, "comm", 8, *(word for call in calls for word in ("call", *call)), rules=rules)
    assert asked.answers == ((4, TREE, SIMPLE), OWN, OWN)
    assert sum(row.steered for row in asked.tally.counts) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_what_nccl_cannot_use_stays_unused(bench: Bench, version: int) -> None:
    rules = encode_file((ChannelRule(channels=4, algorithm="nvls", protocol="simple"),), most_channels=8)
    asked = bench.ask(version, "comm", 8, "call", ALL_REDUCE, MIB, rules=rules)
    assert asked.answers == ((4, RING, SIMPLE),)  # the driver itself fails when an unavailable entry changes
    assert sum(row.unavailable for row in asked.tally.counts) == (version > 2)
    able = bench.ask(version, "comm", 8, "cost", NVLS, SIMPLE, 90, "call", ALL_REDUCE, MIB, rules=rules)
    assert able.answers == ((4, NVLS, SIMPLE),)


@pytest.mark.parametrize("kind", [-1, 5, 7, 1000])
def test_kinds_that_the_plugin_does_not_know_are_left_alone(bench: Bench, kind: int) -> None:
    asked = bench.ask(6, "comm", 8, "call", kind, MIB, rules=EIGHT)
    assert asked.answers == (OWN,)
    assert not asked.tally.counts


def _damaged(at: int) -> bytes:
    return EIGHT[:at] + bytes([EIGHT[at] ^ 1]) + EIGHT[at + 1 :]


@pytest.mark.parametrize(
    "rules",
    [None, b"", b"x" * FILE_BYTES, EIGHT[:-1], EIGHT + b"\0", _damaged(0), _damaged(8)],
    ids=["unset", "empty", "other", "short", "long", "magic", "version"],
)
def test_without_usable_rules_nothing_changes_and_that_is_said_once(bench: Bench, rules: bytes | None) -> None:
    asked = bench.ask(6, "comm", 8, "call", ALL_REDUCE, MIB, "comm", 8, "call", ALL_REDUCE, MIB, rules=rules)
    assert asked.answers == (OWN, OWN)
    assert asked.stderr.count("NCCL chooses channels, algorithms and protocols itself") == 1
    assert "had no channel rules" in asked.tally.notes[0]
    assert sum(row.calls for row in asked.tally.counts) == 2  # counted all the same


def test_rules_that_others_can_write_are_not_used(bench: Bench) -> None:
    path = bench.rules(EIGHT)
    path.chmod(0o622)
    asked = bench.ask(6, "comm", 8, "call", ALL_REDUCE, MIB, rules=path)
    assert asked.answers == (OWN,)
    assert "other users can write it" in asked.stderr


def test_a_damaged_rule_is_left_out_and_said_once(bench: Bench) -> None:
    asked = bench.ask(6, "comm", 8, *("call", ALL_REDUCE, MIB) * 70, rules=_damaged(HEADER.size + 40))
    assert set(asked.answers) == {OWN}
    assert asked.stderr.count("damaged") == 1
    assert "damaged" in asked.tally.notes[0]


def test_more_channels_than_communicators_have_are_not_given(bench: Bench) -> None:
    sixteen = bytearray(encode_file((ChannelRule(channels=16),), most_channels=16))
    sixteen[12:16] = (8).to_bytes(4, "little")
    assert bench.ask(6, "comm", 8, "call", ALL_REDUCE, MIB, rules=bytes(sixteen)).answers == (OWN,)


def test_closing_and_loading_again_keeps_counting_in_one_file(bench: Bench) -> None:
    one = ("comm", 8, "call", ALL_REDUCE, MIB, "end")
    asked = bench.ask(5, *one, "reopen", *one, rules=EIGHT)
    assert asked.answers == ((8, RING, SIMPLE),) * 2
    assert (asked.tally.communicators, sum(row.calls for row in asked.tally.counts)) == (2, 2)


def test_a_child_counts_in_a_file_of_its_own(bench: Bench) -> None:
    asked = bench.ask(5, "comm", 8, "call", ALL_REDUCE, MIB, "fork", "call", ALL_REDUCE, MIB, rules=EIGHT, RANK="3")
    assert sorted(sum(row.calls for row in tally.counts) for tally in asked.tallies) == [1, 2]
    assert {tally.rank for tally in asked.tallies} == {3}


@pytest.mark.parametrize("way", ["threads", "churn"])
def test_threads_are_counted_exactly(bench: Bench, way: str) -> None:
    asked = bench.ask(6, "comm", 8, way, 8, 5000, MIB, rules=EIGHT)
    assert sum(row.calls for row in asked.tally.counts) == 40_000
    assert sum(row.channels_set for row in asked.tally.counts) == 40_000
    assert asked.tally.calls == (40_000 if way == "churn" else 5000)


def test_a_full_disk_or_no_directory_does_not_stop_the_program(bench: Bench) -> None:
    asked = bench.ask(6, "comm", 8, "call", ALL_REDUCE, MIB, rules=EIGHT, MAKEWAY_RECEIPTS="/nowhere")
    assert asked.answers == ((8, RING, SIMPLE),)
    assert "no receipts in /nowhere" in asked.stderr


# --- laws ---------------------------------------------------------------------------------------

sizes = st.integers(0, 1 << 45)
rules = st.builds(
    lambda collective, ends, channels, path: ChannelRule(
        collective=collective,
        min_bytes=min(ends),
        max_bytes=max(ends),
        channels=channels,
        algorithm=path and "tree",
        protocol=path and "simple",
        only_simple=False,
    ),
    st.sampled_from((None, *COLLECTIVES)),
    st.tuples(sizes, sizes),
    st.integers(1, 64),
    st.sampled_from((None, "tree")),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(rules, max_size=32), st.lists(st.tuples(st.integers(0, 4), sizes), min_size=1, max_size=20))
def test_the_first_rule_that_matches_wins(
    bench: Bench, chosen: list[ChannelRule], calls: list[tuple[int, int]]
) -> None:
    def answer(kind: int, size: int) -> tuple[int, int, int]:
        for rule in chosen:
            if rule.collective in (None, COLLECTIVES[kind]) and rule.min_bytes <= size <= rule.max_bytes:
                return (rule.channels or 0, TREE if rule.algorithm else RING, SIMPLE)
        return OWN

    steps = [word for call in calls for word in ("call", *call)]
    asked = bench.ask(6, "comm", 8, *steps, rules=encode_file(tuple(chosen), most_channels=64))
    assert asked.answers == tuple(answer(*call) for call in calls)
    assert sum(row.calls for row in asked.tally.counts) == len(calls)
    assert all(row.min_bytes <= size <= row.max_bytes for row in asked.tally.counts for size in (row.min_bytes,))


# --- changes while the job runs -----------------------------------------------------------------


def _two_ranks(bench: Bench, path: Path, *steps: str | int) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [str(bench.driver), "6", *map(str, steps)],
            env=bench.environment(path, RANK=str(rank)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def test_a_change_holds_from_the_same_call_on_every_rank(bench: Bench) -> None:
    """Rank 1 is four calls behind rank 0 when the rules change, and both change at call 6."""
    path = bench.rules(encode_file((ChannelRule(channels=8),), most_channels=8))
    calls = ("call", ALL_REDUCE, MIB)
    ranks = _two_ranks(bench, path, "comm", 2, *calls * 5, "pause", *calls * 5)
    ahead, behind = ranks
    for _ in range(5):
        assert ahead.stdout is not None
        ahead.stdout.readline()
    set_channels(path, 2, from_call=6)
    outputs = [process.communicate("go\n", timeout=60)[0].splitlines() for process in ranks]
    answers = [[int(line.split()[0]) for line in output] for output in outputs]
    assert [8, 8, 8, 8, 8, *answers[0]] == answers[1] == [8] * 6 + [2] * 4
    assert behind.returncode == ahead.returncode == 0
    assert calls_so_far(bench.home) == 10


def test_a_late_change_is_counted(bench: Bench) -> None:
    path = bench.rules(encode_file((ChannelRule(channels=8),), most_channels=8))
    process, other = _two_ranks(bench, path, "comm", 2, *("call", 4, MIB) * 5, "pause", "call", 4, MIB)
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    other.kill()
    other.communicate()
    set_channels(path, 2, from_call=3)
    process.communicate("go\n", timeout=60)
    tally = next(tally for tally in read_tallies(bench.home) if tally.rank == 0)
    assert (tally.late, tally.generations) == (1, 2)
    assert "ranks may have used different channels" in tally.notes[0]


def test_readers_see_whole_rules_while_they_change(bench: Bench) -> None:
    """1,023 changes under 8 threads: all arrive, and no thread takes one for damaged."""
    path = bench.rules(encode_file((ChannelRule(channels=1, only_simple=False),), most_channels=64))
    process = subprocess.Popen(
        [str(bench.driver), "6", "threads", "8", "300000", str(MIB)],
        env=bench.environment(path),
        stderr=subprocess.PIPE,
    )
    for number in range(1, 1024):
        set_channels(path, 1 + number % 64, from_call=number * 250)
    assert process.wait(timeout=120) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    asked = bench.ask(6, "comm", 2, "call", 4, MIB, rules=path)
    assert asked.tally.generations == 1024
    with pytest.raises(InputError, match="changed 1,023 times"):
        set_channels(path, 3, from_call=1_000_000)


def test_changes_that_cannot_work_are_refused(bench: Bench) -> None:
    path = bench.rules(EIGHT)
    with pytest.raises(InputError, match="communicators of this job have 8"):
        set_channels(path, 9, from_call=5)
    set_channels(path, 4, from_call=5)
    with pytest.raises(InputError, match="name a later call"):
        set_channels(path, 3, from_call=5)
    with pytest.raises(InputError, match="both or neither"):
        set_channels(path, 3, from_call=6, algorithm="ring")
    with pytest.raises(InputError, match="sets nothing"):
        set_channels(path, from_call=6)
    with pytest.raises(InputError, match="cannot open"):
        set_channels(path.with_name("nothing"), 3, from_call=6)
    path.write_bytes(b"something else")
    with pytest.raises(DataFileError, match="not a file of channel rules"):
        set_channels(path, 3, from_call=7)


def test_a_change_can_be_taken_back_before_its_call(bench: Bench) -> None:
    path = bench.rules(EIGHT)
    replace_rules(path, (ChannelRule(channels=2),), from_call=2)
    with pytest.raises(InputError, match="no change from call 3 is the last one"):
        take_back(path, from_call=3)
    assert published(path) == 2
    take_back(path, from_call=2)
    assert published(path) == 3
    asked = bench.ask(6, "comm", 8, *("call", 4, MIB) * 4, rules=path)
    assert asked.answers == ((8, RING, SIMPLE),) * 4
    assert asked.tally.late == 0


def test_calls_are_counted_by_the_channels_that_they_were_given(bench: Bench) -> None:
    path = bench.rules(encode_file((), most_channels=8))
    for number, channels in enumerate((8, 4, None, 4)):
        rules = () if channels is None else (ChannelRule(channels=channels),)
        replace_rules(path, rules, from_call=3 * (number + 1))
    asked = bench.ask(6, "comm", 8, *("call", 4, MIB) * 15, rules=path)
    assert [answer[0] for answer in asked.answers] == [0] * 3 + [8] * 3 + [4] * 3 + [0] * 3 + [4] * 3
    assert asked.tally.given == ((4, 6), (8, 3))


def test_no_rules_leave_everything_to_nccl_again(bench: Bench) -> None:
    path = bench.rules(EIGHT)
    replace_rules(path, (), from_call=1)
    assert bench.ask(6, "comm", 8, *("call", 4, MIB) * 2, rules=path).answers == ((8, RING, SIMPLE), OWN)


def test_a_new_rule_replaces_the_one_for_the_same_calls_and_keeps_others(tmp_path: Path) -> None:
    path = tmp_path / "channels"
    path.write_bytes(EIGHT)
    first = set_channels(path, 4, from_call=10, collective="all-gather")
    second = set_channels(path, 2, from_call=20, collective="all-gather")
    assert [rule.channels for rule in first.rules] == [4, 8]
    assert [rule.channels for rule in second.rules] == [2, 8]
    assert second.rules[0].max_bytes == LARGEST_BYTES


# --- the real library ---------------------------------------------------------------------------


def _nccl() -> Path | None:
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        return next((Path(str(file.locate())) for file in files if file.name == "libnccl.so.2"), None)
    return None


def test_nccl_looks_for_the_symbols_that_the_plugin_has(bench: Bench) -> None:
    """The wheel's library is read, not loaded."""
    library = _nccl()
    if library is None:
        pytest.skip("no NCCL wheel is installed")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        wanted = {int(match[1]) for match in re.finditer(rb"ncclTunerPlugin_v(\d+)\0", content)}
        assert content.find(b"NCCL_TUNER_PLUGIN\0") >= 0
    exported = subprocess.run(["nm", "-D", bench.plugin], capture_output=True, text=True, check=True).stdout
    assert wanted
    assert all(f"ncclTunerPlugin_v{version}\n" in exported for version in wanted)
    assert len([line for line in exported.splitlines() if " D " in line or " T " in line]) == len(VERSIONS)


def test_the_rules_of_a_plan_start_where_all_channels_have_work() -> None:
    (rule,) = rules_of(Plan(controls=(CommBlocks(16),)))
    assert (rule.channels, rule.min_bytes, rule.algorithm, rule.only_simple) == (16, 512 * 1024, None, True)
