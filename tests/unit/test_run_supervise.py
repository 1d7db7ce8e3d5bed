"""A program under `makeway run` ends as it would without, hears each signal once, and leaves nothing running."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.processes import hearing

from makeway.act.launch.supervise import end_kept
from makeway.cli.program import keeps_exit_code
from makeway.values.errors import InputError

LIMIT_S = 60  # a bound, not a claim: the machine may be busy
HEARS = """
import os, signal, sys
def heard(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        os._exit(7)
for name in sys.argv[1:]:
    signal.signal(signal.Signals[name], heard)
print('ready', os.getpid(), '.', flush=True)
while True:
    signal.pause()
"""
PASSED = ("SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGTERM")
WITH_PATIENCE = """
import os, sys
from makeway.act.launch.supervise import Patience, supervise
settle_s, grace_s = map(float, sys.argv[1:3])
ended = supervise(sys.argv[3:], os.environ, patience=Patience(settle_s=settle_s, grace_s=grace_s))
print(ended.code, *sorted(left.ended_by for left in ended.leftovers), flush=True)
"""


@pytest.fixture
def makeway(tmp_path: Path) -> Sequence[str]:
    (tmp_path / "plan.toml").write_text("version = 2\n")
    return (sys.executable, "-m", "makeway", "run", "--plan", str(tmp_path / "plan.toml"), "--")


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command in a session of its own; what is left of it at the end is killed."""
    running: list[subprocess.Popen[str]] = []
    watchdogs: list[threading.Timer] = []

    def start(*command: str, **options: object) -> subprocess.Popen[str]:
        options = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
            "start_new_session": True,
            **options,
        }
        running.append(subprocess.Popen(hearing(*command), text=True, **options))  # type: ignore[call-overload]
        watchdogs.append(threading.Timer(LIMIT_S, running[-1].kill))  # then whoever reads from it goes on
        watchdogs[-1].start()
        return running[-1]

    yield start
    for watchdog in watchdogs:
        watchdog.cancel()
    for process in running:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def comes_to(pid: int, state: str) -> bool:
    """Whether the process reaches that state in time; a process that is gone counts as ended ("Z")."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        try:
            current = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            current = "Z"
        if current == state:
            return True
        time.sleep(0.01)
    return False


# --- its end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_exit_code_is_the_programs(makeway: Sequence[str], code: int) -> None:
    done = subprocess.run(
        [*makeway, "sh", "-c", f"exit {code}"], stderr=subprocess.DEVNULL, timeout=LIMIT_S, check=False
    )
    assert done.returncode == code


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGINT"])
def test_a_program_killed_by_a_signal_seems_killed_by_it(makeway: Sequence[str], name: str) -> None:
    code = f"import os, signal\nsignal.signal(2, signal.SIG_DFL)\nos.kill(os.getpid(), signal.{name})"
    done = subprocess.run(
        [*makeway, sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == -signal.Signals[name]
    assert done.stderr.startswith(f"makeway run: killed by {name}; ")


def test_the_exit_code_is_known_where_ends_of_children_are_ignored(makeway: Sequence[str]) -> None:
    code = "import signal, sys\nsys.exit(3 if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN else 4)"
    ignoring = (
        "import os, signal, sys\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nos.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", ignoring, *makeway, sys.executable, "-c", code]
    done = subprocess.run(command, stderr=subprocess.DEVNULL, timeout=LIMIT_S, check=False)
    assert done.returncode == 3


def test_standard_streams_are_the_programs(makeway: Sequence[str]) -> None:
    done = subprocess.run(
        [*makeway, "cat"], input="as it was\0\n", capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert done.stdout == "as it was\0\n"


# --- signals ------------------------------------------------------------------------------------


def test_each_signal_is_heard_once(makeway: Sequence[str], started: Callable[..., subprocess.Popen[str]]) -> None:
    process = started(*makeway, sys.executable, "-c", HEARS, *PASSED)
    assert line(process).startswith("ready")
    for name in PASSED:
        process.send_signal(signal.Signals[name])
        assert line(process) == name
    assert process.stdout is not None
    assert process.stdout.read() == ""
    assert process.wait(LIMIT_S) == 7


def test_a_signal_to_the_whole_group_is_heard_once(
    makeway: Sequence[str], started: Callable[..., subprocess.Popen[str]]
) -> None:
    process = started(*makeway, sys.executable, "-c", HEARS, *PASSED)
    assert line(process).startswith("ready")
    os.killpg(process.pid, signal.SIGINT)
    assert line(process) == "SIGINT"
    os.killpg(process.pid, signal.SIGTERM)
    assert line(process) == "SIGTERM"
    assert process.wait(LIMIT_S) == 7


def test_a_signal_that_was_ignored_from_the_start_stays_ignored(
    makeway: Sequence[str], started: Callable[..., subprocess.Popen[str]]
) -> None:
    program = f"import signal\nassert signal.getsignal(1) is signal.SIG_IGN\n{HEARS}"
    process = started("sh", "-c", 'trap "" HUP; exec "$@"', "-", *makeway, sys.executable, "-c", program, "SIGTERM")
    assert line(process).startswith("ready")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert line(process) == "SIGTERM"
    assert process.wait(LIMIT_S) == 7


def test_the_program_ends_when_makeway_is_killed(
    makeway: Sequence[str], started: Callable[..., subprocess.Popen[str]]
) -> None:
    process = started(*makeway, sys.executable, "-c", HEARS, "SIGTERM")
    child = int(line(process).split()[1])
    process.kill()
    assert line(process) == "SIGTERM"
    assert comes_to(child, "Z")


# --- the terminal -------------------------------------------------------------------------------


class Terminal:
    """A command that has a terminal of its own, whose keys we press."""

    def __init__(self, *command: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvp(command[0], command)
        self.seen = ""
        self.ended = False

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def until(self, text: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while text not in self.seen:
            readable, _, _ = select.select([self.fd], [], [], max(deadline - time.monotonic(), 0))
            assert readable, f"no {text!r} within {LIMIT_S} s: {self.seen!r}"
            try:
                self.seen += os.read(self.fd, 4096).decode(errors="replace")
            except OSError:  # EIO: every process has closed the terminal
                raise AssertionError(f"ended without {text!r}: {self.seen!r}") from None

    def status(self) -> int:
        """How the command stopped or ended."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WUNTRACED | os.WNOHANG)
            if pid:
                return status
            time.sleep(0.01)
        raise AssertionError(f"still running after {LIMIT_S} s: {self.seen!r}")

    def stopped(self) -> bool:
        return os.WIFSTOPPED(self.status())

    def exit_code(self) -> int:
        self.until("makeway run: ")  # unread output keeps the command from ending
        status = self.status()
        self.ended = True
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        os.close(self.fd)
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@pytest.fixture
def terminal(makeway: Sequence[str]) -> Iterator[Callable[..., Terminal]]:
    """Runs Python code under makeway on a terminal."""
    opened: list[Terminal] = []

    def run(code: str, *arguments: str) -> Terminal:
        opened.append(Terminal(*hearing(*makeway, sys.executable, "-c", code, *arguments)))
        return opened[-1]

    yield run
    for terminal in opened:
        terminal.close()


def test_ctrl_c_is_heard_once(terminal: Callable[..., Terminal]) -> None:
    run = terminal(HEARS, "SIGINT", "SIGQUIT", "SIGTERM")
    run.until("ready")
    for key, name in (("\x03", "SIGINT"), ("\x1c", "SIGQUIT")):
        run.press(key)
        run.until(name)
    os.kill(run.pid, signal.SIGTERM)
    assert run.exit_code() == 7
    assert (run.seen.count("SIGINT"), run.seen.count("SIGQUIT")) == (1, 1)


def test_a_program_may_read_the_terminal_and_then_has_its_keys(terminal: Callable[..., Terminal]) -> None:
    run = terminal(f"print('got', input('name? '), flush=True)\n{HEARS}", "SIGINT", "SIGTERM")
    run.until("name? ")
    run.press("you\n")
    run.until("ready")
    assert "got you" in run.seen
    run.press("\x03")
    run.until("SIGINT")
    os.kill(run.pid, signal.SIGTERM)
    assert run.exit_code() == 7
    assert run.seen.count("SIGINT") == 1


@pytest.mark.parametrize("reads", ["", "input()\n"])
def test_ctrl_z_stops_the_job_and_it_can_go_on(terminal: Callable[..., Terminal], reads: str) -> None:
    run = terminal(f"{reads}{HEARS}", "SIGCONT", "SIGTERM")
    if reads:
        run.press("\n")
    run.until(" .")
    child = int(run.seen.partition("ready ")[2].split()[0])
    run.seen = ""
    run.press("\x1a")
    assert run.stopped()
    assert comes_to(child, "T")
    os.kill(run.pid, signal.SIGCONT)
    run.until("SIGCONT")
    os.kill(run.pid, signal.SIGTERM)
    assert run.exit_code() == 7


# --- what it leaves -----------------------------------------------------------------------------


def leaving(*command: str, settle_s: float = 0.2, grace_s: float = LIMIT_S / 2) -> tuple[str, list[int]]:
    """The report of a command's end, and the process numbers that the command printed."""
    patient = hearing(sys.executable, "-c", WITH_PATIENCE, str(settle_s), str(grace_s), *command)
    done = subprocess.run(patient, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True)
    *pids, report = done.stdout.splitlines()
    return report, [int(pid) for pid in pids]


def test_a_process_that_outlives_the_program_is_ended_and_said() -> None:
    report, [pid] = leaving("sh", "-c", "sleep 600 >&- 2>&- & echo $!; exit 4")
    assert report == "4 SIGTERM"
    assert comes_to(pid, "Z")


def test_one_that_ignores_the_request_is_killed_even_in_a_session_of_its_own() -> None:
    stubborn = "trap '' TERM; echo $$; exec >&- 2>&-; while :; do sleep 0.1; done"
    code = f"import subprocess as s\np = s.Popen(['sh', '-c', {stubborn!r}], start_new_session=True, stdout=s.PIPE)"
    code += "\nprint(p.stdout.readline().decode(), end='', flush=True)"
    report, [pid] = leaving(sys.executable, "-c", code, grace_s=0.5)
    assert report.split()[:2] == ["0", "SIGKILL"]
    assert comes_to(pid, "Z")


def test_a_child_that_was_there_before_is_nobodys_leftover() -> None:
    code = (
        "import os, subprocess\n"
        "from makeway.act.launch.supervise import Patience, supervise\n"
        "other = subprocess.Popen(['sleep', '60'])\n"
        "ended = supervise(['true'], os.environ, patience=Patience(settle_s=0.1, grace_s=0.1))\n"
        "print(ended.leftovers, other.poll())\n"
        "other.kill()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.stdout == "() None\n", done.stderr


def test_one_that_ends_by_itself_is_left_alone() -> None:
    assert leaving("sh", "-c", "sleep 0.05 >&- 2>&- & exit 0", settle_s=LIMIT_S / 2) == ("0", [])


def test_an_end_whose_signal_another_thread_took_is_found() -> None:
    beside_a_thread = """
import os, signal, threading
from makeway.act.launch import supervise as module
threading.Thread(target=threading.Event().wait, daemon=True).start()
start = module.start_guarded
def started_and_ended(*arguments, **options):
    guard = start(*arguments, **options)
    while os.path.exists(f"/proc/{guard.program}"):
        pass
    signal.sigtimedwait((signal.SIGCHLD,), 0.5)
    return guard
module.start_guarded = started_and_ended
print(module.supervise(["sh", "-c", "exit 3"], os.environ).code)
"""
    ended = subprocess.run(
        [sys.executable, "-c", beside_a_thread], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ended.stdout == "3\n", ended.stderr


def test_what_is_done_meanwhile_comes_after_the_start_and_its_error_costs_nothing(tmp_path: Path) -> None:
    meanwhile = """
import os, sys
from pathlib import Path
from makeway.act.launch.supervise import supervise
place = Path(sys.argv[1])
def begin():
    while not (place / "runs").exists():
        pass
    (place / "go").touch()
    raise RuntimeError
waits = f'touch {place}/runs; until [ -e {place}/go ]; do sleep 0.01; done; exit 3'
print(supervise(["sh", "-c", waits], os.environ, meanwhile=begin).code)
"""
    ended = subprocess.run(
        [sys.executable, "-c", meanwhile, str(tmp_path)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ended.stdout == "3\n", ended.stderr


@pytest.mark.parametrize(("exit_code", "expected"), [(0, 2), (3, 3)])
@pytest.mark.parametrize("error", [InputError("no such control"), KeyError("rank")])
def test_an_error_of_ours_after_the_programs_end_does_not_hide_how_it_ended(
    exit_code: int, expected: int, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    @keeps_exit_code
    def run(options: Namespace) -> int:
        with end_kept(7, None), end_kept(exit_code, None):  # who comes first knows
            raise error

    assert run(Namespace(command="run", debug=False)) == expected
    said = capsys.readouterr().err
    assert f"the program ended with exit code {exit_code}, and makeway failed after that: " in said
    assert str(error) in said
