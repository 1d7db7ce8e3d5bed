"""Slurm jobs as a `concurrent.futures.Executor`, submitted by submitit.

Partition, account and time limit come from Slurm's own variables (SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT).
The function and its result pass through a directory that must be visible on all nodes: a new one in the current
directory, readable by its owner only and removed at the end.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from makeway.values.errors import UnsupportedError

AT_ONCE = 64  # jobs in Slurm's queue
POLL_S = 0.25
LOOK_S = 2.0  # between two looks at the queue
VISIBLE_S = 5.0  # a result may become visible this long after its job has left the queue

P = ParamSpec("P")
T = TypeVar("T")


class JobLostError(BrokenExecutor):
    """Slurm ended a job before it had a result."""


class SlurmJobs(Executor):
    """Each call is one job; at most `at_once` are in Slurm's queue."""

    def __init__(self, at_once: int | None = None) -> None:
        submitit = import_module("submitit")
        self._folder = Path(tempfile.mkdtemp(prefix=".makeway-slurm-", dir=Path.cwd()))
        self._executor = submitit.SlurmExecutor(folder=self._folder)
        self._executor.update_parameters(job_name="makeway", cpus_per_task=1)
        self._at_once = at_once or AT_ONCE
        self._queue: list[tuple[Future[Any], Callable[[], Any]]] = []
        self._running: list[tuple[Future[Any], Any]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._looked = 0.0
        self._gone: dict[str, float] = {}
        self._watcher = threading.Thread(target=self._watch, name="slurm jobs", daemon=True)
        self._watcher.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            self._queue.append((future, lambda: self._executor.submit(_outcome, partial(fn, *args, **kwargs))))
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._changed:
            self._closed = True
            if cancel_futures:
                self._queue.clear()
            self._changed.notify()
        if wait:
            self._watcher.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, job in list(self._running):
            with suppress(Exception):
                job.cancel()
        self.shutdown(cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._running or self._closed)
                if self._closed and not self._queue:
                    return
                room = self._at_once - len(self._running)
                starting, self._queue = self._queue[:room], self._queue[room:]
            for future, start in starting:
                if future.set_running_or_notify_cancel():
                    self._start(future, start)
            self._running = [(future, job) for future, job in self._running if not self._settled(future, job)]
            time.sleep(POLL_S if self._running else 0)

    def _start(self, future: Future[Any], start: Callable[[], Any]) -> None:
        try:
            self._running.append((future, start()))
        except Exception as error:  # what sbatch says
            future.set_exception(UnsupportedError(f"Slurm refused a job: {error}"))

    def _settled(self, future: Future[Any], job: Any) -> bool:
        """Whether the job has ended, with its result or its error in the future."""
        if not job.paths.result_pickle.exists():
            if (since := self._gone_since(str(job.job_id))) is None or time.monotonic() - since < VISIBLE_S:
                return False
            future.set_exception(JobLostError(f"Slurm job {job.job_id} ended without a result"))
            return True
        try:
            value, error = job.result()
        except Exception as problem:  # it could not even start: what its log says
            future.set_exception(UnsupportedError(f"Slurm job {job.job_id} failed:\n{str(problem).strip()}"))
            return True
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
        return True

    def _gone_since(self, job: str) -> float | None:
        """When the job was first missing from the queue; None while it is there, or the queue is not known."""
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            done = subprocess.run(["squeue", "-h", "-o", "%A"], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                queued = set(done.stdout.split())
                known = {str(job.job_id) for _, job in self._running}
                self._gone = {name: self._gone.get(name, now) for name in known - queued}
        return self._gone.get(job)


def _outcome(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """The result or the error of work; an error that passes as a value keeps its type."""
    try:
        return work(), None
    except Exception as error:
        return None, error
