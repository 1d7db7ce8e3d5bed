"""Can the collectives of a workload deadlock?

A block of a collective stays until the whole collective ends, and that takes all its blocks resident on every rank
(docs/model.md: a channel is one block on each rank). So a collective needs room for all its blocks at once, and
concurrent collectives need room for the blocks of all of them: otherwise one rank may hold part of the first while
another holds part of the second. Compute kernels end by themselves: they delay, they never block.
"""

from __future__ import annotations

from collections.abc import Sequence

from makeway.model.residency import capacity, room_left
from makeway.model.simulate.compile import compile_program
from makeway.model.simulate.partition import blocks_at_once
from makeway.model.simulate.predict import vendor_dispatch
from makeway.model.simulate.program import EngineOp, Program
from makeway.values.control import Control
from makeway.values.device import Device
from makeway.values.workload import Workload


def deadlock_risk(workload: Workload, device: Device, controls: Sequence[Control]) -> str | None:
    """Why the collectives could deadlock under these controls; None: proved that they cannot."""
    compiled = compile_program(workload, device, controls, dispatch=vendor_dispatch(device))
    return program_risk(compiled.program)


def program_risk(program: Program) -> str | None:
    """The same for a program of one rank; the proof is by room, so it holds for every dispatch policy."""
    held = [index for index, op in enumerate(program.ops) if op.kind == "collective" and op.rank == 0]
    for index in held:
        op, room = program.ops[index], _room(program, program.ops[index])
        if op.blocks > room:
            return (
                f"{op.name} can never become resident: it needs {op.blocks} blocks at once and {_where(op)} has room "
                f"for {room}; give it fewer (comm-blocks) or a larger partition"
            )
    if len({program.ops[index].stream for index in held}) < 2:
        return None
    return _rivals(program, held)


def _rivals(program: Program, held: list[int]) -> str | None:
    """The first concurrent collectives that do not fit together; at most one per stream runs."""
    ops, before = program.ops, _ancestors(program)
    for index in held:
        beside: dict[str, int] = {}
        for other in held:
            ordered = before[index] >> other & 1 or before[other] >> index & 1
            if ops[other].stream != ops[index].stream and not ordered:
                stream = ops[other].stream
                if stream not in beside or ops[other].blocks > ops[beside[stream]].blocks:
                    beside[stream] = other
        together = [ops[index], *(ops[other] for other in beside.values())]
        if len(together) > 1 and not _fit_together(program, together):
            names = " and ".join(op.name for op in together)
            blocks = sum(op.blocks for op in together)
            return (
                f"{names} may run side by side, and {_where(ops[index])} has no room for their {blocks} blocks at "
                "once: one rank may hold part of one while another rank holds part of the other, and neither ends; "
                "give them fewer blocks (comm-blocks), a larger partition, or an order (one stream, or an event)"
            )
    return None


def _ancestors(program: Program) -> list[int]:
    """For each operation the set, as bits, of those that must end before it starts."""
    last: dict[tuple[int, str], int] = {}
    waits: list[set[int]] = []
    for index, op in enumerate(program.ops):
        before = last.get((op.rank, op.stream))
        waits.append({*op.after, *([] if before is None else [before])})
        last[op.rank, op.stream] = index
    ancestors: dict[int, int] = {}
    for start in range(len(waits)):
        stack = [start]
        while stack:
            ready = [item for item in waits[stack[-1]] if item not in ancestors]
            if ready:
                stack += ready
                continue
            bits = 0
            for item in waits[stack[-1]]:
                bits |= ancestors[item] | 1 << item
            ancestors[stack.pop()] = bits
    return [ancestors[index] for index in range(len(waits))]


def _fit_together(program: Program, ops: Sequence[EngineOp]) -> bool:
    """Whether all their blocks can be resident at once; blocks of different kinds get SMs of their own."""
    if len({op.block for op in ops}) == 1:
        return sum(op.blocks for op in ops) <= _room(program, ops[0])
    sms = sum(site.sms for site in program.sites if site.part == ops[0].part)
    return sum(-(-op.blocks // _each(program, op)) for op in ops) <= sms


def _each(program: Program, op: EngineOp) -> int:
    assert op.block is not None
    return max(capacity(op.block, room_left(program.sm, ())), 1)


def _room(program: Program, op: EngineOp) -> int:
    """Blocks of the operation that its part of the empty device holds, in whole clusters."""
    assert op.block is not None
    return blocks_at_once(program.sm, program.sites, op.block, op.part)


def _where(op: EngineOp) -> str:
    return f"the part of the device for {op.part}" if op.part else "the device"
