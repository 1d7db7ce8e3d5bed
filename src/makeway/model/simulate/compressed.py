"""Compressed gradients in a workload: each all-reduce becomes encode, smaller collectives, decode.

Encoding runs on the compute stream as soon as the gradients are there. Decoding comes later on the same stream: before
the first kernel that waits for the collective, or last, since a stream keeps its order and would stall otherwise. Bytes
and operations of the kernels are those of `makeway.model.compression`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from makeway.model.compression import MATRIX_SIDE, Sent, Stage, compression_of
from makeway.model.compression import compressed as exchange_of
from makeway.values.collective import Collective
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
_BLOCK = KernelResources(threads=128, registers_per_thread=32)  # ATen/native/cuda: elementwise kernels
_BLOCK_BYTES = 4096  # that one block moves, or more where a kernel would have many blocks
_MOST_BLOCKS = 4096


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
        stages = _stages(control, op.collective, ELEMENT_BYTES[dtypes[op.name]])
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
    sent = [send.wire_bytes(op.collective.ranks) for stage in stages for send in stage.sends]
    return sum(sent) < op.collective.wire_bytes


def _stages(control: Compress, collective: Collective, element_bytes: int) -> tuple[Stage, ...]:
    elements = collective.size_bytes / element_bytes
    return exchange_of(compression_of(control), elements, collective.ranks, element_bytes=element_bytes).stages


def _collective(op: CollectiveOp, sent: Sent) -> Collective:
    return Collective(kind=sent.kind, size_bytes=max(round(sent.size_bytes), 1), ranks=op.collective.ranks)


def _operations(op: CollectiveOp, stage: Stage, stream: str) -> list[Operation]:
    """The kernel of a stage, and its collectives, one after another."""
    blocks = min(max(round(stage.hbm_bytes / _BLOCK_BYTES), 1), _MOST_BLOCKS)
    work = BlockWork(
        blocks=blocks, flops_per_block=stage.flops / blocks, hbm_bytes_per_block=stage.hbm_bytes / blocks, dtype="fp32"
    )
    kernel = KernelOp(
        name=f"{op.name} {stage.name}", resources=_BLOCK, work=work, stream=stream, launched_ns=op.launched_ns
    )
    # A measured time is of the whole collective: the links are as much slower, or faster, for the smaller one.
    timed = op.timed or op.collective if op.time_ns is not None else None
    built: list[Operation] = [kernel]
    for left, send in zip(range(len(stage.sends) - 1, -1, -1), stage.sends, strict=True):
        name = op.name if stage.name == "encode" else f"{op.name} {stage.name}ed"
        name += f" before {left}" if left else ""  # the last one has the name that others wait for
        built.append(replace(op, name=name, collective=_collective(op, send), after=(built[-1].name,), timed=timed))
    return built


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
        yield f"for PowerSGD, a collective's gradients are square matrices of side {MATRIX_SIDE:,}, or a smaller one"
