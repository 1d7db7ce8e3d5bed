"""A recorded step on more GPUs: its kernels as measured, its exchanges priced again for larger groups.

More replicas are added; tensor, context, expert and pipeline groups stay as they were recorded. Each exchange of a
group that grows takes its recorded time, times what the model gives for the larger group over what it gives for the
recorded one. The step is then replayed by the one-GPU model without and with these times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from makeway.decide.analysis.analyze import analyze
from makeway.decide.analysis.recorded import RecordedStep
from makeway.decide.analysis.what_if import what_if
from makeway.decide.analysis.wording import ON_CPU
from makeway.decide.scale.collectives import collective_ns
from makeway.decide.scale.outcome import ControlTrial
from makeway.values.cluster import Cluster, Group
from makeway.values.collective import CollectiveKind
from makeway.values.errors import InputError, UnsupportedError
from makeway.values.layout import Layout
from makeway.values.workload import CollectiveOp, Operation, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledExchange:
    """Exchanges of one kind and size, recorded and on more GPUs."""

    kind: CollectiveKind
    size_bytes: int
    count: int
    recorded_ranks: int
    ranks: int
    recorded_ns: float  # all of them
    scaled_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRecording:
    """A recorded step on more GPUs of its kind."""

    path: str
    cluster: str
    device: str
    recorded_gpus: int
    gpus: int
    recorded_ns: float  # the step as recorded
    step_ns: float  # on more GPUs
    replay_error: float  # of the replay of the recorded step, against the recording
    exchanges: tuple[ScaledExchange, ...]
    trials: tuple[ControlTrial, ...]
    assumed: tuple[str, ...]
    notes: tuple[str, ...] = ()


def scale_recorded(
    path: Path | str,
    cluster: Cluster,
    *,
    gpus: int,
    layout: Layout | None = None,
    progress: Callable[[str], None] | None = None,
) -> ScaledRecording:
    """The most exposed step of a recording, on `gpus` GPUs.

    `layout` is that of the recorded job: groups as large as its tp, cp, ep or pp stay. Without it every group that
    holds all ranks grows.
    """
    tell = progress or (lambda _: None)
    tell("reading the recording")
    analysis = analyze([Path(path)], what_if=False)
    step = analysis.step
    if step is None:
        if analysis.wording is ON_CPU:
            raise UnsupportedError(
                f"{path} is a recording of CPU ranks, which has no GPU kernels to scale; give one of GPUs, or a MODEL"
            )
        raise UnsupportedError(f"{path}: {(analysis.no_step or 'no rank has a step').partition(chr(10))[0]}")
    world = step.workload.ranks
    _check(cluster, step, world, gpus)
    grown, exchanges = _grown(step.workload, cluster, world, gpus, layout)
    tell("replaying the step")
    before, after = what_if(step, ()), what_if(replace(step, workload=grown))
    recorded_ns = float(step.recorded_ns)
    ratio = after.replay.predicted_ns / before.replay.predicted_ns
    step_ns = recorded_ns * ratio
    per_ns = recorded_ns / before.replay.predicted_ns
    trials = [ControlTrial(controls=(), step_ns=step_ns, gain=0.0)]
    for outcome in after.outcomes:
        gain = None if outcome.gain_ns is None else outcome.gain_ns * per_ns
        trials.append(
            ControlTrial(
                controls=(outcome.control,),
                step_ns=None if gain is None else step_ns - gain,
                gain=None if gain is None else gain / step_ns,
                reason=outcome.why_not or "",
            )
        )
    return ScaledRecording(
        path=str(path),
        cluster=cluster.name,
        device=step.device.name,
        recorded_gpus=world,
        gpus=gpus,
        recorded_ns=recorded_ns,
        step_ns=step_ns,
        replay_error=before.replay.error,
        exchanges=exchanges,
        trials=tuple(trials),
        assumed=(*step.workload.assumed, _which_grow(layout), "the batch of each GPU stays as it was recorded"),
        notes=analysis.notes,
    )


def _check(cluster: Cluster, step: RecordedStep, world: int, gpus: int) -> None:
    if step.device.name != cluster.device.name:
        raise InputError(
            f"the recording is of {step.device.name}; cluster {cluster.name} has {cluster.device.name}, on which its "
            "kernels take other times\nName a cluster of the recorded device, or predict a model without --from-trace."
        )
    if gpus < world or gpus % world:
        nearest = max(1, gpus // world) * world
        raise InputError(f"{gpus:,} GPUs are not a multiple of the {world:,} that were recorded; take {nearest:,}")
    if not step.sizes_known:
        raise UnsupportedError("the recording does not say how large its collectives are, so they cannot be priced")


def _which_grow(layout: Layout | None) -> str:
    if layout is None:
        return "groups that hold all recorded ranks are data parallel and grow; name the job's tp with --layout if not"
    return "groups as large as the recorded tp, cp, ep or pp stay; all others are data parallel and grow"


def _grown(
    workload: Workload, cluster: Cluster, world: int, gpus: int, layout: Layout | None
) -> tuple[Workload, tuple[ScaledExchange, ...]]:
    """The workload with the exchanges of larger groups, and what became of each kind of exchange."""
    kept = set() if layout is None else {layout.tp, layout.cp, layout.ep, layout.pp} - {1}
    operations: list[Operation] = []
    totals: dict[tuple[CollectiveKind, int, int, int], tuple[int, float, float]] = {}
    for op in workload.operations:
        if not isinstance(op, CollectiveOp) or op.time_ns is None:
            operations.append(op)
            continue
        own = op.collective
        grows = own.ranks == world if layout is None else own.ranks not in kept
        ranks = own.ranks * gpus // world if grows else own.ranks
        stride = max(1, world // own.ranks)
        old = collective_ns(cluster, own.kind, own.size_bytes, Group(size=own.ranks, stride=stride)).ns
        new = collective_ns(cluster, own.kind, own.size_bytes, Group(size=ranks, stride=stride)).ns
        scaled_ns = op.time_ns * (new / old if old and grows else 1.0)
        operations.append(replace(op, time_ns=scaled_ns))
        key = (own.kind, own.size_bytes, own.ranks, ranks)
        count, recorded, scaled = totals.get(key, (0, 0.0, 0.0))
        totals[key] = (count + 1, recorded + op.time_ns, scaled + scaled_ns)
    exchanges = tuple(
        ScaledExchange(
            kind=kind, size_bytes=size, count=count, recorded_ranks=before, ranks=ranks, recorded_ns=recorded,
            scaled_ns=scaled,
        )
        for (kind, size, before, ranks), (count, recorded, scaled) in totals.items()
    )  # fmt: skip
    return replace(workload, operations=tuple(operations)), tuple(_largest_first(exchanges))


def _largest_first(exchanges: Sequence[ScaledExchange]) -> list[ScaledExchange]:
    return sorted(exchanges, key=lambda item: -item.scaled_ns)
