"""What each pipeline stage runs for one micro batch, and how long each part of it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from makeway.decide.scale.collectives import collective_ns
from makeway.decide.scale.generation import Generation
from makeway.decide.scale.layer import ALL, ELEMENT, Attention, Dimension, Exchange, Op, Pass, Product, layer_work
from makeway.decide.scale.overlap import KernelClass, Kernels, Traffic, beside, in_pieces, meeting
from makeway.decide.scale.timing import Rates, compute_ns, rates
from makeway.values.cluster import Cluster, Group
from makeway.values.control import Control
from makeway.values.layout import TWO_CHUNK_SCHEDULES, Layout
from makeway.values.model import Model
from makeway.values.step import StepLineKind

HEAD_OPERATIONS = 14  # of the host, for the output projection and the loss; assumed
# Bytes per logit of the loss: forward casts to 32 bits, finds the largest, exponentiates and sums; backward writes.
LOSS_BYTES, LOSS_BACKWARD_BYTES = 16, 8
_EXPOSED: dict[Dimension, StepLineKind] = {"tp": "exposed-tp", "cp": "exposed-cp", "ep": "exposed-ep"}


@dataclass(slots=True)
class Part:
    """Time of one micro batch in one phase of one chunk, by kind."""

    lines: dict[StepLineKind, float] = field(default_factory=dict)
    kernels: dict[KernelClass, Kernels] = field(default_factory=dict)  # on the GPU

    @property
    def ns(self) -> float:
        return sum(self.lines.values())

    def add(self, kind: StepLineKind, ns: float) -> None:
        if ns:
            self.lines[kind] = self.lines.get(kind, 0.0) + ns

    def run(self, kernel: KernelClass, ns: float) -> None:
        self.kernels.setdefault(kernel, Kernels()).add(ns, ns * ns)

    def plus(self, other: Part, times: float = 1.0) -> None:
        for kernel, kernels in other.kernels.items():
            self.kernels.setdefault(kernel, Kernels()).add(kernels.ns, kernels.square_ns, times)
        for kind, ns in other.lines.items():
            self.add(kind, ns * times)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One part of the model on one stage: forward, backward by input and by weight, recompute in the former."""

    layers: int
    forward: Part
    input: Part
    weight: Part


def phases(chunk: Chunk) -> tuple[Part, Part, Part]:
    """Forward, and the two halves of backward."""
    return chunk.forward, chunk.input, chunk.weight


def added(chunks: Iterable[tuple[Chunk, float]]) -> Chunk:
    """Chunks that one stage runs, each so many times."""
    totals, layers = (Part(), Part(), Part()), 0.0
    for chunk, times in chunks:
        layers += chunk.layers * times
        for total, part in zip(totals, phases(chunk), strict=True):
            total.plus(part, times)
    return Chunk(round(layers), *totals)


@dataclass(frozen=True, slots=True)
class Pricing:
    """Everything that the time of an operation depends on besides the operation."""

    model: Model
    layout: Layout
    cluster: Cluster
    generation: Generation
    contention: bool

    @property
    def speed(self) -> Rates:
        return rates(self.cluster.device, self.generation)

    def widened(self, size: float) -> float:
        """Bytes of elements of two bytes, as wide as this device's elements are."""
        return size * self.speed.element_bytes / ELEMENT

    def group(self, over: Dimension) -> Group:
        layout = self.layout
        match over:
            case "tp":
                return Group(size=layout.tp)
            case "cp":
                return Group(size=layout.cp, stride=layout.tp)
            case "ep":
                return Group(size=layout.ep)

    def traffic(self, exchange: Exchange) -> Traffic:
        """One exchange of a layer, alone."""
        group, size = self.group(exchange.over), self.widened(exchange.bytes)
        if exchange.kind == "send-recv":  # around a ring, one neighbour at a time
            steps = group.size - 1
            hop = Group(size=2, stride=group.stride if group.span <= self._node else self._node)
            time = collective_ns(self.cluster, "send-recv", size / steps, hop)
            return Traffic(exchange.kind, steps * time.ns, size)
        time = collective_ns(self.cluster, exchange.kind, size, group, copies=exchange.copies)
        return Traffic(exchange.kind, time.ns, time.wire_bytes)

    @property
    def controls(self) -> tuple[Control, ...]:
        return self.layout.controls

    @property
    def _node(self) -> int:
        return self.cluster.levels[0].gpus or 1 << 30


@lru_cache(maxsize=512)
def tuned(cluster: Cluster, generation: Generation) -> Cluster:
    """A cluster whose networks between nodes reach what this generation's runs reach."""
    inner, *outer = cluster.levels
    slowed = (replace(level, efficiency=min(1.0, level.efficiency * generation.network_share)) for level in outer)
    return replace(cluster, levels=(inner, *slowed))


@dataclass(frozen=True, slots=True)
class LayerParts:
    """One layer for one micro batch; recompute is part of `input`."""

    forward: Part
    input: Part
    weight: Part


def layer_parts(pricing: Pricing, *, experts: bool) -> LayerParts:
    """The time of one layer by phase and kind, communication across replicas left out."""
    return _layer_parts(replace(pricing, layout=layer_shape(pricing.layout)), experts)


@lru_cache(maxsize=4096)
def _layer_parts(pricing: Pricing, experts: bool) -> LayerParts:
    layout = pricing.layout
    work = layer_work(
        pricing.model,
        layout,
        fused=pricing.generation.fused_attention,
        experts=experts,
        fused_experts=pricing.generation.fused_experts,
    )
    forward = _phase(pricing, work.forward)
    back, weight = _phase(pricing, work.input), _phase(pricing, work.weight)
    again, operations = Part(), work.backward_operations
    if layout.recompute == "full":
        again.plus(forward)
        operations += work.forward_operations
    elif layout.recompute == "selective" and not pricing.generation.fused_attention:
        again.plus(_phase(pricing, work.core))
    elif layout.recompute == "ops":
        again.plus(_phase(pricing, [op for op in work.forward if isinstance(op, Pass)]))
        again.plus(_phase(pricing, [op for op in work.forward if isinstance(op, Product)]), 1 / 2)
        operations += work.forward_operations // 2
    if again.lines:
        back.add("recompute", again.lines.pop("compute", 0.0))
        back.plus(again)
    _wait_for_host(pricing, forward, work.forward_operations)
    on_gpu = back.ns + weight.ns
    late = max(0.0, _host_ns(pricing, operations) - on_gpu)
    back.add("host", late * back.ns / on_gpu)
    weight.add("host", late - back.lines.get("host", 0.0))
    return LayerParts(forward, back, weight)


@lru_cache(maxsize=65536)
def layer_shape(layout: Layout) -> Layout:
    """The layout as far as a layer's operations depend on it, so that many layouts share them."""
    return Layout(
        tp=layout.tp,
        cp=layout.cp,
        ep=layout.ep,
        dp=layout.ep,
        sp=layout.sp,
        micro_batch=layout.micro_batch,
        global_batch=layout.micro_batch * layout.ep,
        recompute=layout.recompute,
        precision=layout.precision,
        gradients=layout.gradients,
        overlap_tp=layout.overlap_tp,
        overlap_ep=layout.overlap_ep,
        dispatcher=layout.dispatcher,
        adapters=layout.adapters,
        graphs=layout.graphs,
        controls=layout.controls,
    )


def _phase(pricing: Pricing, ops: Iterable[Op]) -> Part:
    part, speed, precision = Part(), pricing.speed, pricing.layout.precision
    times: dict[str, tuple[KernelClass, float]] = {}
    exchanges: list[Exchange] = []
    for op in ops:
        if isinstance(op, Exchange):
            exchanges.append(op)
            continue
        kernel: KernelClass = (
            "product" if isinstance(op, Product) else "attention" if isinstance(op, Attention) else "pass"
        )
        ns = compute_ns(op, speed, precision)
        part.add("compute", ns)
        slower = _under_controls(pricing, kernel)
        part.add("contention", ns * (slower - 1))
        part.run(kernel, ns * slower)
        times[op.name] = kernel, ns * slower
    for exchange in exchanges:
        traffic = pricing.traffic(exchange)
        device, controls = pricing.cluster.device, pricing.controls
        if exchange.beside == ALL:
            shared = sum(item.beside == ALL for item in exchanges)
            kernels = {kernel: Kernels(its.ns / shared, its.square_ns / shared) for kernel, its in part.kernels.items()}
            outcome = beside(device, kernels, traffic, controls, contention=pricing.contention)
        elif exchange.beside in times:
            kernel, ns = times[exchange.beside]
            outcome = in_pieces(device, kernel, ns, traffic, controls, contention=pricing.contention)
        else:
            part.add(_EXPOSED[exchange.over], traffic.ns)
            continue
        part.add(_EXPOSED[exchange.over], outcome.exposed_ns)
        part.add("contention", outcome.contention_ns)
    return part


_ANY_TRAFFIC = Traffic("all-gather", 1.0, 10.0)  # kernels alone do not depend on it


def _under_controls(pricing: Pricing, kernel: KernelClass) -> float:
    """What controls do to kernels with nothing beside them: partitions and pads cost compute all the time."""
    if not (pricing.controls and pricing.contention):
        return 1.0
    return meeting(pricing.cluster.device, kernel, _ANY_TRAFFIC, pricing.controls).alone


def _host_ns(pricing: Pricing, operations: int) -> float:
    return 0.0 if pricing.layout.graphs else operations * pricing.generation.host_ns


def _wait_for_host(pricing: Pricing, part: Part, operations: int) -> None:
    part.add("host", max(0.0, _host_ns(pricing, operations) - part.ns))


def _embedding(pricing: Pricing) -> LayerParts:
    tokens, hidden_size = _tokens(pricing), pricing.model.hidden
    size = float(tokens * hidden_size)
    exchange = _sum_over_tp(pricing, "embedding sum", size * ELEMENT)
    forward = _phase(pricing, (Pass("embedding", 2 * size * ELEMENT), *exchange))
    if pricing.layout.adapters:
        return LayerParts(forward, Part(), Part())
    return LayerParts(forward, _phase(pricing, (Pass("embedding dw", size * (ELEMENT + 8)),)), Part())


def _head(pricing: Pricing) -> LayerParts:
    model, layout, tokens = pricing.model, pricing.layout, _tokens(pricing)
    vocab = -(-model.vocab // layout.tp)
    logits = Product("logits", tokens, vocab, model.hidden, wide=True)
    exchange = _sum_over_tp(pricing, "loss sum", 12.0 * tokens)
    forward = _phase(pricing, (logits, Pass("loss", float(LOSS_BYTES * tokens * vocab)), *exchange))
    back = _phase(
        pricing,
        (
            Product("logits dx", tokens, model.hidden, vocab, wide=True),
            Pass("loss dx", float(LOSS_BACKWARD_BYTES * tokens * vocab)),
            *_sum_over_tp(pricing, "logits sum", float(tokens * model.hidden * ELEMENT)),
        ),
    )
    weight = _phase(pricing, (Product("logits dw", model.hidden, vocab, tokens, wide=True, out_bytes=8),))
    return LayerParts(forward, back, Part() if layout.adapters else weight)


def _tokens(pricing: Pricing) -> int:
    return pricing.layout.micro_batch * pricing.model.seq // pricing.layout.cp


def _sum_over_tp(pricing: Pricing, name: str, size: float) -> tuple[Op, ...]:
    return (Exchange(name, "all-reduce", size, "tp"),) if pricing.layout.tp > 1 else ()


def placed_layers(model: Model, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Layers of each chunk of each stage."""
    chunks = layout.chunks
    return tuple(_spread(layers, chunks, late=stage == 0) for stage, layers in enumerate(layout.layers_of(model)))


def _spread(layers: int, chunks: int, *, late: bool) -> tuple[int, ...]:
    each, more = divmod(layers, chunks)
    counts = [each + (index < more) for index in range(chunks)]
    return tuple(reversed(counts)) if late else tuple(counts)


def depth_order(layout: Layout) -> tuple[tuple[int, int], ...]:
    """(stage, chunk) from the model's first layers to its last."""
    stages = range(layout.pp)
    if layout.schedule in TWO_CHUNK_SCHEDULES:
        return (*((stage, 0) for stage in stages), *((stage, 1) for stage in reversed(stages)))
    return tuple((stage, chunk) for chunk in range(layout.chunks) for stage in stages)


def stage_chunks(pricing: Pricing) -> tuple[tuple[Chunk, ...], ...]:
    """The chunks of every stage with their times."""
    model, layout = pricing.model, pricing.layout
    placed = placed_layers(model, layout)
    order = depth_order(layout)
    dense_left = model.layers - model.moe_layers
    dense = layer_parts(pricing, experts=False) if dense_left else None
    routed = layer_parts(pricing, experts=True) if model.moe_layers else None
    ends = {order[0]: _embedding(pricing)}
    head = _head(pricing)
    chunks: dict[tuple[int, int], Chunk] = {}
    known: dict[tuple[int, int], Chunk] = {}
    for place in order:
        layers = placed[place[0]][place[1]]
        plain = min(dense_left, layers)
        dense_left -= plain
        extra = [ends[place]] if place in ends else []
        if place == order[-1]:
            extra.append(head)
        key = (plain, layers - plain)
        if extra or key not in known:
            chunk = _chunk(layers, [(dense, plain), (routed, layers - plain), *((item, 1) for item in extra)])
            if not extra:
                known[key] = chunk
        else:
            chunk = known[key]
        chunks[place] = chunk
    return tuple(tuple(chunks[stage, index] for index in range(layout.chunks)) for stage in range(layout.pp))


def _chunk(layers: int, parts: Iterable[tuple[LayerParts | None, int]]) -> Chunk:
    forward, back, weight = Part(), Part(), Part()
    for item, times in parts:
        if item is not None and times:
            forward.plus(item.forward, times)
            back.plus(item.input, times)
            weight.plus(item.weight, times)
    return Chunk(layers, forward, back, weight)
