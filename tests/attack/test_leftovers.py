"""Nothing outlives `makeway run`: no process, no temporary directory, even when it is killed outright."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.attack.running import environment, marked, run, started, until

STUBBORN = "trap '' TERM HUP INT; while :; do sleep 0.2; done"
PROGRAMS = {
    "grandchildren": "sleep 300 & sleep 300",
    "ignores SIGTERM": STUBBORN,
    "grandchild ignores SIGTERM": f"( {STUBBORN} ) & sleep 300",
    "own session": "setsid sleep 300 & sleep 300",
    "parent has gone": "( sleep 300 & ) ; sleep 300",
}
GONE_WITHIN_S = 8


def own_directories(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.name.startswith("makeway-run-"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_process_outlives_a_killed_run(run_command: tuple[str, ...], tmp_path: Path, program: str) -> None:
    ready = tmp_path / "ready"
    script = f"echo >{ready}; {PROGRAMS[program]}"
    with started(*run_command, "--", "sh", "-c", script, env=environment(TMPDIR=str(tmp_path))) as job:
        assert until(lambda: ready.exists() and len(job.alive()) >= 3)
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait()
        until(lambda: not job.alive(), GONE_WITHIN_S)
        assert job.alive() == {}


def test_a_daemon_without_our_environment_ends_with_a_run_that_is_killed_with_its_group(
    run_command: tuple[str, ...], tmp_path: Path
) -> None:
    said = tmp_path / "pid"
    daemon = f"setsid env -i sh -c 'echo $$ >{said}.new; mv {said}.new {said}; exec sleep 300' & sleep 300"
    with started(*run_command, "--", "sh", "-c", daemon, env=environment(TMPDIR=str(tmp_path))) as job:
        assert until(said.exists)
        os.killpg(job.process.pid, signal.SIGKILL)
        job.process.wait()
        pid = int(said.read_text())
        gone = until(lambda: not Path(f"/proc/{pid}/environ").exists() or state(pid) == "Z", GONE_WITHIN_S)
        if not gone:
            os.kill(pid, signal.SIGKILL)
        assert gone


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_the_status_of_the_program_is_known_even_if_its_guard_is_killed(
    run_command: tuple[str, ...], tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    program = (
        f"trap 'sleep 0.2; exit 7' TERM; echo $PPID >{ready}.new; mv {ready}.new {ready}; while :; do sleep 0.05; done"
    )
    with started(*run_command, "--", "sh", "-c", program) as job:
        assert until(ready.exists)
        guard = int(ready.read_text())
        assert guard != job.process.pid
        output = Path(f"/proc/{guard}/fd/1")  # it lets go of it once makeway knows the program
        assert until(lambda: output.readlink() == Path(os.devnull))
        os.kill(guard, signal.SIGKILL)
        assert job.process.wait(20) == 7
        assert job.alive() == {}


def test_the_directory_of_a_killed_run_is_removed_by_the_next_and_that_of_a_living_run_is_not(
    run_command: tuple[str, ...], tmp_path: Path
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    env = environment(TMPDIR=str(place))
    sleeps = (*run_command, "--", "sleep", "300")
    with started(*sleeps, env=env) as killed:
        assert until(lambda: len(own_directories(place)) == 1)
        stale = own_directories(place)
        os.kill(killed.process.pid, signal.SIGKILL)
        killed.process.wait()
    with started(*sleeps, env=env) as living:
        assert until(lambda: set(own_directories(place)) - set(stale) != set())
        (own,) = set(own_directories(place)) - set(stale)
        assert run(*run_command, "--", "true", env=env).code == 0
        assert own_directories(place) == [own]
        assert marked(living.mark)


def test_a_directory_of_another_user_is_left_alone(
    run_command: tuple[str, ...], tmp_path: Path, second_user: None
) -> None:
    place = tmp_path / "temporary"
    foreign = place / "makeway-run-foreign"
    foreign.mkdir(parents=True)
    os.chown(foreign, 65534, 65534)
    assert run(*run_command, "--", "true", env=environment(TMPDIR=str(place))).code == 0
    assert own_directories(place) == [foreign.name]
