"""Read many traces in parallel processes that send back only what is derived from each timeline."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, TypeVar

from makeway.read.traces.classify import CommNames
from makeway.read.traces.read import read_trace
from makeway.values.errors import InputError, TraceError, printable
from makeway.values.timeline import Timeline

# Starting a process takes about as long as reading this much.
WORTH_A_PROCESS_BYTES = 8 << 20

T = TypeVar("T")
Progress = Callable[[Path, int], None]


def map_traces(
    files: Sequence[Path],
    work: Callable[[Timeline], T],
    *,
    comm: CommNames | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[T]:
    """`work` of each file's timeline, in the order of the files.

    `work` runs where the file is read, in up to `jobs` processes (one per core, unless the files are small). So it
    must be a module's function, and its result should be small. The first error ends all processes.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"reading traces takes at least 1 job, got {jobs}")
    jobs = min(len(files), jobs or _fitting_jobs(files))
    if jobs <= 1:
        return [work(read_trace(path, comm=comm, progress=progress and partial(progress, path))) for path in files]
    return _in_processes(files, work, comm, jobs, progress)


def _fitting_jobs(files: Sequence[Path]) -> int:
    size = sum(path.stat().st_size for path in files if path.is_file())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, size // WORTH_A_PROCESS_BYTES))


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: connection.Connection[Any, Any]
    index: int = -1  # of the file it reads


def _in_processes(
    files: Sequence[Path],
    work: Callable[[Timeline], T],
    comm: CommNames | None,
    jobs: int,
    progress: Progress | None,
) -> list[T]:
    results: dict[int, T] = {}
    remaining = iter(range(len(files)))
    with _workers(jobs, work, comm) as workers:
        for worker in workers:
            _give(worker, next(remaining), files)
        busy = list(workers)
        while busy:
            for ready in connection.wait([worker.pipe for worker in busy]):
                worker = next(worker for worker in busy if worker.pipe is ready)
                kind, value = _answer(worker, files[worker.index])
                match kind:
                    case "read":
                        if progress is not None:
                            progress(files[worker.index], value)
                    case "failed":
                        raise value
                    case "done":
                        results[worker.index] = value
                        if (following := next(remaining, None)) is None:
                            busy.remove(worker)
                        else:
                            _give(worker, following, files)
    return [results[index] for index in range(len(files))]


@contextmanager
def _workers(jobs: int, work: Callable[[Timeline], T], comm: CommNames | None) -> Iterator[list[_Worker]]:
    """Processes that end with the block, however it exits. Spawned: forking is unsafe beside threads."""
    context = get_context("spawn")
    workers: list[_Worker] = []
    try:
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, work, comm), daemon=True)
            process.start()
            theirs.close()
            workers.append(_Worker(process, ours))
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.pipe.close()


def _give(worker: _Worker, index: int, files: Sequence[Path]) -> None:
    worker.index = index
    try:
        worker.pipe.send(files[index])
    except OSError:
        raise _died(worker, files[index]) from None


def _answer(worker: _Worker, path: Path) -> tuple[Literal["read", "failed", "done"], Any]:
    try:
        answer: tuple[Literal["read", "failed", "done"], Any] = worker.pipe.recv()
    except (EOFError, OSError):
        raise _died(worker, path) from None
    return answer


def _died(worker: _Worker, path: Path) -> TraceError:
    worker.process.join()
    code = worker.process.exitcode or 0
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return TraceError(
        f"the process that read {printable(path)} ended {how}\n"
        "If memory ran out, read fewer files at a time (--jobs 1 reads them in turn)."
    )


def _serve(pipe: connection.Connection[Any, Any], work: Callable[[Timeline], object], comm: CommNames | None) -> None:
    """Read the files that arrive until the other end closes; a dead parent is noticed at the next report."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted and ends us
    try:
        while True:
            path = pipe.recv()
            try:
                answer = ("done", work(read_trace(path, comm=comm, progress=lambda size: pipe.send(("read", size)))))
            except Exception as error:
                error.add_note(traceback.format_exc())
                answer = ("failed", error)
            pipe.send(answer)
    except (EOFError, OSError):
        return
