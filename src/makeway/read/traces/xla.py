"""JAX and XLA traces: the Chrome-trace JSON that `jax.profiler` writes under plugins/profile/ (*.trace.json.gz).

GPUs are processes named "/device:GPU:0" with a thread for each stream; derived lines such as "XLA Ops" repeat the same
time and are left out. On CPUs the operations of all devices are in one process, "/host:CPU", and carry the number of
their device. JAX names operations after its own functions there, so a collective is known by the rendezvous inside it.

Sources: openxla/xla, xla/tsl/profiler/utils/xplane_schema.cc (lines and arguments), backends/gpu/codegen and
backends/profiler/gpu/cupti_collector.cc (kernel_details), service/rendezvous.h.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from makeway.read.traces.classify import CommNames
from makeway.read.traces.cpu_ranks import DEVICE as CPU
from makeway.read.traces.kineto_events import PEER_COPY, time_ns
from makeway.read.traces.launch import recorded_launch
from makeway.read.traces.stream import ByteSource, EventStream, no_collection
from makeway.values.collective import CollectiveKind
from makeway.values.errors import TraceError, printable
from makeway.values.kernel import Launch
from makeway.values.timeline import CommRule, Exchange, Rank, Span, SpanKind, Step, Timeline

_DEVICE = re.compile(r"/device:(GPU|TPU):(\d{1,4})(?: (.+))?")
_STREAM = re.compile(r"Stream #(\d+)")
_OPERATIONS = ("XLA Ops", "Async XLA Ops")  # lines of devices without streams
_COLLECTIVE = re.compile(
    r"(?:psum|pmean|all[-_]reduce|(all[-_]gather)|((?:reduce|psum)[-_]scatter)|(all[-_]to[-_]all)|"
    r"(collective[-_]permute|ppermute)|collective[-_]broadcast)(?:[-_](?:start|done|invariant))?(?:\.\d+)*"
)
_KINDS: tuple[CollectiveKind, ...] = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-recv")
_RENDEZVOUS = re.compile(r"(all reduce|all gather|reduce scatter|all to all|collective permute)\b")
_MEETING_KINDS: dict[str, CollectiveKind] = {
    "all reduce": "all-reduce",
    "all gather": "all-gather",
    "reduce scatter": "reduce-scatter",
    "all to all": "all-to-all",
    "collective permute": "send-recv",
}
_MEMBERS = re.compile(r"global_devices=\[([\d, ]*)\]")
_XLA_OPERATION = CommRule(by="xla-operation")
_DETAILS = re.compile(r"(regs|static_shared|dynamic_shared|grid|block):([\d,]+)")


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    pid: int = 0
    tid: int = 0
    name: str = ""
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: dict[str, Any] | None = None


_EVENTS = msgspec.json.Decoder(list[_Event])
_Place = tuple[int, int]  # process and thread


@dataclass(frozen=True, slots=True)
class _Operation:
    """An event that may be a kernel: on a stream of a GPU, or an operation of the host."""

    start: int
    end: int
    name: str
    operation: str  # of the compiled program; "" if none is recorded
    device: int | None  # of the host's operations
    launch: Launch | None = None


@dataclass(slots=True)
class _Kept:
    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[_Place, str] = field(default_factory=dict)
    operations: dict[_Place, list[_Operation]] = field(default_factory=lambda: defaultdict(list))
    meetings: dict[_Place, list[tuple[int, int, str]]] = field(default_factory=lambda: defaultdict(list))
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    untimed: int = 0

    def add(self, events: Iterable[_Event]) -> None:
        for event in events:
            args = event.args or {}
            if event.ph == "M" and isinstance(name := args.get("name"), str):
                if event.name == "process_name":
                    self.processes[event.pid] = name
                elif event.name == "thread_name":
                    self.threads[event.pid, event.tid] = name
            elif event.ph == "X":
                self._add(event, args)

    def _add(self, event: _Event, args: dict[str, Any]) -> None:
        operation, step = args.get("hlo_op"), _whole(args.get("step_num"))
        on_device = _DEVICE.match(self.processes.get(event.pid, "")) is not None
        met = event.name == "Rendezvous"
        if not (operation or on_device or met or step is not None):
            return
        start, duration = time_ns(event.ts), time_ns(event.dur)
        if start is None or duration is None or duration < 0:
            self.untimed += 1
            return
        place, end = (event.pid, event.tid), start + duration
        if met:
            self.meetings[place].append((start, end, str(args.get("name", ""))))
        elif step is not None and not on_device:
            self.steps.append((step, start, end))
        else:
            launch = _launch(args.get("kernel_details")) if on_device else None
            name = operation if isinstance(operation, str) else ""
            self.operations[place].append(
                _Operation(start, end, event.name, name, _whole(args.get("device_ordinal")), launch)
            )


def read_xla(path: Path, *, comm: CommNames, progress: Callable[[int], None] | None = None) -> Timeline:
    """The timeline of one trace of JAX: a rank for each device."""
    kept, stream = _Kept(), EventStream(ByteSource(path, progress), _EVENTS)
    with no_collection():
        for piece in stream.pieces():
            kept.add(piece)
    spans = sorted((*_device_spans(kept, comm), *_host_spans(kept)), key=lambda span: span.start_ns)
    if not spans:
        raise TraceError(
            f"{printable(path)} holds no operation of a device: {stream.events:,} other events\n"
            "Record a few steps of a compiled function inside `with jax.profiler.trace(FOLDER):`."
        )
    notes = [f"the file is cut short or damaged after {stream.events:,} events"] if stream.cut_short else []
    if kept.untimed:
        notes.append(f"{kept.untimed:,} events are left out: they have no time, or a negative duration")
    numbers = sorted({span.rank for span in spans})
    if len(numbers) > 1:
        notes.append(f"one file holds {len(numbers)} devices: each counts as the rank of its number")
    names = _device_names(kept)
    ranks = tuple(
        Rank(rank=number, device=names.get(number), source=str(path), notes=tuple(notes)) for number in numbers
    )
    described = {rank.device for rank in ranks}
    steps = tuple(
        Step(number=number, rank=rank, start_ns=start, end_ns=end)
        for rank in numbers
        for number, start, end in sorted(kept.steps, key=lambda step: step[1])
    )
    return Timeline(
        spans=tuple(spans),
        origin="imported",
        device=described.pop() if len(described) == 1 else None,
        ranks=ranks,
        steps=steps,
    )


def _device_names(kept: _Kept) -> dict[int, str]:
    """The name of each device: as the process gives it, or the host where operations ran there."""
    names = {}
    for process in kept.processes.values():
        if (match := _DEVICE.match(process)) and match[3]:
            names[int(match[2])] = match[3]
    if not any(_DEVICE.match(process) for process in kept.processes.values()):
        for operations in kept.operations.values():
            names.update({item.device or 0: CPU for item in operations})
    return names


def _device_spans(kept: _Kept, comm: CommNames) -> Iterator[Span]:
    for (pid, tid), operations in kept.operations.items():
        device, thread = _DEVICE.match(kept.processes.get(pid, "")), kept.threads.get((pid, tid), "")
        if device is None:
            continue
        stream = _STREAM.match(thread)
        if stream is None and (thread not in _OPERATIONS or _has_streams(kept, pid)):
            continue
        for item in operations:
            kind, exchange, rule = _meaning(item, comm)
            yield Span(
                name=item.name,
                kind=kind,
                stream=stream[1] if stream else thread,
                start_ns=item.start,
                end_ns=item.end,
                rank=int(device[2]),
                launch=item.launch,
                exchange=exchange,
                rule=rule,
            )


def _has_streams(kept: _Kept, pid: int) -> bool:
    return any(_STREAM.match(name) for (process, _), name in kept.threads.items() if process == pid)


def _meaning(item: _Operation, comm: CommNames) -> tuple[SpanKind, Exchange | None, CommRule | None]:
    """Whether a kernel communicates and why: by its name, or by the operation that it belongs to."""
    if item.name.startswith(("Memcpy", "Memset")):
        return ("copy", None, PEER_COPY) if "P2P" in item.name else ("memory", None, None)
    if (named := comm.find(item.name)) is not None:
        return "comm", Exchange(kind=named.kind or _kind(item.operation)), named.rule
    if _COLLECTIVE.fullmatch(item.operation or item.name) and not comm.is_compute(item.name):
        return "comm", Exchange(kind=_kind(item.operation or item.name)), _XLA_OPERATION
    return "compute", None, None


def _kind(operation: str) -> CollectiveKind | None:
    match = _COLLECTIVE.fullmatch(operation)
    if match is None or "broadcast" in operation:
        return None
    return _KINDS[match.lastindex or 0]


def _host_spans(kept: _Kept) -> Iterator[Span]:
    """Operations of CPU devices; of nested ones the innermost, since a loop is no work of its own."""
    if any(_DEVICE.match(process) for process in kept.processes.values()):
        return
    for place, operations in kept.operations.items():
        meetings = sorted(kept.meetings.get(place, ()))
        for item in _innermost(operations):
            at = bisect_left(meetings, (item.start, 0, ""))
            inside = at < len(meetings) and meetings[at][1] <= item.end
            exchange = _host_exchange(item, meetings[at][2] if inside else None)
            yield Span(
                name=item.name,
                kind="compute" if exchange is None else "comm",
                stream=f"thread {place[1]}",
                start_ns=item.start,
                end_ns=item.end,
                rank=item.device or 0,
                exchange=exchange,
                rule=None if exchange is None else _XLA_OPERATION,
            )


def _host_exchange(item: _Operation, met: str | None) -> Exchange | None:
    if met is None:
        return Exchange(kind=_kind(item.operation)) if _COLLECTIVE.fullmatch(item.operation) else None
    named, members = _RENDEZVOUS.match(met), _MEMBERS.search(met)
    ranks = tuple(int(part) for part in members[1].split(",") if part.strip()) if members else ()
    return Exchange(
        kind=_MEETING_KINDS[named[1]] if named else _kind(item.operation),
        group=",".join(map(str, ranks)) or None,
        group_ranks=ranks,
    )


def _innermost(operations: Sequence[_Operation]) -> Iterator[_Operation]:
    ordered = sorted((item for item in operations if item.operation), key=lambda item: (item.start, -item.end))
    for index, item in enumerate(ordered):
        following = ordered[index + 1] if index + 1 < len(ordered) else None
        if following is None or following.start >= item.end:
            yield item


def _launch(details: object) -> Launch | None:
    """The launch that "regs:32 static_shared:0 dynamic_shared:0 grid:8,1,1 block:128,1,1" describes."""
    if not isinstance(details, str):
        return None
    parts = {key: [int(part) for part in value.split(",") if part] for key, value in _DETAILS.findall(details)}
    if "grid" not in parts or "block" not in parts:
        return None
    shared = sum(parts.get(key, [0])[0] for key in ("static_shared", "dynamic_shared"))
    registers = parts.get("regs")
    return recorded_launch(
        parts["grid"], parts["block"], registers_per_thread=registers[0] if registers else None, smem_bytes=shared
    )


def _whole(value: object) -> int | None:
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) <= 15 else None
