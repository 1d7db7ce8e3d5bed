"""The search for a layout: memory first, the closed form next, the best of it in full, controls on the fastest.

Memory drops what cannot run at a few microseconds each. The closed form has no contention, so it orders the rest; the
best of that order are predicted in full, and only those compare with each other. Nothing is dropped without a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from makeway.decide.scale.closed_form import closed_form_ns
from makeway.decide.scale.layouts import Bounds, layouts
from makeway.decide.scale.memory import PARTS, memory
from makeway.decide.scale.outcome import ControlTrial, LayoutSearch, RankedLayout, TurnedDown
from makeway.decide.scale.software import newest_generation
from makeway.decide.scale.step import predict_step
from makeway.read.fanout import OpenExecutor, spread
from makeway.values.cluster import Cluster
from makeway.values.control import CommBlocks, CommPriority, Control, CopyEngine, SmemPad, SmPartition
from makeway.values.errors import InputError, MakewayError
from makeway.values.layout import Layout
from makeway.values.layout_word import layout_word
from makeway.values.model import Model
from makeway.values.step import Step
from makeway.values.units import GIB, KIB

COMM_SMS = 16  # of a partition, and blocks of its collectives: NCCL's own choice on one node of H100
NO_EFFECT = "acts on nothing that overlaps in this layout"
SIMULATED = 50  # layouts that are predicted in full
ITEM = 500  # layouts that one process works on at a time
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Sized:
    """A layout that fits, with the bytes of its fullest GPU."""

    layout: Layout
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class _Timed:
    """A layout that fits, with its step."""

    layout: Layout
    memory_bytes: int
    step_ns: float

    @property
    def order(self) -> tuple[float, int, str]:
        """Fastest first; then the smaller; then by name, so that the order is one."""
        return self.step_ns, self.memory_bytes, layout_word(self.layout)


@dataclass(frozen=True, slots=True)
class _Dropped:
    reason: str
    layout: Layout
    by: float  # how far it is from being kept; the least is the example


def search(
    model: Model,
    cluster: Cluster,
    bounds: Bounds,
    *,
    top: int = 10,
    open_executor: OpenExecutor | None = None,
    progress: Progress | None = None,
) -> tuple[Step, LayoutSearch]:
    """The fastest layout in full, and the order of the others; without a layout that fits, an error that says why."""
    tell = progress or (lambda _: None)
    tell("memory of every layout")
    fused = newest_generation(cluster.device)[0].fused_attention
    if not fused:
        bounds = replace(bounds, recomputes=("none", "selective", "full"))
    considered = list(layouts(model, cluster, bounds))
    sized, dropped = _fitting(model, cluster, considered, fused=fused)
    if not sized:
        raise InputError(_nothing_fits(model, cluster, bounds, dropped))
    tell(f"{len(sized):,} layouts by the closed form")
    timed, refused = _closed_forms(model, cluster, sized, open_executor)
    dropped += refused
    if not timed:
        raise InputError(f"{model.name} on {cluster.name}: {refused[0].reason}")
    order = sorted(timed, key=lambda item: item.order)
    tell(f"the best {min(SIMULATED, len(order))} in full")
    full = [(item, predict_step(model, item.layout, cluster)) for item in order[:SIMULATED]]
    full.sort(key=lambda pair: (pair[1].step_ns, pair[0].order))
    best = full[0][1]
    pareto = _pareto([(step.step_ns, item.memory_bytes) for item, step in full])
    ranked = tuple(
        RankedLayout(
            place=place,
            layout=item.layout,
            step_ns=step.step_ns,
            tokens_per_s_per_gpu=step.tokens_per_s_per_gpu,
            mfu=step.mfu,
            memory_bytes=item.memory_bytes,
            by="simulation",
            pareto=efficient,
        )
        for place, ((item, step), efficient) in enumerate(zip(full, pareto, strict=True), start=1)
    )
    kept = tuple(item for item in ranked if item.place <= top or item.pareto)
    return best, LayoutSearch(
        considered=len(considered),
        fitting=len(sized),
        simulated=len(full),
        ranked=kept,
        turned_down=_grouped([*dropped, *_slower(order)], order),
    )


def _fitting(
    model: Model, cluster: Cluster, considered: Sequence[Layout], *, fused: bool
) -> tuple[list[_Sized], list[_Dropped]]:
    room = cluster.device.memory_bytes
    sized, dropped = [], []
    for layout in considered:
        stages = memory(model, layout, fused_attention=fused)
        most = max(stages, key=lambda stage: stage.total)
        if room is None or most.total <= room:
            sized.append(_Sized(layout, most.total))
        else:
            part = max(PARTS, key=lambda name: int(getattr(most, name)))
            reason = f"does not fit {room / GIB:.1f} GiB: most of it is {part}"
            dropped.append(_Dropped(reason, layout, most.total - room))
    return sized, dropped


def _closed_forms(
    model: Model, cluster: Cluster, sized: Sequence[_Sized], open_executor: OpenExecutor | None
) -> tuple[list[_Timed], list[_Dropped]]:
    """The closed form of each layout, here or on an executor: the same order and the same figures."""
    work = partial(closed_forms, model, cluster)
    chunks = [sized[at : at + ITEM] for at in range(0, len(sized), ITEM)]
    if open_executor is None or len(chunks) == 1:
        results = {number: work(chunk) for number, chunk in enumerate(chunks)}
    else:
        results = dict(spread(work, chunks, open_executor))
    timed: list[_Timed] = []
    dropped: list[_Dropped] = []
    for number in range(len(chunks)):
        for item in results[number]:
            (timed if isinstance(item, _Timed) else dropped).append(item)  # type: ignore[arg-type]
    return timed, dropped


def closed_forms(model: Model, cluster: Cluster, sized: Iterable[_Sized]) -> list[_Timed | _Dropped]:
    """Each layout by the closed form, or why it has none."""
    generation, _ = newest_generation(cluster.device)
    results: list[_Timed | _Dropped] = []
    for item in sized:
        try:
            step_ns = closed_form_ns(model, item.layout, cluster, generation)
        except MakewayError as error:
            results.append(_Dropped(str(error).partition("\n")[0], item.layout, 0.0))
        else:
            results.append(_Timed(item.layout, item.memory_bytes, step_ns))
    return results


def _pareto(points: Sequence[tuple[float, int]]) -> list[bool]:
    """Whether no other point is both faster and smaller; points come fastest first."""
    efficient, least = [], None
    for _, size in points:
        efficient.append(least is None or size < least)
        least = size if least is None else min(least, size)
    return efficient


def _slower(order: Sequence[_Timed]) -> list[_Dropped]:
    """The layouts that the closed form left behind."""
    return [
        _Dropped("slower by the closed form than the layouts that were simulated", item.layout, item.step_ns)
        for item in order[SIMULATED:]
    ]


def _grouped(dropped: Iterable[_Dropped], order: Sequence[_Timed]) -> tuple[TurnedDown, ...]:
    """One entry per reason, the most frequent first."""
    groups: dict[str, list[_Dropped]] = {}
    for item in dropped:
        groups.setdefault(item.reason, []).append(item)
    times = {item.layout: item.step_ns for item in order}
    entries = []
    for reason, items in groups.items():
        nearest = min(items, key=lambda item: (item.by, layout_word(item.layout))).layout
        entries.append(TurnedDown(reason=reason, layouts=len(items), example=nearest, step_ns=times.get(nearest)))
    return tuple(sorted(entries, key=lambda entry: (-entry.layouts, entry.reason)))


def _nothing_fits(model: Model, cluster: Cluster, bounds: Bounds, dropped: Sequence[_Dropped]) -> str:
    nearest = min(dropped, key=lambda item: item.by)
    return (
        f"{model.name} does not fit on {bounds.gpus:,} GPUs of {cluster.name} in any of {len(dropped):,} layouts\n"
        f"The nearest, {layout_word(nearest.layout)}, lacks {nearest.by / GIB:.1f} GiB per GPU ({nearest.reason}). "
        "Take more GPUs, or a smaller global batch."
    )


# --- controls --------------------------------------------------------------------------------------


def control_sets(cluster: Cluster) -> tuple[tuple[Control, ...], ...]:
    """What is tried on a layout: each control of makeway alone, and priority with those that go with it.

    A pad acts on the kernels whose block has room for it, copy engines on the collectives that add nothing up.
    """
    pads: tuple[Control, ...] = (SmemPad(24 * KIB), SmemPad(64 * KIB))
    parts = (CommBlocks(COMM_SMS), SmPartition(COMM_SMS))
    return (
        (CommPriority(),),
        *((pad,) for pad in pads),
        parts,
        (CommBlocks(COMM_SMS),),
        (CopyEngine(),),
        *((CommPriority(), pad) for pad in pads),
        (CommPriority(), CopyEngine()),
    )


def trials(
    model: Model, cluster: Cluster, layout: Layout, sets: Iterable[tuple[Control, ...]] | None = None
) -> tuple[ControlTrial, ...]:
    """The layout under each set of controls, without any first."""
    plain_ns = predict_step(model, replace(layout, controls=()), cluster).step_ns
    results = [ControlTrial(controls=(), step_ns=plain_ns, gain=0.0)]
    for controls in sets if sets is not None else control_sets(cluster):
        try:
            step_ns = predict_step(model, replace(layout, controls=controls), cluster).step_ns
        except MakewayError as error:
            reason = str(error).partition("\n")[0]
            results.append(ControlTrial(controls=controls, step_ns=None, gain=None, reason=reason))
        else:
            gain = 1 - step_ns / plain_ns
            reason = NO_EFFECT if step_ns == plain_ns else ""
            results.append(ControlTrial(controls=controls, step_ns=step_ns, gain=gain, reason=reason))
    return tuple(results)
