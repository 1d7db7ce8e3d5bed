"""Rule sets that take turns in a running program: each launch follows the set in force, and nothing stays behind."""

from __future__ import annotations

import pytest
from tests.preload.programs import COMM, Ran, Setting, pads, rules, sent

from makeway.act.preload.receipts import KernelCounts
from makeway.act.preload.rule_sets import NOT_LOADED, LoadedShim
from makeway.act.preload.rules import LaunchRule, encode_rules
from makeway.values.errors import UnsupportedError

NONE = rules()
PAD = 60_000
OWN_LIMIT = 49_152 - 1_024  # of every kernel of the scripted driver, until somebody raises it
TURNS = encode_rules(NONE, pads(), rules(LaunchRule(pattern="gemm*", pad_bytes=4_096), raise_comm_priority=True))


def use(*turns: int, kernel: int = 0) -> list[str | int]:
    """One launch of 64 bytes under each set."""
    return [word for turn in turns for word in ("rules", turn, "launch", kernel, 64)]


def by_set(ran: Ran, name: str = "gemm") -> dict[int, KernelCounts]:
    (process,) = ran.receipts
    return {kernel.rule_set: kernel for kernel in process.kernels if kernel.kernel == name}


@pytest.mark.parametrize("way", ["dlsym", "proc", "proc-ptsz"])
def test_every_launch_follows_the_set_in_force(setting: Setting, way: str) -> None:
    steps = ("via", way, "kernel", "gemm", "launch", 0, 64, *use(1, 0, 2, 1, 1, 0))
    ran = setting.run(*steps, rules=TURNS)
    assert sent(ran) == [64, 64 + PAD, 64, 64 + 4_096, 64 + PAD, 64 + PAD, 64]
    counts = by_set(ran)
    assert {number: (kernel.seen, kernel.padded) for number, kernel in counts.items()} == {
        0: (3, 0),
        1: (3, 3),
        2: (1, 1),
    }


def test_priority_takes_turns_too(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", COMM, *use(0, 2, 1, 2), rules=TURNS)
    assert ran.priorities == (None, -5, None, -5)
    assert {number: kernel.prioritised for number, kernel in by_set(ran, COMM).items()} == {0: 0, 1: 0, 2: 2}


def test_a_program_starts_with_the_first_set(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", "launch", 0, 64, rules=encode_rules(pads(), NONE))
    assert sent(ran) == [64 + PAD]


@pytest.mark.parametrize("kind", ["kernel", "handle"])
@pytest.mark.parametrize("turns", [(1,), (1, 2), (1, 0, 2), (1, 0, 1), (2, 0, 0, 1)])
def test_a_limit_that_a_set_raised_is_not_the_programs_own(setting: Setting, kind: str, turns: tuple[int, ...]) -> None:
    """Under a pad, a launch beyond the program's own limit fails as without the shim."""
    ran = setting.run("via", "dlsym", kind, "gemm", *use(*turns), "launch", 0, OWN_LIMIT + 1, rules=TURNS)
    assert ran.results[-1] == 1
    assert by_set(ran)[turns[-1]].refused == 0


def test_a_raised_limit_stays_for_graphs_that_were_captured_with_the_pad(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", *use(1), "rules", 0, "launch", 0, OWN_LIMIT + 1, rules=TURNS)
    assert ran.results == (0, 0, 0, 0)
    assert sent(ran) == [64 + PAD, OWN_LIMIT + 1]


def test_a_limit_that_the_program_sets_between_two_turns_counts(setting: Setting) -> None:
    steps = ("kernel", "gemm", *use(1, 0), "limit", 0, 100_000, "launch", 0, 90_000, *use(1), "launch", 0, 100_001)
    ran = setting.run("via", "dlsym", *steps, rules=TURNS)
    assert sent(ran) == [64 + PAD, 64, 90_000, 64 + PAD]
    assert ran.results[-1] == 1


def test_questions_about_occupancy_follow_the_set_in_force(setting: Setting) -> None:
    ran = setting.run(
        *("via", "dlsym", "kernel", "gemm", "occupancy", 0, 64, "rules", 1, "occupancy", 0, 64, "rules", 0),
        *("occupancy", 0, 64),
        rules=TURNS,
    )
    plain, _, padded, _, again = ran.results
    assert plain == again
    assert padded < plain


def test_a_pad_that_the_driver_refused_stays_dropped_when_its_set_comes_back(setting: Setting) -> None:
    ran = setting.run(
        *("via", "dlsym", "kernel", "gemm", *use(1, 0, 1, 1)),
        rules=TURNS,
        DRIVER_REFUSE="pad:1",
        DRIVER_ERROR="701",
        DRIVER_ASKED="64",
    )
    assert sent(ran) == [64] * 4
    assert (by_set(ran)[1].refused, by_set(ran)[1].skipped) == (1, 2)


def test_handles_that_name_other_kernels_after_an_unload_follow_the_set(setting: Setting) -> None:
    once = ("kernel", "gemm", "kernel", "copy", *use(1), *use(0), *use(1, kernel=1))
    other = ("kernel", "copy", "kernel", "gemm", *use(1), *use(1, kernel=1), *use(0, kernel=1))
    ran = setting.run("via", "dlsym", *once, "unload", *other, rules=TURNS)
    assert sent(ran) == [64 + PAD, 64, 64, 64, 64 + PAD, 64]


def test_a_forked_child_keeps_the_set_and_may_change_its_own(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", *use(1), "fork", "launch", 0, 64, *use(0), rules=TURNS)
    parent, child = sorted(ran.receipts, key=lambda process: -sum(kernel.seen for kernel in process.kernels))
    assert [(kernel.rule_set, kernel.seen, kernel.padded) for kernel in parent.kernels] == [(1, 2, 2), (0, 1, 0)]
    assert [(kernel.rule_set, kernel.seen, kernel.padded) for kernel in child.kernels] == [(1, 1, 1), (0, 1, 0)]


def test_a_set_that_does_not_exist_changes_nothing(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", *use(1), "rules", 3, "launch", 0, 64, rules=TURNS)
    assert ran.results == (0, 0, -1, 0)
    assert sent(ran) == [64 + PAD] * 2


@pytest.mark.parametrize("damage", [None, b"MKWRULES", TURNS[:-1], TURNS[:24] + b"x" + TURNS[25:]])
def test_without_usable_rules_there_is_no_set_to_choose(setting: Setting, damage: bytes | None) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", *use(0, 1), rules=damage)
    assert ran.results == (-1, 0, -1, 0)
    assert sent(ran) == [64, 64]


def test_switches_take_no_memory(setting: Setting) -> None:
    """An entry comes back with its set. A new one for each turn (more than 200 bytes) would take 8 MB."""
    ran = setting.run("via", "dlsym", "kernel", "gemm", "alternate", 40_000, rules=TURNS, recorded=False)
    assert {number: (kernel.seen, kernel.padded) for number, kernel in by_set(ran).items()} == {
        0: (20_000, 0),
        1: (20_000, 20_000),
    }
    (grown_kib,) = ran.results
    assert grown_kib < 1_000


def test_launches_of_graphs_are_counted(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", "graph", *use(1), "graph", rules=TURNS)
    assert [process.graph_launches for process in ran.receipts] == [2]


def test_a_process_without_the_shim_says_so() -> None:
    with pytest.raises(UnsupportedError, match=NOT_LOADED):
        LoadedShim()
