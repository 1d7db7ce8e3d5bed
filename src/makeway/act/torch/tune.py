"""Tuning from inside a program: what `makeway run --tune` does, without the launcher, in one line."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from makeway.act.launch.outcome import Outcome
from makeway.act.launch.step_files import SHARE, WARM_UP, StepSettings
from makeway.act.launch.tune_run import every_control, tune_settings
from makeway.act.launch.tuned import RunTuning, tuning_of
from makeway.act.plans import PlanLike
from makeway.act.torch.process import Process
from makeway.act.torch.replacing import Original, replaced, stand_in
from makeway.act.torch.where import where_runs
from makeway.values.errors import InputError
from makeway.values.plan import Plan

BY_LAUNCHER = "`makeway run` or `makeway record` started this program, and is in charge of its controls"
ALONE = "this program has no process group of several ranks, so that nothing is communicated"
ON_GPUS = (
    "controls are switched in a running program on CPU ranks only; plan with `makeway plan`, and measure the plan with "
    "`makeway run --plan FILE --compare-runs N`"
)
TUNED_ALREADY = "another call of makeway.torch.tune is in charge of this process; stop it first"
NO_STEP = "nothing was tried: no optimizer has stepped since makeway.torch.tune was called"
OTHER_RANK = "rank 0 keeps the log of what was tried: ask there"

_CURRENT: list[Tuned] = []


def tune(
    model: torch.nn.Module,
    optimizer: Any = None,
    *,
    plan: PlanLike | None = None,
    share: float = SHARE,
    job_steps: int | None = None,
    seed: int = 0,
    warm_up: int = WARM_UP,
) -> Tuned:
    """Find the fastest controls of this job while it trains; every rank must call it, between two steps.

    A step ends with `optimizer.step()`; without an optimizer, with the first one that steps. `plan` is one more
    candidate; the other options are those of `makeway run --tune`. `model` is a module of any kind: the
    DistributedDataParallel modules in it, or around it, get new reducers between steps. A program on one rank or on
    GPUs, and one that `makeway run` has started, goes on as it is: the report says why.
    """
    settings = tune_settings(plan, share=share, job_steps=job_steps, seed=seed, warm_up=warm_up)
    tuned = Tuned(settings, _optimizer(optimizer))
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"tune takes a torch.nn.Module, got {type(model).__name__}")
    if (refusal := _refusal()) is None:
        tuned._start(list(_modules(model)))
    else:
        tuned._problem = refusal
    return tuned


class Tuned:
    """A job that is tuned as it runs; `stop` ends that, and so does the end of the default process group."""

    def __init__(self, settings: StepSettings, optimizer: Optimizer | None) -> None:
        self._settings, self._sets = settings, settings.controls
        self._process = Process(every_control(self._sets), None, settings=settings, optimizer=optimizer)
        self._life = ExitStack()
        self._problem: str | None = None
        self._ended: RunTuning | None = None

    @property
    def plan(self) -> Plan:
        """The controls that stay if tuning ends now; the same on every rank."""
        trial = self._process.trial
        return Plan(controls=self._sets[trial.kept if trial is not None else 0])

    @property
    def running(self) -> bool:
        return self in _CURRENT

    def report(self) -> RunTuning:
        """What was tried so far, and what it showed; rank 0 knows."""
        if self._ended is not None:
            return self._ended
        trial = self._process.trial
        log = trial.log if trial is not None else None
        notes = [self._process.file.error] if self._process.file.error else []
        problem = self._problem
        if problem is None and log is not None and log.steps == 0:
            problem = NO_STEP
        elif problem is None and log is not None and log.rank != 0:
            problem = OTHER_RANK
        receipts = self._process.file.receipts
        return tuning_of(
            log,
            self._settings,
            program=sys.orig_argv,
            controls=[Outcome(control=receipt.control, receipts=(receipt,)) for receipt in receipts],
            exit_code=None,
            killed_by=None,
            problem=problem,
            notes=notes,
        )

    def stop(self, *, undo: bool = False) -> RunTuning:
        """End the trials: the best controls so far stay in force, or none with `undo`; then what `report` says.

        Every rank must call it between the same two steps; harmless when repeated.
        """
        if self.running:
            trial = self._process.trial
            if trial is not None and not undo and trial.in_force != trial.kept:
                self._process.switch(self.plan.controls)
            self._end(undo=undo)
        elif undo:
            self._life.close()
        return self.report()

    def leave(self) -> None:
        """End the trials on this rank alone, after an error: what concerns its own threads is undone."""
        if self.running:
            self._process.release_threads()
            self._end(undo=False)

    def _start(self, modules: list[DistributedDataParallel]) -> None:
        _CURRENT.append(self)
        original = dist.destroy_process_group
        leaving = stand_in(original, self._around_destroy, self._process.fail)
        self._life.enter_context(replaced(original, leaving))
        self._life.callback(self._process.group_goes, None)
        self._process.group_made(modules)

    def _around_destroy(self, original: Original) -> Any:
        group = original.given.get("group")
        if group is None or group is dist.group.WORLD:
            self._end(undo=True)
        return original()

    def _end(self, *, undo: bool) -> None:
        self._process.end_trial()
        self._ended = self.report()
        if self.running:
            _CURRENT.remove(self)
        if undo:
            self._life.close()


def _refusal() -> str | None:
    """Why this program goes on as it is; every rank gives the same answer."""
    if os.environ.get("MAKEWAY_PLAN"):
        return BY_LAUNCHER
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return ALONE
    if where_runs() != "cpu":
        return ON_GPUS
    if _CURRENT:
        raise InputError(TUNED_ALREADY)
    return None


def _optimizer(given: Any) -> Optimizer | None:
    """Torch's optimizer inside those of Lightning and Accelerate."""
    inner = given
    while hasattr(inner, "optimizer"):
        inner = inner.optimizer
    if inner is not None and not isinstance(inner, Optimizer):
        raise InputError(f"tune takes an optimizer of torch, got {type(given).__name__}")
    return inner


def _modules(model: torch.nn.Module) -> Iterator[DistributedDataParallel]:
    """Those in the model in its own order, or the one around it, which frameworks do not pass on."""
    inside = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
    if inside:
        yield from inside
        return
    for other in gc.get_objects():
        if type(other) is DistributedDataParallel and vars(other).get("_modules", {}).get("module") is model:
            yield other
            return
