"""Training under fully_shard (FSDP2) as torch ships it, on a mesh of CPU ranks.

On a GPU it overlaps by streams. On a CPU, which has none, all-gathers overlap when they are prefetched
asynchronously; gradients are reduced and scattered while compute waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllocMixin

from makeway.act.measure.job import Job
from makeway.act.measure.ranks.exchange import Pending, Recorder, Transfer
from makeway.act.measure.ranks.lanes import Schedule
from makeway.act.measure.ranks.transformer import SmallTransformer, batches, fresh_model, train, unlike
from makeway.act.measure.ranks.world import World
from makeway.values.collective import Collective, CollectiveKind
from makeway.values.control import Chunks, Control
from makeway.values.units import format_bytes


@dataclass(slots=True)
class _Desk:
    """Takes the collectives of a sharded model and runs each as the variant's schedule says."""

    schedule: Schedule | None = None
    seen: list[tuple[CollectiveKind, int, int, torch.dtype]] | None = None  # elements sent and received

    def start(self, kind: CollectiveKind, send: torch.Tensor, receive: torch.Tensor) -> _Awaited:
        assert self.schedule is not None
        if self.seen is not None:
            self.seen.append((kind, send.numel(), receive.numel(), send.dtype))
        transfer, recorder = Transfer(kind=kind, send=send, receive=receive), self.schedule.recorder
        if self.schedule.mode != "sequential":
            return _Awaited(recorder.started(kind, self.schedule.transport, transfer), recorder)
        with recorder.waiting():
            awaited = _Awaited(recorder.started(kind, self.schedule.transport, transfer), recorder)
            awaited.wait()
        return awaited


class _Awaited(dist.Work):
    """A collective whose waiting is not counted as compute."""

    def __init__(self, pending: Pending, recorder: Recorder) -> None:
        super().__init__()
        self._carriage, self._recorder, self._over = pending, recorder, False

    def wait(self, timeout: Any = None) -> bool:
        if not self._over:
            with self._recorder.waiting():
                self._carriage.wait()
            self._over = True
        return True


class _Gather(DefaultAllocMixin, AllGather):
    def __init__(self, desk: _Desk) -> None:
        self._desk = desk

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> dist.Work | None:
        # What is sent is a part of what is received, which not every transport allows.
        awaited = self._desk.start("all-gather", input_tensor.clone(), output_tensor)
        if async_op:
            return awaited
        awaited.wait()
        return None


class _Scatter(DefaultAllocMixin, ReduceScatter):
    def __init__(self, desk: _Desk) -> None:
        self._desk = desk

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        self._desk.start("reduce-scatter", input_tensor, output_tensor).wait()
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(dist.get_world_size(group))
        return None


@dataclass(slots=True)
class Fsdp:
    """Steps of a model whose layers are sharded one by one, each gathered while the one before computes."""

    job: Job
    world: World
    exchange: Collective | None = None  # layers differ in size, and there are two kinds
    _desk: _Desk = field(default_factory=_Desk)
    _model: SmallTransformer = field(init=False)
    _plain: SmallTransformer = field(init=False)
    _initial: list[list[torch.Tensor]] = field(init=False)
    _data: list[torch.Tensor] = field(init=False)
    _expected: list[float] = field(init=False)
    _alone: list[float] = field(init=False)
    _transfers: list[Transfer] = field(default_factory=list)
    _losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        job = self.job
        self._data = batches(job.seed, self.world.rank, job.round_steps)
        self._plain = fresh_model(job.scale, job.seed)
        self._expected = train(_sharded(job), self._data, Recorder())
        self._model = _sharded(job)
        self._initial = [[value.clone() for value in _values(model)] for model in (self._model, self._plain)]
        self._alone = train(fresh_model(job.scale, job.seed), self._data, Recorder())
        for module in (self._model, *self._model.layers):
            module.set_custom_all_gather(_Gather(self._desk))
            module.set_custom_reduce_scatter(_Scatter(self._desk))

    @property
    def description(self) -> str:
        size = sum(value.nbytes for value in self._initial[1])
        return f"fully_shard of {len(self._model.layers)} layers, {format_bytes(size)} of parameters"

    @property
    def exchanges(self) -> int:
        return max(len(self._transfers), 1)

    def refusal(self, control: Control) -> str | None:
        if isinstance(control, Chunks):
            return "fully_shard decides what is gathered at once: one layer"
        return None

    def prepare(self, schedule: Schedule) -> None:
        self._desk.schedule = schedule
        if not self._transfers:
            self._learn_transfers(schedule)
        for model, initial in zip((self._model, self._plain), self._initial, strict=True):
            with torch.no_grad():
                for value, first in zip(_values(model), initial, strict=True):
                    value.copy_(first)
        self._losses = []

    def _learn_transfers(self, schedule: Schedule) -> None:
        """Learn what a round exchanges by running one."""
        self._desk.seen = []
        train(self._model, self._data, Recorder())
        for kind, sent, received, dtype in self._desk.seen:
            send, receive = torch.ones(sent, dtype=dtype), torch.empty(received, dtype=dtype)
            self._transfers.append(Transfer(kind=kind, send=send, receive=receive))
        self._desk.seen = None
        schedule.recorder.settle()

    def run(self, schedule: Schedule) -> None:
        match schedule.mode:
            case "compute":
                self._losses = train(self._plain, self._data, schedule.recorder)
            case "comm":
                for transfer in self._transfers:
                    schedule.recorder.started(transfer.kind, schedule.transport, transfer).wait()
            case "sequential" | "overlap":
                self._losses = train(self._model, self._data, schedule.recorder)

    def wrong(self, schedule: Schedule) -> str | None:
        if schedule.mode == "comm":
            return None
        return unlike(self._losses, self._alone if schedule.mode == "compute" else self._expected)


def _sharded(job: Job) -> SmallTransformer:
    """A model as torch's documentation shards one: each layer, then the rest; the next layer is gathered ahead."""
    model = fresh_model(job.scale, job.seed)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    layers = [fully_shard(layer, mesh=mesh) for layer in model.layers]
    fully_shard(model, mesh=mesh)
    model._set_unshard_async_op(True)  # type: ignore[operator]  # a CPU has no streams: without, nothing overlaps
    for layer, following in pairwise(layers):
        layer.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([layer])
    return model


def _values(model: nn.Module) -> list[torch.Tensor]:
    """The parameters that this rank holds."""
    values = []
    for value in model.parameters():
        local: Callable[[], torch.Tensor] | None = getattr(value, "to_local", None)
        values.append(local() if local is not None else value.detach())
    return values
