"""Training steps of a small decoder under DDP, FSDP2, tensor parallelism and a pipeline, with public torch alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from scale_ranks_job import Cell, Shape
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from makeway.act.measure.ranks.world import World
from makeway.act.torch.compression import Compressed
from makeway.values.control import Compress

STAGES = 2
Step = Callable[[], None]


class Layer(nn.Module):
    """A decoder layer without biases and dropout."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head = shape.hidden // shape.heads
        self.norm_1, self.norm_2 = (nn.LayerNorm(shape.hidden, bias=False) for _ in range(2))
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden, bias=False)
        self.projection = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, _ = x.shape
        # Heads first, then query, key and value of each: a rank of tensor parallelism has whole heads.
        mixed = self.qkv(self.norm_1(x)).view(batch, seq, -1, 3 * self.head).transpose(1, 2)
        q, k, v = mixed.chunk(3, dim=-1)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).reshape(batch, seq, -1))
        changed: torch.Tensor = x + self.down(functional.relu(self.up(self.norm_2(x))))
        return changed


class Decoder(nn.Module):
    """Layers `first` to `last` of a decoder, with the embedding before the first and the head after the last."""

    def __init__(self, shape: Shape, first: int = 0, last: int | None = None) -> None:
        super().__init__()
        last = shape.layers if last is None else last
        self.embedding = nn.Embedding(shape.vocab, shape.hidden) if first == 0 else None
        self.layers = nn.ModuleList(Layer(shape) for _ in range(first, last))
        self.logits = nn.Linear(shape.hidden, shape.vocab, bias=False) if last == shape.layers else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.logits is None else self.logits(x)


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)


def step_of(cell: Cell, world: World, replicas: dist.ProcessGroup | None = None) -> Step:
    """One training step of a cell, ready to run; `replicas` of DDP, if not all ranks."""
    torch.manual_seed(1)
    shape = cell.shape
    tokens = torch.randint(shape.vocab, (shape.batch, shape.seq))
    match cell.parallel:
        case "ddp":
            return _trained(_replicated(cell, replicas), tokens)
        case "fsdp":
            return _trained(_sharded(shape, world), tokens)
        case "tp":
            return _tensor_parallel(shape, world, tokens)
        case "pp":
            return _pipelined(cell, world, tokens)


def _trained(module: nn.Module, tokens: torch.Tensor) -> Step:
    optimizer = adam(module)

    def step() -> None:
        loss_of(module(tokens), tokens).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def _replicated(cell: Cell, replicas: dist.ProcessGroup | None) -> nn.Module:
    decoder = Decoder(cell.shape)
    module = DistributedDataParallel(decoder, process_group=replicas, bucket_cap_mb=cell.bucket_bytes / 2**20)
    if cell.compression != "none":
        hook = Compressed(module, Compress(cell.compression))
        module.register_comm_hook(None, lambda state, bucket: hook.averaged(bucket))
    return module


def _sharded(shape: Shape, world: World) -> nn.Module:
    module, mesh = Decoder(shape), init_device_mesh("cpu", (world.ranks,))
    for layer in module.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def _tensor_parallel(shape: Shape, world: World, tokens: torch.Tensor) -> Step:
    mesh = init_device_mesh("cpu", (world.ranks,))
    module = Decoder(shape)
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "logits": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    for number in range(shape.layers):
        plan |= {f"layers.{number}.{name}": ColwiseParallel() for name in ("qkv", "up")}
        plan |= {f"layers.{number}.{name}": RowwiseParallel() for name in ("projection", "down")}
    parallelize_module(module, mesh, plan)
    optimizer = torch.optim.AdamW(
        [{"params": list(part)} for part in _by_kind(module.parameters())], lr=1e-4, fused=True
    )
    dist.broadcast(tokens, 0)

    def step() -> None:
        with loss_parallel():
            loss_of(module(tokens), tokens).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def _by_kind(values: Any) -> tuple[Sequence[nn.Parameter], Sequence[nn.Parameter]]:
    """Parameters that are divided over ranks and those that are not: fused Adam takes one kind at a time."""
    every = list(values)
    divided = [value for value in every if hasattr(value, "to_local")]
    return divided, [value for value in every if not hasattr(value, "to_local")]


def _pipelined(cell: Cell, world: World, tokens: torch.Tensor) -> Step:
    """Two stages; with four ranks two pipelines, whose gradients DDP averages stage by stage."""
    shape, replicas = cell.shape, world.ranks // STAGES
    mesh = init_device_mesh("cpu", (STAGES, replicas), mesh_dim_names=("pp", "dp"))
    number = mesh.get_local_rank("pp")
    each = shape.layers // STAGES
    module: nn.Module = Decoder(shape, number * each, (number + 1) * each)
    if replicas > 1:
        module = DistributedDataParallel(
            module, process_group=mesh.get_group("dp"), bucket_cap_mb=cell.bucket_bytes / 2**20
        )
    stage = PipelineStage(module, number, STAGES, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, cell.micro_batches, loss_fn=loss_of, scale_grads=False)
    optimizer = adam(module)

    def step() -> None:
        if number == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=tokens)
        optimizer.step()
        optimizer.zero_grad()

    return step
