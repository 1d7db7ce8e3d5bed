"""Processor time of a host's cores, with what the kernel does there for no thread: packets, timers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

CALM_S = 0.2  # at most, to see what else runs on the host
_IDLE = (3, 4, 7)  # columns of proc_stat(5): idle, waiting for disks, taken by the hypervisor
_STAT = Path("/proc/stat")


def busy_ns() -> int | None:
    """Time that this process's cores did not idle, since a moment that stays the same; None where Linux does not say.

    proc_stat(5) counts in steps of 10 ms or so: take the mean of many rounds.
    """
    try:
        rows = [line.split() for line in _STAT.read_text().splitlines()]
    except OSError:
        return None
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = [sum(int(row[1 + column]) for column in _IDLE) for row in rows if row[0] in cores and len(row) > 8]
    if len(ticks) < len(cores):
        return None
    return len(cores) * time.perf_counter_ns() - sum(ticks) * 10**9 // os.sysconf("SC_CLK_TCK")


def beyond_calm(busy: float | None, lasted_ns: float, read: Callable[[], int | None] = busy_ns) -> float | None:
    """What is left of processor time without that of a calm host; sleep for it, while no rank works.

    None where the host is not calm, or does not say: some containers never count idle time.
    """
    before, since = read(), time.perf_counter_ns()
    time.sleep(min(lasted_ns * 1e-9, CALM_S))
    after, calm_ns = read(), time.perf_counter_ns() - since
    if busy is None or before is None or after is None or (after - before) > calm_ns / 2:
        return None
    return busy - (after - before) * lasted_ns / calm_ns
