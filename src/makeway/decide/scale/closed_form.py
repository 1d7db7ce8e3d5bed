"""The step of a layout in closed form: bubbles by formula, no contention. It orders the layouts of a search.

Times of a layer are the same as in `predict_step`, shared between all layouts that divide a layer alike; so a layout
costs a fraction of a millisecond. What a search prints comes from `predict_step`, never from here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import assert_never

from makeway.decide.scale.generation import Generation
from makeway.decide.scale.replicas import (
    FULLY_SHARDED,
    Held,
    end_parameters,
    fully_sharded,
    gradient_bytes,
    layer_parameters,
    replicated,
)
from makeway.decide.scale.stages import Chunk, Pricing, added, layer_parts, layer_shape, phases, stage_chunks, tuned
from makeway.decide.scale.step import hop_ns
from makeway.values.cluster import Cluster
from makeway.values.layout import Layout, Schedule
from makeway.values.model import Model


@dataclass(frozen=True, slots=True)
class _Pieces:
    """One layer on average, and embedding with output projection, of one micro batch."""

    layer: Chunk
    ends: Chunk


def closed_form_ns(model: Model, layout: Layout, cluster: Cluster, generation: Generation) -> float:
    """The time of a step, for comparison with other layouts only."""
    pricing = Pricing(model, layout, tuned(cluster, generation), generation, False)
    pieces = _pieces(Pricing(model, replace(layer_shape(layout), controls=()), pricing.cluster, generation, False))
    layers = max(layout.layers_of(model))
    busiest = added([(pieces.layer, layers), (pieces.ends, 1)])
    forward, back, weight = (
        (part.ns * model.layers + end.ns) / layout.pp
        for part, end in zip(phases(pieces.layer), phases(pieces.ends), strict=True)
    )
    whole = sum(part.ns for part in phases(busiest)) * layout.micro_batches
    whole += bubble_ns(layout.schedule, layout.pp, layout.chunks, forward, back, weight)
    if layout.pp > 1:
        waits = 0 if layout.overlap_pp else 2 * layout.micro_batches * layout.chunks
        whole += hop_ns(pricing) * (2 * (layout.pp - 1) + waits)
    held = _held(model, layout)
    if layout.sharding in FULLY_SHARDED:
        whole += fully_sharded(pricing, held, busiest).exposed_ns * layout.micro_batches
    else:
        whole += replicated(pricing, held, busiest).exposed_ns
    owned = held.total / (layout.dp * layout.cp if layout.sharding != "none" else 1)
    return whole + pricing.speed.optimizer_ns(owned, gradient_bytes(layout)) + generation.step_ns


def bubble_ns(schedule: Schedule, stages: int, chunks: int, forward: float, back: float, weight: float) -> float:
    """What a pipeline of equal stages waits, by the published formulas; times are of a stage and a micro batch.

    1F1B and interleaved: arXiv 2104.04473; zero-bubble schedules: arXiv 2401.10241; DualPipe: its README.
    """
    match schedule:
        case "gpipe" | "1f1b":
            return (stages - 1) * (forward + back + weight)
        case "interleaved":
            return (stages - 1) * (forward + back + weight) / chunks
        case "zb-h1":
            return (stages - 1) * max(0.0, forward + back - weight)
        case "zb-h2" | "zb-2p" | "zbv":
            return 0.0
        case "dualpipe" | "dualpipev":
            together = forward + back + weight
            return max(0.0, (stages / 2 - 1) * (together + back + weight - 3 * weight) / 2)
        case _:
            assert_never(schedule)


@lru_cache(maxsize=4096)
def _pieces(pricing: Pricing) -> _Pieces:
    model = pricing.model
    dense = model.layers - model.moe_layers
    kinds = [
        (layer_parts(pricing, experts=experts), layers)
        for experts, layers in ((False, dense), (True, model.moe_layers))
        if layers
    ]
    chunks = [(Chunk(1, parts.forward, parts.input, parts.weight), layers) for parts, layers in kinds]
    (whole,) = stage_chunks(pricing)[0]
    ends = added([(whole, 1), *((chunk, -layers) for chunk, layers in chunks)])
    return _Pieces(
        layer=added([(chunk, layers / model.layers) for chunk, layers in chunks]), ends=replace(ends, layers=0)
    )


def _held(model: Model, layout: Layout) -> Held:
    """Parameters on a GPU of the fullest stage."""
    layers = max(layout.layers_of(model))
    routed = layers * model.moe_layers / model.layers
    plain = layer_parameters(model, layout, experts=False)
    experts = layer_parameters(model, layout, experts=True) if model.moe_layers else Held(0.0, 0.0)
    ends = 1 if layout.pp > 1 or model.tied_embeddings else 2
    return Held(
        plain.dense * (layers - routed) + experts.dense * routed + ends * end_parameters(model, layout),
        experts.experts * routed,
    )
