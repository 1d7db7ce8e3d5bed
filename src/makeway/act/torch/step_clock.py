"""When steps end: by the host's clock, or on GPUs by events on the program's own stream.

A host runs ahead of its GPU, so that its clock tells when a step was enqueued, not how long it took. Events cost the
stream nothing that it would wait for; only the end of a block of steps waits for the device. On GPUs not yet run on
hardware.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any, Protocol


class StepClock(Protocol):
    """Marks the ends of steps, and tells the time between them."""

    def restart(self) -> None:
        """Forget all marks; a step begins now."""

    def mark(self) -> None:
        """A step ends now."""

    @property
    def steps(self) -> int:
        """Steps that ended since the restart."""

    def take_ns(self) -> list[int]:
        """The time of each of them; waits until the last has really ended."""


class HostClock:
    """For steps that are over when the program says so."""

    def __init__(self) -> None:
        self._marks_ns: list[int] = []
        self.restart()

    def restart(self) -> None:
        self._marks_ns = [time.perf_counter_ns()]

    def mark(self) -> None:
        self._marks_ns.append(time.perf_counter_ns())

    @property
    def steps(self) -> int:
        return len(self._marks_ns) - 1

    def take_ns(self) -> list[int]:
        return [end - start for start, end in pairwise(self._marks_ns)]


class GpuClock:
    """For steps whose kernels run on the current stream, or are waited for there; CUDA must have started."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda  # torch.cuda
        self._events: list[Any] = []
        self.restart()

    def restart(self) -> None:
        self._events = []
        self.mark()

    def mark(self) -> None:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    @property
    def steps(self) -> int:
        return len(self._events) - 1

    def take_ns(self) -> list[int]:
        self._events[-1].synchronize()
        return [max(1, round(start.elapsed_time(end) * 1e6)) for start, end in pairwise(self._events)]


def clock_for(backend: str, cuda: Any) -> StepClock:
    """The clock of a process whose collectives run on `backend`; `cuda` is torch.cuda, which is not started here."""
    return GpuClock(cuda) if backend != "cpu" and cuda.is_initialized() else HostClock()
