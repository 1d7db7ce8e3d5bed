"""Work spread over processes, a Dask cluster, MPI ranks or Slurm jobs: any `concurrent.futures.Executor`.

This is the one seam to a cluster. Work is a module's function of one item; it runs wherever the engine puts it, so
items and results must be picklable, and files must have the same paths there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from concurrent.futures.process import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from typing import Any, TypeVar

from makeway.values.errors import InputError, MissingExtraError, UnsupportedError, suggestion

ENGINES = ("local", "dask", "mpi", "slurm")
ATTEMPTS = 4  # an item is tried this often if the process that works on it dies
CONNECT_S = 5  # to a Dask scheduler

T = TypeVar("T")
R = TypeVar("R")
OpenExecutor = Callable[[], AbstractContextManager[Executor | None]]


class WorkerLostError(UnsupportedError):
    """The process that worked on an item died, again and again."""


def engine(on: str, *, jobs: int | None = None) -> OpenExecutor:
    """How to open the executor that `on` names: local, dask://HOST:PORT, mpi or slurm.

    What it opens is None on MPI ranks other than 0: they have then done their share of the work.
    """
    kind, separator, address = on.partition("://")
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs takes at least 1, got {jobs}")
    if kind == "dask" and separator and address:
        return partial(_dask, address)
    if separator or kind == "dask" or kind not in ENGINES:
        raise InputError(
            f"unknown engine {on!r}{suggestion(kind, ENGINES)}\nKnown: local, dask://HOST:PORT, mpi, slurm"
        )
    if kind == "mpi":
        return _mpi
    return partial(_slurm if kind == "slurm" else _local, jobs)


def spread(
    work: Callable[[T], R], items: Sequence[T], open_executor: OpenExecutor, *, attempts: int = ATTEMPTS
) -> Generator[tuple[int, R], None, None]:
    """The number and the result of each item, as they complete; nothing on MPI ranks other than 0.

    The error of an item ends the work. A process that dies is no error: an engine with a scheduler gives its items to
    another process, and a broken pool is replaced by a new one, which gets the items that have no result.
    """
    waiting = dict(enumerate(items))
    for attempt in range(attempts):
        with open_executor() as executor:
            if executor is None:
                return
            try:
                yield from _round(work, waiting, executor)
            except BrokenExecutor:
                if attempt + 1 == attempts:
                    raise WorkerLostError(
                        f"processes died {attempts} times, with {len(waiting):,} of {len(items):,} items to do\n"
                        "If memory ran out, use fewer processes at a time (--jobs 1)."
                    ) from None
            else:
                return


def _round(work: Callable[[T], R], waiting: dict[int, T], executor: Executor) -> Iterator[tuple[int, R]]:
    """One pass over the items; each that has a result leaves `waiting`, and no result stays in memory."""
    futures: dict[Future[R], int] = {executor.submit(work, item): index for index, item in waiting.items()}
    try:
        for future in as_completed(list(futures)):
            index, result = futures.pop(future), future.result()
            del waiting[index], future
            yield index, result
    finally:
        for future in futures:
            future.cancel()


# --- engines -------------------------------------------------------------------------------------


@contextmanager
def _local(jobs: int | None) -> Iterator[Executor]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Spawned: forking is unsafe beside threads.
    pool = ProcessPoolExecutor(max_workers=jobs or cores, mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    distributed = _extra("distributed", "dask")
    try:
        client = distributed.Client(f"tcp://{address}", timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler answers at {address}: {str(error).splitlines()[0]}\n"
            "Start one with `dask scheduler`, and workers with `dask worker HOST:PORT`."
        ) from None
    with client:
        yield client.get_executor(pure=False)


def is_root(on: str) -> bool:
    """Whether this process gives out the work: all do, except MPI ranks other than 0."""
    return on != "mpi" or bool(_extra("mpi4py.MPI", "mpi").COMM_WORLD.Get_rank() == 0)


@contextmanager
def _mpi() -> Iterator[Executor | None]:
    futures, mpi = _extra("mpi4py.futures", "mpi"), _extra("mpi4py.MPI", "mpi")
    if mpi.COMM_WORLD.Get_size() < 2:
        raise InputError("--on mpi needs at least 2 MPI ranks: start it with `mpirun -n N makeway analyze ...`")
    with futures.MPICommExecutor(mpi.COMM_WORLD, root=0) as executor:
        yield executor


@contextmanager
def _slurm(jobs: int | None) -> Iterator[Executor]:
    _extra("submitit", "slurm")
    if shutil.which("sbatch") is None:
        raise UnsupportedError("--on slurm needs `sbatch`: run it on a node that submits jobs")
    from makeway.read.slurm import SlurmJobs

    with SlurmJobs(jobs) as executor:
        yield executor


def _extra(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py without an MPI library
        if isinstance(error, ImportError) and error.name and module.startswith(error.name):
            raise MissingExtraError(f"--on {extra}", extra) from None
        raise UnsupportedError(f"--on {extra}: {str(error).strip().splitlines()[0]}") from None
