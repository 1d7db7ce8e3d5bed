"""Real cluster engines on this machine's loopback: a Dask scheduler with workers, and Slurm's daemons."""

from __future__ import annotations

import getpass
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from json import loads
from pathlib import Path

ROOT = Path(__file__).parents[2]
START_S = 30.0


def why_not(*needed: str) -> str | None:
    """What is missing of these programs and Python packages; None if all are there."""
    missing = [name for name in needed if shutil.which(name) is None and not _importable(name)]
    return f"not installed: {', '.join(missing)} (`make setup`, `scripts/system-packages`)" if missing else None


def _importable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


no_mpi = why_not("mpirun")
no_slurm = why_not("munged", "slurmctld", "slurmd", "sbatch", "srun") or (
    "Slurm's daemons need root" if os.getuid() else None
)


def environment(**more: str) -> dict[str, str]:
    """This process's environment, with makeway and the tests importable."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **more}


@contextmanager
def daemon(command: Sequence[str], log: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, ended with all its children."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, env=environment(**more)
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until(ready: Callable[[], bool], what: str, logs: Path) -> None:
    end = time.monotonic() + START_S
    while not ready():
        if time.monotonic() > end:
            text = "\n".join(f"== {path}\n{path.read_text(errors='replace')[-1500:]}" for path in logs.glob("*.log"))
            raise AssertionError(f"{what} did not start\n{text}")
        time.sleep(0.1)


@contextmanager
def dask_cluster(folder: Path, *, workers: int = 2) -> Iterator[str]:
    """The address of a Dask scheduler with workers, which nannies restart."""
    file = folder / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    with ExitStack() as stack:
        scheduler = [*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
        stack.enter_context(daemon([*scheduler, "--scheduler-file", str(file)], folder / "scheduler.log"))
        wait_until(lambda: file.exists() and file.stat().st_size > 0, "the Dask scheduler", folder)
        address = loads(file.read_text())["address"].removeprefix("tcp://")
        worker = [*dask, "worker", address, "--nworkers", str(workers), "--nthreads", "1", "--no-dashboard"]
        stack.enter_context(daemon([*worker, "--local-directory", str(folder)], folder / "worker.log"))
        yield address


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which sbatch reaches slurmctld and slurmd on loopback."""
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir(mode=0o700)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    conf = folder / "slurm.conf"
    conf.write_text(_slurm_conf(folder))
    variables = {"SLURM_CONF": str(conf)}
    with ExitStack() as stack:
        stack.callback(_end_steps, conf)
        places = {"socket": "munge/socket", "pid-file": "munge/pid", "log-file": "munge/log", "seed-file": "munge/seed"}
        options = [f"--{name}={folder / place}" for name, place in places.items()]
        munged = ["munged", "--foreground", "--force", f"--key-file={key}", *options]
        stack.enter_context(daemon(munged, folder / "munged.log"))
        wait_until((folder / "munge" / "socket").exists, "munged", folder)
        stack.enter_context(daemon(["slurmctld", "-D"], folder / "slurmctld.log", **variables))
        stack.enter_context(daemon(["slurmd", "-D"], folder / "slurmd.log", **variables))
        wait_until(lambda: _idle(variables), "Slurm", folder)
        yield variables


def _end_steps(conf: Path) -> None:
    """End the processes of jobs, which slurmd starts in sessions of their own and leaves behind."""
    mark = f"SLURM_CONF={conf}".encode()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)


def _idle(variables: dict[str, str]) -> bool:
    done = subprocess.run(
        ["sinfo", "-h", "-o", "%T"],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
        env=environment(**variables),
    )
    return "idle" in done.stdout


def _slurm_conf(folder: Path) -> str:
    host, user = socket.gethostname().partition(".")[0], getpass.getuser()
    ports = [_free_port(), _free_port()]
    return f"""\
ClusterName=makeway
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ReturnToService=2
MpiDefault=none
SchedulerParameters=sched_min_interval=100000,sched_interval=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
