"""Training under DistributedDataParallel as torch ships it, with its own compression hooks.

Every round starts from the same weights, and its losses must be those that torch's own defaults give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from makeway.act.cpu.hook import SharedBuckets, shared_hook
from makeway.act.measure.job import Job
from makeway.act.measure.ranks.exchange import (
    DirectTransport,
    GlooTransport,
    Memory,
    OpenSpan,
    Recorder,
    Transfer,
    Transport,
)
from makeway.act.measure.ranks.lanes import Schedule
from makeway.act.measure.ranks.transformer import SmallTransformer, batches, fresh_model, train, unlike
from makeway.act.measure.ranks.workload import RankWorkload
from makeway.act.measure.ranks.world import World
from makeway.act.torch.compression import Compressed, cannot_compress
from makeway.values.collective import Collective
from makeway.values.control import Chunks, Compress, Control, CopyEngine
from makeway.values.errors import InputError, UnsupportedError
from makeway.values.units import MIB, format_bytes

_POWER_RANK = 4
_ONE_BUCKET_MB = 1e6
Future = torch.futures.Future[torch.Tensor]
Hook = Callable[[Any, GradBucket], Future]
_AVERAGE: Hook = default_hooks.allreduce_hook
_Cut = tuple[SmallTransformer, DistributedDataParallel, SharedBuckets | None]


def training(job: Job, world: World) -> RankWorkload:
    """The training workload of a job."""
    if job.compress == "powersgd" and find_spec("numpy") is None:
        raise UnsupportedError("torch's PowerSGD hook needs numpy, which is not installed; pip install numpy")
    if job.workload == "ddp":
        return Ddp(job, world)
    if job.compress != "none":
        raise InputError(f"--compress {job.compress} is for ddp; fully_shard has no hook for gradients")
    from makeway.act.measure.ranks.sharded import Fsdp

    return Fsdp(job, world)


@dataclass(slots=True)
class Ddp:
    """Steps of DistributedDataParallel; one hook takes every bucket and follows the variant's schedule."""

    job: Job
    world: World
    exchange: Collective | None = None  # buckets differ in size
    _model: SmallTransformer = field(init=False)
    _ddp: DistributedDataParallel = field(init=False)
    _buckets: SharedBuckets | None = None
    _known: dict[tuple[int, Memory], _Cut] = field(default_factory=dict)
    _initial: list[torch.Tensor] = field(init=False)
    _data: list[torch.Tensor] = field(init=False)
    _expected: list[float] = field(init=False)
    _alone: list[float] = field(init=False)
    _reduced: list[torch.Tensor] = field(init=False)  # what a settled step adds over the ranks
    _losses: list[float] = field(default_factory=list)
    _state: Any = None
    _schedule: Schedule | None = None
    _settled: bool = False  # False: the hook only averages
    _states: dict[tuple[int, Memory, Compress], Compressed] = field(default_factory=dict)  # errors stay between rounds
    _compressed: Compressed | None = None

    def __post_init__(self) -> None:
        job = self.job
        self._data = batches(job.seed, self.world.rank, job.round_steps)
        self._initial = [value.detach().clone() for value in fresh_model(job.scale, job.seed).parameters()]
        alone = fresh_model(job.scale, job.seed)
        self._alone = train(alone, self._data, Recorder(), gradients_over=self.world.ranks)
        self._expected, self._reduced = self._reference()
        self._cut_for(1, GlooTransport())

    def _cut_for(self, pieces: int, transport: Transport) -> None:
        """Switch to at most `pieces` gradient buckets, created at first use; 1: buckets of the job's size."""
        key = pieces, transport.memory
        if key not in self._known:
            model = fresh_model(self.job.scale, self.job.seed)
            size = sum(value.nbytes for value in model.parameters())
            ddp = self._wrapped(model, None if pieces == 1 else -(-size // pieces) / MIB)
            # DistributedDataParallel refuses annotations that are text, as all are in this file.
            ddp.register_comm_hook(None, lambda state, bucket: self._hook(bucket))
            self._settle(ddp)
            buckets = SharedBuckets(transport.group) if isinstance(transport, DirectTransport) else None
            self._known[key] = model, ddp, buckets
        self._model, self._ddp, self._buckets = self._known[key]

    def _reference(self) -> tuple[list[float], list[torch.Tensor]]:
        """Losses under torch's own defaults, and tensors like those that a step reduces."""
        hook, state = _AVERAGE, None
        model, seen = self._wrapped(fresh_model(self.job.scale, self.job.seed)), list[torch.Tensor]()
        model.register_comm_hook(None, lambda _, bucket: hook(state, bucket))
        self._settle(model)
        hook, state = self._torch_hook, self._new_state()
        losses = train(model, self._data, Recorder())
        state = self._new_state()
        with _reductions(seen):
            train(model, self._data[:1], Recorder())
        if self.job.compress == "none":  # torch's own reducer, without a hook
            losses = train(self._wrapped(fresh_model(self.job.scale, self.job.seed)), self._data, Recorder())
        return losses, seen

    def _settle(self, ddp: DistributedDataParallel) -> None:
        """Two plain steps, then the first weights: DistributedDataParallel lays out its buckets anew after one step."""
        self._settled = False
        for _ in range(2):
            train(ddp, self._data[:1], Recorder())
        self._reset(ddp)
        self._settled = True

    def _reset(self, model: torch.nn.Module) -> None:
        with torch.no_grad():
            for value, initial in zip(model.parameters(), self._initial, strict=True):
                value.copy_(initial)
                value.grad = None

    def _wrapped(self, model: SmallTransformer, bucket_mb: float | None = None) -> DistributedDataParallel:
        # PowerSGD starts its later collectives from callbacks of earlier ones. Gloo runs those of different buckets in
        # no fixed order, and ranks would mix them up: all gradients go in one bucket.
        cap_mb = _ONE_BUCKET_MB if self.job.compress == "powersgd" else bucket_mb or self.job.bucket_mb
        return DistributedDataParallel(model, bucket_cap_mb=cap_mb)

    @property
    def description(self) -> str:
        parameters = sum(value.numel() for value in self._initial)
        moved = sum(tensor.nbytes for tensor in self._reduced)
        return (
            f"DistributedDataParallel, {parameters:,} parameters, {format_bytes(moved)} in "
            f"{len(self._reduced)} all-reduces per step, compression {self.job.compress}"
        )

    @property
    def exchanges(self) -> int:
        return max(len(self._reduced) * self.job.round_steps, 1)

    def refusal(self, control: Control) -> str | None:
        if isinstance(control, Compress):
            return cannot_compress(control)
        if isinstance(control, Chunks) and self.job.compress == "powersgd":
            return "PowerSGD's gradients go in one bucket: Gloo keeps no order between the later steps of several"
        if isinstance(control, CopyEngine) and self.job.compress != "none":
            return f"compression {self.job.compress} goes through torch's own hook, which has its own collectives"
        return None

    def prepare(self, schedule: Schedule) -> None:
        self._cut_for(schedule.pieces, schedule.transport)
        self._reset(self._model)
        self._losses = []
        self._state = self._new_state()
        self._schedule = schedule
        self._compressed = self._compressed_by(schedule)

    def _compressed_by(self, schedule: Schedule) -> Compressed | None:
        if schedule.compress is None:
            return None
        key = schedule.pieces, schedule.transport.memory, schedule.compress
        if key not in self._states:
            self._states[key] = Compressed(self._ddp, schedule.compress)
        return self._states[key]

    def run(self, schedule: Schedule) -> None:
        match schedule.mode:
            case "comm":
                for _ in self._data:
                    self._exchanged(schedule)
            case "compute" | "sequential" | "overlap":
                self._losses = train(self._ddp, self._data, schedule.recorder)

    def _exchanged(self, schedule: Schedule) -> None:
        """The exchange of one step by itself: all buckets are started before the first is waited for, as in a step."""
        transfers = [Transfer(kind="all-reduce", send=tensor, receive=tensor) for tensor in self._reduced]
        pending = [
            schedule.recorder.started(f"bucket {number}", schedule.transport, transfer)
            for number, transfer in enumerate(transfers)
        ]
        for work in pending:
            work.wait()

    def wrong(self, schedule: Schedule) -> str | None:
        if schedule.mode == "comm":
            for tensor in self._reduced:
                tensor.fill_(1)  # added up in every round, they would overflow
            return None
        if schedule.compress is not None:
            return None if all(map(math.isfinite, self._losses)) else "a loss is not a finite number"
        return unlike(self._losses, self._alone if schedule.mode == "compute" else self._expected)

    def _hook(self, bucket: GradBucket) -> Future:
        """Start a bucket's exchange; in a sequential run compute waits until it is over."""
        if not self._settled:
            return _AVERAGE(None, bucket)
        assert self._schedule is not None
        recorder = self._schedule.recorder
        if self._schedule.mode == "compute":
            recorder.hand_over(bucket.buffer().nbytes)
            return _not_exchanged(bucket, self.world.ranks)
        if self._schedule.mode == "sequential":
            with recorder.waiting():
                future, span = self._started(bucket)
                future.wait()
                span.end()
            return future
        future, span = self._started(bucket)
        future.add_done_callback(span.end)
        if bucket.is_last():
            recorder.idle()  # what is left of the backward pass is waiting
        return future

    def _started(self, bucket: GradBucket) -> tuple[Future, OpenSpan]:
        assert self._schedule is not None
        transport = self._schedule.transport
        span = self._schedule.recorder.opened(f"bucket {bucket.index()}", transport.span_kind)
        if self._compressed is not None:
            return self._compressed.averaged(bucket), span
        if isinstance(transport, DirectTransport) and self._buckets is not None:
            future = shared_hook(self._buckets, bucket)
            transport.no_shared_memory = transport.no_shared_memory or self._buckets.why_not
            return future, span
        return self._torch_hook(self._state, bucket), span

    def _new_state(self) -> Any:
        if self.job.compress != "powersgd":
            return None
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=_POWER_RANK, start_powerSGD_iter=2)
        state.iter = state.start_powerSGD_iter  # torch waits for buckets to settle; here they have
        return state

    @property
    def _torch_hook(self) -> Hook:
        hooks: dict[str, Hook] = {
            "none": _AVERAGE,
            "fp16": default_hooks.fp16_compress_hook,
            "powersgd": powerSGD_hook.powerSGD_hook,
        }
        return hooks[self.job.compress]


def _not_exchanged(bucket: GradBucket, ranks: int) -> Future:
    """What torch's hook does for a bucket on this rank alone: compute alone has it, too."""
    future: Future = torch.futures.Future()
    future.set_result(bucket.buffer().div_(ranks))
    return future


@contextmanager
def _reductions(seen: list[torch.Tensor]) -> Iterator[None]:
    """Keep a copy of every tensor that torch's hooks reduce meanwhile."""
    original = dist.all_reduce

    def noted(tensor: torch.Tensor, *args: Any, **more: Any) -> Any:
        seen.append(torch.ones_like(tensor))
        return original(tensor, *args, **more)

    dist.all_reduce = noted
    try:
        yield
    finally:
        dist.all_reduce = original
