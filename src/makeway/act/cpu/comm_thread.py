"""The thread that runs a group's collectives in the order of the calls."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import torch

from makeway.values.errors import MakewayError


class Work:
    """A collective under way; `wait` raises its error."""

    def __init__(self, result: torch.Tensor) -> None:
        self.started_ns: int | None = None  # time.perf_counter_ns, when a thread took it up
        self.finished_ns: int | None = None
        self._result = result
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._future: torch.futures.Future[torch.Tensor] | None = None

    def is_completed(self) -> bool:
        """True when it has ended, with or without an error."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; raises the collective's error."""
        if not self._done.wait(timeout_s):
            raise MakewayError(f"the collective has not ended within {timeout_s:g} s; it continues")
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future[torch.Tensor]:
        """The result tensor as a torch future."""
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._done.is_set():
                    self._settle(self._future)
            return self._future

    def finish(self, error: BaseException | None) -> None:
        """Mark the end; called by the communication thread."""
        self.finished_ns = time.perf_counter_ns()
        with self._lock:
            self._error = error
            self._done.set()
            if self._future is not None:
                self._settle(self._future)

    def _settle(self, future: torch.futures.Future[torch.Tensor]) -> None:
        if isinstance(self._error, Exception):
            future.set_exception(self._error)  # type: ignore[arg-type]  # torch declares the wrong type
        else:
            future.set_result(self._result)


class CommThread:
    """Runs collectives in order: in its own thread, or in the caller's when the caller waits and nothing is queued."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], Work] | None] = queue.SimpleQueue()
        self._state = threading.Lock()
        self._turn = threading.Lock()
        self._unfinished = 0
        self._thread = threading.Thread(target=self._loop, name="makeway-comm", daemon=True)
        self._thread.start()

    @property
    def native_id(self) -> int:
        """The thread as in /proc/self/task."""
        assert self._thread.native_id is not None
        return self._thread.native_id

    def submit(self, run: Callable[[], None], result: torch.Tensor) -> Work:
        """Queue a collective."""
        work = Work(result)
        with self._state:
            self._unfinished += 1
        self._queue.put((run, work))
        return work

    def call(self, run: Callable[[], None], result: torch.Tensor) -> None:
        """Run a collective and wait for it, on the calling thread when nothing is queued before it."""
        with self._state:
            idle = self._unfinished == 0
            if idle:
                self._unfinished += 1
                self._turn.acquire()
        if not idle:
            self.submit(run, result).wait()
            return
        try:
            run()
        finally:
            self._turn.release()
            with self._state:
                self._unfinished -= 1

    def stop(self) -> None:
        """End once the queue is empty."""
        self._queue.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _loop(self) -> None:
        while (task := self._queue.get()) is not None:
            run, work = task
            error: BaseException | None = None
            with self._turn:
                work.started_ns = time.perf_counter_ns()
                try:
                    run()
                except BaseException as caught:
                    error = caught
            with self._state:
                self._unfinished -= 1
            work.finish(error)
            del task, run, work, error  # do not keep the caller's tensors alive until the next collective
