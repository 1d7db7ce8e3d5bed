"""`scale`: one training step of a model on a cluster, under a layout that is given or searched for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from makeway.decide.scale.chart import with_stages
from makeway.decide.scale.goodput import Reliability, goodput
from makeway.decide.scale.layouts import Bounds, default_batch
from makeway.decide.scale.memory import check_fits
from makeway.decide.scale.outcome import ControlTrial, Scaled, best_trial
from makeway.decide.scale.search import search, trials
from makeway.decide.scale.step import predict_step
from makeway.model.compression import Link, Payoff, payoffs
from makeway.read.fanout import OpenExecutor
from makeway.values.cluster import Cluster, Group
from makeway.values.control import Control
from makeway.values.errors import InputError
from makeway.values.layout import Compression, CompressionKind, Layout, Schedule
from makeway.values.model import Model
from makeway.values.step import Step

NOT_MODELLED = (
    "Not modelled: other jobs on the same network, adaptive routing, data loading, checkpoints inside the step, and "
    "experts that get uneven numbers of tokens."
)
GRADIENT_BYTES = 4  # as replicas add them up
_KINDS: tuple[CompressionKind, ...] = ("bf16", "fp8", "powersgd", "topk", "1-bit")
_LOOKED_AT = tuple(Compression(kind=kind) for kind in _KINDS)


def check_gpus(cluster: Cluster, gpus: int) -> None:
    """Refuse a number of GPUs that a cluster does not have."""
    if gpus < 1:
        raise InputError(f"--gpus takes at least 1, got {gpus}")
    if cluster.most_gpus is not None and gpus > cluster.most_gpus:
        raise InputError(
            f"{gpus:,} GPUs; cluster {cluster.name} joins at most {cluster.most_gpus:,}\n"
            "Name a cluster with a network between its nodes, or add a level to its file."
        )


def check_links(cluster: Cluster, layout: Layout) -> None:
    """Refuse tensor parallelism over GPUs that no level of the cluster joins."""
    inside = cluster.levels[0]
    if inside.gpus is not None and layout.tp > inside.gpus and len(cluster.levels) == 1:
        raise InputError(
            f"tp {layout.tp} spans nodes of {inside.gpus} GPUs, and cluster {cluster.name} has no links between nodes\n"
            f"Take tp and --gpus of at most {inside.gpus}, or a cluster with a network between its nodes."
        )


def _across_nodes(cluster: Cluster, layout: Layout) -> list[str]:
    """What tensor parallelism over more than a node means."""
    inside = cluster.levels[0]
    if inside.gpus is None or layout.tp <= inside.gpus:
        return []
    return [
        f"tp {layout.tp} spans nodes of {inside.gpus} GPUs: every layer waits for {cluster.levels[1].name}; tp "
        f"{inside.gpus} or less stays inside a node."
    ]


def scale(
    model: Model,
    cluster: Cluster,
    *,
    gpus: int,
    layout: Layout | None = None,
    global_batch: int | None = None,
    controls: tuple[Control, ...] | None = None,
    top: int = 10,
    runs: tuple[Schedule, ...] | None = None,
    reliability: Reliability | None = None,
    open_executor: OpenExecutor | None = None,
    progress: Callable[[str], None] | None = None,
) -> Scaled:
    """The step under `layout`, or under the fastest layout that a search finds.

    With `controls` the step has those; without, a search tries makeway's controls on the fastest layout and keeps the
    best, and a layout that is given is predicted as it is. `runs` keeps the search to schedules of a framework.
    `reliability` is of the GPUs and the storage, for the goodput of a long run.
    """
    if layout is not None:
        check_links(cluster, layout)
    check_gpus(cluster, gpus)
    notes = [NOT_MODELLED]
    if layout is not None:
        notes += _across_nodes(cluster, layout)
        layout.check_for(model)
        check_fits(model, layout, cluster.device)
        step = predict_step(model, replace(layout, controls=controls or layout.controls), cluster)
        scaled = _scaled(model, cluster, step, trials(model, cluster, layout), notes=notes)
        return replace(scaled, goodput=goodput(layout.gpus, reliability))
    if global_batch is None:
        global_batch = default_batch(model, gpus)
        notes.append(f"No global batch was given: {global_batch:,} sequences of {model.seq:,} tokens.")
    bounds = Bounds(gpus=gpus, global_batch=global_batch, runs=runs)
    step, chosen_from = search(model, cluster, bounds, top=top, open_executor=open_executor, progress=progress)
    tried = trials(model, cluster, step.layout)
    best = best_trial(tried)
    chosen = controls if controls is not None else best.controls if best else ()
    if chosen:
        step = predict_step(model, replace(step.layout, controls=chosen), cluster)
    scaled = _scaled(model, cluster, step, tried, notes=notes)
    return replace(scaled, search=chosen_from, goodput=goodput(gpus, reliability))


def _scaled(model: Model, cluster: Cluster, step: Step, tried: tuple[ControlTrial, ...], *, notes: list[str]) -> Scaled:
    return Scaled(
        model=model,
        cluster=cluster,
        step=with_stages(model, cluster, step),
        memory_bytes_per_gpu=cluster.device.memory_bytes,
        trials=tried,
        payoffs=_payoffs(model, cluster, step.layout),
        notes=tuple(notes),
    )


def _payoffs(model: Model, cluster: Cluster, layout: Layout) -> tuple[Payoff, ...]:
    """Compressions of the gradients of one GPU, on the level that joins its replicas."""
    device, replicas = cluster.device, Group(size=layout.dp * layout.cp, stride=layout.tp)
    if replicas.size < 2 or device.hbm_bytes_per_s is None or device.fp16_flops_per_s is None:
        return ()
    level = cluster.levels[cluster.depth(replicas)]
    link = Link(
        bytes_per_s=level.bytes_per_s * level.efficiency / level.oversubscription,
        hbm_bytes_per_s=device.hbm_bytes_per_s,
        flops_per_s=device.fp16_flops_per_s,
    )
    elements = model.parameters / (layout.tp * layout.pp)
    return payoffs(_LOOKED_AT, elements, replicas.size, link, element_bytes=GRADIENT_BYTES)
