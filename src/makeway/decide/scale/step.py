"""`predict_step`: one training step of a model under a layout on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from makeway.decide.planning.host import ranks_per_core
from makeway.decide.scale.collectives import collective_ns
from makeway.decide.scale.generation import Generation
from makeway.decide.scale.jitter import PUBLISHED_JITTER, slow_down
from makeway.decide.scale.layer import NARROW
from makeway.decide.scale.memory import memory
from makeway.decide.scale.overlap import unmodelled
from makeway.decide.scale.pipeline import PipelineCosts, step_pipeline
from makeway.decide.scale.replicas import (
    FULLY_SHARDED,
    Exchanged,
    Held,
    end_parameters,
    fully_sharded,
    gradient_bytes,
    layer_parameters,
    replicated,
)
from makeway.decide.scale.software import newest_generation
from makeway.decide.scale.stages import Chunk, Part, Pricing, added, placed_layers, stage_chunks, tuned
from makeway.decide.scale.timing import narrow_rate
from makeway.values.cluster import Cluster, Group, Jitter
from makeway.values.errors import InputError
from makeway.values.layout import Layout
from makeway.values.model import Model
from makeway.values.step import Step, StepLine, StepLineKind

JITTER_REFERENCE = 8  # GPUs: what waiting costs inside one node is in the numbers of a generation
FLOPS_FORMULA = (
    "6 x active parameters per token, without the embedding, + 12 x layers x heads x head size x sequence for "
    "attention, half of it under a causal mask; over the peak of the layout's precision"
)


def predict_step(
    model: Model,
    layout: Layout,
    cluster: Cluster,
    *,
    generation: Generation | None = None,
    jitter: Jitter | None = PUBLISHED_JITTER,
    contention: bool = True,
) -> Step:
    """What one step costs.

    A cluster's own jitter counts in place of the published one; `jitter=None`: all GPUs are equally fast.
    `contention=False` leaves out the one-GPU model: a bound for searches.
    """
    layout.check_for(model)
    if cluster.most_gpus is not None and layout.gpus > cluster.most_gpus:
        raise InputError(f"{layout.gpus:,} GPUs; cluster {cluster.name} joins at most {cluster.most_gpus:,}")
    assumed: tuple[str, ...] = ()
    if generation is None:
        generation, assumed = newest_generation(cluster.device, layout.precision)
    if contention and (reason := unmodelled(cluster.device)):
        contention, assumed = False, (*assumed, reason)
    on_host = cluster.device.vendor == "cpu"
    if on_host:
        assumed = (*assumed, "Elements of 32 bits, as CPU hosts train; the memory of a host is not counted.")
    pricing = Pricing(model, layout, tuned(cluster, generation), generation, contention)
    stages = stage_chunks(pricing)
    run = _pipelined(pricing, stages)
    after = _after(pricing, stages)
    lines: dict[StepLineKind, float] = {}
    for kind, ns in (*run.lines.items(), *after.lines.items()):
        lines[kind] = lines.get(kind, 0.0) + ns
    if jitter is not None and layout.gpus > JITTER_REFERENCE:
        jitter = cluster.jitter or jitter
        assumed = (*assumed, _varies(jitter))
        waiting = slow_down(jitter, layout.gpus, reference_gpus=JITTER_REFERENCE) - 1
        lines["stragglers"] = sum(lines.values()) * waiting
    step_ns = sum(lines.values())
    tokens = layout.global_batch * model.seq
    per_gpu = tokens / layout.gpus / step_ns * 1e9
    speed = pricing.speed
    peak = narrow_rate(speed, layout.precision)[0] if layout.precision in NARROW else speed.flops_per_s
    useful = model_flops_per_token(model) * per_gpu / peak
    again = 4 / 3 if layout.recompute == "full" else 1.0
    return Step(
        layout=layout,
        step_ns=step_ns,
        tokens_per_s_per_gpu=per_gpu,
        mfu=useful,
        hfu=useful * again,
        flops_formula=FLOPS_FORMULA,
        memory=() if on_host else memory(model, layout, fused_attention=generation.fused_attention),
        ledger=tuple(StepLine(kind=kind, ns=ns) for kind, ns in lines.items()),
        assumed=assumed,
    )


def _varies(jitter: Jitter) -> str:
    return (
        f"GPUs differ by {100 * jitter.persistent:.2g} % for good and {100 * jitter.transient:.2g} % from step to step "
        f"(standard deviations; {jitter.source})."
    )


def model_flops_per_token(model: Model) -> float:
    """Forward and backward, as `FLOPS_FORMULA` says."""
    active = model.active_parameters - (0 if model.tied_embeddings else model.embedding_parameters)
    attention = 12.0 * model.layers * model.heads * model.head_dim * model.seq * (0.5 if model.causal else 1.0)
    return 6.0 * active + attention


def hop_ns(pricing: Pricing) -> float:
    """A message between two stages.

    Every rank of a tensor-parallel group sends its part; without sequence parallelism the next stage gathers the parts
    (Megatron-LM's scatter_gather_tensors_in_pipeline, DeepSpeed's partitioned activations).
    """
    layout = pricing.layout
    if layout.pp == 1:
        return 0.0
    size = float(
        layout.micro_batch * pricing.model.seq // layout.cp * pricing.model.hidden * pricing.speed.element_bytes
    )
    ends = Group(size=2, stride=layout.tp * layout.cp * layout.dp)
    sent = collective_ns(pricing.cluster, "send-recv", size / layout.tp, ends).ns
    gathered = 0.0 if layout.sp else collective_ns(pricing.cluster, "all-gather", size, Group(size=layout.tp)).ns
    return pricing.generation.hop_ns + sent + gathered


def _pipelined(pricing: Pricing, stages: Sequence[Sequence[Chunk]]) -> Part:
    """All micro batches through all stages, on the busiest of them: its work, and what it waits for."""
    layout = pricing.layout
    works = [added((chunk, 1) for chunk in chunks) for chunks in stages]
    busiest = max(works, key=lambda work: work.forward.ns + work.input.ns + work.weight.ns)
    run = Part()
    for phase in (busiest.forward, busiest.input, busiest.weight):
        run.plus(phase, layout.micro_batches)
    if layout.pp > 1:
        costs = pipeline_costs(pricing, stages)
        sharing = ranks_per_core(pricing.cluster.device)
        whole = _between_steps(layout, costs, sharing)
        run.add("bubble", _between_steps(layout, replace(costs, hop_ns=0.0), sharing) - run.ns)
        run.add("exposed-pp", whole - run.ns)
    if layout.sharding in FULLY_SHARDED:  # with adapters, gathers only; their scatter is priced as if weights trained
        held = max(_held(pricing), key=lambda item: item.total)
        exchanged = fully_sharded(pricing, held, busiest)
        run.add("exposed-dp", exchanged.exposed_ns * layout.micro_batches)
        run.add("contention", exchanged.contention_ns * layout.micro_batches)
    return run


def pipeline_costs(pricing: Pricing, stages: Sequence[Sequence[Chunk]]) -> PipelineCosts:
    """The times of one micro batch on every stage, as the pipeline takes them."""
    return PipelineCosts(
        forward_ns=tuple(tuple(chunk.forward.ns for chunk in chunks) for chunks in stages),
        input_ns=tuple(tuple(chunk.input.ns for chunk in chunks) for chunks in stages),
        weight_ns=tuple(tuple(chunk.weight.ns for chunk in chunks) for chunks in stages),
        hop_ns=hop_ns(pricing),
        hop_overlapped=pricing.layout.overlap_pp,
        kept_for_weights=kept_for_weights(
            pricing.model, pricing.layout, fused_attention=pricing.generation.fused_attention
        ),
    )


def kept_for_weights(model: Model, layout: Layout, *, fused_attention: bool) -> float:
    """Of a layer's activations those that the gradients of its weights need: 32 of 34 + 5 x heads x sequence / hidden
    bytes per element; fused attention and recompute leave out the scores (arXiv 2401.10241, Table 1).
    """
    if layout.recompute == "full":
        return 1.0
    scores = 0.0
    if not fused_attention and layout.recompute == "none":
        scores = 5.0 * model.heads * model.seq / model.hidden
    return 32 / (34 + scores)


def _between_steps(layout: Layout, costs: PipelineCosts, sharing: float) -> float:
    """From one step to the next: zero-bubble schedules let each stage go on by itself (arXiv 2401.10241, section 4).

    Stages that share cores lose little to bubbles: while one waits, the rest run that much faster, at most as on cores
    of their own. The busiest stage still takes its share of the core for all of its work.
    """
    run = step_pipeline(layout, costs if sharing == 1 else costs.faster(sharing))
    span = run.longest_stage_ns if layout.schedule.startswith("zb") else run.makespan_ns
    return span if sharing == 1 else max(span, sharing * max(run.busy_ns))


def _held(pricing: Pricing) -> tuple[Held, ...]:
    """Parameters on one GPU of each stage."""
    model, layout = pricing.model, pricing.layout
    dense_layers = model.layers - model.moe_layers
    plain = layer_parameters(model, layout, experts=False) if dense_layers else Held(0.0, 0.0)
    routed = layer_parameters(model, layout, experts=True) if model.moe_layers else Held(0.0, 0.0)
    held, left = [], dense_layers
    for stage, chunks in enumerate(placed_layers(model, layout)):
        layers = sum(chunks)
        dense = min(left, layers)
        left -= dense
        ends = (stage == 0) + (stage == layout.pp - 1 and not (model.tied_embeddings and layout.pp == 1))
        held.append(
            Held(
                plain.dense * dense + routed.dense * (layers - dense) + ends * end_parameters(model, layout),
                routed.experts * (layers - dense),
            )
        )
    return tuple(held)


def _after(pricing: Pricing, stages: Sequence[Sequence[Chunk]]) -> Part:
    """What follows the last micro batch: replicas, the optimizer, and what a step costs whatever its size."""
    layout, part = pricing.layout, Part()
    part.add("host", pricing.generation.step_ns)
    if layout.adapters:
        return part
    stage, held = max(enumerate(_held(pricing)), key=lambda item: item[1].total)
    if layout.sharding not in FULLY_SHARDED:
        whole = added((chunk, 1) for chunk in stages[stage])
        exchanged: Exchanged = replicated(pricing, held, whole)
        part.add("exposed-dp", exchanged.exposed_ns)
        part.add("contention", exchanged.contention_ns)
        part.add("compression", exchanged.compression_ns)
    owned = held.total / (layout.dp * layout.cp if layout.sharding != "none" else 1)
    part.add("optimizer", pricing.speed.optimizer_ns(owned, gradient_bytes(layout)))
    return part
