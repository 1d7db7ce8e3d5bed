"""Controls that change the workload itself: pads, tiles, pieces, launch order, compression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from makeway.model.simulate.compressed import compressed, gradient_types, shrinks
from makeway.values.control import Chunks, Compress, Control, LaunchOrder, OwnCores, SmemPad, TileChoice
from makeway.values.errors import InputError
from makeway.values.workload import BlockWork, CollectiveOp, Gemm, KernelOp, Measured, Operation, Work, Workload


def rewritten(workload: Workload, controls: Sequence[Control]) -> Workload:
    """The workload under the controls that act on its operations; tiles first, then pads, compression last."""
    operations = workload.operations
    for control in sorted(controls, key=lambda item: isinstance(item, SmemPad)):
        match control:
            case TileChoice():
                operations = tuple(_tiled(operation, control) for operation in operations)
            case SmemPad():
                operations = _padded(operations, control)
            case Chunks(pieces):
                operations = _chunked(operations, pieces)
            case LaunchOrder():
                operations = _comm_first(operations)
            case _:
                pass
    workload = replace(workload, operations=operations)
    compress = next((control for control in controls if isinstance(control, Compress)), None)
    return workload if compress is None else compressed(workload, compress)


def idle_controls(workload: Workload, controls: Sequence[Control]) -> list[str]:
    """Controls that change nothing in this workload, and why: a knob that silently does nothing misleads."""
    idle = []
    for control in controls:
        if isinstance(control, SmemPad | TileChoice):
            if isinstance(control, TileChoice) and rewritten(workload, (control,)) == workload:
                idle.append(f"{control.name}: no kernel offers another tile, or it has this one already")
        elif isinstance(control, OwnCores):
            idle.append(f"{control.name}: it places threads of ranks that compute on a CPU")
        elif not workload.collectives:
            idle.append(f"{control.name}: the workload has no collective")
        elif isinstance(control, LaunchOrder) and rewritten(workload, (control,)) == workload:
            idle.append(f"{control.name}: every collective waits for a kernel, or is launched first already")
        elif isinstance(control, Compress) and (reason := no_compression(workload, control)):
            idle.append(f"{control.name}: {reason}")
    return idle


def no_compression(workload: Workload, control: Compress) -> str | None:
    """Why a compression changes nothing in a workload; None when it does."""
    reduced = [op for op in workload.collectives if op.collective.kind == "all-reduce"]
    if not reduced:
        return "only gradients that are all-reduced are compressed, and the workload all-reduces nothing"
    types = gradient_types(workload)
    if not any(shrinks(op, control, types[op.name]) for op in reduced):
        kinds = ", ".join(dict.fromkeys(types[op.name] for op in reduced))
        return f"sends no fewer bytes: the gradients are {kinds}, {reduced[0].collective.ranks} ranks"
    return None


def _padded(operations: tuple[Operation, ...], control: SmemPad) -> tuple[Operation, ...]:
    if not any(isinstance(op, KernelOp) and fnmatchcase(op.name, control.kernel) for op in operations):
        raise InputError(f"no kernel of the workload is named {control.kernel!r}: the pad would have no effect")
    return tuple(
        replace(op, resources=op.resources.padded(control.pad_bytes), measured_as=op.measured_as or op.resources)
        if isinstance(op, KernelOp) and fnmatchcase(op.name, control.kernel)
        else op
        for op in operations
    )


def _tiled(operation: Operation, control: TileChoice) -> Operation:
    """The kernel with another tile; its shared memory grows with TILE_M*TILE_K + TILE_K*TILE_N."""
    if not isinstance(operation, KernelOp) or not isinstance(operation.work, Gemm):
        return operation
    if not fnmatchcase(operation.name, control.kernel):
        return operation
    old, new = operation.work.tile, (control.tile_m, control.tile_n, control.tile_k)
    smem = operation.resources.smem_bytes * _tile_elements(new) // _tile_elements(old)
    return replace(
        operation,
        work=replace(operation.work, tile=new),
        resources=replace(operation.resources, smem_bytes=smem),
    )


def _tile_elements(tile: tuple[int, int, int]) -> int:
    return tile[0] * tile[2] + tile[2] * tile[1]


def _comm_first(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Collectives that wait for no operation go before all kernels; the rest keeps its order."""
    early = [op for op in operations if isinstance(op, CollectiveOp) and not op.after]
    at_once = [replace(op, launched_ns=0.0) if op.launched_ns is not None else op for op in early]
    return (*at_once, *(op for op in operations if op not in early))


def _chunked(operations: tuple[Operation, ...], pieces: int) -> tuple[Operation, ...]:
    """Each collective in pieces, and a kernel that feeds exactly one collective in as many."""
    fed = {op.after[0]: op.name for op in operations if isinstance(op, CollectiveOp) and len(op.after) == 1}
    split = {op.name for op in operations if isinstance(op, CollectiveOp)}
    split |= {op.name for op in operations if isinstance(op, KernelOp) and op.name in fed and _divisible(op, pieces)}
    result: list[Operation] = []
    for op in operations:
        result += _pieces(op, pieces, split) if op.name in split else [_after_last(op, pieces, split)]
    return tuple(result)


def _divisible(op: KernelOp, pieces: int) -> bool:
    return not op.persistent and op.work.blocks >= pieces


def _pieces(op: Operation, pieces: int, split: set[str]) -> list[Operation]:
    parts: list[Operation] = []
    for index in range(pieces):
        name = _piece(op.name, index)
        if isinstance(op, CollectiveOp):
            size = op.collective.size_bytes * (index + 1) // pieces - op.collective.size_bytes * index // pieces
            after = tuple(_piece(earlier, index) if earlier in split else earlier for earlier in op.after)
            smaller = replace(op.collective, size_bytes=max(size, 1))
            time_ns = op.time_ns / pieces if op.time_ns is not None else None
            parts.append(replace(op, name=name, collective=smaller, after=after, time_ns=time_ns))
        else:
            after = tuple(_piece(earlier, pieces - 1) if earlier in split else earlier for earlier in op.after)
            parts.append(replace(op, name=name, work=_part(op.work, index, pieces), after=after))
    return parts


def _after_last(op: Operation, pieces: int, split: set[str]) -> Operation:
    after = tuple(_piece(earlier, pieces - 1) if earlier in split else earlier for earlier in op.after)
    return replace(op, after=after)


def _piece(name: str, index: int) -> str:
    return f"{name}/{index + 1}"


def _part(work: Work, index: int, pieces: int) -> Work:
    blocks = work.blocks * (index + 1) // pieces - work.blocks * index // pieces
    match work:
        case Measured():
            share = blocks / work.blocks
            return Measured(time_ns=work.time_ns * share, blocks=blocks, hbm_bytes=work.hbm_bytes * share)
        case BlockWork():
            return replace(work, blocks=blocks)
        case Gemm():
            down = -(-work.m // work.tile[0])
            rows = (down * (index + 1) // pieces - down * index // pieces) * work.tile[0]
            return replace(work, m=max(min(rows, work.m), 1))
