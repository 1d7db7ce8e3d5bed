"""Blocks of steps under different controls, inside one running job.

All ranks meet at the end of each block at the job's own store; rank 0 asks the director, which sees the step times of
every rank, for the next block. Between meetings nothing is said and nothing waits.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import torch.distributed as dist
from torch.optim.optimizer import Optimizer

from makeway.act.launch.directors import Next, director_of
from makeway.act.launch.step_files import SLEEP, Block, StepLog, StepLogFile, StepSettings
from makeway.act.torch.agreement import Agreement
from makeway.act.torch.losses import Losses
from makeway.act.torch.steps import Steps
from makeway.values.control import lossy

if TYPE_CHECKING:
    from makeway.act.torch.process import Process

APART = (
    "the ranks no longer stepped together: one of them did not end a step within {patience:g} s of the others, so the "
    "trial ended"
)
_WRITE_EVERY = 10  # steps, of a stopwatch


class _Report(msgspec.Struct):
    """What a rank says at a meeting."""

    times_ns: list[int]
    overhead_ns: int = 0  # of the meeting and the switch before these steps
    refusal: str | None = None
    losses: list[float] = []  # one per step, where some setting is lossy


class LiveTrial:
    """Alternates the controls of a job as a director says; see `act/launch/directors.py`."""

    def __init__(
        self, settings: StepSettings, log: StepLogFile, process: Process, *, optimizer: Optimizer | None = None
    ) -> None:
        self._settings, self._file, self._process, self._optimizer = settings, log, process, optimizer
        self._controls = settings.controls
        world = dist.group.WORLD
        assert world is not None
        store = dist.distributed_c10d._get_process_group_store(world)
        self._agreement = Agreement(store, dist.get_rank(), dist.get_world_size())
        self._director = director_of(settings) if dist.get_rank() == 0 else None
        self._block = Next(setting=0, steps=settings.warm_up, tag="warm-up")
        self._times: list[int] = []
        self._losses: Losses | None = None
        self._step_losses: list[float] = []
        self._since_ns: int | None = None
        self._overhead_ns = 0
        self._sleep_share = float(os.environ.get(SLEEP) or 0)
        self._plain_ns: list[int] = []  # step times in setting 0, for the test control
        self.kept = 0  # the setting that stays when the trial ends now; the same on every rank
        self._over = False
        self._steps: Steps | None = None

    @property
    def log(self) -> StepLog:
        return self._file.log

    @property
    def in_force(self) -> int:
        return self._block.setting

    def start(self) -> None:
        self._steps = Steps(self._at_step, self._failed, marker=self._settings.marker, optimizer=self._optimizer)
        if any(lossy(control) for controls in self._controls for control in controls):
            self._losses = Losses()
        self._file.write()

    def stop(self, reason: str | None) -> None:
        """No more switches; what is in force stays until the process group goes."""
        if self._over:
            return
        self._over = True
        if self._steps is not None:
            self._steps.close()
        if self._losses is not None:
            self._losses.close()
        self._file.log.error = self._file.log.error or reason
        self._file.write()

    def _failed(self, error: Exception) -> None:
        """Errors of ours end the trial; peers notice at the next meeting."""
        self._process.fail(error)
        self._process.release_threads()
        self.stop(f"{type(error).__name__}: {error}")

    # --- at a step -----------------------------------------------------------------------------

    def _at_step(self) -> None:
        if self._sleep_share and self._block.setting and self._plain_ns:
            time.sleep(self._sleep_share * median(self._plain_ns) / 1e9)
        now = time.perf_counter_ns()
        self._file.log.steps += 1
        loss = self._losses.take() if self._losses is not None else None
        if self._since_ns is not None:
            self._step_losses += [] if loss is None else [loss]
            self._times.append(now - self._since_ns)
        self._since_ns = now
        if len(self._times) >= max(1, self._block.steps):
            self._meet()
            self._since_ns = time.perf_counter_ns()  # the meeting and the switch are no part of a step
            self._overhead_ns = self._since_ns - now

    def _meet(self) -> None:
        if not self._block.setting and self._block.tag != "warm-up":
            self._plain_ns = (self._plain_ns + self._times)[-50:]
        report = _Report(self._times, self._overhead_ns, self._process.cannot_switch(), self._step_losses)
        self._times, self._step_losses = [], []
        answer = self._agreement.meet(msgspec.json.encode(report), self._decide)
        if answer is None:
            self._process.release_threads()
            self.stop(APART.format(patience=self._agreement.patience_s))
            return
        following = msgspec.json.decode(answer, type=Next)
        self._block = following
        if following.refusal is not None:
            self.stop(following.refusal)
            return
        if following.switches:
            self._process.switch(self._controls[following.setting])
        if following.keeps:
            self.kept = following.setting
        if following.last:
            self._file.log.final = following.setting
            self.stop(None)

    def _decide(self, reports: Sequence[bytes]) -> bytes:
        """What comes next; runs on rank 0 while the others wait."""
        assert self._director is not None
        ranks = [msgspec.json.decode(report, type=_Report) for report in reports]
        refusals = [rank.refusal for rank in ranks if rank.refusal]
        if refusals:
            return msgspec.json.encode(Next(setting=0, steps=0, refusal=refusals[0]))
        log = self._file.log
        if self._block.tag != "warm-up":
            steps = min(len(rank.times_ns) for rank in ranks)
            times = tuple(int(median(rank.times_ns[step] for rank in ranks)) for step in range(steps))
            dropped = min(self._block.dropped, steps)
            losses = _mean_losses([rank.losses for rank in ranks], steps)
            overhead_ns = int(median(rank.overhead_ns for rank in ranks))
            block = Block(
                setting=self._block.setting,
                times_ns=times,
                dropped=dropped,
                tag=self._block.tag,
                losses=losses,
                overhead_ns=overhead_ns,
            )
            log.blocks.append(_brief(block) if self._block.brief and block.measured_ns else block)
        following = self._director.next(log.blocks)
        self._file.write()
        return msgspec.json.encode(following)


def _mean_losses(ranks: Sequence[Sequence[float]], steps: int) -> tuple[float, ...]:
    """The mean over the ranks of each step's loss; none where a step had none, or one that is no number."""
    if any(len(losses) < steps or not all(map(math.isfinite, losses)) for losses in ranks):
        return ()
    return tuple(sum(losses[step] for losses in ranks) / len(ranks) for step in range(steps))


def _brief(block: Block) -> Block:
    """A block with the median in place of its times: a long job has many."""
    typical_ns = int(median(block.measured_ns))
    return Block(
        setting=block.setting,
        times_ns=(typical_ns,),
        tag=block.tag,
        steps=len(block.times_ns),
        overhead_ns=block.overhead_ns,
    )


class Stopwatch:
    """Times every step, for runs that are compared as a whole; each rank writes its own log."""

    def __init__(self, settings: StepSettings, log: StepLogFile) -> None:
        self._settings, self._file = settings, log
        self._since_ns: int | None = None
        self._steps: Steps | None = None

    def start(self) -> None:
        self._steps = Steps(self._at_step, self._failed, marker=self._settings.marker)
        self._file.write()

    def stop(self, reason: str | None) -> None:
        if self._steps is not None:
            self._steps.close()
        self._file.log.error = self._file.log.error or reason
        self._file.write()

    def _failed(self, error: Exception) -> None:
        self.stop(f"{type(error).__name__}: {error}")

    def _at_step(self) -> None:
        now, log = time.perf_counter_ns(), self._file.log
        log.steps += 1
        if self._since_ns is not None and log.steps > self._settings.warm_up + 1:
            log.plain_ns.append(now - self._since_ns)
        self._since_ns = now
        if log.steps % _WRITE_EVERY == 0:
            self._file.write()
            self._since_ns = time.perf_counter_ns()
