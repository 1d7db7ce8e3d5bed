"""Every layout that divides a model, a batch and a cluster: what a search looks at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from makeway.values.cluster import Cluster
from makeway.values.errors import InputError
from makeway.values.layout import Layout, Precision, Recompute, Schedule, Sharding
from makeway.values.model import Model

MOST_TP = 64  # beyond it no published run goes
MOST_PP = 64
MICRO_BATCHES = (1, 2, 4, 8)
LEAST_TOKENS = 2048  # of a sequence on one GPU, below which context parallelism does not go
MOST_CHUNKS = 8
_ONE_CHUNK: tuple[Schedule, ...] = ("1f1b", "zb-h1")
_TWO_CHUNKS: tuple[Schedule, ...] = ("zbv", "dualpipev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a search leaves open: the GPUs, the batch, and what the software can do."""

    gpus: int
    global_batch: int
    precision: Precision = "bf16"
    overlap_tp: bool = False
    graphs: bool = False
    runs: tuple[Schedule, ...] | None = None  # schedules of a framework, with even stages only; None: all
    recomputes: tuple[Recompute, ...] = ("none", "full")  # selective saves nothing with fused attention


BATCH_TOKENS = 4 * 2**20  # of a global batch, where none is given


def default_batch(model: Model, gpus: int) -> int:
    """Sequences of a step where nobody says: about 4 Mi tokens, and a whole number per GPU."""
    return gpus * max(1, round(BATCH_TOKENS / model.seq / gpus))


def layouts(model: Model, cluster: Cluster, bounds: Bounds) -> Iterator[Layout]:
    """All layouts of a search, in a fixed order: tensor parallelism inside a node, even stages, whole micro batches."""
    if not any(True for _ in _divisions(model, cluster, bounds)):
        raise InputError(
            f"no layout divides {bounds.gpus:,} GPUs and a global batch of {bounds.global_batch:,} for {model.name}; "
            f"take a number of GPUs that is a power of two, and a batch that is a multiple of it"
        )
    for tp, cp, pp, dp in _divisions(model, cluster, bounds):
        for mbs, ep, sharding, recompute in product(
            MICRO_BATCHES, _expert_parts(model, tp * cp * dp), _shardings(pp, dp), bounds.recomputes
        ):
            if bounds.global_batch % (dp * mbs):
                continue
            micro_batches = bounds.global_batch // (dp * mbs)
            uneven = stage_layers(model.layers, pp)
            if uneven and bounds.runs is not None:
                continue
            for schedule, vp in _schedules(0 if uneven else model.layers // pp, pp, micro_batches):
                if bounds.runs is not None and schedule not in bounds.runs:
                    continue
                yield Layout(
                    tp=tp,
                    cp=cp,
                    ep=ep,
                    pp=pp,
                    vp=vp,
                    dp=dp,
                    sp=tp > 1,
                    sharding=sharding,
                    micro_batch=mbs,
                    global_batch=bounds.global_batch,
                    recompute=recompute,
                    schedule=schedule,
                    precision=bounds.precision,
                    overlap_tp=bounds.overlap_tp and tp > 1,
                    overlap_pp=schedule == "interleaved",
                    graphs=bounds.graphs,
                    stage_layers=uneven,
                )


def _divisions(model: Model, cluster: Cluster, bounds: Bounds) -> Iterator[tuple[int, int, int, int]]:
    """(tp, cp, pp, dp) whose product is the number of GPUs."""
    inside = cluster.levels[0].gpus or bounds.gpus
    for tp in divisors(model.heads, min(inside, MOST_TP)):
        if (model.ffn and model.ffn % tp) or inside % tp:
            continue
        for cp in _powers(max(1, model.seq // LEAST_TOKENS)):
            if model.seq % cp or tp * cp > bounds.gpus:
                continue
            for pp in _pipelines(model.layers):
                rest, left = divmod(bounds.gpus, tp * cp * pp)
                if not left and rest and not bounds.global_batch % rest:
                    yield tp, cp, pp, rest


def _pipelines(layers: int) -> tuple[int, ...]:
    """Stages that divide the layers, and powers of two that do not: Llama 3 405B trains 126 layers on 16 stages."""
    powers = {1 << power for power in range(7) if 1 << power <= min(layers, MOST_PP)}
    return tuple(sorted({*divisors(layers, MOST_PP), *powers}))


def stage_layers(layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each stage where they do not divide: the first and the last, with the ends, get the fewest."""
    each, more = divmod(layers, pp)
    if not more:
        return ()
    before = (pp - more) // 2 + (pp - more) % 2
    return tuple(each + (before <= stage < before + more) for stage in range(pp))


def divisors(number: int, most: int) -> tuple[int, ...]:
    """The divisors of a number up to `most`."""
    return tuple(divisor for divisor in range(1, min(number, most) + 1) if number % divisor == 0)


def _powers(most: int) -> tuple[int, ...]:
    """1, 2, 4 ... up to 16: context parallelism of published runs."""
    return tuple(power for power in (1, 2, 4, 8, 16) if power <= most)


def _expert_parts(model: Model, ranks: int) -> tuple[int, ...]:
    if model.experts is None:
        return (1,)
    return tuple(ep for ep in divisors(model.experts.count, ranks) if ranks % ep == 0)


def _shardings(pp: int, dp: int) -> tuple[Sharding, ...]:
    """With a pipeline every micro batch would gather each layer again, so full sharding stays without one."""
    if dp == 1:
        return ("none",)
    return ("zero1", "fsdp") if pp == 1 else ("zero1",)


def _schedules(layers: int, pp: int, micro_batches: int) -> Iterator[tuple[Schedule, int]]:
    """Schedules and chunks per stage that these layers and micro batches allow; 0 layers: uneven, so one chunk."""
    if pp == 1:
        yield "1f1b", 1
        return
    for schedule in _ONE_CHUNK:
        yield schedule, 1
    if not layers:
        return
    if micro_batches % pp == 0:
        for vp in divisors(layers, MOST_CHUNKS)[1:]:
            yield "interleaved", vp
    if layers % 2 == 0 and micro_batches >= 2 * pp:
        for schedule in _TWO_CHUNKS:
            yield schedule, 2
