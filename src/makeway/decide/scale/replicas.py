"""What replicas exchange in a step: gradients and parameters, beside compute or after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from makeway.decide.planning.host import compression_ns
from makeway.decide.scale.collectives import CollectiveTime, collective_ns
from makeway.decide.scale.overlap import KernelClass, Kernels, Overlap, Traffic, beside
from makeway.decide.scale.stages import Chunk, Part, Pricing
from makeway.model.compression import compressed
from makeway.values.cluster import Group
from makeway.values.collective import CollectiveKind
from makeway.values.layout import Compression, Layout
from makeway.values.model import Model

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
    """Of one gradient on the wire: fp16 training reduces 16 bits, others what the layout says."""
    return 2 if layout.precision == "fp16" or layout.gradients == "bf16" else 4


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
    compression_ns: float = 0.0  # encoding and decoding, on the compute stream


def exchange(pricing: Pricing, kind: CollectiveKind, held: Held, width: float, *, pieces: float = 1.0) -> Traffic:
    """One exchange of `width` bytes per parameter between all replicas, alone."""
    layout = pricing.layout
    times = [_in_pieces(pricing, kind, held.dense * width, _replicas(layout), pieces)]
    if held.experts:
        size = layout.tp * layout.cp * layout.dp // layout.ep
        group = Group(size=size, stride=layout.ep)
        times.append(collective_ns(pricing.cluster, kind, held.experts * width, group))
    return Traffic(kind, sum([time.ns for time in times]), sum([time.wire_bytes for time in times]))


def _in_pieces(pricing: Pricing, kind: CollectiveKind, size: float, group: Group, pieces: float) -> CollectiveTime:
    """A collective; on a CPU host in so many calls, each of which takes milliseconds whatever its size."""
    if pricing.cluster.device.vendor != "cpu":
        return collective_ns(pricing.cluster, kind, size, group)
    each = collective_ns(pricing.cluster, kind, size / pieces, group)
    return replace(each, ns=each.ns * pieces, wire_bytes=each.wire_bytes * pieces)


def _replicas(layout: Layout) -> Group:
    """The ranks that share parameters; an HSDP copy is gathered inside its own group."""
    if layout.sharding == "hsdp" and layout.shard_group:
        return Group(size=layout.shard_group, stride=layout.tp * layout.cp)
    return Group(size=layout.dp * layout.cp, stride=layout.tp)


def replicated(pricing: Pricing, held: Held, whole: Chunk) -> Exchanged:
    """Replicas that hold all parameters: gradients after the last micro batch, sharded optimizers gather after it.

    `whole` is the stage's compute of one micro batch: the last can hide gradients, the first can hide parameters.
    """
    layout = pricing.layout
    if layout.dp * layout.cp == 1:
        return Exchanged(0.0, 0.0)
    gradients = gradient_bytes(layout)
    buckets = max(1.0, held.total * gradients / layout.bucket_bytes)
    if layout.sharding == "none":
        sums, gather = exchange(pricing, "all-reduce", held, gradients, pieces=buckets), None
    else:
        sums = exchange(pricing, "reduce-scatter", held, gradients, pieces=buckets)
        gather = exchange(pricing, "all-gather", held, pricing.speed.element_bytes, pieces=buckets)
    after = sums.ns + (gather.ns if gather else 0.0)
    kernels_ns = 0.0
    if layout.compression is not None:
        sums, kernels_ns = _compressed(pricing, layout.compression, held, sums, buckets)
        after = sums.ns + (gather.ns if gather else 0.0)
    if not layout.overlap_dp:
        return Exchanged(after, 0.0, kernels_ns)
    parts = [_hidden(pricing, (whole.input, whole.weight), sums, buckets)]
    if gather:
        parts.append(_hidden(pricing, (whole.forward,), gather, buckets))
    return Exchanged(
        after / buckets + sum([part.exposed_ns for part in parts]),
        sum([part.contention_ns for part in parts]),
        kernels_ns,
    )


def _compressed(
    pricing: Pricing, compression: Compression, held: Held, sums: Traffic, buckets: float
) -> tuple[Traffic, float]:
    """The exchange of gradients under a compression, and the time of its kernels."""
    group = _replicas(pricing.layout)
    small = compressed(compression, held.total, group.size, element_bytes=gradient_bytes(pricing.layout))
    times = [
        # A cast leaves the kind as it is: reduce-scatter with a sharded optimizer.
        _in_pieces(
            pricing, sums.kind if sent.kind == "all-reduce" else sent.kind, sent.size_bytes, group, pieces=buckets
        )
        for sent in small.sent
    ]
    kernels_ns = compression_ns(pricing.cluster.device, compression.kind, held.total)
    if kernels_ns is None:
        kernels_ns = sum(small.kernels_ns(pricing.speed.hbm_bytes_per_s, pricing.speed.flops_per_s))
    kind = small.sent[-1].kind if small.sent[-1].kind != "all-reduce" else sums.kind
    traffic = Traffic(kind, sum([time.ns for time in times]), sum([time.wire_bytes for time in times]))
    return traffic, kernels_ns


def _hidden(pricing: Pricing, phases: Sequence[Part], traffic: Traffic, buckets: float) -> Overlap:
    """All but one bucket beside these phases, of which one bucket's part has nothing to exchange yet or any more."""
    share = 1 - 1 / buckets
    rest = Traffic(traffic.kind, traffic.ns * share, traffic.wire_bytes * share, launches=buckets - 1)
    return _beside(pricing, phases, rest, share)


def _beside(pricing: Pricing, phases: Sequence[Part], traffic: Traffic, share: float) -> Overlap:
    """Traffic beside a share of these phases."""
    kernels: dict[KernelClass, Kernels] = {}
    for part in phases:
        for kernel, its in part.kernels.items():
            kernels.setdefault(kernel, Kernels()).add(its.ns, its.square_ns, share)
    # While the host is late or another exchange runs, the device is idle and hides communication at no cost.
    idle = sum([part.ns for part in phases]) * share - sum([its.ns for its in kernels.values()])
    left = max(0.0, traffic.ns - max(0.0, idle))
    busy = left / traffic.ns if traffic.ns else 0.0
    rest = Traffic(traffic.kind, left, traffic.wire_bytes * busy, traffic.launches * busy)
    return beside(pricing.cluster.device, kernels, rest, pricing.controls, contention=pricing.contention)


def fully_sharded(pricing: Pricing, held: Held, chunk: Chunk) -> Exchanged:
    """Replicas that hold a part of each layer: every micro batch gathers each layer twice and scatters gradients.

    `held` and `chunk` are of the whole stage. One layer's exchange runs beside the compute of its neighbour.
    """
    layout, layers = pricing.layout, max(1, chunk.layers)
    each = Held(held.dense / layers, held.experts / layers)
    gather = exchange(pricing, "all-gather", each, pricing.speed.element_bytes)
    scatter = exchange(pricing, "reduce-scatter", each, gradient_bytes(layout))
    if not layout.overlap_dp:
        return Exchanged(layers * (2 * gather.ns + scatter.ns), 0.0)
    back = Traffic("reduce-scatter", gather.ns + scatter.ns, gather.wire_bytes + scatter.wire_bytes, launches=2)
    parts = [
        _beside(pricing, (chunk.forward,), gather, 1 / layers),
        _beside(pricing, (chunk.input, chunk.weight), back, 1 / layers),
    ]
    exposed = sum([part.exposed_ns for part in parts])
    contention = sum([part.contention_ns for part in parts])
    return Exchanged(layers * exposed + gather.ns + scatter.ns, layers * contention)
