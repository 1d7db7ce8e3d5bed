"""Compressed gradients in a workload: each all-reduce becomes encode, smaller collectives, decode.

Encoding runs on the compute stream as soon as the gradients are there. Decoding comes later on the same stream: before
the first kernel that waits for the collective, or last, since a stream keeps its order and would stall otherwise.
Kernels are elementwise or read the gradients once with a few operations each: HBM bounds them. Bytes per gradient
element are counted from the algorithms below; fp16 and bf16 as torch's hooks do it, PowerSGD by arXiv 1905.13727 with
error feedback and a square matrix, top-k by the radix select of torch (ATen/native/cuda/TensorTopK.cu: 8 bits a pass).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from makeway.values.collective import Collective, CollectiveKind
from makeway.values.control import Compress
from makeway.values.kernel import KernelResources
from makeway.values.workload import (
    ELEMENT_BYTES,
    BlockWork,
    CollectiveOp,
    DataType,
    Gemm,
    KernelOp,
    Operation,
    Workload,
)

ASSUMED_DTYPE: DataType = "fp32"  # DistributedDataParallel keeps gradients in the type of the parameters
_HALF = 2  # bytes
_SENT = 8  # bytes of an element that top-k sends: its value and its place
_RADIX_PASSES = 4  # over 32-bit keys
_BLOCK = KernelResources(threads=128, registers_per_thread=32)  # ATen/native/cuda: elementwise kernels
_BLOCK_BYTES = 4096  # that one block moves, or more where a kernel would have many blocks
_MOST_BLOCKS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """A kernel, and the collective that carries its result; None: the last one decodes."""

    name: str
    hbm_bytes: float
    flops: float = 0.0
    send: tuple[CollectiveKind, float] | None = None


def compressed(workload: Workload, control: Compress) -> Workload:
    """The workload with its all-reduces compressed; those that would not shrink stay as they are."""
    operations, dtypes = workload.operations, gradient_types(workload)
    early: dict[str, list[Operation]] = {}  # in place of a collective
    late: dict[str, list[list[Operation]]] = {}  # stages that come before a consumer, by collective
    last: dict[str, str] = {}  # the name that now stands for a collective's result
    stream = _compute_stream(workload)
    for op in workload.collectives:
        if not shrinks(op, control, dtypes[op.name]):
            continue
        stages = list(_stages(control, op.collective, ELEMENT_BYTES[dtypes[op.name]]))
        built = [_operations(op, stage, stream) for stage in stages]
        for before, after in pairwise(built):
            after[0] = replace(after[0], after=(before[-1].name,))
        early[op.name], late[op.name], last[op.name] = built[0], built[1:], built[-1][-1].name
    result: list[Operation] = []
    pending = dict(late)
    for operation in operations:
        needed = [name for name in operation.after if name in pending]
        result += _together([pending.pop(name) for name in needed], operation.launched_ns)
        moved = replace(operation, after=tuple(last.get(name, name) for name in operation.after))
        result += _after(early[moved.name], moved) if moved.name in early else [moved]
    result += _together(list(pending.values()), operations[-1].launched_ns)
    assumed = (*workload.assumed, *_assumed(workload, control, early))
    return replace(workload, operations=tuple(result), assumed=assumed)


def gradient_types(workload: Workload) -> dict[str, DataType]:
    """The number type of each collective: its own, else that of a matrix product that feeds it, else fp32."""
    kernels = {op.name: op for op in workload.kernels}
    types: dict[str, DataType] = {}
    for op in workload.collectives:
        fed = [kernels[name].work for name in op.after if name in kernels]
        products = [work.dtype for work in fed if isinstance(work, Gemm)]
        types[op.name] = op.dtype or (products[0] if products else ASSUMED_DTYPE)
    return types


def shrinks(op: CollectiveOp, control: Compress, dtype: DataType) -> bool:
    """Whether compression sends fewer bytes of a collective than it would send itself."""
    if op.collective.kind != "all-reduce":
        return False
    stages = _stages(control, op.collective, ELEMENT_BYTES[dtype])
    sent = [_collective(op, *stage.send).wire_bytes for stage in stages if stage.send]
    return sum(sent) < op.collective.wire_bytes


def _stages(control: Compress, collective: Collective, element_bytes: int) -> Iterator[_Stage]:
    elements = collective.size_bytes / element_bytes
    whole = float(collective.size_bytes)
    match control.method:
        case "fp16" | "bf16":
            cast = whole + elements * _HALF
            yield _Stage(name="encode", hbm_bytes=cast, send=("all-reduce", elements * _HALF))
            yield _Stage(name="decode", hbm_bytes=cast)
        case "powersgd":
            assert control.rank is not None
            side = math.sqrt(elements)
            factor, product = side * control.rank * element_bytes, 2.0 * elements * control.rank
            # M + error: two reads and a write; M Q reads M; then M^T P reads M; then P Q^T and the new error M - P Q^T:
            # a write, two reads and a write.
            yield _Stage(name="encode", hbm_bytes=4 * whole + 2 * factor, flops=product, send=("all-reduce", factor))
            yield _Stage(name="project", hbm_bytes=whole + 2 * factor, flops=product, send=("all-reduce", factor))
            yield _Stage(name="decode", hbm_bytes=4 * whole + 2 * factor, flops=product)
        case "topk":
            assert control.share is not None
            sent = max(math.ceil(control.share * elements), 1) * _SENT
            # Gradients + error, the passes of the selection, the new error.
            yield _Stage(
                name="encode",
                hbm_bytes=(4 + _RADIX_PASSES) * whole + sent,
                send=("all-gather", sent * collective.ranks),
            )
            yield _Stage(name="decode", hbm_bytes=whole + 2 * sent * collective.ranks)


def _collective(op: CollectiveOp, kind: CollectiveKind, size: float) -> Collective:
    return Collective(kind=kind, size_bytes=max(round(size), 1), ranks=op.collective.ranks)


def _operations(op: CollectiveOp, stage: _Stage, stream: str) -> list[Operation]:
    """The kernel of a stage, and its collective."""
    blocks = min(max(round(stage.hbm_bytes / _BLOCK_BYTES), 1), _MOST_BLOCKS)
    work = BlockWork(
        blocks=blocks, flops_per_block=stage.flops / blocks, hbm_bytes_per_block=stage.hbm_bytes / blocks, dtype="fp32"
    )
    kernel = KernelOp(
        name=f"{op.name} {stage.name}", resources=_BLOCK, work=work, stream=stream, launched_ns=op.launched_ns
    )
    if stage.send is None:
        return [kernel]
    # A measured time is of the whole collective: the links are as much slower, or faster, for the smaller one.
    timed = op.timed or op.collective if op.time_ns is not None else None
    name = op.name if stage.name == "encode" else f"{op.name} {stage.name}ed"
    return [kernel, replace(op, name=name, collective=_collective(op, *stage.send), after=(kernel.name,), timed=timed)]


def _after(built: list[Operation], op: Operation) -> list[Operation]:
    """The first stage, which waits for what the collective waited for."""
    return [replace(built[0], after=op.after), *built[1:]]


def _together(late: Sequence[list[list[Operation]]], launched_ns: float | None) -> list[Operation]:
    """Stages of several collectives side by side: all first ones, then all second ones."""
    most = max((len(stages) for stages in late), default=0)
    placed = [op for index in range(most) for stages in late if index < len(stages) for op in stages[index]]
    return [replace(op, launched_ns=launched_ns) for op in placed]


def _compute_stream(workload: Workload) -> str:
    """The stream with most kernels; "compute" in a workload without any."""
    streams = [op.stream for op in workload.kernels]
    return max(dict.fromkeys(streams), key=streams.count, default="compute")


def _assumed(workload: Workload, control: Compress, changed: dict[str, list[Operation]]) -> Iterator[str]:
    if not changed:
        return
    products = {op.name for op in workload.kernels if isinstance(op.work, Gemm)}
    if any(op.dtype is None and not products & set(op.after) for op in workload.collectives if op.name in changed):
        yield f"gradients are {ASSUMED_DTYPE} where the workload does not say"
    if control.method == "powersgd":
        yield "gradients of a collective form one square matrix for PowerSGD"
