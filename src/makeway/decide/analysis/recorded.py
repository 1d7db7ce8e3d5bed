"""A recorded step as a workload, so that the simulator can predict what a control does to it.

Each kernel keeps its blocks, resources and time (alone, where the trace has it alone), its order on the stream and its
launch time. Traces seldom record which operation waits for another stream, so that is inferred. An operation that was
ready and started right after another stream's operation ended waits for it; a collective waits for the compute
launched before it, unless the recording contradicts that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from makeway.decide.analysis.findings import Cause, Matching
from makeway.decide.analysis.in_force import InForce, in_force
from makeway.decide.analysis.names import short_name
from makeway.decide.analysis.streams import SETTLE_NS, StreamView, ready_ns
from makeway.model.residency import resident_blocks
from makeway.values.collective import Collective
from makeway.values.device import Device
from makeway.values.errors import UnsupportedError
from makeway.values.kernel import KernelResources
from makeway.values.timeline import Exchange, Span, Timeline, union_ns
from makeway.values.workload import CollectiveOp, KernelOp, Measured, Operation, Workload

MOST_OPERATIONS = 200  # more take too long to simulate; short kernels are joined
MOST_COLLECTIVES = 48  # a longer recording is cut to its middle
MOST_REPLAYED = 1_000  # operations or streams that remain; recordings keep below 600
_MOST_AT_ONCE = 4 * MOST_COLLECTIVES  # collectives in the window, where many start together
_LOOK_BACK = 1_000  # spans; recordings need 3
MOST_WAVES = 8  # a kernel of more waves gets fewer, longer blocks
_BRIEF_COPY_NS = 5_000  # shorter copies and fills are left out
_COPY_BLOCK = KernelResources(threads=32, registers_per_thread=16)  # a copy keeps its place in a stream
_UNRECORDED_BLOCK = "threads=544,registers=96,smem=48KiB"  # NCCL's usual block, for the few that are not recorded
_GUESSED_BYTES_PER_NS = 100.0  # for a collective of unrecorded size; its time is as recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A step as a workload, the GPU it ran on, and the time it took."""

    workload: Workload
    device: Device
    rank: int
    origin_ns: int  # time 0 of the workload
    recorded_ns: int
    kernels: int  # launches that the operations stand for
    collectives: tuple[tuple[str, int, int], ...]  # (operation, recorded start, recorded end)
    sizes_known: bool  # of all collectives
    in_force: tuple[InForce, ...] = ()  # controls that the program set itself


@dataclass(slots=True)
class _Run:
    """Neighbouring spans of one stream that become one operation."""

    spans: list[Span]
    time_ns: float

    @property
    def first(self) -> Span:
        return self.spans[0]

    @property
    def last(self) -> Span:
        return self.spans[-1]

    @property
    def longest(self) -> Span:
        return max(self.spans, key=lambda span: span.duration_ns)


@dataclass(frozen=True, slots=True)
class _Cuts:
    """Spans (by id) before which, and after which, a run must end."""

    before: frozenset[int]
    after: frozenset[int]

    @classmethod
    def of(cls, waits: Mapping[int, list[Span]], waiting: Sequence[Span]) -> _Cuts:
        """Cuts before the spans that wait and after those they wait for."""
        before = [id(span) for span in waiting if id(span) in waits]
        return cls(frozenset(before), frozenset(id(other) for item in before for other in waits[item]))


def recorded_step(
    timeline: Timeline,
    rank: int,
    *,
    device: Device,
    causes: Sequence[Cause] = (),
    alone_ns: Mapping[tuple[str, int], float] | None = None,
) -> RecordedStep:
    """The spans of one rank as a workload.

    Delays that `causes` attributes to room do not become dependencies. `alone_ns` holds kernels' times alone, by name
    and blocks.
    """
    view = StreamView(timeline, rank)
    spans = [span for span in view.spans if span.kind != "memory" or span.duration_ns >= _BRIEF_COPY_NS]
    if not any(span.kind == "comm" for span in spans):
        raise UnsupportedError("the recording holds no collective on SMs, so no control can overlap anything")
    whole, spans = len(spans), _window(spans)
    _refuse_unknown_resources(spans)
    _refuse_many(sum(span.kind == "comm" for span in spans), "collectives at a time", _MOST_AT_ONCE)
    _refuse_many(len(view.streams), "streams")
    waits = _dependencies(view, spans, {cause.at_ns for cause in causes if cause.kind == "no-room"})
    runs = _runs(view, spans, waits, alone_ns or {})
    _refuse_many(len(runs), "operations")
    origin = min(span.launched_ns if span.launched_ns is not None else span.start_ns for span in spans)
    number = {id(span): index for index, run in enumerate(runs) for span in run.spans}
    names = [f"{short_name(run.longest.name)}#{index}" for index, run in enumerate(runs)]
    world = next((item.world for item in timeline.ranks if item.rank == rank and item.world), None) or 2
    operations = []
    for index, run in enumerate(runs):
        others = waits.get(id(run.first), ())
        after = sorted({number[id(other)] for other in others if id(other) in number} - {index})
        operations.append(_operation(run, names[index], tuple(names[item] for item in after), origin, world, device))
    workload = Workload(
        name=f"rank {rank} as recorded",
        operations=tuple(operations),
        ranks=max(world, 2),
        assumed=_assumed(runs, spans, whole),
    )
    recorded = max(span.end_ns for span in spans) - min(span.start_ns for span in spans)
    return RecordedStep(
        workload=workload,
        device=device,
        rank=rank,
        origin_ns=origin,
        recorded_ns=recorded,
        kernels=len(spans),
        collectives=tuple(
            (name, run.first.start_ns, run.first.end_ns)
            for name, run in zip(names, runs, strict=True)
            if run.first.kind == "comm"
        ),
        in_force=in_force(spans, device),
        sizes_known=all(_size_bytes(span) is not None for span in spans if span.kind == "comm"),
    )


def with_arrivals(step: RecordedStep, matching: Matching) -> RecordedStep:
    """The step with each matched collective reduced to its transfer, from when the last rank arrived."""
    transfers = {
        start: matched.transfer_ns
        for matched in matching.matched
        for rank, start, _ in matched.members
        if rank == step.rank
    }
    recorded = {name: (start, end) for name, start, end in step.collectives}
    operations: list[Operation] = []
    for op in step.workload.operations:
        start, end = recorded.get(op.name, (0, 0))
        transfer = transfers.get(start)
        if isinstance(op, CollectiveOp) and transfer is not None and transfer < end - start:
            arrived = float(end - transfer - step.origin_ns)
            launched = max(op.launched_ns or 0.0, arrived)
            operations.append(replace(op, time_ns=float(max(transfer, 1)), launched_ns=launched))
        else:
            operations.append(op)
    return replace(step, workload=replace(step.workload, operations=tuple(operations)))


def _window(spans: Sequence[Span]) -> list[Span]:
    """The spans, or those around the middle collectives if there are too many to simulate."""
    comm = [span for span in spans if span.kind == "comm"]
    if len(comm) <= MOST_COLLECTIVES:
        return list(spans)
    first = (len(comm) - MOST_COLLECTIVES) // 2
    chosen = comm[first : first + MOST_COLLECTIVES]
    start, end = chosen[0].start_ns, max(span.end_ns for span in chosen)
    return [span for span in spans if span.start_ns >= start and span.end_ns <= end]


def _refuse_unknown_resources(spans: Sequence[Span]) -> None:
    kernels = [span for span in spans if span.kind in ("compute", "comm")]
    unknown = [span for span in kernels if span.launch is None or span.launch.resources is None]
    if len(unknown) > 0.05 * len(kernels):
        raise UnsupportedError(
            f"{len(unknown):,} of {len(kernels):,} kernels have no registers and shared memory recorded, so the "
            "effect of a control on room cannot be predicted\n"
            "Record them with rocprofv3 or Nsight Systems, or with Kineto on CUDA."
        )


def _refuse_many(count: int, what: str, most: int = MOST_REPLAYED) -> None:
    if count > most:
        raise UnsupportedError(f"{count:,} {what} are too many to simulate; the most is {most:,}")


# --- dependencies ------------------------------------------------------------------------------


def _dependencies(view: StreamView, spans: Sequence[Span], no_room_at: set[int]) -> dict[int, list[Span]]:
    """Spans of other streams that must end before a span, by its id."""
    ends = sorted(spans, key=lambda span: span.end_ns)
    times = [span.end_ns for span in ends]
    waits: dict[int, list[Span]] = {}
    for span in spans:
        ready = ready_ns(view, span)
        held_by_room = span.kind == "comm" and ready is not None and ready in no_room_at
        if held_by_room:
            continue
        released = _released_by(span, ready, ends, times)
        if released is not None:
            waits[id(span)] = [released]
        elif span.kind == "comm" and (fed := _fed_by(view, span)) is not None:
            waits[id(span)] = [fed]
    return waits


def _released_by(span: Span, ready: int | None, ends: list[Span], times: list[int]) -> Span | None:
    """The operation of another stream whose end let it start: it was ready before and started right after."""
    at = bisect_right(times, span.start_ns)
    earliest = max(at - _LOOK_BACK, 0)
    while at > earliest and span.start_ns - times[at - 1] <= SETTLE_NS:
        other = ends[at - 1]
        at -= 1
        if other.stream == span.stream or other is span or other.start_ns >= span.start_ns:
            continue
        if ready is None or ready < other.end_ns:
            return other
        return None
    return None


def _fed_by(view: StreamView, comm: Span) -> Span | None:
    """Of the compute launched before the collective, the last to end before it started: it made the data."""
    if comm.launched_ns is None:
        return None
    latest: Span | None = None
    for name, line in view.streams.items():
        at = bisect_left(line, comm.launched_ns, key=lambda span: span.launched_ns or span.start_ns)
        earliest = max(at - _LOOK_BACK, 0)
        while at > earliest and (line[at - 1].kind != "compute" or line[at - 1].end_ns > comm.start_ns):
            at -= 1
        if at > earliest and name != comm.stream:
            latest = max(latest or line[at - 1], line[at - 1], key=lambda span: span.end_ns)
    return latest


# --- fewer operations --------------------------------------------------------------------------


def _runs(
    view: StreamView, spans: Sequence[Span], waits: Mapping[int, list[Span]], alone: Mapping[tuple[str, int], float]
) -> list[_Run]:
    """Spans joined with their neighbours until few enough remain, first where no communication is near.

    If that is not enough, compute that waits for compute of another stream is joined too. A run waits for what its
    first span waits for, which began earlier, so no cycle can arise.
    """
    every = _Cuts.of(waits, spans)
    with_comm = _Cuts.of(waits, [span for span in spans if span.kind == "comm" or _waits_for_comm(span, waits)])
    windows = union_ns(
        (min(ready_ns(view, span) or span.start_ns, span.start_ns), span.end_ns)
        for span in spans
        if span.kind == "comm"
    )
    runs = _joined(spans, every, windows, 0, alone)
    if len(runs) > MOST_OPERATIONS:
        runs = _joined_enough(lambda limit_ns: _joined(spans, with_comm, windows, limit_ns, alone))
    return sorted(runs, key=_launch_order)


def _joined_enough(joined: Callable[[int], list[_Run]]) -> list[_Run]:
    """The runs of the smallest limit that leaves few enough, else of the largest; a larger limit leaves fewer."""
    limits = [20_000 << doubled for doubled in range(14)]
    runs = joined(limits[-1])
    few, many = len(limits) - 1, -1
    while len(runs) <= MOST_OPERATIONS and few - many > 1:
        middle = (few + many) // 2
        fewer = joined(limits[middle])
        if len(fewer) <= MOST_OPERATIONS:
            few, runs = middle, fewer
        else:
            many = middle
    return runs


def _launch_order(run: _Run) -> tuple[int, int]:
    first = run.first
    return (first.launched_ns if first.launched_ns is not None else first.start_ns, first.start_ns)


def _joined(
    spans: Sequence[Span],
    cuts: _Cuts,
    windows: list[tuple[int, int]],
    limit_ns: int,
    alone: Mapping[tuple[str, int], float],
) -> list[_Run]:
    starts = [start for start, _ in windows]
    latest: dict[str, _Run] = {}
    runs: list[_Run] = []
    for span in spans:
        run = latest.get(span.stream)
        if (
            run is not None
            and _may_join(run, span, cuts)
            and (
                span.end_ns - run.first.start_ns <= limit_ns
                or not _near(windows, starts, run.first.start_ns, span.end_ns)
            )
        ):
            run.time_ns += max(span.start_ns - run.last.end_ns, 0) + _time_ns(span, alone)
            run.spans.append(span)
            continue
        latest[span.stream] = _Run([span], _time_ns(span, alone))
        runs.append(latest[span.stream])
    return runs


def _waits_for_comm(span: Span, waits: Mapping[int, list[Span]]) -> bool:
    return any(other.kind == "comm" for other in waits.get(id(span), ()))


def _may_join(run: _Run, span: Span, cuts: _Cuts) -> bool:
    """Whether both are compute, close together, and no other stream waits in between."""
    return (
        run.last.kind == span.kind == "compute"
        and id(span) not in cuts.before
        and id(run.last) not in cuts.after
        and span.start_ns - run.last.end_ns <= 2 * SETTLE_NS
    )


def _near(windows: list[tuple[int, int]], starts: list[int], start: int, end: int) -> bool:
    at = bisect_right(starts, end)
    return bool(at) and windows[at - 1][1] > start


def _time_ns(span: Span, alone: Mapping[tuple[str, int], float]) -> float:
    if span.kind == "compute" and span.launch is not None:
        known = alone.get((span.name, span.launch.blocks))
        if known is not None:
            return min(known, float(span.duration_ns))
    return float(max(span.duration_ns, 1))


# --- operations --------------------------------------------------------------------------------


def _operation(run: _Run, name: str, after: tuple[str, ...], origin: int, world: int, device: Device) -> Operation:
    first, longest = run.first, run.longest
    launched = max(0.0, float((first.launched_ns if first.launched_ns is not None else first.start_ns) - origin))
    if first.kind == "comm":
        return _collective(first, name, after, launched, world)
    resources, blocks = _COPY_BLOCK, 1
    if longest.launch is not None and longest.launch.resources is not None:
        resources, blocks = longest.launch.resources, longest.launch.blocks
        wave = max(resident_blocks(device, resources), 1) * device.sms
        blocks = min(blocks, MOST_WAVES * wave)
    return KernelOp(
        name=name,
        resources=resources,
        work=Measured(time_ns=max(run.time_ns, 1.0), blocks=blocks),
        stream=first.stream,
        after=after,
        launched_ns=launched,
    )


def _collective(span: Span, name: str, after: tuple[str, ...], launched: float, world: int) -> CollectiveOp:
    exchange = span.exchange or Exchange()
    size = _size_bytes(span) or round(span.duration_ns * _GUESSED_BYTES_PER_NS)
    block = span.launch.resources if span.launch else None
    return CollectiveOp(
        name=name,
        collective=Collective(
            kind=exchange.kind or "all-reduce",
            size_bytes=max(size, 1),
            ranks=max(len(exchange.group_ranks) or world, 2),
        ),
        library=_written_out(block) if block else _UNRECORDED_BLOCK,
        stream=span.stream,
        after=after,
        blocks=span.launch.blocks if span.launch else None,
        time_ns=float(max(span.duration_ns, 1)),
        launched_ns=launched,
    )


def _size_bytes(span: Span) -> int | None:
    """The larger buffer of the rank, as nccl-tests counts."""
    exchange = span.exchange
    return max(exchange.in_bytes or 0, exchange.out_bytes or 0) or None if exchange else None


def _written_out(block: KernelResources) -> str:
    size = f"threads={block.threads},registers={block.registers_per_thread}"
    return f"{size},smem={block.smem_bytes},cluster={block.cluster}"


def _assumed(runs: Sequence[_Run], spans: Sequence[Span], whole: int) -> tuple[str, ...]:
    window = (
        [f"{len(spans):,} kernels and copies around the middle stand for all {whole:,}"] if len(spans) < whole else []
    )
    sentences = [
        *window,
        "the host launches and the other ranks arrive as recorded",
        "an operation that was ready and started right after another stream's operation ended waits for it",
    ]
    if len(runs) < len(spans):
        sentences.append(
            f"{len(runs):,} operations stand for {len(spans):,} kernels and copies: neighbours on a stream are joined, "
            "with the resources of the longest"
        )
    if any(span.kind == "comm" and _size_bytes(span) is None for span in spans):
        sentences.append("the sizes of collectives are not recorded, but their times are")
    return tuple(sentences)
