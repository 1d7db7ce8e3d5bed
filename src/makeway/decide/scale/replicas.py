"""What replicas exchange in a step: gradients and parameters, beside compute or after it."""

from __future__ import annotations

from dataclasses import dataclass

from makeway.decide.scale.collectives import collective_ns
from makeway.decide.scale.overlap import Overlap, beside
from makeway.decide.scale.stages import Chunk, Pricing
from makeway.values.cluster import Group
from makeway.values.collective import CollectiveKind
from makeway.values.layout import Layout
from makeway.values.model import Model

WEIGHT_BYTES = 2
FULLY_SHARDED = ("zero3", "fsdp", "hsdp")


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters on one GPU of a stage: those that all replicas share, and those of its experts."""

    dense: float
    experts: float

    @property
    def total(self) -> float:
        return self.dense + self.experts


def gradient_bytes(layout: Layout) -> int:
    """Of one gradient on the wire: fp16 training reduces 16 bits, bf16 and fp8 accumulate and reduce 32."""
    return 2 if layout.precision == "fp16" else 4


def layer_parameters(model: Model, layout: Layout, *, experts: bool) -> Held:
    """Parameters of one layer on one GPU, before replicas share them."""
    attention = model.attention_parameters / layout.tp
    if not experts:
        return Held(attention + model.dense_mlp_parameters / layout.tp, 0.0)
    assert model.experts is not None
    routed = model.experts.count * model.expert_parameters / layout.ep
    return Held(attention + model.shared_parameters / layout.tp, routed)


def end_parameters(model: Model, layout: Layout) -> float:
    """Parameters of the embedding, or of the output projection, on one GPU."""
    return model.embedding_parameters / layout.tp


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What the exchange between replicas adds to a step."""

    exposed_ns: float
    contention_ns: float


def exchange_ns(pricing: Pricing, kind: CollectiveKind, held: Held, width: float) -> float:
    """The time of one exchange of `width` bytes per parameter between all replicas, alone."""
    layout = pricing.layout
    replicas = Group(size=layout.dp * layout.cp, stride=layout.tp)
    total = collective_ns(pricing.cluster, kind, held.dense * width, replicas).ns
    if held.experts:
        size = layout.tp * layout.cp * layout.dp // layout.ep
        total += collective_ns(pricing.cluster, kind, held.experts * width, Group(size=size, stride=layout.ep)).ns
    return total


def replicated(pricing: Pricing, held: Held, first: Chunk, last: Chunk) -> Exchanged:
    """Replicas that hold all parameters: gradients after the last micro batch, sharded optimizers gather after it.

    `first` and `last` are the compute of the first and the last micro batch that can hide them.
    """
    layout = pricing.layout
    if layout.dp * layout.cp == 1:
        return Exchanged(0.0, 0.0)
    gradients = gradient_bytes(layout)
    if layout.sharding == "none":
        reduce, gather = exchange_ns(pricing, "all-reduce", held, gradients), 0.0
        kind: CollectiveKind = "all-reduce"
    else:
        reduce = exchange_ns(pricing, "reduce-scatter", held, gradients)
        gather = exchange_ns(pricing, "all-gather", held, WEIGHT_BYTES)
        kind = "reduce-scatter"
    if not layout.overlap_dp:
        return Exchanged(reduce + gather, 0.0)
    buckets = max(1.0, held.total * gradients / layout.bucket_bytes)
    back = beside(pricing, last.input.ns + last.weight.ns, reduce * (1 - 1 / buckets), kind)
    ahead = beside(pricing, first.forward.ns, gather * (1 - 1 / buckets), "all-gather")
    return Exchanged(
        (reduce + gather) / buckets + back.exposed_ns + ahead.exposed_ns, back.contention_ns + ahead.contention_ns
    )


def fully_sharded(pricing: Pricing, held: Held, chunk: Chunk) -> Exchanged:
    """Replicas that hold a part of each layer: every micro batch gathers each layer twice and scatters gradients.

    `held` and `chunk` are of the whole stage. One layer's exchange runs beside the compute of its neighbour.
    """
    layout, layers = pricing.layout, max(1, chunk.layers)
    gather = exchange_ns(pricing, "all-gather", _part(held, layers), WEIGHT_BYTES)
    scatter = exchange_ns(pricing, "reduce-scatter", _part(held, layers), gradient_bytes(layout))
    if not layout.overlap_dp:
        return Exchanged(layers * (2 * gather + scatter), 0.0)
    ahead = beside(pricing, chunk.forward.ns / layers, gather, "all-gather")
    back = beside(pricing, (chunk.input.ns + chunk.weight.ns) / layers, gather + scatter, "reduce-scatter")
    return Exchanged(
        layers * (ahead.exposed_ns + back.exposed_ns) + gather + scatter,
        layers * (ahead.contention_ns + back.contention_ns),
    )


def _part(held: Held, layers: int) -> Held:
    return Held(held.dense / layers, held.experts / layers)


__all__ = ["Exchanged", "Held", "Overlap", "fully_sharded", "replicated"]
