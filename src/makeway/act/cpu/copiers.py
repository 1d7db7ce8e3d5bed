"""Threads that move bytes: helpers that share a copy, and the number of threads for a reduction."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

_SPLIT_BYTES = 256 * 1024  # below this, handing a part to another thread costs more than copying it
_Task = tuple[int, int, int, "Future[None]"]


class Copiers:
    """Copies memory with a settable number of threads; the caller is one of them. Copying releases the GIL."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._helpers: tuple[threading.Thread, ...] = ()

    @property
    def threads(self) -> int:
        return 1 + len(self._helpers)

    @property
    def helper_ids(self) -> tuple[int, ...]:
        """The helpers as in /proc/self/task."""
        return tuple(helper.native_id for helper in self._helpers if helper.native_id is not None)

    def resize(self, threads: int) -> None:
        """Change the number of threads; call it while nothing is copied."""
        for _ in self._helpers:
            self._tasks.put(None)
        for helper in self._helpers:
            helper.join()
        self._helpers = tuple(
            threading.Thread(target=_copy_tasks, args=(self._tasks,), name="makeway-copier", daemon=True)
            for _ in range(threads - 1)
        )
        for helper in self._helpers:
            helper.start()

    def copy(self, to: int, source: int, count: int) -> None:
        """Copy `count` bytes between two addresses."""
        if not self._helpers or count < _SPLIT_BYTES:
            ctypes.memmove(to, source, count)
            return
        part = -(-count // self.threads)
        waiting: list[Future[None]] = []
        for at in range(part, count, part):
            waiting.append(Future())
            self._tasks.put((to + at, source + at, min(part, count - at), waiting[-1]))
        ctypes.memmove(to, source, part)
        for done in waiting:
            done.result()


def _copy_tasks(tasks: queue.SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        to, source, count, done = task
        ctypes.memmove(to, source, count)
        done.set_result(None)


@contextmanager
def reducing_with(threads: int) -> Iterator[None]:
    """The calling thread's own tensor arithmetic on that many threads.

    torch.set_num_threads would also change MKL's number for every other thread; OpenMP's setting is per thread.
    """
    openmp = _openmp()
    if openmp is None:
        yield
        return
    torch.get_num_threads()  # torch sets the number on a thread's first use, and would undo ours
    before = openmp.omp_get_max_threads()
    openmp.omp_set_num_threads(threads)
    try:
        yield
    finally:
        openmp.omp_set_num_threads(before)


@cache
def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library that torch loaded; None when torch was built without one."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "omp" in line}
    for path in sorted(mapped):
        if "libgomp" in path or "libiomp" in path or "libomp" in path:
            return ctypes.CDLL(path)
    return None
