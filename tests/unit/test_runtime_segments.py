"""Segments: private, gone without a trace, and what a killed process left is recognised.

In processes of their own: torch warns on import where numpy is missing, and warnings are errors here.
"""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "from pathlib import Path; import os, sys, signal, torch; from makeway.act.cpu.segments import *; "


def run(code: str, *arguments: str, prefix: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [*prefix, sys.executable, "-W", "ignore", "-c", PROGRAM + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the segment of a process that was killed."""
    directory = tmp_path_factory.mktemp("shm")
    run("kept = Segment.create(4096, Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)", str(directory))
    return directory


def test_a_segment_is_private_and_its_name_cannot_be_guessed(left: Path) -> None:
    (path,) = left.glob("*")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert re.fullmatch(r"makeway-\d+-\d+-\d+-[0-9a-f]{32}", path.name)


def test_the_next_start_removes_what_dead_processes_left_and_nothing_else(tmp_path: Path) -> None:
    code = """
directory = Path(sys.argv[1])
alive = Segment.create(4096, directory)
me = this_process()
dead = Owner(pid_namespace=me.pid_namespace, pid=me.pid, start_ticks=me.start_ticks - 1).new_name()
elsewhere = Owner(pid_namespace=me.pid_namespace + 1, pid=me.pid, start_ticks=me.start_ticks - 1).new_name()
for name in (dead, dead + ".sock", elsewhere, "makeway-notes.txt", "other"):
    (directory / name).touch()
assert set(remove_stale(directory)) == {dead, dead + ".sock"}
assert {path.name for path in directory.iterdir()} == {alive.path.name, elsewhere, "makeway-notes.txt", "other"}
assert remove_stale(directory) == ()
alive.unlink(); alive.unlink(); alive.close(); alive.close()
print("done")
"""
    assert run(code, str(tmp_path)) == "done\n"


def test_what_a_killed_process_left_is_removed(left: Path) -> None:
    assert run("print(len(remove_stale(Path(sys.argv[1]))))", str(left)) == "1\n"
    assert list(left.iterdir()) == []


@pytest.mark.long
def test_two_mappings_see_the_same_bytes_after_the_name_is_gone(tmp_path: Path) -> None:
    code = """
one = Segment.create(8192, Path(sys.argv[1]))
two = Segment.open(one.path, 8192)
one.unlink()
one.view(4096, 8, torch.float32).copy_(torch.tensor([1.5, 2.5]))
one.close()
print(two.view(4096, 8, torch.float32).tolist(), list(Path(sys.argv[1]).iterdir()))
"""
    assert run(code, str(tmp_path)) == "[1.5, 2.5] []\n"


@pytest.mark.long
def test_a_wrong_size_or_a_missing_segment_is_one_clear_message(tmp_path: Path) -> None:
    code = """
one = Segment.create(4096, Path(sys.argv[1]))
for path, size in ((one.path, 8192), (one.path.with_name("makeway-gone"), 4096)):
    try: Segment.open(path, size)
    except Exception as error: print(type(error).__name__, error)
"""
    first, second = run(code, str(tmp_path)).splitlines()
    assert "UnsupportedError" in first
    assert "4,096 bytes where 8,192" in first
    assert "UnsupportedError cannot open the shared memory" in second


@pytest.mark.long
def test_a_full_tmpfs_is_one_clear_message_and_leaves_nothing() -> None:
    prefix = ("unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=1m none /dev/shm && exec "$0" "$@"')
    if subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine allows no mount namespaces")
    code = """
try: Segment.create(8 << 20)
except Exception as error: print(type(error).__name__, error)
print(os.listdir("/dev/shm"))
"""
    message, listing = run(code, prefix=prefix).splitlines()
    assert message.startswith("UnsupportedError cannot set aside 8 MiB of shared memory in /dev/shm (No space left")
    assert "1 MiB are free of 1 MiB" in message
    assert listing == "[]"


@pytest.mark.long
def test_the_start_of_a_process_is_known_while_it_lives() -> None:
    code = """
assert start_ticks(os.getpid()) == this_process().start_ticks
child = os.fork()
if child == 0: os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print(start_ticks(child), owner_of(this_process().new_name()) == this_process(), owner_of("x"))
"""
    assert run(code) == "None True None\n"
