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
import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer

from makeway.act.launch.directors import Next, director_of
from makeway.act.launch.step_files import SLEEP, Block, StepLog, StepLogFile, StepSettings
from makeway.act.torch.agreement import Agreement
from makeway.act.torch.losses import Losses
from makeway.act.torch.step_clock import StepClock, clock_for
from makeway.act.torch.steps import Steps
from makeway.act.tuner.channel_orders import NOT_SEEN, ChannelOrder, ChannelState, channel_order
from makeway.values.control import lossy

if TYPE_CHECKING:
    from makeway.act.torch.process import Process
    from makeway.act.tuner.agreed import AgreedChannels

APART = (
    "the ranks no longer stepped together: one of them did not end a step within {patience:g} s of the others, so the "
    "trial ended"
)
SHARES_MEMORY = "for ranks that meet over a network; these share memory, and copy-engine spares them more"
WARMING_UP = "warm-up"  # the tag of the first block, which counts for nothing
_WRITE_EVERY = 10  # steps, of a stopwatch


class _Report(msgspec.Struct):
    """What a rank says at a meeting."""

    times_ns: list[int]
    overhead_ns: int = 0  # of the meeting and the switch before these steps
    refusal: str | None = None
    refused: dict[int, str] = {}  # settings that cannot be tried here, and why
    losses: list[float] = []  # one per step, where some setting is lossy
    channels: ChannelState | None = None  # where the tuner plugin's may change
    start_ns: int = 0  # what came before the first step


class _Answer(msgspec.Struct):
    """What rank 0 says to all."""

    next: Next
    channels: ChannelOrder | None = None  # where they change with the setting


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
        self._block = Next(setting=0, steps=settings.warm_up, tag=WARMING_UP)
        self._clock: StepClock | None = None  # from the end of the first step on
        self._losses: Losses | None = None
        self._step_losses: list[float] = []
        self._overhead_ns = 0
        self._sleep_share = float(os.environ.get(SLEEP) or 0)
        self._plain_ns: list[int] = []  # step times in setting 0, for the test control
        self.kept = 0  # the setting that stays when the trial ends now; the same on every rank
        self._over = False
        self._start_ns = 0  # what came before the first step, in this process
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
        self._start_ns = time.perf_counter_ns() - self._process.began_ns

    def stop(self, reason: str | None) -> None:
        """No more switches; what is in force stays until the process group goes."""
        if self._over:
            return
        self._over = True
        if self._steps is not None:
            self._steps.close()
        if self._losses is not None:
            self._losses.close()
        self._process.settled()
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
        if self._clock is None:
            self._clock = clock_for(self._process.file.backend, torch.cuda)
        else:
            self._clock.mark()
        self._file.log.steps += 1
        loss = self._losses.take() if self._losses is not None else None
        if self._clock.steps:
            self._step_losses += [] if loss is None else [loss]
        if self._clock.steps >= max(1, self._block.steps):
            times_ns = self._clock.take_ns()
            ended_ns = time.perf_counter_ns()
            self._meet(times_ns)
            self._overhead_ns = time.perf_counter_ns() - ended_ns
            self._clock.restart()  # the meeting and the switch are no part of a step

    def _meet(self, times_ns: list[int]) -> None:
        if not self._block.setting and self._block.tag != WARMING_UP:
            self._plain_ns = (self._plain_ns + times_ns)[-50:]
        refusal = self._process.cannot_switch(len(times_ns))
        channels = self._channels.state if self._channels is not None else None
        report = _Report(
            times_ns=times_ns,
            overhead_ns=self._overhead_ns,
            refusal=refusal,
            refused=self._refused(),
            losses=self._step_losses,
            channels=channels,
            start_ns=self._start_ns,
        )
        self._step_losses = []
        met = self._agreement.meet(msgspec.json.encode(report), self._decide)
        if met is None:
            self._end_apart()
            return
        answer = msgspec.json.decode(met, type=_Answer)
        following = answer.next
        self._block = following
        if following.switches and not self._switch(following.setting, answer.channels):
            return
        if following.refusal is not None:
            self.stop(following.refusal)
            return
        if following.keeps:
            self.kept = following.setting
        if following.last:
            self._file.log.final = following.setting
            self.stop(None)

    def _refused(self) -> dict[int, str]:
        """Once, before anything is tried: candidates that this rank cannot have."""
        if self._settings.kind != "tune" or self._block.tag != WARMING_UP:
            return {}
        exact = not any(lossy(control) for controls in self._controls for control in controls)
        refused = self._process.refused(self._controls, exact=exact)
        over_network = self._settings.over_network if self._process.shares_memory else ()
        return dict.fromkeys(over_network, SHARES_MEMORY) | refused

    def _end_apart(self) -> None:
        self._process.release_threads()
        self.stop(APART.format(patience=self._agreement.patience_s))

    @property
    def _channels(self) -> AgreedChannels | None:
        return self._process.carried.channels if self._process.carried is not None else None

    def _switch(self, setting: int, order: ChannelOrder | None) -> bool:
        """Put a setting in force; False where ranks could not agree on its channels, and the trial is over."""
        if order is not None and not self._agree_on_channels(setting, order):
            return False
        self._process.switch(self._controls[setting], setting=setting)
        return True

    def _agree_on_channels(self, setting: int, order: ChannelOrder) -> bool:
        """Write the channels of a setting and make sure that every rank sees them, or take them back."""
        channels = self._channels
        assert channels is not None
        writes = self._agreement.rank in order.writers
        if writes:
            channels.write(setting, order)
        verdict = self._agreement.meet(b"written", lambda _: b"look")
        if verdict is not None:
            seen = b"yes" if channels.sees_change() else b"no"
            verdict = self._agreement.meet(seen, lambda ranks: b"yes" if set(ranks) == {b"yes"} else b"no")
        if verdict == b"yes":
            channels.took(setting, order)
            return True
        if writes:
            channels.undo(order)
        self._agreement.meet(b"undone", lambda _: b"on")  # no rank makes a call before that
        self._process.release_threads()
        self.stop(NOT_SEEN if verdict is not None else APART.format(patience=self._agreement.patience_s))
        return False

    def _order(self, setting: int, ranks: Sequence[_Report]) -> ChannelOrder | None:
        """When the channels of a setting hold; None where they stay, or a rank cannot change them."""
        states = [rank.channels for rank in ranks if rank.channels is not None]
        if self._channels is None or len(states) < len(ranks) or not self._channels.changes(setting):
            return None
        return channel_order(states)

    def _decide(self, reports: Sequence[bytes]) -> bytes:
        """What comes next; runs on rank 0 while the others wait."""
        assert self._director is not None
        ranks = [msgspec.json.decode(report, type=_Report) for report in reports]
        refusals = [rank.refusal for rank in ranks if rank.refusal]
        if refusals:  # what can still be undone is undone
            back = Next(setting=0, steps=0, refusal=refusals[0], switches=self._block.setting != 0)
            return msgspec.json.encode(_Answer(back, self._order(0, ranks) if back.switches else None))
        log = self._file.log
        if self._block.tag == WARMING_UP:
            log.refused = {number: reason for rank in reversed(ranks) for number, reason in rank.refused.items()}
            log.start_ns = self._settings.start_ns + min(rank.start_ns for rank in ranks)  # others waited for the last
            self._director.prepare(refused=log.refused, start_ns=log.start_ns)
        else:
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
        order = self._order(following.setting, ranks) if following.switches else None
        return msgspec.json.encode(_Answer(following, order))


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
