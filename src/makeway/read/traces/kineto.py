"""Kineto traces: the Chrome-trace JSON that PyTorch's profiler writes, for NVIDIA and AMD GPUs.

`baseTimeNanoseconds` is added to all times, which puts the ranks of a job on one clock.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from makeway.read.traces.classify import CommNames
from makeway.read.traces.cpu_ranks import CPU_HOST, host_spans, host_steps, read_host
from makeway.read.traces.host import host_calls
from makeway.read.traces.kineto_events import EVENTS, NO_CORRELATION, PARAM_COMMS, Event, GpuArgs, Kept, Shape
from makeway.read.traces.stream import ByteSource, EventStream, no_collection
from makeway.values.collective import CollectiveKind
from makeway.values.errors import TraceError, printable
from makeway.values.recorded_device import RecordedLimits
from makeway.values.timeline import Exchange, Origin, Rank, Span, Step, Timeline, Wait

_MOST_LISTED = 16  # GPUs in a note
MOST_GPUS = 1_024  # of one process; nodes have 16
OWN_SHARE = 0.99  # of the kernels; the rest are strays, such as a context opened on GPU 0

_AMD_ARCH = {(9, 0): "gfx90a", (9, 4): "gfx942", (9, 5): "gfx950"}  # HIP's compute capability of Instinct GPUs
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d{1,6})", re.IGNORECASE)
_NAME_KINDS: tuple[tuple[str, CollectiveKind], ...] = (
    ("allreduce", "all-reduce"),
    ("allgather", "all-gather"),
    ("reducescatter", "reduce-scatter"),
    ("alltoall", "all-to-all"),
    ("send", "send-recv"),
    ("recv", "send-recv"),
)
# c10/core/ScalarType.h
_ELEMENT_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16", "UInt16"), 2),
    **dict.fromkeys(("Int", "Float", "UInt32", "ComplexHalf", "QInt32"), 4),
    **dict.fromkeys(("Long", "Double", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}


def read_kineto(path: Path, *, comm: CommNames, progress: Callable[[int], None] | None = None) -> Timeline:
    """The timeline of one Kineto file: one rank, or one per GPU if a process drove several."""
    kept = Kept(comm)
    stream = EventStream(ByteSource(path, progress), EVENTS)
    with no_collection():
        for piece in stream.pieces():
            kept.add(piece)
            del piece
        return _timeline(path, kept, stream) if kept.starts_ns else _host_timeline(path, kept, stream, progress)


_WITHOUT_COMM = (
    "Ranks on CPUs show their collectives (gloo:*) with ProfilerActivity.CPU alone. "
    "If `makeway record` wrote it, its steps had none: record later ones with --warm-up N."
)


def _host_timeline(
    path: Path, kept: Kept, stream: EventStream[Event], progress: Callable[[int], None] | None
) -> Timeline:
    """The timeline of a CPU rank, from a second look at a file without GPU activity; an error if it is not one."""
    header, activity = stream.header, read_host(path, progress)
    info = _table(header.get("distributedInfo"))
    if not activity.collectives:
        damage = ", and is cut short" if stream.cut_short else ""
        if dropped := stream.unreadable + kept.untimed + kept.odd:
            damage = f", has {dropped:,} unreadable events{damage}"
        host = ", nor communication between CPU ranks" if activity.operators else ""
        raise TraceError(
            f"{printable(path)} holds no GPU activity{host}: {stream.events:,} other events{damage}\n"
            "Record with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])."
            + (f" {_WITHOUT_COMM}" if host else "")
        )
    notes, rank = _losses(kept, stream), _whole(info.get("rank"))
    if rank is None:
        named = _RANK_IN_NAME.search(path.name)
        rank = int(named[1]) if named else 0
        notes.append(f"the trace does not name its rank; {rank} is {'from the file name' if named else 'assumed'}")
    base_ns = _whole(header.get("baseTimeNanoseconds")) or 0
    steps, note = host_steps(activity, rank=rank, base_ns=base_ns)
    if note is not None:
        notes.append(note)
    described = Rank(
        rank=rank,
        device=CPU_HOST,
        world=_whole(info.get("world_size")),
        library=next(iter(activity.collectives)).name.partition(":")[0],
        source=str(path),
        notes=tuple(notes),
    )
    spans, waits = host_spans(activity, rank=rank, base_ns=base_ns, groups=_group_ranks(header))
    return Timeline(
        spans=tuple(spans),
        origin=_origin(header),
        device=CPU_HOST,
        ranks=(described,),
        steps=tuple(steps),
        waits=tuple(waits),
    )


def _timeline(path: Path, kept: Kept, stream: EventStream[Event]) -> Timeline:
    header, notes = stream.header, _losses(kept, stream)
    base_ns = _whole(header.get("baseTimeNanoseconds")) or 0
    ranks = _ranks(path, kept, header, notes)
    asked_ns = _asked_ns(kept, base_ns)
    spans = _spans(kept, ranks, asked_ns, base_ns, _group_ranks(header))
    if left_out := len(kept.starts_ns) - len(spans):
        notes.append(f"{left_out:,} events are left out: they ran on other GPUs, which are almost idle")
    steps = [
        Step(number=number, rank=rank.rank, start_ns=start + base_ns, end_ns=end + base_ns)
        for rank in ranks.values()
        for number, start, end in sorted(kept.steps, key=lambda step: step[1])
    ]
    waits = _waits(kept, ranks, asked_ns, base_ns) if kept.synchronised else None
    if waits is not None and (lost := len(kept.waits) - len(waits)):
        notes.append(f"{lost:,} stream waits are left out: they wait for events from before the trace began")
    names = {rank.device for rank in ranks.values()}
    return Timeline(
        spans=tuple(spans),
        origin=_origin(header),
        device=names.pop() if len(names) == 1 else None,
        ranks=tuple(replace(rank, notes=tuple(notes)) for rank in ranks.values()),
        steps=tuple(steps),
        waits=None if waits is None else tuple(waits),
        host=host_calls(kept.host, [rank.rank for rank in ranks.values()], base_ns=base_ns),
    )


def _origin(header: Mapping[str, Any]) -> Origin:
    """Imported, unless makeway itself wrote the file and says what it is."""
    match _table(header.get("makeway")).get("origin"):
        case "predicted":
            return "predicted"
        case "measured":
            return "measured"
        case _:
            return "imported"


def _losses(kept: Kept, stream: EventStream[Event]) -> list[str]:
    notes = []
    if stream.cut_short:
        notes.append(f"the file is cut short or damaged after {stream.events:,} events; the rest is not counted")
    if stream.unreadable:
        notes.append(f"{stream.unreadable:,} events are left out: they are not valid JSON")
    if kept.untimed:
        notes.append(f"{kept.untimed:,} events are left out: they have no time, or a negative duration")
    if kept.odd:
        notes.append(f"{kept.odd:,} events are left out: their arguments are unreadable")
    return notes


def _ranks(path: Path, kept: Kept, header: Mapping[str, Any], notes: list[str]) -> dict[int, Rank]:
    """The rank of each GPU that ran kernels."""
    info = _table(header.get("distributedInfo"))
    rank = _whole(info.get("rank"))
    gpus = _gpus(kept, single=rank is not None)
    if len(gpus) > MOST_GPUS:
        raise TraceError(
            f"{printable(path)} names {len(gpus):,} GPUs; the most that one process can drive is {MOST_GPUS}"
        )
    amd = _is_amd(header)
    if len(gpus) > 1:
        notes.append(
            f"one file holds the kernels of {len(gpus)} GPUs, which ROCm numbers {', '.join(map(str, gpus))}: they "
            "count as ranks in that order"
            if amd
            else f"one file holds the kernels of {_listed(gpus)}: each counts as the rank of that number"
        )
    elif rank is None and (named := _RANK_IN_NAME.search(path.name)):
        rank = int(named[1])
        notes.append(f"the trace does not name its rank; {rank} is from the file name")
    elif rank is None and amd:
        rank = 0
        notes.append("the trace does not name its rank; it counts as 0")
    elif rank is None:
        rank = gpus[0]
        notes.append(f"the trace does not name its rank; {rank} is the GPU's number")
    library = info.get("nccl_version")
    ranks, described = {}, _devices(header, gpus, amd=amd)
    if unknown := [gpu for gpu in gpus if gpu not in described]:
        notes.append(f"the trace does not describe {_listed(unknown)}")
    vendor = "rccl" if amd else "nccl"
    for order, gpu in enumerate(gpus):
        device, limits = described.get(gpu, (None, None))
        ranks[gpu] = Rank(
            rank=(order if amd else gpu) if len(gpus) > 1 or rank is None else rank,
            device=device,
            sms=limits.sms if limits else None,
            world=_whole(info.get("world_size")),
            library=f"{vendor}-{library}" if isinstance(library, str) and library else None,
            source=str(path),
            limits=limits,
            occupancy_recorded=kept.occupancy_recorded,
        )
    return ranks


def _is_amd(header: Mapping[str, Any]) -> bool:
    listed = header.get("deviceProperties")
    names = (_table(entry).get("name") for entry in (listed if isinstance(listed, list) else []))
    return "hip_runtime_version" in header or any(isinstance(name, str) and "AMD" in name for name in names)


def _gpus(kept: Kept, *, single: bool) -> list[int]:
    """The GPUs that ran kernels; only its own for a process of a `single` rank, if the others are almost idle."""
    kernels: Counter[int] = Counter()
    for index, count in Counter(kept.shape_of).items():
        if (shape := kept.shapes[index]).kind in ("compute", "comm"):
            kernels[shape.device] += count
    if single and kernels:
        (gpu, most), *_ = kernels.most_common(1)
        if most >= OWN_SHARE * kernels.total():
            return [gpu]
    return sorted(kernels or {shape.device for shape in kept.shapes})


def _listed(gpus: Sequence[int]) -> str:
    numbers = ", ".join(map(str, gpus[:_MOST_LISTED]))
    others = f" and {len(gpus) - _MOST_LISTED:,} more" if len(gpus) > _MOST_LISTED else ""
    return f"GPU{'s' if len(gpus) > 1 else ''} {numbers}{others}"


def _devices(
    header: Mapping[str, Any], gpus: Sequence[int], *, amd: bool
) -> dict[int, tuple[str, RecordedLimits | None]]:
    """The name and the limits of each GPU that the trace describes, by its number.

    On ROCm, kernels name a GPU by its HSA node, which counts the CPUs too, and the header lists HIP indices. So a
    description counts for a GPU only if all GPUs share it.
    """
    devices: dict[int, tuple[str, RecordedLimits | None]] = {}
    listed = header.get("deviceProperties")
    for entry in map(_table, listed if isinstance(listed, list) else []):
        number, name = _whole(entry.get("id")), entry.get("name")
        if number is not None and isinstance(name, str):
            devices.setdefault(number, (name, _limits(entry, amd=amd)))
    if amd:
        kinds = set(devices.values())
        return dict.fromkeys(gpus, kinds.pop()) if len(kinds) == 1 else {}
    return devices


def _limits(entry: Mapping[str, Any], *, amd: bool) -> RecordedLimits:
    def number(key: str) -> int | None:
        value = _whole(entry.get(key))
        return value if value is not None and value > 0 else None

    major, minor = _whole(entry.get("computeMajor")), _whole(entry.get("computeMinor"))
    arch = None if major is None or minor is None else _AMD_ARCH.get((major, minor)) if amd else f"sm_{major}{minor}"
    return RecordedLimits(
        vendor="amd" if amd else "nvidia",
        arch=arch,
        sms=number("numSms"),
        memory_bytes=number("totalGlobalMem"),
        registers=number("regsPerMultiprocessor"),
        threads=number("maxThreadsPerMultiprocessor"),
        max_threads_per_block=number("maxThreadsPerBlock"),
        warp_threads=number("warpSize"),
        smem_bytes=number("sharedMemPerMultiprocessor"),
        smem_block_bytes=number("sharedMemPerBlockOptin"),
        smem_default_block_bytes=number("sharedMemPerBlock"),
    )


def _group_ranks(header: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    groups = _table(header.get("distributedInfo")).get("pg_config")
    return {
        str(group.get("pg_name")): _numbers(group.get("ranks"))
        for group in map(_table, groups if isinstance(groups, list) else [])
    }


def _asked_ns(kept: Kept, base_ns: int) -> dict[int, int]:
    """When the host made each call, by correlation; the earliest, if a call is recorded at several levels."""
    asked: dict[int, int] = {}
    for correlation, time in zip(kept.asked, kept.asked_ns, strict=True):
        if (earlier := asked.get(correlation)) is None or time + base_ns < earlier:
            asked[correlation] = time + base_ns
    return asked


def _spans(
    kept: Kept,
    ranks: Mapping[int, Rank],
    asked_ns: Mapping[int, int],
    base_ns: int,
    group_ranks: Mapping[str, tuple[int, ...]],
) -> list[Span]:
    in_items, inputs = set(kept.in_items), _inputs(kept)
    by_name = [_exchange_by_name(kept.comm, shape) for shape in kept.shapes]
    starts, order = kept.starts_ns, range(len(kept.starts_ns))
    spans = []
    for index in sorted(order, key=starts.__getitem__):
        of, correlation, operator = kept.shape_of[index], kept.correlations[index], kept.launched_by[index]
        shape = kept.shapes[of]
        if (rank := ranks.get(shape.device)) is None:
            continue
        exchange, kind, rule = by_name[of], shape.kind, shape.rule
        args = kept.collectives.get(index)
        if args is None and kept.calls and shape.kind in ("compute", "comm"):
            args = kept.calls.get(operator)
            if args is not None and shape.kind == "compute":
                if kept.comm.is_compute(shape.name):
                    args = None
                else:
                    kind, rule = "comm", PARAM_COMMS
        if args is not None:
            exchange = _exchange(args, exchange, group_ranks)
        start = starts[index] + base_ns
        spans.append(
            Span(
                name=shape.name,
                kind=kind,
                stream=shape.stream,
                start_ns=start,
                end_ns=start + kept.durations_ns[index],
                rank=rank.rank,
                launch=shape.launch_in_items if correlation in in_items else shape.launch,
                launched_ns=asked_ns.get(correlation),
                exchange=exchange,
                priority=shape.priority,
                rule=rule,
                # before 2022 the operator's number is that of the call, and says nothing
                inputs=inputs.get(operator) if operator != correlation else None,
            )
        )
    return spans


def _inputs(kept: Kept) -> dict[int, int]:
    """A number for the input sizes of each operator that launched a kernel, where recorded."""
    if not kept.operators:
        return {}
    launched = set(kept.launched_by)
    pairs = zip(kept.operators, kept.sizes, strict=True)
    return {operator: sizes for operator, sizes in pairs if operator in launched}


def _waits(kept: Kept, ranks: Mapping[int, Rank], asked_ns: Mapping[int, int], base_ns: int) -> list[Wait]:
    waits = []
    for time, args in kept.waits:
        rank = ranks.get(args.device or 0) if len(ranks) > 1 else next(iter(ranks.values()))
        recorded = asked_ns.get(args.record or NO_CORRELATION)
        if rank is not None and recorded is not None and args.stream is not None and args.wait_on_stream is not None:
            asked = asked_ns.get(args.correlation or NO_CORRELATION, time + base_ns)
            waits.append(
                Wait(
                    rank=rank.rank,
                    stream=str(args.stream),
                    asked_ns=asked,
                    on_stream=str(args.wait_on_stream),
                    recorded_ns=recorded,
                )
            )
    return waits


def _exchange_by_name(comm: CommNames, shape: Shape) -> Exchange | None:
    named = comm.find(shape.name) if shape.kind == "comm" else None
    return None if named is None else Exchange(kind=named.kind)


def _exchange(args: GpuArgs, by_name: Exchange | None, group_ranks: Mapping[str, tuple[int, ...]]) -> Exchange:
    plain = (args.collective or "").replace("_", "").lower()
    kind = next((kind for part, kind in _NAME_KINDS if part in plain), by_name.kind if by_name else None)
    size = _ELEMENT_BYTES.get(args.dtype or "", 1 if (args.dtype or "").startswith("Float8") else None)
    group = None if args.group is None else str(args.group)
    return Exchange(
        kind=kind,
        in_bytes=None if size is None or args.in_elements is None else size * args.in_elements,
        out_bytes=None if size is None or args.out_elements is None else size * args.out_elements,
        group=group,
        group_ranks=_listed_ranks(args.group_ranks) or group_ranks.get(group or "", ()),
        sequence=args.sequence,
    )


def _listed_ranks(listed: object) -> tuple[int, ...]:
    """The ranks in "[0, 1]"; empty for a list that the profiler shortened ("[0, 1, ...]")."""
    try:
        return _numbers(msgspec.json.decode(listed) if isinstance(listed, str) else listed)
    except (msgspec.DecodeError, RecursionError):
        return ()


def _numbers(value: object) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list) and all(type(item) is int for item in value) else ()


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    return value if type(value) is int else None
