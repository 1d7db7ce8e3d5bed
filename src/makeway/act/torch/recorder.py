"""Steady steps of an unmodified program, profiled with torch.profiler on every rank.

Steps before are timed without the profiler, which shows its overhead. Profiling changes no result.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch._C import _autograd
from torch.profiler import ProfilerActivity, profile, schedule

from makeway.act.launch.step_files import STACKS, StepLogFile, StepSettings
from makeway.act.torch.steps import Steps

OWN_PROFILER = "the program profiles itself; nothing was recorded beside it"


class Recorder:
    """Profiles `settings.steps` steps after the warm-up and as many plain ones, and writes them to a file.

    A program that ends earlier leaves the steps that there are.
    """

    def __init__(self, settings: StepSettings, log: StepLogFile) -> None:
        assert settings.out is not None
        self._settings, self._file = settings, log
        self._target = Path(settings.out) / f"rank{log.log.rank}.json.gz"
        self._profiler: Any = None
        self._since_ns: int | None = None
        self._steps: Steps | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        self._steps = Steps(self._at_step, self._failed, marker=self._settings.marker)
        self._file.write()

    def stop(self, reason: str | None) -> None:
        """Write what there is; harmless when repeated."""
        if os.getpid() != self._pid:
            return
        if self._steps is not None:
            self._steps.close()
        self._file.log.error = self._file.log.error or reason
        if self._profiler is not None:
            self._profiler, profiler = None, self._profiler
            profiler.stop()
        self._file.write()

    def _failed(self, error: Exception) -> None:
        self._profiler, profiler = None, self._profiler
        if profiler is not None:
            with suppress(Exception):
                profiler.stop()
        self.stop(f"{type(error).__name__}: {error}")

    def _at_step(self) -> None:
        log, wanted = self._file.log, self._settings.steps
        now = time.perf_counter_ns()
        log.steps += 1
        first = self._settings.warm_up + wanted  # boundaries before the profiler starts
        taken_ns = now - self._since_ns if self._since_ns is not None else None
        if self._profiler is not None:
            if log.steps > first + 1 and taken_ns is not None:  # the first step warms the profiler up
                log.profiled_ns.append(taken_ns)
            self._profiler.step()
        elif taken_ns is not None and self._settings.warm_up < log.steps <= first:
            log.plain_ns.append(taken_ns)
        if len(log.profiled_ns) >= wanted:
            self.stop(None)
            return
        if log.steps == first:
            self._begin()
        self._since_ns = time.perf_counter_ns()

    def _begin(self) -> None:
        if _autograd._profiler_enabled():
            self.stop(OWN_PROFILER)
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=1, active=self._settings.steps, repeat=1),
            on_trace_ready=self._write,
            record_shapes=True,
            with_stack=bool(self._settings.options.get(STACKS)),
        )
        self._profiler.start()

    def _write(self, profiler: Any) -> None:
        """The file whole or not at all; called when the last step has ended, or when the program ends."""
        log = self._file.log
        if not log.profiled_ns:
            log.error = log.error or "the program ended before a step was profiled"
            return
        unfinished = self._target.with_name(f".{self._target.name.removesuffix('.json.gz')}-{self._pid}.json.gz")
        try:
            profiler.export_chrome_trace(str(unfinished))
            unfinished.replace(self._target)
        finally:
            unfinished.unlink(missing_ok=True)
        log.file, log.recorded = str(self._target), len(log.profiled_ns)
