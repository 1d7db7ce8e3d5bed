"""Threads as Linux sees them: what is set can be read back, and what cannot be undone is known beforehand."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from makeway.act.cpu.controls import CpuBackend
from makeway.act.cpu.cores import Seat
from makeway.act.cpu.threads import (
    REALTIME,
    cores_of,
    has_run,
    may_be_realtime,
    may_be_undone,
    name_of,
    new_threads_named,
    niceness_of,
    policy_of,
    readings,
    set_cores,
    set_niceness,
    set_policy,
    set_slice,
    slice_ns,
    thread_ids,
    threads_named,
)
from makeway.values.control import CommPriority, OwnCores


@pytest.fixture
def thread() -> Iterator[int]:
    """A thread of this process that only waits."""
    done = threading.Event()
    waiting = threading.Thread(target=done.wait)
    waiting.start()
    assert waiting.native_id is not None
    yield waiting.native_id
    done.set()
    waiting.join()


def test_a_thread_is_listed_while_it_lives(thread: int) -> None:
    assert {thread, os.getpid()} <= thread_ids()


def test_threads_are_found_by_name() -> None:
    with open(f"/proc/self/task/{os.getpid()}/comm") as file:
        name = file.read().strip()
    assert os.getpid() in threads_named([name])
    assert threads_named(["no such name"]) == frozenset()


def test_threads_that_start_are_waited_for_until_they_have_their_names() -> None:
    done, waited = threading.Event(), threading.Event()

    def late() -> None:
        waited.wait(0.05)  # as one that Linux does not run at once
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("late")
        done.wait()

    thread = threading.Thread(target=late)
    with new_threads_named(patience_s=30):
        thread.start()
    assert thread.native_id is not None
    assert name_of(thread.native_id) == "late"
    assert threads_named(["late"]) == {thread.native_id}
    done.set()
    thread.join()


def test_a_thread_that_never_takes_a_name_is_waited_for_no_longer_than_patience() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    with new_threads_named(patience_s=0.01):
        thread.start()
    assert thread.native_id is not None
    assert name_of(thread.native_id) == name_of(threading.get_native_id())
    done.set()
    thread.join()


def test_a_thread_without_a_processor_is_waited_for_longer() -> None:
    done, asked = threading.Event(), []

    def has_run_at_last(thread: int) -> bool:
        asked.append(thread)
        return len(asked) > 20

    thread = threading.Thread(target=done.wait)
    with new_threads_named(patience_s=0.001, starving_s=30, has_run=has_run_at_last):
        thread.start()
    assert asked == [thread.native_id] * 21
    with new_threads_named(patience_s=0.001, starving_s=0.01, has_run=lambda _: False):
        starving = threading.Thread(target=done.wait)
        starving.start()
    done.set()
    thread.join()
    starving.join()


def test_a_thread_that_has_taken_a_processor_says_so(thread: int) -> None:
    assert has_run(thread)
    assert has_run(os.getpid())


def test_a_list_that_leaves_a_thread_out_is_made_again() -> None:
    lists = iter((["1", "2"], ["1", "2", "3"], ["1", "2", "3"]))
    assert thread_ids(lambda: next(lists)) == {1, 2, 3}


def test_cores_of_one_thread_leave_the_others_alone(thread: int) -> None:
    before = cores_of(0)
    set_cores(thread, [min(before)])
    assert cores_of(thread) == {min(before)}
    assert cores_of(0) == before


def test_niceness_of_one_thread_leaves_the_others_alone(thread: int) -> None:
    before = niceness_of(0)
    set_niceness(thread, min(before + 3, 19))
    assert (niceness_of(thread), niceness_of(0)) == (min(before + 3, 19), before)


def test_a_slice_can_be_set_and_set_back(thread: int) -> None:
    before = slice_ns(thread)
    if before is None:
        pytest.skip("threads have time slices of their own from Linux 6.12 on")
    for wanted in (100_000, before):
        set_slice(thread, wanted)
        assert slice_ns(thread) == wanted


def test_a_thread_that_has_ended_is_no_error() -> None:
    brief = threading.Thread(target=lambda: None)
    brief.start()
    brief.join()
    assert brief.native_id is not None
    deadline = time.monotonic() + 60
    while brief.native_id in thread_ids():  # join returns a little before the kernel's thread is gone
        assert time.monotonic() < deadline
    set_cores(brief.native_id, cores_of(0))
    set_niceness(brief.native_id, 5)
    with pytest.raises(ProcessLookupError):
        niceness_of(brief.native_id)


def test_a_real_time_priority_can_be_given_and_taken_back(thread: int) -> None:
    before = policy_of(thread)
    if not may_be_realtime():
        pytest.skip("a real-time priority needs CAP_SYS_NICE or a real-time limit")
    set_policy(thread, REALTIME)
    assert (policy_of(thread), policy_of(0)) == (REALTIME, before)
    set_policy(thread, before)
    assert policy_of(thread) == before


def test_a_limit_of_real_time_priorities_is_enough_to_give_one_and_to_take_it_back() -> None:
    limit = ["prlimit", "--rtprio=1:1"]
    if os.geteuid() != 0 or subprocess.run([*limit, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this user may not raise the limit of real-time priorities")
    code = (
        "from makeway.act.cpu.threads import REALTIME, may_be_realtime, policy_of, set_policy; before = policy_of(0); "
        "set_policy(0, REALTIME); set_policy(0, before); print(may_be_realtime(), policy_of(0) == before)"
    )
    limited = [
        *limit,
        "setpriv",
        "--bounding-set=-all",
        "--inh-caps=-all",
        sys.executable,
        "-c",
        code,
    ]
    assert subprocess.run(limited, check=True, capture_output=True, text=True).stdout == "True True\n"


def test_under_a_limit_of_real_time_no_thread_gets_that_priority() -> None:
    code = "from makeway.act.cpu.threads import may_be_realtime; print(may_be_realtime())"
    limited = ["prlimit", "--rttime=200000:200000", sys.executable, "-c", code]
    assert subprocess.run(limited, check=True, capture_output=True, text=True).stdout == "False\n"


def test_asking_what_may_be_undone_changes_nothing() -> None:
    before = niceness_of(0)
    assert may_be_undone(before) in (True, False)
    assert niceness_of(0) == before


def test_root_of_another_user_namespace_may_not_undo_niceness() -> None:
    prefix = ["unshare", "-Ur"]
    if subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine allows no user namespaces")
    code = "from makeway.act.cpu.threads import may_be_undone; print(may_be_undone(0))"
    limited = ["prlimit", "--nice=0", *prefix, sys.executable, "-c", code]
    assert subprocess.run(limited, check=True, capture_output=True, text=True).stdout == "False\n"


def test_a_thread_that_has_ended_is_left_out_of_readings() -> None:
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    assert ended.native_id is not None
    while ended.native_id in thread_ids():  # Python is done with it a little before the kernel is
        time.sleep(0)
    assert set(readings([threading.get_native_id(), ended.native_id], niceness_of)) == {threading.get_native_id()}
    assert set(readings([threading.get_native_id(), ended.native_id], cores_of)) == {threading.get_native_id()}


def in_forked_child() -> tuple[str, str]:
    """Cores and niceness of a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, f"{sorted(cores_of(0))}/{niceness_of(0)}".encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as said:
        cores, _, niceness = said.read().partition("/")
    return cores, niceness


def test_a_forked_child_has_the_settings_of_the_program_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("makeway.act.cpu.controls.may_be_realtime", lambda: False)  # niceness of compute instead
    usual, cores = in_forked_child(), cores_of(0)
    backend = CpuBackend(seat=Seat(rank=0, ranks=max(2, len(cores))))
    with backend.applied([OwnCores(), CommPriority()]) as (own, priority):
        assert (len(cores_of(0)) == 1) == (own.status == "applied") == (len(cores) > 1)
        assert (niceness_of(0) > int(usual[1])) == may_be_undone(int(usual[1])), priority
        assert in_forked_child() == usual
    assert cores_of(0) == cores
    assert in_forked_child() == usual
