"""CPU ranks: a PyTorch profile of a job on Gloo, without any GPU, as the timeline of one rank.

Host threads are streams and operators are kernels. Of nested operators the outermost counts, once; calls of
torch.distributed inside it do not, since they start or await communication. A collective is the range that the
backend records while it runs ("gloo:all_reduce"), in a thread of its own. The call that started it is its launch.

A thread that has no operator until a collective ends, and has one right after that, waited for it.
PyTorch records no group and no sequence number for Gloo. Where the profile lists one group, that is its group.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from makeway.read.traces.kineto_events import STEP, decoded_name, time_ns
from makeway.read.traces.stream import ByteSource, EventStream
from makeway.values.collective import CollectiveKind
from makeway.values.timeline import CommRule, Exchange, Span, Step, Wait

DEVICE = "CPU-host"
WAKE_NS = 1_000_000  # a thread that waited for a collective goes on this soon after its end, on a busy host
_ANNOTATIONS = ("user_annotation", "cpu_user_annotation")
_COLLECTIVE = re.compile(rb'"(gloo|mpi|ucc):')
_CALL = re.compile(r"(?:c10d|_?c10d_functional)::_?(\w+)")
_OPTIMIZER = re.compile(rb'"Optimizer\.step#')
_ENGINE = "autograd::engine::evaluate_function: "
_KINDS: Mapping[str, CollectiveKind] = {
    "all_reduce": "all-reduce",
    "sparse_all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "send": "send-recv",
    "recv": "send-recv",
}
# Names of C++ types, as the profiler writes them.
_TYPE_BYTES = {
    **dict.fromkeys(("bool", "unsigned char", "signed char"), 1),
    **dict.fromkeys(("c10::Half", "c10::BFloat16", "short int"), 2),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("double", "long int", "c10::complex<float>"), 8),
}


class _Event(msgspec.Struct, gc=False):
    cat: str = ""
    name: msgspec.Raw = msgspec.Raw(b"")
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Args(msgspec.Struct, gc=False):
    dims: list[Any] | None = msgspec.field(default=None, name="Input Dims")
    types: list[Any] | None = msgspec.field(default=None, name="Input type")


_EVENTS = msgspec.json.Decoder(list[_Event])
_ARGS = msgspec.json.Decoder(_Args)


@dataclass(slots=True)
class _Thread:
    """Operators of one host thread: starts, ends and names by number."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    names: array[int] = field(default_factory=lambda: array("l"))
    annotated: bool = False  # a range of the program, not of a backend
    collectives: int = 0


@dataclass(frozen=True, slots=True)
class _Comm:
    start: int
    end: int
    name: str
    thread: int | str
    size_bytes: int | None


@dataclass(slots=True)
class HostActivity:
    """What a profile of the host alone shows: operators, collectives and steps."""

    threads: dict[int | str, _Thread] = field(default_factory=lambda: defaultdict(_Thread))
    collectives: list[_Comm] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)  # number, start, end
    optimizer_ends: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    _name_ids: dict[bytes, int] = field(default_factory=dict)

    @property
    def operators(self) -> int:
        return sum(len(thread.starts) for thread in self.threads.values())

    def add(self, events: Sequence[_Event]) -> None:
        for event in events:
            if event.cat != "cpu_op" and event.cat not in _ANNOTATIONS:
                continue
            start, duration = time_ns(event.ts), time_ns(event.dur)
            if start is None or duration is None or duration < 0:
                continue
            if event.cat == "cpu_op":
                self._add_operator(event, start, start + duration)
            else:
                self._add_annotation(event, start, start + duration)

    def _add_operator(self, event: _Event, start: int, end: int) -> None:
        written = bytes(event.name)
        number = self._name_ids.get(written)
        if number is None:
            number = self._name_ids[written] = len(self.names)
            self.names.append(decoded_name(written).removeprefix(_ENGINE))
        thread = self.threads[event.tid]
        thread.starts.append(start)
        thread.ends.append(end)
        thread.names.append(number)

    def _add_annotation(self, event: _Event, start: int, end: int) -> None:
        written, thread = bytes(event.name), self.threads[event.tid]
        if _COLLECTIVE.match(written):
            thread.collectives += 1
            self.collectives.append(_Comm(start, end, decoded_name(written), event.tid, _size_bytes(event.args)))
            return
        thread.annotated = True
        if step := STEP.fullmatch(written):
            self.steps.append((int(step[1]), start, end))
        elif _OPTIMIZER.match(written):
            self.optimizer_ends.append(end)


def _size_bytes(args: msgspec.Raw) -> int | None:
    """The bytes of the tensors that a collective was given; None where shapes are not recorded."""
    try:
        given = _ARGS.decode(args)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    total = 0
    for dims, kind in zip(given.dims or (), given.types or (), strict=False):
        size = _TYPE_BYTES.get(kind) if isinstance(kind, str) else None
        if size is None or not isinstance(dims, list) or not all(type(item) is int and item >= 0 for item in dims):
            return None
        total += size * prod(dims)
    return total or None


def read_host(path: Path, progress: Callable[[int], None] | None = None) -> HostActivity:
    """The host's activity in a Kineto file."""
    activity = HostActivity()
    for piece in EventStream(ByteSource(path, progress), _EVENTS).pieces():
        activity.add(piece)
    return activity


def host_spans(
    activity: HostActivity, *, rank: int, base_ns: int, groups: Mapping[str, tuple[int, ...]]
) -> tuple[list[Span], list[Wait]]:
    """Operators as compute and collectives as communication, in order of their start; and who waited for which."""
    calls: list[tuple[int, str]] = []
    operators = {
        number: list(_outermost(thread, activity.names, calls))
        for number, thread in activity.threads.items()
        if not _only_communicates(thread)
    }
    spans = _comm_spans(activity, calls, rank=rank, base_ns=base_ns, groups=groups)
    waited = _Waited(spans)
    waits = []
    for number, line in operators.items():
        stream, before = f"thread {number}", None
        for start, end, name in line:
            launched = start + base_ns
            if before is not None and (comm := waited.until(before + base_ns, launched)) is not None:
                launched = before + base_ns
                recorded = (comm.launched_ns or comm.start_ns) + 1
                waits.append(
                    Wait(rank=rank, stream=stream, asked_ns=launched, on_stream=comm.stream, recorded_ns=recorded)
                )
            before = end
            spans.append(
                Span(
                    name=name,
                    kind="compute",
                    stream=stream,
                    start_ns=start + base_ns,
                    end_ns=end + base_ns,
                    rank=rank,
                    launched_ns=launched,
                )
            )
    spans.sort(key=lambda span: span.start_ns)
    return spans, waits


class _Waited:
    """The collectives by their ends."""

    def __init__(self, comm: Sequence[Span]) -> None:
        self._comm = sorted(comm, key=lambda span: span.end_ns)
        self._ends = [span.end_ns for span in self._comm]

    def until(self, idle_ns: int, busy_ns: int) -> Span | None:
        """The collective that a thread without operators in between waited for; None if it waited for none."""
        at = bisect_right(self._ends, busy_ns) - 1
        if at < 0:
            return None
        comm = self._comm[at]
        called = comm.start_ns if comm.launched_ns is None else comm.launched_ns
        return comm if called <= idle_ns < comm.end_ns and busy_ns - comm.end_ns <= WAKE_NS else None


def _comm_spans(
    activity: HostActivity,
    calls: Sequence[tuple[int, str]],
    *,
    rank: int,
    base_ns: int,
    groups: Mapping[str, tuple[int, ...]],
) -> list[Span]:
    group, members = next(iter(groups.items())) if len(groups) == 1 else (None, ())
    collectives = sorted(activity.collectives, key=lambda comm: (comm.start, comm.end))
    spans = []
    for comm, call in zip(collectives, _launches(collectives, calls), strict=True):
        backend, _, name = comm.name.partition(":")
        kind, thread = _KINDS.get(name), f"thread {comm.thread}"
        spans.append(
            Span(
                name=comm.name,
                kind="comm",
                stream=thread if _only_communicates(activity.threads[comm.thread]) else f"{backend} of {thread}",
                start_ns=comm.start + base_ns,
                end_ns=comm.end + base_ns,
                rank=rank,
                launched_ns=(comm.start if call is None else call) + base_ns,
                exchange=Exchange(
                    kind=kind,
                    in_bytes=comm.size_bytes,
                    out_bytes=_out_bytes(kind, comm.size_bytes, len(members)),
                    group=group,
                    group_ranks=members,
                ),
                rule=CommRule(by="backend-range", library=backend),
            )
        )
    return spans


def _out_bytes(kind: CollectiveKind | None, in_bytes: int | None, ranks: int) -> int | None:
    if in_bytes is None:
        return None
    match kind:
        case "all-reduce" | "all-to-all":
            return in_bytes
        case "all-gather" if ranks:
            return in_bytes * ranks
        case "reduce-scatter" if ranks:
            return in_bytes // ranks
        case _:
            return None


def _only_communicates(thread: _Thread) -> bool:
    """Whether a thread belongs to the backend: it runs collectives, and the operators inside are part of them."""
    return thread.collectives > 0 and not thread.annotated


def _outermost(thread: _Thread, names: Sequence[str], calls: list[tuple[int, str]]) -> Iterator[tuple[int, int, str]]:
    """The outermost operators without the calls of torch.distributed inside them, which go to `calls`."""
    starts, ends = thread.starts, thread.ends
    outer_name, at, outer_end = "", 0, -1  # the part of an operator that is not yet given out starts at `at`
    for index in sorted(range(len(starts)), key=lambda index: (starts[index], -ends[index])):
        start, end, name = starts[index], ends[index], names[thread.names[index]]
        if call := _CALL.match(name):
            calls.append((start, call[1]))
        if start >= outer_end:
            if at < outer_end:
                yield at, outer_end, outer_name
            outer_name, at, outer_end = name, end if call else start, end
        elif call:
            if at < start:
                yield at, start, outer_name
            at, outer_end = max(at, end), max(outer_end, end)
        elif end > outer_end:  # not nested, as in damaged records
            if at < outer_end:
                yield at, outer_end, outer_name
            outer_name, at, outer_end = name, max(at, outer_end), end
    if at < outer_end:
        yield at, outer_end, outer_name


def _family(name: str) -> str:
    """What pairs calls with collectives; Gloo runs a reduce-scatter as an all-reduce."""
    plain = name.replace("_", "")
    if "reduce" in plain:
        return "reduce"
    for family in ("gather", "alltoall", "broadcast", "scatter", "send", "recv", "barrier"):
        if family in plain:
            return family
    return ""


def _launches(collectives: Sequence[_Comm], calls: Sequence[tuple[int, str]]) -> list[int | None]:
    """When each collective was called: calls and collectives of one family keep their order.

    They are paired from the last: a recording may begin after a call and before its collective.
    """
    by_family: dict[str, list[int]] = defaultdict(list)
    for start, name in sorted(calls):
        if name != "wait_tensor":
            by_family[_family(name)].append(start)
    launches: list[int | None] = [None] * len(collectives)
    of_family: dict[str, list[int]] = defaultdict(list)
    for index, comm in enumerate(collectives):
        of_family[_family(comm.name.partition(":")[2])].append(index)
    for family, indices in of_family.items():
        pairs = list(zip(reversed(indices), reversed(by_family[family]), strict=False))
        if all(start <= collectives[index].start for index, start in pairs):
            for index, start in pairs:
                launches[index] = start
    return launches


def host_steps(activity: HostActivity, *, rank: int, base_ns: int) -> tuple[list[Step], str | None]:
    """The profiler's steps; without them, from one optimizer step to the next, with a note that says so."""
    if activity.steps:
        marked = sorted(activity.steps, key=lambda step: step[1])
        return [Step(number=n, rank=rank, start_ns=a + base_ns, end_ns=b + base_ns) for n, a, b in marked], None
    ends = sorted(activity.optimizer_ends)
    if not ends:
        return [], None
    starts = [start for thread in activity.threads.values() for start in thread.starts]
    first = min((start for start in starts if start < ends[0]), default=ends[0])
    edges = [first, *ends]
    return (
        [
            Step(number=number, rank=rank, start_ns=edges[number] + base_ns, end_ns=edges[number + 1] + base_ns)
            for number in range(len(ends))
        ],
        "the trace marks no profiler steps; a step ends with Optimizer.step",
    )
