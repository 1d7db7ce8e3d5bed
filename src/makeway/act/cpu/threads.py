"""Threads of this process as Linux sees them: which ones communicate, their cores, policy, niceness and time slices."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

# ProcessGroupGloo.cpp names its workers pt_gloo_runloop; gloo/transport/tcp/loop.cc its I/O thread gloo_tcp_loop.
GLOO_NAMES = ("pt_gloo_runloop", "gloo_tcp_loop")
REALTIME = (os.SCHED_RR, 1)  # above all ordinary threads, below every other real-time one
T = TypeVar("T")
_TASKS = "/proc/self/task"
_SYSCALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr


def _tasks() -> list[str]:
    return os.listdir(_TASKS)


def thread_ids(tasks: Callable[[], Sequence[str]] = _tasks) -> frozenset[int]:
    """Every thread of this process.

    While one thread ends, Linux may leave others out of a list (measured: twice in 70,860): two lists must agree.
    """
    listed = tasks()
    while (again := tasks()) != listed:
        listed = again
    return frozenset(map(int, listed))


def threads_named(names: Iterable[str]) -> frozenset[int]:
    """The threads of this process with one of these names."""
    wanted = set(names)
    return frozenset(thread for thread, name in readings(thread_ids(), name_of).items() if name in wanted)


def name_of(thread: int) -> str:
    try:
        return Path(f"{_TASKS}/{thread}/comm").read_text(errors="replace").removesuffix("\n")
    except FileNotFoundError:  # it has ended
        raise ProcessLookupError from None


def has_run(thread: int) -> bool:
    """Whether a thread has had a processor since it was made; True where Linux does not count that."""
    try:
        return int(Path(f"{_TASKS}/{thread}/schedstat").read_text().split()[0]) > 0
    except FileNotFoundError:
        return True


@contextmanager
def new_threads_named(
    patience_s: float = 1.0, starving_s: float = 30.0, has_run: Callable[[int], bool] = has_run
) -> Iterator[None]:
    """Leave the block when every thread that started inside it has its name, or patience ends.

    A new thread has the name of the one that made it, until it runs and takes its own. One that never takes one is
    waited for `patience_s`; where a busy machine leaves one without a processor, up to `starving_s`.
    """
    before = thread_ids()
    yield
    maker, since = name_of(threading.get_native_id()), time.monotonic()
    while unnamed := [thread for thread, name in readings(thread_ids() - before, name_of).items() if name == maker]:
        if time.monotonic() - since >= (patience_s if all(map(has_run, unnamed)) else starving_s):
            return
        time.sleep(0.001)


def readings(threads: Iterable[int], read: Callable[[int], T]) -> dict[int, T]:
    """`read` of each thread; one that has ended meanwhile is left out."""
    values: dict[int, T] = {}
    for thread in threads:
        with suppress(ProcessLookupError):
            values[thread] = read(thread)
    return values


def cores_of(thread: int) -> frozenset[int]:
    return frozenset(os.sched_getaffinity(thread))


def set_cores(thread: int, cores: Iterable[int]) -> None:
    with suppress(ProcessLookupError):  # it has ended: nothing to set
        os.sched_setaffinity(thread, cores)


def niceness_of(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def set_niceness(thread: int, niceness: int) -> None:
    with suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, thread, niceness)


def may_be_undone(niceness: int) -> bool:
    """True when a thread that was made nicer may return to `niceness`; tried on a thread made for it.

    setpriority(2) needs CAP_SYS_NICE (in the first user namespace: root of another one lacks it) or a soft
    RLIMIT_NICE of at least 20 - niceness.
    """
    allowed = []

    def try_it() -> None:
        with suppress(PermissionError):
            set_niceness(0, niceness + 1)
            set_niceness(0, niceness)
            allowed.append(True)

    trial = threading.Thread(target=try_it)
    trial.start()
    trial.join()
    return bool(allowed)


def policy_of(thread: int) -> tuple[int, int]:
    """A thread's scheduling policy, and its priority where that is a real-time policy."""
    return os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority


def set_policy(thread: int, policy: tuple[int, int]) -> None:
    with suppress(ProcessLookupError):
        os.sched_setscheduler(thread, policy[0], os.sched_param(policy[1]))


def may_be_realtime() -> bool:
    """True when a thread may get the lowest real-time priority; tried on a thread made for it.

    sched(7): it needs CAP_SYS_NICE or an RLIMIT_RTPRIO above 0. Under an RLIMIT_RTTIME Linux kills a process for work
    that takes long: then the answer is no.
    """
    if resource.getrlimit(resource.RLIMIT_RTTIME)[0] != resource.RLIM_INFINITY:
        return False
    allowed = []

    def try_it() -> None:
        with suppress(OSError):
            set_policy(0, REALTIME)
            allowed.append(policy_of(0) == REALTIME)

    trial = threading.Thread(target=try_it)
    trial.start()
    trial.join()
    return allowed == [True]


class _Attributes(ctypes.Structure):
    """struct sched_attr of linux/sched/types.h, as of its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("niceness", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def slice_ns(thread: int) -> int | None:
    """A thread's time slice; None before Linux 6.12, the first with one per ordinary thread."""
    attributes = _attributes(thread)
    return attributes.runtime_ns or None if attributes is not None else None


def set_slice(thread: int, duration_ns: int) -> None:
    """Set the time slice: a waking thread with a shorter slice runs sooner; needs no privilege."""
    attributes = _attributes(thread)
    if attributes is not None:
        attributes.runtime_ns = duration_ns
        _syscall(0, thread, ctypes.byref(attributes), 0)


def _attributes(thread: int) -> _Attributes | None:
    attributes = _Attributes()
    size = ctypes.sizeof(attributes)
    return attributes if _syscall(1, thread, ctypes.byref(attributes), size, 0) else None


def _syscall(which: int, *arguments: object) -> bool:
    numbers = _SYSCALLS.get(platform.machine())
    return numbers is not None and ctypes.CDLL(None).syscall(numbers[which], *arguments) == 0
