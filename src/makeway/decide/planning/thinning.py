"""Workloads made cheap to score repeatedly, and the cost of one score.

Costs count the engines' steps, not time on a clock: the same inputs give the same plan on every machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from makeway.model.residency import resident_blocks
from makeway.model.simulate.compile import compile_program
from makeway.model.simulate.driver import Engine
from makeway.model.simulate.predict import vendor_dispatch
from makeway.model.simulate.program import EngineOp, Program
from makeway.values.device import Device
from makeway.values.workload import BlockWork, Gemm, KernelOp, Measured, Operation, Work, Workload

# Milliseconds per step, which turn a budget of time into a number of scores. Seen on one core of a shared server
# (2026), rounded up; a faster machine finishes sooner and finds the same plan.
EVENT_MS = 0.08  # class engine: blocks end, an operation comes or goes
SITE_MS = 0.006  # the same for each GPC, shader engine or partition of the device
WAITING_MS = 0.00004  # the same for each operation of the workload
COMPILE_MS = 0.06  # an operation compiled for an engine
BLOCK_MS = 0.03  # per-block engine: one block


def settled(workload: Workload, device: Device) -> Workload:
    """The workload with measured kernels as blocks of known work.

    Running a kernel alone finds the work that reproduces its measured time. No control changes that work, so once is
    enough; a kernel in pieces (Chunks) keeps it per block, whatever its last wave loses.
    """
    peak = device.fp32_flops_per_s
    if not peak or not any(isinstance(kernel.work, Measured) for kernel in workload.kernels):
        return workload
    program = compile_program(workload, device, (), dispatch=vendor_dispatch(device)).program
    flops_per_ns = peak / device.sms / 1e9
    operations = tuple(
        replace(op, work=_known_work(compiled, op.work, flops_per_ns))
        if isinstance(op, KernelOp) and isinstance(op.work, Measured)
        else op
        for op, compiled in zip(workload.operations, program.ops, strict=True)
    )
    return replace(workload, operations=operations)


def _known_work(compiled: EngineOp, work: Measured, flops_per_ns: float) -> BlockWork:
    each = compiled.blocks / work.blocks  # a persistent kernel has as many blocks as fit
    return BlockWork(
        blocks=work.blocks,
        flops_per_block=compiled.work_ns * flops_per_ns * each,
        hbm_bytes_per_block=compiled.hbm_per_ns * compiled.work_ns * each,
    )


def thinned(workload: Workload, device: Device, waves: int | None) -> Workload:
    """The workload with at most `waves` waves per kernel: fewer blocks, each with more work; None: unchanged."""
    if waves is None:
        return workload
    return replace(workload, operations=tuple(_thinned(op, device, waves) for op in workload.operations))


def _thinned(op: Operation, device: Device, waves: int) -> Operation:
    if not isinstance(op, KernelOp) or op.persistent:
        return op
    times = kernel_waves(op, device) / waves
    return op if times <= 1 else replace(op, work=_fewer_blocks(op.work, times))


def _fewer_blocks(work: Work, times: float) -> Work:
    match work:
        case Gemm():
            across, down = -(-work.n // work.tile[1]), -(-work.m // work.tile[0])
            if work.grid is not None:
                across, down = min(work.grid[0], across), min(work.grid[1], down)
            fewer = max(1, round(down / times))
            return replace(work, grid=(max(1, round(across * down / times / fewer)), fewer))
        case BlockWork():
            blocks = max(1, round(work.blocks / times))
            more = work.blocks / blocks
            flops, hbm_bytes = work.flops_per_block * more, work.hbm_bytes_per_block * more
            return replace(work, blocks=blocks, flops_per_block=flops, hbm_bytes_per_block=hbm_bytes)
        case Measured():
            return replace(work, blocks=max(1, round(work.blocks / times)))
        case _:
            assert_never(work)


def kernel_waves(op: KernelOp, device: Device) -> float:
    """How often the kernel fills the device."""
    if op.persistent:
        return 1.0
    return op.work.blocks / (device.sms * max(resident_blocks(device, op.resources), 1))


def run_cost_ms(program: Program, events: int, engine: Engine) -> float:
    """The cost of a run, by what it did."""
    if engine == "block":
        return sum(op.blocks for op in program.ops) * BLOCK_MS
    return events * (EVENT_MS + SITE_MS * len(program.sites) + WAITING_MS * len(program.ops))


def class_cost_ms(workload: Workload, device: Device, policies: int) -> float:
    """The expected cost of one score with the class engine under that many dispatch policies."""
    events = 2 * len(workload.operations) + 1.5 * sum(kernel_waves(kernel, device) for kernel in workload.kernels)
    each_ms = EVENT_MS + SITE_MS + WAITING_MS * len(workload.operations)
    return len(workload.operations) * COMPILE_MS + events * each_ms * policies


def block_cost_ms(workload: Workload, device: Device, policies: int) -> float:
    """The expected cost of one score with the per-block engine under that many dispatch policies."""
    blocks = sum(
        kernel_waves(kernel, device) * device.sms * max(resident_blocks(device, kernel.resources), 1)
        for kernel in workload.kernels
    )
    return len(workload.operations) * COMPILE_MS + blocks * BLOCK_MS * policies
