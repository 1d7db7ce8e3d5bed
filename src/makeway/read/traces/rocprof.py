"""rocprofv3 JSON results: one rank per GPU that did work.

Sources: ROCm/rocm-systems, projects/rocprofiler-sdk (source/lib/output/generateJSON.cpp for the document,
source/lib/rocprofiler-sdk/code_object/code_object.cpp for register counts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from makeway.read.traces.classify import CommNames
from makeway.read.traces.host import host_calls, host_kind
from makeway.read.traces.launch import recorded_launch
from makeway.read.traces.stream import MOST_BYTES, ByteSource, no_collection
from makeway.values.errors import TraceError, printable
from makeway.values.kernel import Launch
from makeway.values.recorded_device import RecordedLimits
from makeway.values.timeline import CommRule, Exchange, HostCallKind, Rank, Span, SpanKind, Timeline

TOOL_KEY: Final = "rocprofiler-sdk-tool"
MOST_UNPACKED = 250  # bytes for each byte of the file; recordings reach 50

_PEER_COPY = CommRule(by="peer-copy")
_GPU = 2  # rocprofiler_agent_type_t
_UNIFIED = ("gfx90a", "gfx94", "gfx95")  # one register file for VGPRs and AGPRs, allocated in eights
_UNIFIED_UNIT = 8
# Kernels that the runtime uses to copy and fill instead of a copy engine (ROCm/clr, rocclr/device/blitcl.cpp).
_BLIT = "__amd_rocclr_"


class _Handle(msgspec.Struct, gc=False):
    handle: int = 0


class _Size(msgspec.Struct, gc=False):
    x: int = 1
    y: int = 1
    z: int = 1


class _Agent(msgspec.Struct):
    id: _Handle
    type: int = 0
    name: str = ""  # "gfx950"
    product_name: str = ""
    cu_count: int = 0
    logical_node_type_id: int | None = None  # index among the GPUs


class _Symbol(msgspec.Struct, gc=False):
    kernel_id: int
    kernel_name: str = ""
    formatted_kernel_name: str = ""
    arch_vgpr_count: int = 0
    accum_vgpr_count: int = 0
    sgpr_count: int = 0


class _Correlation(msgspec.Struct, gc=False):
    internal: int = 0


class _DispatchInfo(msgspec.Struct, gc=False):
    agent_id: _Handle
    kernel_id: int
    workgroup_size: _Size
    grid_size: _Size  # in work-items
    queue_id: _Handle = msgspec.field(default_factory=_Handle)
    group_segment_size: int = 0


class _Dispatch(msgspec.Struct, gc=False):
    start_timestamp: int
    end_timestamp: int
    dispatch_info: _DispatchInfo
    correlation_id: _Correlation = msgspec.field(default_factory=_Correlation)
    stream_id: _Handle | None = None  # since ROCm 6.4


class _Copy(msgspec.Struct, gc=False):
    start_timestamp: int
    end_timestamp: int
    kind: int = 0
    operation: int = 0
    correlation_id: _Correlation = msgspec.field(default_factory=_Correlation)
    src_agent_id: _Handle = msgspec.field(default_factory=_Handle)
    dst_agent_id: _Handle = msgspec.field(default_factory=_Handle)
    stream_id: _Handle | None = None


class _Call(msgspec.Struct, gc=False):
    start_timestamp: int
    end_timestamp: int = 0
    kind: int = 0
    operation: int = 0
    correlation_id: _Correlation = msgspec.field(default_factory=_Correlation)


class _Records(msgspec.Struct):
    kernel_dispatch: list[_Dispatch] = []
    memory_copy: list[_Copy] = []
    hip_api: list[_Call] = []


class _Kind(msgspec.Struct):
    kind: str = ""
    operations: list[str] = []


class _Strings(msgspec.Struct):
    buffer_records: list[_Kind] = []


class _Process(msgspec.Struct):
    agents: list[_Agent] = []
    kernel_symbols: list[_Symbol] = []
    buffer_records: _Records = msgspec.field(default_factory=_Records)
    strings: _Strings = msgspec.field(default_factory=_Strings)


class _Document(msgspec.Struct):
    processes: list[_Process] = msgspec.field(name=TOOL_KEY)


def read_rocprof(path: Path, *, comm: CommNames, progress: Callable[[int], None] | None = None) -> Timeline:
    """The timeline of a rocprofv3 JSON file, plain or gzip. Ranks are numbered by GPU index."""
    activity = _Activity(comm=comm)
    for process in _document(path, progress).processes:
        activity.add(process)
    if not activity.spans:
        raise TraceError(
            f"{printable(path)}: holds no GPU activity ({activity.agents:,} GPUs seen, 0 kernels and copies); "
            "record with rocprofv3 --kernel-trace --memory-copy-trace"
        )
    notes = activity.notes()
    devices = {rank.device for rank in activity.ranks.values()}
    return Timeline(
        spans=tuple(sorted(activity.spans, key=lambda span: (span.start_ns, span.end_ns))),
        origin="imported",
        device=devices.pop() if len(devices) == 1 else None,
        ranks=tuple(replace(rank, source=str(path), notes=notes) for _, rank in sorted(activity.ranks.items())),
        host=host_calls(activity.host, sorted(activity.ranks)),
    )


def _document(path: Path, progress: Callable[[int], None] | None) -> _Document:
    source = ByteSource(path, progress)
    text = _unpacked(path, source)
    if source.broken:
        raise TraceError(f"{printable(path)}: the gzip data end early; copy the file again or record again")
    try:
        with no_collection():
            return msgspec.json.decode(text, type=_Document)
    except msgspec.ValidationError as error:
        raise TraceError(f"{printable(path)}: not a known form of rocprofv3 results: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise TraceError(f"{printable(path)}: JSON that is cut short or damaged ({error}); record again") from None


def _unpacked(path: Path, source: ByteSource) -> bytearray:
    """The whole file, which is decoded at once, unless it unpacks to far more than recordings do."""
    text = bytearray()
    for chunk in source.chunks():
        text += chunk
        if len(text) > MOST_BYTES and len(text) > MOST_UNPACKED * path.stat().st_size:
            raise TraceError(f"{printable(path)}: unpacks to over {MOST_UNPACKED} times its size; recordings do not")
    return text


# --- the activity of processes -----------------------------------------------------------------


@dataclass(slots=True)
class _Activity:
    """Spans and ranks read so far, and what has been left out."""

    comm: CommNames
    spans: list[Span] = field(default_factory=list)
    ranks: dict[int, Rank] = field(default_factory=dict)
    agents: int = 0
    backwards: int = 0  # records that end before they start
    nowhere: int = 0  # records whose GPU or kernel the file does not describe
    unfit: int = 0  # launches without usable resources
    halved: bool = False
    called: bool = True  # whether each process recorded HIP calls
    host: dict[HostCallKind, list[tuple[int, int]]] = field(default_factory=dict)  # calls that keep the host busy
    blits: int = 0

    def add(self, process: _Process) -> None:
        gpus = {agent.id.handle: agent for agent in process.agents if agent.type == _GPU}
        numbers = {
            handle: number if agent.logical_node_type_id is None else agent.logical_node_type_id
            for number, (handle, agent) in enumerate(gpus.items())
        }
        self.agents += len(gpus)
        records = process.buffer_records
        asked_ns = {call.correlation_id.internal: call.start_timestamp for call in records.hip_api}
        self.called &= bool(asked_ns)
        self._add_host_calls(process)
        halved = _halved(gpus.values(), process.kernel_symbols)
        self.halved |= halved
        self._add_kernels(process, gpus, numbers, asked_ns, halved=halved)
        self._add_copies(process, gpus, numbers, asked_ns)

    def _add_host_calls(self, process: _Process) -> None:
        kinds: dict[tuple[int, int], HostCallKind | None] = {}
        for call in process.buffer_records.hip_api:
            key = call.kind, call.operation
            if key not in kinds:
                kinds[key] = host_kind(_operation(process.strings, call))
            if (kind := kinds[key]) is not None and call.end_timestamp >= call.start_timestamp:
                self.host.setdefault(kind, []).append((call.start_timestamp, call.end_timestamp))

    def _add_kernels(
        self,
        process: _Process,
        gpus: Mapping[int, _Agent],
        numbers: Mapping[int, int],
        asked_ns: Mapping[int, int],
        *,
        halved: bool,
    ) -> None:
        symbols = {symbol.kernel_id: symbol for symbol in process.kernel_symbols}
        launches: dict[tuple[int, ...], Launch | None] = {}
        for record in process.buffer_records.kernel_dispatch:
            info = record.dispatch_info
            gpu, symbol = gpus.get(info.agent_id.handle), symbols.get(info.kernel_id)
            if gpu is None or symbol is None:
                self.nowhere += 1
                continue
            work, grid = info.workgroup_size, info.grid_size
            key = (info.kernel_id, work.x, work.y, work.z, grid.x, grid.y, grid.z, info.group_segment_size)
            if key not in launches:
                launches[key] = _launch(info, symbol, gpu, halved=halved)
            launch = launches[key]
            self.unfit += launch is None or launch.resources is None
            name = symbol.formatted_kernel_name or symbol.kernel_name
            comm = self.comm.find(name)
            blit = comm is None and name.startswith(_BLIT)
            self.blits += blit
            self._add_span(
                record,
                numbers[info.agent_id.handle],
                gpu,
                name=name,
                kind="comm" if comm else "memory" if blit else "compute",
                stream=_stream(record.stream_id, info.queue_id),
                launch=launch,
                launched_ns=asked_ns.get(record.correlation_id.internal),
                exchange=Exchange(kind=comm.kind) if comm and comm.kind else None,
                rule=comm.rule if comm else None,
            )

    def _add_copies(
        self, process: _Process, gpus: Mapping[int, _Agent], numbers: Mapping[int, int], asked_ns: Mapping[int, int]
    ) -> None:
        for record in process.buffer_records.memory_copy:
            ends = [handle for handle in (record.src_agent_id.handle, record.dst_agent_id.handle) if handle in gpus]
            if not ends:  # host to host
                self.nowhere += 1
                continue
            between = len(set(ends)) == 2
            self._add_span(
                record,
                numbers[ends[0]],
                gpus[ends[0]],
                name=_operation(process.strings, record),
                kind="copy" if between else "memory",
                stream=_stream(record.stream_id, None),
                launch=None,
                launched_ns=asked_ns.get(record.correlation_id.internal),
                exchange=None,
                rule=_PEER_COPY if between else None,
            )

    def _add_span(
        self,
        record: _Dispatch | _Copy,
        number: int,
        gpu: _Agent,
        *,
        name: str,
        kind: SpanKind,
        stream: str,
        launch: Launch | None,
        launched_ns: int | None,
        exchange: Exchange | None,
        rule: CommRule | None,
    ) -> None:
        if record.end_timestamp < record.start_timestamp:
            self.backwards += 1
            return
        if number not in self.ranks:
            self.ranks[number] = Rank(
                rank=number,
                device=gpu.product_name or gpu.name or None,
                sms=gpu.cu_count or None,
                limits=RecordedLimits(vendor="amd", arch=gpu.name or None, sms=gpu.cu_count or None),
            )
        self.spans.append(
            Span(
                name=name,
                kind=kind,
                stream=stream,
                start_ns=record.start_timestamp,
                end_ns=record.end_timestamp,
                rank=number,
                launch=launch,
                launched_ns=launched_ns,
                exchange=exchange,
                rule=rule,
            )
        )

    def notes(self) -> tuple[str, ...]:
        notes = ["ranks are numbered by GPU: the trace does not name them"]
        if not self.called:
            notes.append("launch times are not recorded; record with --hip-trace")
        if self.halved:
            notes.append(
                "vector registers are doubled: this rocprofv3 counts them in fours on gfx950, which allocates eights "
                "(corrected in ROCm/rocm-systems pull request 5862)"
            )
        if self.blits:
            notes.append(f"{self.blits:,} copies and fills ran as runtime kernels; they count as memory")
        if self.unfit:
            notes.append(f"{self.unfit:,} kernels have no usable register counts")
        if self.nowhere:
            notes.append(f"{self.nowhere:,} records are left out: their GPU or kernel is not described")
        if self.backwards:
            notes.append(f"{self.backwards:,} records are left out: they end before they start")
        return tuple(notes)


def _stream(stream: _Handle | None, queue: _Handle | None) -> str:
    if stream is not None:
        return str(stream.handle)
    return f"queue {queue.handle}" if queue is not None else "copies"


def _operation(strings: _Strings, record: _Copy | _Call) -> str:
    try:
        return strings.buffer_records[record.kind].operations[record.operation]
    except IndexError:
        return "MEMORY_COPY"


# --- resources ---------------------------------------------------------------------------------


def _halved(gpus: Iterable[_Agent], symbols: Sequence[_Symbol]) -> bool:
    """Whether the register counts were decoded for another GPU, and are half of the allocation.

    On gfx90a, gfx94x and gfx95x a kernel's VGPRs and AGPRs together are allocated in eights. rocprofv3 before pull
    request 5862 of ROCm/rocm-systems does not know gfx95x: it reads the kernel descriptor's count in fours and reports
    no AGPRs.
    """
    return (
        any(gpu.name.startswith(_UNIFIED) for gpu in gpus)
        and not any(symbol.accum_vgpr_count for symbol in symbols)
        and any(symbol.arch_vgpr_count % _UNIFIED_UNIT for symbol in symbols)
    )


def _launch(info: _DispatchInfo, symbol: _Symbol, gpu: _Agent, *, halved: bool) -> Launch | None:
    work, grid = info.workgroup_size, info.grid_size  # the grid counts work-items
    block = (work.x, work.y, work.z)
    if 0 in block:
        return None
    # gfx908 and older have two register files, and AGPRs are reported beside as many VGPRs.
    both = symbol.arch_vgpr_count + symbol.accum_vgpr_count
    separate = max(symbol.arch_vgpr_count, symbol.accum_vgpr_count)
    registers = both if gpu.name.startswith(_UNIFIED) else separate
    return recorded_launch(
        [-(-items // threads) for items, threads in zip((grid.x, grid.y, grid.z), block, strict=True)],
        block,
        registers_per_thread=registers * 2 if halved else registers,
        smem_bytes=info.group_segment_size,
        scalar_registers=symbol.sgpr_count or None,
    )
