"""Steps over numbers of GPUs: the fastest layout of each, without and with controls, on any executor.

Each number of GPUs is one piece of work and depends on no other, so the curve is the same wherever its points are
computed: here, on a cluster, or as shards that are merged later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from makeway.decide.scale.layouts import Bounds, default_batch
from makeway.decide.scale.outcome import CompressedPoint, ScaleCurve, ScalePoint
from makeway.decide.scale.search import search, trials
from makeway.decide.scale.step import predict_step
from makeway.read.fanout import OpenExecutor, spread
from makeway.values.cluster import Cluster
from makeway.values.errors import InputError, MakewayError
from makeway.values.layout import Compression, Layout
from makeway.values.layout_word import compression_word, parse_layout
from makeway.values.model import Model
from makeway.values.step import Step

MOST_POINTS = 64
COMPRESSIONS = (Compression(kind="bf16"), Compression(kind="fp8"))  # those that every sharding below FSDP can carry
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """What a sweep keeps while the number of GPUs changes."""

    model: Model
    cluster: Cluster
    layout: Layout | None = None  # its dp grows with the GPUs; None: the fastest is searched for
    sequences_per_gpu: float | None = None  # weak scaling; None: the global batch stays
    global_batch: int = 1

    def batch(self, gpus: int) -> int:
        if self.sequences_per_gpu is None:
            return self.global_batch
        return max(1, round(self.sequences_per_gpu * gpus))


def sweep_request(
    model: Model, cluster: Cluster, gpus: Sequence[int], *, layout: str | None, global_batch: int | None
) -> SweepRequest:
    """What a sweep keeps: the batch that is given, or as many sequences per GPU as at the largest number of GPUs."""
    most = max(gpus)
    if cluster.most_gpus is not None and most > cluster.most_gpus:
        raise InputError(f"{most:,} GPUs; cluster {cluster.name} joins at most {cluster.most_gpus:,}")
    chosen = None
    if layout is not None:
        chosen = parse_layout(layout)
        chosen.check_for(model)
    per_gpu = None if global_batch is not None else default_batch(model, most) / most
    return SweepRequest(
        model=model, cluster=cluster, layout=chosen, sequences_per_gpu=per_gpu, global_batch=global_batch or 1
    )


def parse_gpus(text: str) -> tuple[int, ...]:
    """The numbers of GPUs of "gpus=64..16384" (each twice the one before) or "gpus=64,256,1024"."""
    name, _, values = text.partition("=")
    if name != "gpus" or not re.fullmatch(r"\d{1,9}(\.\.\d{1,9}|(,\d{1,9})*)", values):
        raise InputError(f"--sweep takes gpus=64..16384 (doubling) or gpus=64,256,1024, got {text!r}")
    if ".." not in values:
        counts = tuple(int(value) for value in values.split(","))
    else:
        first, last = (int(value) for value in values.split(".."))
        counts = tuple(_doubled(first, last))
    if not counts or min(counts) < 1:
        raise InputError(f"--sweep {text}: no number of GPUs in it; write for example gpus=64..16384")
    if len(counts) > MOST_POINTS:
        raise InputError(f"--sweep takes at most {MOST_POINTS} numbers of GPUs, got {len(counts)}")
    return tuple(sorted(set(counts)))


def _doubled(first: int, last: int) -> Iterable[int]:
    while 0 < first <= last:
        yield first
        first *= 2


def sweep_gpus(
    request: SweepRequest,
    gpus: Sequence[int],
    *,
    open_executor: OpenExecutor | None = None,
    progress: Progress | None = None,
) -> ScaleCurve:
    """The curve over these numbers of GPUs."""
    work = partial(point, request)
    points: dict[int, ScalePoint] = {}
    results = enumerate(map(work, gpus)) if open_executor is None else spread(work, gpus, open_executor)
    for done, (number, result) in enumerate(results, start=1):
        points[number] = result
        if progress is not None:
            progress(done, len(gpus))
    return ScaleCurve(
        model=request.model.name,
        cluster=request.cluster.name,
        device=request.cluster.device.name,
        seq=request.model.seq,
        sequences_per_gpu=request.sequences_per_gpu,
        points=tuple(points[number] for number in sorted(points)),
    )


def point(request: SweepRequest, gpus: int) -> ScalePoint:
    """One number of GPUs; a number that no layout fits has the reason in place of a step."""
    try:
        step = _step(request, gpus)
        tried = trials(request.model, request.cluster, step.layout)
    except MakewayError as error:
        return ScalePoint(gpus=gpus, reason=str(error).partition("\n")[0])
    lines = {line.kind: line.ns for line in step.ledger}
    exposed = sum(ns for kind, ns in lines.items() if kind.startswith("exposed"))
    result = ScalePoint(
        gpus=gpus,
        layout=step.layout,
        step_ns=step.step_ns,
        tokens_per_s_per_gpu=step.tokens_per_s_per_gpu,
        mfu=step.mfu,
        memory_bytes=max((stage.total for stage in step.memory), default=None),
        exposed_share=exposed / step.step_ns,
        contention_share=lines.get("contention", 0.0) / step.step_ns,
        bubble_share=lines.get("bubble", 0.0) / step.step_ns,
        trials=tried,
        assumed=step.assumed,
    )
    return replace(result, compressed=_compressed(request, result))


def _step(request: SweepRequest, gpus: int) -> Step:
    batch = request.batch(gpus)
    if request.layout is None:
        return search(request.model, request.cluster, Bounds(gpus=gpus, global_batch=batch))[0]
    inside = request.layout.tp * request.layout.cp * request.layout.pp
    if gpus % inside or gpus < inside:
        raise InputError(f"{gpus:,} GPUs do not divide by tp x cp x pp = {inside:,}")
    layout = replace(request.layout, dp=gpus // inside, global_batch=batch, controls=())
    return predict_step(request.model, layout, request.cluster)


def _compressed(request: SweepRequest, plain: ScalePoint) -> tuple[CompressedPoint, ...]:
    """Compression beside the best controls: does it leave them anything to gain?"""
    best, layout = plain.best, plain.layout
    if layout is None or best is None or layout.dp == 1 or layout.sharding in ("zero3", "fsdp", "hsdp"):
        return ()
    rows = []
    for compression in COMPRESSIONS:
        small = replace(layout, compression=compression, controls=())
        step_ns = predict_step(request.model, small, request.cluster).step_ns
        controlled = replace(small, controls=best.controls)
        controlled_ns = predict_step(request.model, controlled, request.cluster).step_ns
        rows.append(
            CompressedPoint(
                compression=compression_word(compression),
                step_ns=step_ns,
                controlled_ns=controlled_ns,
                gain=1 - controlled_ns / step_ns,
            )
        )
    return tuple(rows)
