"""A step stage by stage: a ledger for each, and a timeline with one rank per pipeline stage, bubbles visible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from makeway.decide.scale.pipeline import PipelineRun, run_pipeline
from makeway.decide.scale.schedules import TaskKind, shortened
from makeway.decide.scale.software import newest_generation
from makeway.decide.scale.stages import Chunk, Pricing, stage_chunks, tuned
from makeway.decide.scale.step import pipeline_costs
from makeway.values.cluster import Cluster
from makeway.values.layout import Layout
from makeway.values.model import Model
from makeway.values.step import Step, StepLine, StepLineKind
from makeway.values.timeline import Rank, Span, SpanKind, Timeline

MOST_TASKS = 20_000  # drawn; a longer step is drawn with fewer micro batches
_NAMES: dict[TaskKind, str] = {"F": "forward", "B": "backward, inputs", "W": "backward, weights", "BW": "backward"}
_TAIL: tuple[tuple[StepLineKind, str, SpanKind], ...] = (
    ("exposed-dp", "gradients and parameters", "comm"),
    ("compression", "encode and decode", "compute"),
    ("optimizer", "optimizer", "compute"),
)


def with_stages(model: Model, cluster: Cluster, step: Step) -> Step:
    """The step with the ledger of each stage and the timeline."""
    generation, _ = newest_generation(cluster.device)
    pricing = Pricing(model, step.layout, tuned(cluster, generation), generation, True)
    stages = stage_chunks(pricing)
    drawn, left_out = _drawn(step.layout)
    run = run_pipeline(drawn, pipeline_costs(pricing, stages))
    notes = (
        ()
        if not left_out
        else (f"The timeline draws {drawn.micro_batches} of {step.layout.micro_batches} micro batches.",)
    )
    return replace(
        step,
        stage_ledgers=tuple(_ledgers(step, [_work(chunks, step.layout.micro_batches) for chunks in stages])),
        timeline=_timeline(step, run, cluster),
        assumed=(*step.assumed, *notes),
    )


def _drawn(layout: Layout) -> tuple[Layout, int]:
    """The layout, or the same with fewer micro batches, and how many are left out."""
    tasks = 3 * layout.pp * layout.chunks * layout.micro_batches
    if tasks <= MOST_TASKS:
        return layout, 0
    short, _ = shortened(layout.schedule, layout.pp, layout.chunks, layout.micro_batches)
    fewer = replace(layout, global_batch=short * layout.dp * layout.micro_batch)
    return fewer, layout.micro_batches - short


def _work(chunks: tuple[Chunk, ...], micro_batches: int) -> dict[StepLineKind, float]:
    lines: dict[StepLineKind, float] = {}
    for chunk in chunks:
        for part in (chunk.forward, chunk.input, chunk.weight):
            for kind, ns in part.lines.items():
                lines[kind] = lines.get(kind, 0.0) + ns * micro_batches
    return lines


def _ledgers(step: Step, works: list[dict[StepLineKind, float]]) -> Iterator[tuple[StepLine, ...]]:
    """Each stage's own work, what the step adds on every stage, and the rest: waiting for other stages."""
    busiest = max(works, key=lambda lines: sum(lines.values()))
    shared: dict[StepLineKind, float] = {
        line.kind: max(0.0, line.ns - busiest.get(line.kind, 0.0)) for line in step.ledger if line.kind != "bubble"
    }
    for work in works:
        lines = {line.kind: work.get(line.kind, 0.0) + shared.get(line.kind, 0.0) for line in step.ledger}
        lines.pop("bubble", None)
        waiting = step.step_ns - sum(lines.values())
        yield (
            *(StepLine(kind=kind, ns=ns) for kind, ns in lines.items()),
            StepLine(kind="bubble", ns=max(0.0, waiting)),
        )


def _timeline(step: Step, run: PipelineRun, cluster: Cluster) -> Timeline:
    spans = []
    for stage, task, start_ns, end_ns in run.spans:
        chunk = f", chunk {task.chunk}" if step.layout.chunks > 1 else ""
        name = f"{_NAMES[task.kind]} of micro batch {task.micro_batch}{chunk}"
        spans.append(_span(name, "compute", stage, start_ns, end_ns))
    lines = {line.kind: line.ns for line in step.ledger}
    for stage in range(step.layout.pp):
        at = run.makespan_ns
        for kind, name, of in _TAIL:
            if ns := lines.get(kind, 0.0):
                spans.append(_span(name, of, stage, at, at + ns))
                at += ns
    device = cluster.device.name
    ranks = tuple(Rank(rank=stage, device=device) for stage in range(step.layout.pp))
    return Timeline(spans=tuple(spans), origin="predicted", device=device, ranks=ranks)


def _span(name: str, kind: SpanKind, stage: int, start_ns: float, end_ns: float) -> Span:
    stream = "communication" if kind == "comm" else "compute"
    return Span(name=name, kind=kind, stream=stream, start_ns=round(start_ns), end_ns=round(end_ns), rank=stage)
