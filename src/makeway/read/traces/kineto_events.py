"""Events of a Kineto trace, and the compact part of them that is kept until the whole file is read.

Field names: pytorch/kineto, libkineto/src/output_json.cpp, CuptiActivity.cpp and RoctracerActivity_inl.h; arguments of
collectives: pytorch/pytorch, torch/csrc/distributed/c10d/ParamCommsUtils.hpp. Times are microseconds with up to three
decimals, often more digits than a float holds, so they are parsed from their text.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any
from zlib import crc32

import msgspec

from makeway.read.traces.classify import CommNames
from makeway.read.traces.host import LOADING, host_kind
from makeway.read.traces.launch import recorded_launch
from makeway.values.kernel import Launch
from makeway.values.timeline import CommRule, HostCallKind, SpanKind

# Lower-case categories; before 2022 Kineto wrote "Kernel", "Memcpy", "Memset" and "Runtime".
_GPU = {"kernel": "kernel", "gpu_memcpy": "memcpy", "memcpy": "memcpy", "gpu_memset": "memset", "memset": "memset"}
_HOST = {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "runtime", "driver"}
_ASKS = re.compile(rb"Launch|Memcpy|Memset|EventRecord|StreamWaitEvent")
# HIP's extended launches count the grid in work-items, not blocks (hip_ext.h: globalWorkSizeX).
_GRID_IN_ITEMS = (b'"hipExtModuleLaunchKernel"', b'"hipHccModuleLaunchKernel"')
STEP = re.compile(rb'"ProfilerStep#(\d{1,15})"')
_SIZES = b'"Input Dims"'  # with record_shapes=True
_STREAM_WAIT = b'"Stream Wait Event"'
_PARAM_COMMS = msgspec.Raw(b'"record_param_comms"')  # PyTorch's name of any collective call
NO_CORRELATION = 0  # as the profiler records it
_LATEST_NS = 2**62

_Size = tuple[int, int, int]

PEER_COPY = CommRule(by="peer-copy")
METADATA = CommRule(by="metadata")
PARAM_COMMS = CommRule(by="record_param_comms")


class Event(msgspec.Struct, gc=False):
    cat: str = ""
    name: msgspec.Raw = msgspec.Raw(b"")
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = msgspec.Raw(b"{}")


class GpuArgs(msgspec.Struct, gc=False):
    device: int | None = None
    stream: int | str | None = None
    correlation: int | None = None
    grid: _Size | None = None
    block: _Size | None = None
    registers: int | None = msgspec.field(default=None, name="registers per thread")
    smem_bytes: int | None = msgspec.field(default=None, name="shared memory")
    priority: int | None = None
    collective: str | None = msgspec.field(default=None, name="Collective name")
    in_elements: int | None = msgspec.field(default=None, name="In msg nelems")
    out_elements: int | None = msgspec.field(default=None, name="Out msg nelems")
    dtype: str | None = None
    group: str | int | None = msgspec.field(default=None, name="Process Group Name")
    group_ranks: str | list[Any] | None = msgspec.field(default=None, name="Process Group Ranks")
    sequence: int | None = msgspec.field(default=None, name="Seq")
    external: Any = msgspec.field(default=None, name="External id")  # of the operator that launched it
    occupancy: Any = msgspec.field(default=None, name="est. achieved occupancy %")


class _HostArgs(msgspec.Struct, gc=False):
    correlation: int | None = None


class _OperatorArgs(msgspec.Struct, gc=False):
    external: Any = msgspec.field(default=None, name="External id")
    sizes: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")


class WaitArgs(msgspec.Struct, gc=False):
    stream: int | None = None
    correlation: int | None = None
    wait_on_stream: int | None = None
    record: int | None = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")
    device: int | None = None


EVENTS = msgspec.json.Decoder(list[Event])
_GPU_ARGS = msgspec.json.Decoder(GpuArgs)
_HOST_ARGS = msgspec.json.Decoder(_HostArgs)
_OPERATOR_ARGS = msgspec.json.Decoder(_OperatorArgs)
_WAIT_ARGS = msgspec.json.Decoder(WaitArgs)


@dataclass(frozen=True, slots=True)
class Shape:
    """What identical launches share."""

    name: str
    kind: SpanKind
    device: int
    stream: str
    launch: Launch | None
    launch_in_items: Launch | None  # where the grid counts work-items
    priority: int | None
    rule: CommRule | None = None


@dataclass(slots=True)
class Kept:
    """The part of the events that is kept; compact, since a trace has millions."""

    comm: CommNames
    starts_ns: array[int] = field(default_factory=lambda: array("q"))
    durations_ns: array[int] = field(default_factory=lambda: array("q"))
    correlations: array[int] = field(default_factory=lambda: array("q"))
    shape_of: array[int] = field(default_factory=lambda: array("l"))
    shapes: list[Shape] = field(default_factory=list)
    collectives: dict[int, GpuArgs] = field(default_factory=dict)  # by index, where arguments are recorded
    launched_by: array[int] = field(default_factory=lambda: array("q"))  # operators that launched the kernels
    calls: dict[int, GpuArgs] = field(default_factory=dict)  # collective calls of the host, by operator
    operators: array[int] = field(default_factory=lambda: array("q"))  # with recorded input sizes ...
    sizes: array[int] = field(default_factory=lambda: array("q"))  # ... and a number for these
    occupancy_recorded: bool = False
    asked: array[int] = field(default_factory=lambda: array("q"))  # correlations of host calls ...
    asked_ns: array[int] = field(default_factory=lambda: array("q"))  # ... and their times
    in_items: array[int] = field(default_factory=lambda: array("q"))  # launches with a grid in work-items
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    waits: list[tuple[int, WaitArgs]] = field(default_factory=list)
    host: dict[HostCallKind, list[tuple[int, int]]] = field(default_factory=dict)  # calls that keep the host busy
    synchronised: bool = False  # whether synchronisation is recorded at all
    untimed: int = 0
    odd: int = 0
    _shape_ids: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _uses: dict[str, Callable[[Event], None] | None] = field(default_factory=dict)
    _asks: dict[bytes, bool | HostCallKind] = field(default_factory=dict)

    def add(self, events: list[Event]) -> None:
        uses = self._uses
        for event in events:
            try:
                use = uses[event.cat]
            except KeyError:
                use = uses[event.cat] = self._use(event.cat)
            if use is None:
                continue
            try:
                use(event)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
                self.odd += 1

    def _use(self, category: str) -> Callable[[Event], None] | None:
        """How events of a category are added; None: they are ignored."""
        lower = category.lower()
        if lower in _HOST:
            return self._add_host
        if lower in ("user_annotation", "operator"):
            return self._add_annotation
        if lower == "cpu_op":
            return self._add_operator
        if lower == "cuda_sync":
            return self._add_sync
        return partial(self._add_gpu, _GPU[lower]) if lower in _GPU else None

    def _add_gpu(self, what: str, event: Event) -> None:
        start, duration = time_ns(event.ts), time_ns(event.dur)
        if start is None or duration is None or duration < 0:
            self.untimed += 1
            return
        args, name = _GPU_ARGS.decode(event.args), bytes(event.name)
        size = (args.grid, args.block, args.registers, args.smem_bytes)
        key = (name, what, args.device, args.stream, args.priority, size, args.collective is None)
        try:
            shape = self._shape_ids[key]
        except KeyError:
            self.shapes.append(self._shape(what, args, decoded_name(name)))
            shape = self._shape_ids[key] = len(self.shapes) - 1
        self.correlations.append(args.correlation or NO_CORRELATION)  # first, since it can overflow
        if args.collective is not None and self.shapes[shape].kind == "comm":
            self.collectives[len(self.starts_ns)] = args
        self.occupancy_recorded |= args.occupancy is not None
        self.launched_by.append(_operator(args.external))
        self.starts_ns.append(start)
        self.durations_ns.append(duration)
        self.shape_of.append(shape)

    def _shape(self, what: str, args: GpuArgs, name: str) -> Shape:
        kind: SpanKind
        rule: CommRule | None = None
        if what == "kernel":
            rule = self._rule(name, args)
            kind = "compute" if rule is None else "comm"
        elif "PtoP" in name or "Peer" in name:
            kind, rule = "copy", PEER_COPY
        else:
            kind = "memory"
        launch = in_items = None
        if what == "kernel" and args.grid is not None and args.block is not None:
            launch = _launch(args.grid, args.block, args.registers, args.smem_bytes)
            in_items = _launch(_blocks(args.grid, args.block), args.block, args.registers, args.smem_bytes)
        stream = "unknown" if args.stream is None else str(args.stream)
        return Shape(name, kind, args.device or 0, stream, launch, in_items, args.priority, rule)

    def _rule(self, name: str, args: GpuArgs) -> CommRule | None:
        """Why a kernel is communication: by its name, or since a collective's arguments are recorded with it."""
        if (comm := self.comm.find(name)) is not None:
            return comm.rule
        return METADATA if args.collective is not None and not self.comm.is_compute(name) else None

    def _add_host(self, event: Event) -> None:
        name = bytes(event.name)
        asks = self._asks.get(name)
        if asks is None:
            asks = self._asks[name] = _ASKS.search(name) is not None or host_kind(decoded_name(name)) or False
        if isinstance(asks, str):
            self._add_host_call(asks, event)
            return
        if not asks or (time := time_ns(event.ts)) is None:
            return
        args = _HOST_ARGS.decode(event.args)
        if args.correlation:
            self.asked.append(args.correlation)
            self.asked_ns.append(time)
            if name in _GRID_IN_ITEMS:
                self.in_items.append(args.correlation)

    def _add_operator(self, event: Event) -> None:
        if event.name == _PARAM_COMMS:
            self._add_call(event)
        args = bytes(event.args)
        if _SIZES in args:
            operator = _OPERATOR_ARGS.decode(args)
            if number := _operator(operator.external):
                self.operators.append(number)
                self.sizes.append(crc32(operator.sizes))

    def _add_host_call(self, kind: HostCallKind, event: Event) -> None:
        start, duration = time_ns(event.ts), time_ns(event.dur)
        if start is None or duration is None or duration < 0:
            self.untimed += 1
        else:
            self.host.setdefault(kind, []).append((start, start + duration))

    def _add_annotation(self, event: Event) -> None:
        if event.name == _PARAM_COMMS:  # "operator" is what Kineto called "cpu_op" before 2022
            self._add_call(event)
        elif bytes(event.name).startswith(LOADING):
            self._add_host_call("loading", event)
        elif match := STEP.fullmatch(bytes(event.name)):
            start, duration = time_ns(event.ts), time_ns(event.dur)
            if start is None or duration is None or duration < 0:
                self.untimed += 1
            else:
                self.steps.append((int(match[1]), start, start + duration))

    def _add_call(self, event: Event) -> None:
        try:
            args = _GPU_ARGS.decode(event.args)
        except msgspec.DecodeError:  # it is no kernel or copy: nothing is lost but evidence
            return
        if number := _operator(args.external):
            self.calls[number] = args

    def _add_sync(self, event: Event) -> None:
        self.synchronised = True
        if bytes(event.name) == _STREAM_WAIT and (time := time_ns(event.ts)) is not None:
            self.waits.append((time, _WAIT_ARGS.decode(event.args)))


def _operator(external: object) -> int:
    """The number of an operator; 0 for none."""
    return external if type(external) is int and 0 < external < _LATEST_NS else 0


def time_ns(text: msgspec.Raw) -> int | None:
    """Nanoseconds of a time written in microseconds; None if it is missing or impossible."""
    digits = bytes(text)
    try:
        ns = int(digits.replace(b".", b"", 1) if digits[-4:-3] == b"." else digits + b"000")
    except ValueError:
        try:
            exact = Decimal(digits.strip(b'"').decode())
            if not exact.is_finite() or exact.adjusted() > len(str(_LATEST_NS)):
                return None
            ns = int((exact * 1000).to_integral_value())
        except (ArithmeticError, ValueError):
            return None
    return ns if -_LATEST_NS < ns < _LATEST_NS else None


def decoded_name(written: bytes) -> str:
    """A name as the file writes it, quoted and escaped, as text."""
    try:
        return str(msgspec.json.decode(written))
    except (msgspec.DecodeError, UnicodeDecodeError):  # programs name kernels, not always in UTF-8
        return written.strip(b'"').decode(errors="replace")


def _blocks(items: _Size, block: _Size) -> _Size:
    x, y, z = (-(-count // max(1, threads)) for count, threads in zip(items, block, strict=True))
    return x, y, z


@lru_cache(maxsize=4096)
def _launch(grid: _Size, block: _Size, registers: int | None, smem_bytes: int | None) -> Launch | None:
    """Cached, so that identical launches are one value."""
    return recorded_launch(grid, block, registers_per_thread=registers, smem_bytes=smem_bytes)
