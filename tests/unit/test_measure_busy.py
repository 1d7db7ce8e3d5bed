"""Processor time with what the kernel does for no thread: read from idle time, less that of a calm host."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from makeway.act.measure.ranks.busy import CALM_S, beyond_calm, busy_ns
from makeway.act.measure.ranks.rounds import Samples

STEPS_NS = 25_000_000  # of the counters, over two cores and a bit


def test_a_thread_that_computes_keeps_a_core_busy() -> None:
    before, cpu_ns = busy_ns(), time.process_time_ns()
    while time.process_time_ns() - cpu_ns < 300_000_000:
        pass
    after = busy_ns()
    if before is None or after is None:
        pytest.skip("/proc/stat does not say how long the cores idled")
    assert after - before >= 300_000_000 - STEPS_NS


def reader(*shares: float) -> Callable[[], int | None]:
    """Counters of a host that is busy for that share of the time from one reading to the next."""
    readings = iter([0.0, *shares])
    start, total = time.perf_counter_ns(), 0.0

    def read() -> int:
        nonlocal start, total
        now = time.perf_counter_ns()
        total += next(readings) * (now - start)
        start = now
        return round(total)

    return read


@pytest.mark.parametrize("share", [0.0, 0.01, 0.4])
@pytest.mark.parametrize("lasted_s", [0.01, 0.05, 3.0])
def test_what_a_calm_host_does_is_left_out(share: float, lasted_s: float) -> None:
    since = time.perf_counter()
    left = beyond_calm(1e9, lasted_s * 1e9, reader(share))
    assert time.perf_counter() - since < 10 * CALM_S
    assert left == pytest.approx(1e9 - share * lasted_s * 1e9, rel=0.05)


@pytest.mark.parametrize("read", [lambda: None, reader(0.6), reader(2.0)], ids=["silent", "busy", "never idle"])
def test_nothing_is_said_where_the_host_is_not_calm_or_silent(read: Callable[[], int | None]) -> None:
    assert beyond_calm(1e9, 1e7, read) is None


def test_nothing_is_said_where_the_round_itself_was_not_read() -> None:
    assert beyond_calm(None, 1e7, reader(0.0)) is None


def samples(cpu_ns: list[float], busy_ns: list[float | None]) -> Samples:
    several = Samples()
    for cpu, busy in zip(cpu_ns, busy_ns, strict=True):
        several.add(100.0, [], [], cpu_ns=cpu, busy_ns=busy)
    return several


def test_the_kernels_time_is_a_mean_over_rounds_beside_each_rounds_own() -> None:
    assert samples([10.0, 30.0], [20.0, 40.0]).all_cpu_ns() == (20.0, 40.0)
    assert samples([10.0, 30.0], [0.0, 60.0]).all_cpu_ns() == (20.0, 40.0)  # steps of 10 ms fall where they fall


def test_processor_time_is_never_below_that_of_the_threads_and_needs_every_round() -> None:
    assert samples([10.0, 30.0], [5.0, 25.0]).all_cpu_ns() == (10.0, 30.0)
    assert samples([10.0, 30.0], [20.0, None]).all_cpu_ns() == (10.0, 30.0)
    assert samples([10.0, 30.0], [None, None]).all_cpu_ns() == (10.0, 30.0)
    assert samples([], []).all_cpu_ns() == ()
