"""Memory of a training step on one GPU of each pipeline stage, in closed form.

Bytes per parameter follow Megatron-LM: 2 for the weight, 4 for the gradient, 12 for the optimizer (a 4-byte copy and
two moments), the last divided over replicas from ZeRO-1 on. Fully sharded parameters follow FSDP2: 4, 4 and 8, with the
16-bit weights of two layers gathered. Activations follow arXiv 2205.05198, extended to gated MLPs, grouped queries,
latent attention and experts; how many micro batches are alive follows from the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, islice, product
from typing import Any, NamedTuple

from makeway.decide.scale.schedules import Order, repeating_schedule, routes, shortened
from makeway.values.device import Device
from makeway.values.errors import InputError, UnsupportedError
from makeway.values.layout import Layout, Schedule
from makeway.values.model import Model
from makeway.values.step import StageMemory
from makeway.values.units import GIB

HALF = 2  # bytes of a 16-bit number; activations are kept in it with FP8 GEMMs too
WEIGHT, GRADIENT, OPTIMIZER = 2, 4, 12
SHARDED_WEIGHT, SHARDED_OPTIMIZER = 4, 8
GATHERED_LAYERS = 2  # one in use, one on its way
LOGIT_BYTES = 6  # the 16-bit result of the GEMM, and 4 bytes for the loss
RUNTIME_BYTES = 3 * GIB  # CUDA context, communication library, allocator: 2 to 4 GiB are seen
FULLY_SHARDED = ("zero3", "fsdp", "hsdp")
MOST_TOGETHER = 3  # changes of a layout that advice combines
MOST_NAMED = 4  # ways that advice names
MOST_TP = 8  # that advice names: the GPUs of most nodes; beyond, tp needs fast links between nodes
_FACTORS = (2, 4, 8)  # by which it raises tp, cp and pp
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")


def memory(model: Model, layout: Layout, *, fused_attention: bool = True) -> tuple[StageMemory, ...]:
    """Bytes on a GPU of each stage.

    Without `fused_attention`, as before 2023, attention scores and dropout masks are kept unless recomputed.
    """
    layout.check_for(model)
    kept = activation_bytes(model, layout, fused_attention=fused_attention)
    alive = alive_chunks(layout.schedule, layout.pp, layout.chunks, layout.micro_batches)
    return tuple(
        _stage(model, layout, stage, places, kept, alive[stage]) for stage, places in enumerate(_places(model, layout))
    )


def check_fits(
    model: Model, layout: Layout, device: Device, *, fused_attention: bool = True
) -> tuple[StageMemory, ...]:
    """The memory of a layout that fits on the device; the error of another names what binds and what would work."""
    stages = memory(model, layout, fused_attention=fused_attention)
    if device.memory_bytes is None:
        raise UnsupportedError(f"the memory of {device.name} is not known, so no layout can be checked against it")
    fullest = max(stages, key=lambda stage: stage.total)
    if fullest.total <= device.memory_bytes:
        return stages
    part = max(PARTS, key=lambda name: int(getattr(fullest, name)))
    held = int(getattr(fullest, part))
    raise UnsupportedError(
        f"{model.name} does not fit: stage {fullest.stage} needs {fullest.total / GIB:,.1f} GiB, {device.name} has "
        f"{device.memory_bytes / GIB:,.1f}; most of it is {part}, {held / GIB:,.1f} GiB.\n"
        f"{_advice(model, layout, device.memory_bytes, fused_attention=fused_attention)}"
    )


def _advice(model: Model, layout: Layout, room: int, *, fused_attention: bool) -> str:
    """The fewest changes with which the layout fits, by the same computation of memory."""

    def fits(changed: Layout) -> bool:
        return max(stage.total for stage in memory(model, changed, fused_attention=fused_attention)) <= room

    for together in range(1, MOST_TOGETHER + 1):
        ways = (way for kinds in combinations(_changes(layout), together) if (way := _first(layout, kinds, fits)))
        if named := list(islice(ways, MOST_NAMED)):
            return f"{'Any of these makes' if len(named) > 1 else 'This makes'} room: {'; '.join(named)}."
    return (
        f"Nothing tried makes room: up to {MOST_TOGETHER} changes together of sp, recompute, mbs, sharding, tp (up to "
        f"{MOST_TP}), cp and pp, the last three up to {_FACTORS[-1]} times as high. It takes more GPUs than that, or "
        "more memory on each."
    )


_Change = dict[str, Any]  # fields of a layout


def _changes(layout: Layout) -> list[list[_Change]]:
    """What may make a layout smaller, by kind; of each kind the mildest change first."""
    modes = ("none", "selective", "ops", "full")
    smaller = range(layout.micro_batch - 1, 0, -1)
    kinds: list[list[_Change]] = [
        [{"sp": True}] if layout.tp > 1 and not layout.sp else [],
        [{"recompute": mode} for mode in modes[modes.index(layout.recompute) + 1 :]],
        [{"micro_batch": size} for size in smaller if layout.micro_batch % size == 0],
        [{"sharding": sharding} for sharding in _more_sharding(layout)],
        [{"tp": factor * layout.tp} for factor in _FACTORS if factor * layout.tp <= MOST_TP],
        *([{degree: factor * getattr(layout, degree)} for factor in _FACTORS] for degree in ("cp", "pp")),
    ]
    return [changes for changes in kinds if changes]


def _more_sharding(layout: Layout) -> tuple[str, ...]:
    if layout.dp * layout.cp == 1 or layout.sharding in FULLY_SHARDED:
        return ()
    return ("zero1", "fsdp") if layout.sharding == "none" else ("fsdp",)


def _first(layout: Layout, kinds: tuple[list[_Change], ...], fits: Callable[[Layout], bool]) -> str | None:
    """The mildest changes, one of each kind, with which a layout fits; None where none do."""
    for chosen in product(*kinds):
        changes = {field: value for change in chosen for field, value in change.items()}
        try:
            changed = _with(layout, changes)
            if fits(changed):
                return ",".join(_as_written(layout, changed, changes))
        except InputError:  # the model or the batch does not divide so
            continue
    return None


def _with(layout: Layout, changes: _Change) -> Layout:
    """The changed layout on as many GPUs, with fewer replicas; on more where these do not divide."""
    times = 1
    for degree in ("tp", "cp", "pp"):
        times *= changes.get(degree, getattr(layout, degree)) // getattr(layout, degree)
    return replace(layout, **changes, dp=layout.dp // times if layout.dp % times == 0 else layout.dp)


def _as_written(layout: Layout, changed: Layout, changes: _Change) -> Iterator[str]:
    """The changes as a layout is written."""
    for field, value in changes.items():
        yield field if value is True else f"{'mbs' if field == 'micro_batch' else field}={value}"
    if changed.dp != layout.dp:
        yield f"dp={changed.dp}"
    if changed.gpus != layout.gpus:
        yield f"dp={changed.dp} on {changed.gpus:,} GPUs"


class _Pair(NamedTuple):
    """A quantity of a layer without experts and of one with them."""

    dense: float
    moe: float

    def of(self, layers: _Pair) -> float:
        return self.dense * layers.dense + self.moe * layers.moe


def _places(model: Model, layout: Layout) -> list[list[_Pair]]:
    """Layers of each chunk of each stage. Layers without experts come first in the model."""
    without = model.layers - model.moe_layers
    layers = layout.layers_of(model)
    stages: list[list[_Pair]] = [[] for _ in range(layout.pp)]
    for route in routes(layout.schedule, layout.pp, layout.chunks):
        begin = 0.0
        for stage, _ in route:
            size = layers[stage] * layout.pp / len(route)
            dense = min(max(0.0, without - begin), size)
            stages[stage].append(_Pair(dense, size - dense))
            begin += size
    return stages


def _stage(model: Model, layout: Layout, stage: int, places: list[_Pair], kept: _Pair, alive: int) -> StageMemory:
    layers = _Pair(sum(place.dense for place in places), sum(place.moe for place in places))
    alike, routed = _layer_parameters(model, layout)
    first, last = _ends(layout)
    embeddings = model.embedding_parameters / layout.tp
    ends = (stage in first) + (stage in last) - (model.tied_embeddings and stage in first and stage in last)
    held = alike.of(layers) + ends * embeddings
    experts = routed.of(layers)
    replicas = layout.dp * layout.cp
    expert_replicas = max(1, layout.tp * layout.cp * layout.dp // layout.ep)
    if layout.sharding == "hsdp" and layout.shard_group is not None:
        replicas = layout.shard_group
        expert_replicas = min(expert_replicas, layout.shard_group)

    def spread(size: float) -> float:
        """Bytes of a part with `size` bytes per parameter, divided over replicas."""
        return size * (held / replicas + experts / expert_replicas)

    whole, gradient = held + experts, GRADIENT // 2 if layout.gradients == "bf16" else GRADIENT
    if layout.sharding in FULLY_SHARDED:
        gathered = GATHERED_LAYERS * HALF * max(alike.dense + routed.dense, alike.moe + routed.moe)
        weights, gradients, optimizer = spread(SHARDED_WEIGHT) + gathered, spread(gradient), spread(SHARDED_OPTIMIZER)
    else:
        weights, gradients, optimizer = WEIGHT * whole, gradient * whole, OPTIMIZER * whole
        if layout.sharding != "none":
            optimizer = spread(OPTIMIZER)
        if layout.sharding == "zero2":
            gradients = spread(gradient)
    if layout.adapters:
        gradients = optimizer = 0.0
    tokens = model.seq * layout.micro_batch / layout.cp
    return StageMemory(
        stage=stage,
        weights=round(weights),
        gradients=round(gradients),
        optimizer=round(optimizer),
        activations=round(alive / len(places) * kept.of(layers)),
        logits=round(LOGIT_BYTES * tokens * model.vocab / layout.tp) if stage in last else 0,
        buffers=round(RUNTIME_BYTES + _working_bytes(model, layout)),
    )


def _ends(layout: Layout) -> tuple[set[int], set[int]]:
    """Stages with the embedding, and those with the output projection."""
    paths = routes(layout.schedule, layout.pp, layout.chunks)
    return {path[0][0] for path in paths}, {path[-1][0] for path in paths}


def _layer_parameters(model: Model, layout: Layout) -> tuple[_Pair, _Pair]:
    """Of one layer on one GPU: those that replicas hold alike, and those of routed experts."""
    attention = model.attention_parameters
    alike = _Pair(
        (attention + model.dense_mlp_parameters) / layout.tp, (attention + model.shared_parameters) / layout.tp
    )
    count = model.experts.count if model.experts else 0
    return alike, _Pair(0.0, model.expert_parameters * count / layout.ep)


def activation_bytes(model: Model, layout: Layout, *, fused_attention: bool = True) -> _Pair:
    """What one micro batch leaves in a layer for the backward pass: without experts, and with them."""
    tokens = model.seq * layout.micro_batch / layout.cp
    alike = tokens / (layout.tp if layout.sp else 1)  # where every tp rank holds the same, unless sp divides it
    divided = tokens / layout.tp
    if layout.recompute == "full":
        kept = HALF * alike * model.hidden
        return _Pair(kept, kept)
    residual = 4 * model.hidden  # input and output of two norms
    kept = HALF * (alike * residual + divided * _attention_width(model))
    if not fused_attention:
        kept += 2 * alike * model.hidden  # dropout masks, a byte each
        if layout.recompute == "none":  # scores, their softmax, its dropout
            kept += 5 * divided * model.heads * model.seq
    mlp = _mlp_width(model)
    if layout.recompute == "ops":  # results of every second product
        kept, mlp = kept / 2, _Pair(mlp.dense / 2, mlp.moe / 2)
    return _Pair(kept + HALF * divided * mlp.dense, kept + HALF * divided * mlp.moe)


def _attention_width(model: Model) -> float:
    """Numbers per token: queries, keys, values and the result of attention."""
    mla = model.latent
    if mla is None:
        return model.head_dim * 2 * (model.heads + model.kv_heads)
    low = 2 * (mla.query_rank + mla.key_value_rank) + mla.rotary_dim  # before and after their norms
    return low + model.heads * (2 * (model.head_dim + mla.rotary_dim) + 2 * mla.value_dim)


def _mlp_width(model: Model) -> _Pair:
    """Numbers per token: the hidden layer before and after its activation."""
    hidden = model.mlp_matrices  # gated: gate, up and their product; else before and after
    dense = hidden * model.ffn
    if model.experts is None:
        return _Pair(dense, 0.0)
    routed = model.experts.top_k * (hidden * model.experts.ffn + 2 * model.hidden)  # with tokens sent and returned
    return _Pair(dense, routed + hidden * model.experts.shared * model.experts.shared_ffn)


def _working_bytes(model: Model, layout: Layout) -> float:
    """Gradients of one layer's activations while they are in use; with recomputation, also its activations."""
    tokens = model.seq * layout.micro_batch / layout.cp / layout.tp
    mlp = max(_mlp_width(model))
    gradients = HALF * tokens * mlp
    if layout.recompute != "full":
        return gradients
    return gradients + HALF * tokens * (_attention_width(model) + mlp + 4 * model.hidden)


@lru_cache(maxsize=1024)
def alive_chunks(name: Schedule, stages: int, chunks: int, micro_batches: int) -> tuple[int, ...]:
    """Activations that each stage holds at most, counted in micro batches of one chunk."""
    if name == "gpipe":
        return (micro_batches,) * stages
    if name == "zb-2p":  # the limit that its order is made for
        return (min(micro_batches, 2 * stages),) * stages
    short, repeats = shortened(name, stages, chunks, micro_batches)
    orders = repeating_schedule(name, stages, chunks, short)
    return tuple(_most_alive(order.unrolled(min(repeats, 1))) for order in orders)


def _most_alive(order: Order) -> int:
    """Forward passes whose weights' gradients are still to come, at most."""
    alive = most = 0
    split = {(task.micro_batch, task.chunk) for task in order if task.kind == "W"}
    for task in order:
        if task.kind == "F":
            alive += 1
            most = max(most, alive)
        elif task.kind == "W" or (task.micro_batch, task.chunk) not in split:
            alive -= 1
    return most
