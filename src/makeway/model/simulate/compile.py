"""Compiles a workload, a device and controls into what the engines run.

The constants of the model that are not facts of a device are here; docs/model.md explains each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, assert_never

from makeway.model.residency import check_launch, need, resident_blocks
from makeway.model.simulate.device_numbers import device_sites, model_number, saturation, warp_share
from makeway.model.simulate.dma import dma_cost
from makeway.model.simulate.kept_runs import kept_run
from makeway.model.simulate.mechanisms import (
    DEFAULT,
    FLAT_TRAFFIC,
    MEMORY_OVERDRIVE,
    MIXED_HBM,
    MOVING_POWER,
    NEIGHBOUR_EXPOSURE,
    NEIGHBOUR_SHARE,
    NEIGHBOUR_THREADS,
    POWER_EXPONENT,
    TENSOR_TYPES,
    GemmTraffic,
    Mechanisms,
    Reuse,
    assumptions,
    cache_bytes,
    gemm_traffic,
    streaming_warps,
)
from makeway.model.simulate.network import PATHS, CollectiveCost, check_one_node, collective_cost, default_blocks
from makeway.model.simulate.partition import check_channels
from makeway.model.simulate.policies import Dispatch, Proportional, StrictHeadOfLine
from makeway.model.simulate.program import EngineOp, Program, Site
from makeway.model.simulate.rewrite import idle_controls, rewritten
from makeway.model.simulate.spread import looping_spread
from makeway.values.collective import CommFootprint, load_footprint
from makeway.values.control import CommBlocks, CommPriority, CommThreads, Control, CopyEngine, SmPartition
from makeway.values.device import Device
from makeway.values.errors import InputError, UnsupportedError
from makeway.values.kernel import KernelResources
from makeway.values.workload import BlockWork, CollectiveOp, DataType, Gemm, KernelOp, Measured, Workload

# A measured kernel is memory-bound if it moves this part of what HBM could in its time.
MEMORY_BOUND = 0.5
_UNIT_WORK_NS = 1e6

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A program, what it assumes, and which controls have no effect."""

    program: Program
    assumed: tuple[str, ...]
    without_effect: tuple[str, ...]  # controls, or parts of them, that change nothing here


def compile_program(
    workload: Workload,
    device: Device,
    controls: Sequence[Control],
    *,
    dispatch: Dispatch,
    jitter: float = 0.0,
    by_length: bool = False,
    seed: int = 0,
    skew_ns: Sequence[float] = (0.0,),
    mechanisms: Mechanisms = DEFAULT,
) -> Compiled:
    """The program of `workload` on `device` under `controls`; one simulated rank per entry of `skew_ns`.

    `by_length`: blocks that loop over tiles spread by less than `jitter`, as long as they are (spread.py).

    All ranks run the same operations, so ranks that start together behave alike and one represents them all.
    """
    compiler = _Compiler(device, tuple(controls), dispatch, jitter, by_length, mechanisms)
    compiler.without_effect += idle_controls(workload, controls)
    return compiler.compile(rewritten(workload, controls), seed=seed, skew_ns=tuple(skew_ns))


@dataclass(frozen=True, slots=True)
class _KernelCost:
    """What a whole kernel takes of memory, and of the power budget while it has all SMs."""

    hbm_bytes: float
    reuse: tuple[Reuse, ...] = ()
    power: float = 0.0


class _Compiler:
    def __init__(
        self,
        device: Device,
        controls: tuple[Control, ...],
        dispatch: Dispatch,
        jitter: float,
        by_length: bool,
        mechanisms: Mechanisms,
    ) -> None:
        self.device = device
        self.jitter = jitter
        self.by_length = by_length
        self.mechanisms = mechanisms
        self.dispatch = dispatch
        self.partition = _only(controls, SmPartition)
        self.blocks = _only(controls, CommBlocks)
        self.threads = _only(controls, CommThreads)
        self.copy = _only(controls, CopyEngine)
        self.priority = 1 if _only(controls, CommPriority) else 0
        self.assumed: list[str] = []
        self.without_effect: list[str] = []
        self.link_per_ns = 0.0
        sms = device.sms
        if self.partition and self.partition.comm_sms >= sms:
            raise InputError(f"{self.partition.comm_sms} SMs for communication leave none of {sms} for compute")

    def compile(self, workload: Workload, *, seed: int, skew_ns: tuple[float, ...]) -> Compiled:
        self.assumed += workload.assumed
        if workload.kernels and workload.collectives:
            self.assumed += assumptions(self.mechanisms)
        number = {operation.name: index for index, operation in enumerate(workload.operations)}
        one_rank = [
            replace(
                self._kernel(op) if isinstance(op, KernelOp) else self._collective(op),
                after=tuple(number[name] for name in op.after),
                launch_ns=workload.host_launch_ns * index if op.launched_ns is None else op.launched_ns,
            )
            for index, op in enumerate(workload.operations)
        ]
        if self.copy and not any(op.kind == "copy" for op in one_rank):
            raise UnsupportedError(
                "no collective of this workload can run on copy engines: they move bytes and cannot add "
                "(all-reduce and reduce-scatter need blocks)"
            )
        ops = [
            replace(
                op, rank=rank, launch_ns=op.launch_ns + skew, after=tuple(i + rank * len(one_rank) for i in op.after)
            )
            for rank, skew in enumerate(skew_ns)
            for op in one_rank
        ]
        sites = self._sites(one_rank)
        if self.partition:
            check_channels(self.device, self.partition.comm_sms, sites, one_rank)
        program = Program(
            sm=self.device.sm,
            sites=sites,
            ranks=len(skew_ns),
            ops=tuple(ops),
            hbm_per_ns=self.device.hbm_bytes_per_s / 1e9 if self.device.hbm_bytes_per_s else None,
            l2_per_ns=self.device.l2_bytes_per_s / 1e9 if self.device.l2_bytes_per_s else None,
            link_per_ns=self.link_per_ns or None,
            mixed_hbm=MIXED_HBM if self.mechanisms.mixed_hbm else 1.0,
            memory_side_cache=self.device.memory_side_cache_bytes is not None,
            power_exponent=POWER_EXPONENT if self.mechanisms.clocks else None,
            saturation=saturation(self.device),
            comm_loss=model_number(self.device, "overlap_comm_loss", 0.0),
            jitter=self.jitter,
            seed=seed,
        )
        return Compiled(
            program=program,
            assumed=tuple(dict.fromkeys(self.assumed)),
            without_effect=tuple(dict.fromkeys(self.without_effect)),
        )

    # --- where blocks may go -------------------------------------------------------------------

    def _parts(self) -> list[tuple[str | None, int]]:
        if self.partition is None:
            return [(None, self.device.sms)]
        return [("compute", self.device.sms - self.partition.comm_sms), ("comm", self.partition.comm_sms)]

    def _sites(self, ops: list[EngineOp]) -> tuple[Site, ...]:
        clusters = any(op.block and op.block.cluster > 1 for op in ops)
        return device_sites(self.device, self._parts(), gpcs=self.dispatch.gpcs, clusters=clusters)

    # --- kernels -------------------------------------------------------------------------------

    def _kernel(self, op: KernelOp) -> EngineOp:
        check_launch(self.device, op.resources)
        sms = self._parts()[0][1]
        each = resident_blocks(self.device, op.resources)
        blocks = each * sms if op.persistent else op.work.blocks
        share = op.share if op.share is not None else self._share(op)
        work, cost = self._work(op, blocks, share)
        l2_bytes = op.work.l2_bytes if isinstance(op.work, Gemm) else 0.0
        return EngineOp(
            name=op.name,
            kind="kernel",
            stream=op.stream,
            part="compute" if self.partition else None,
            block=need(self.device.sm, op.resources),
            blocks=blocks,
            work_ns=work,
            share=share,
            hbm_per_ns=cost.hbm_bytes / blocks / work,
            reuse=tuple(Reuse(item.repeated_bytes / blocks / work, item.fit) for item in cost.reuse),
            l2_per_ns=max(cost.hbm_bytes, l2_bytes) / blocks / work,
            power=cost.power,
            jitter=self._spread(op, max(work / share, work * each)),
        )

    def _spread(self, op: KernelOp, block_ns: float) -> float | None:
        """The relative spread of the kernel's blocks, where it is not the program's."""
        loops = isinstance(op.work, Gemm) and op.work.grid is not None
        if not (self.by_length and loops and self.jitter and self.device.clock_hz):
            return None
        return looping_spread(self.jitter, block_ns * self.device.clock_hz / 1e9)

    def _work(self, op: KernelOp, blocks: int, share: float) -> tuple[float, _KernelCost]:
        """Work of one block, and what the whole kernel takes of memory and power."""
        match op.work:
            case Gemm():
                return self._gemm(op.work, op.resources, blocks)
            case BlockWork():
                hbm_bytes = op.work.hbm_bytes_per_block * op.work.blocks
                time_ns, power = self._roofline(op.work.flops_per_block * op.work.blocks, hbm_bytes, op.work.dtype)
                return time_ns / blocks, _KernelCost(hbm_bytes, power=power)
            case Measured():
                work = self._measured_work(op, share)
                bandwidth = self.device.hbm_bytes_per_s
                most = bandwidth / 1e9 / self.device.sms if bandwidth else math.inf
                return work / blocks, _KernelCost(min(op.work.hbm_bytes, most * work))
            case _:
                assert_never(op.work)

    def _gemm(self, gemm: Gemm, resources: KernelResources, blocks: int) -> tuple[float, _KernelCost]:
        self.assumed.append(f"matrix products reach {gemm.efficiency:.0%} of peak")
        traffic = GemmTraffic(gemm.min_bytes * FLAT_TRAFFIC)
        if self.mechanisms.traffic and cache_bytes(self.device):
            at_once = min(blocks, resident_blocks(self.device, resources) * self.device.sms)
            traffic = gemm_traffic(gemm, at_once=at_once, cache_bytes=cache_bytes(self.device))
            self.assumed.append("matrix products walk their tiles in square waves")
        else:
            self.assumed.append(f"matrix products move each matrix {FLAT_TRAFFIC:g} times")
        time_ns, power = self._roofline(gemm.flops / gemm.efficiency, traffic.hbm_bytes, gemm.dtype)
        reuse = traffic.reuse if self.mechanisms.l2_capacity else ()
        return time_ns / blocks, _KernelCost(traffic.hbm_bytes, reuse, power)

    def _share(self, op: KernelOp) -> float:
        """The part of an SM that one block can use: by latency for a memory-bound kernel, else by its warps."""
        warps = streaming_warps(self.device) if self.mechanisms.in_flight and self._memory_bound(op) else None
        return warp_share(self.device, op, warps)

    def _memory_bound(self, op: KernelOp) -> bool:
        """Whether memory traffic, not arithmetic, decides a kernel's time."""
        bandwidth = self.device.hbm_bytes_per_s
        match op.work:
            case BlockWork():
                hbm_bytes = op.work.hbm_bytes_per_block
                arithmetic, _ = self._roofline(op.work.flops_per_block, 0.0, op.work.dtype)
                return self._roofline(0.0, hbm_bytes, op.work.dtype)[0] > arithmetic
            case Measured():
                most = (bandwidth or math.inf) * op.work.time_ns / 1e9
                return op.work.hbm_bytes >= MEMORY_BOUND * most
            case Gemm():
                return False
            case _:
                assert_never(op.work)

    def _roofline(self, flops: float, hbm_bytes: float, dtype: DataType) -> tuple[float, float]:
        """Time on one SM, and the part of the power budget that it draws on all of them.

        The time is that of the arithmetic or of the memory traffic, whichever takes longer.
        """
        device = self.device
        key: str = {"fp32": "fp32", "tf32": "tf32", "fp16": "fp16", "bf16": "fp16"}[dtype]
        peak = getattr(device, f"{key}_flops_per_s")
        for needed, rate, fact in ((flops, peak, key + "_flops"), (hbm_bytes, device.hbm_bytes_per_s, "hbm_bytes")):
            if needed and not rate:
                raise UnsupportedError(f"{device.name} has no fact {fact}_per_s; give the kernel a measured time")
        arithmetic = flops / (peak / device.sms) * 1e9 if flops else 0.0
        most = MEMORY_OVERDRIVE * (device.hbm_bytes_per_s or 0.0) / device.sms
        memory = hbm_bytes / most * 1e9 if hbm_bytes else 0.0
        time_ns = max(arithmetic, memory)
        limited = self.mechanisms.clocks and dtype in TENSOR_TYPES and arithmetic > memory
        return time_ns, 1.0 if limited else 0.0

    def _measured_work(self, op: KernelOp, share: float) -> float:
        """Work of all blocks together for which the kernel, as measured, takes its time on the whole device.

        The time was measured with the spread that blocks have, so it is met with the spread of this program.
        """
        assert isinstance(op.work, Measured)
        resources = op.measured_as or op.resources
        blocks = resident_blocks(self.device, resources) * self.device.sms if op.persistent else op.work.blocks
        unit = EngineOp(
            name="",
            kind="kernel",
            block=need(self.device.sm, resources),
            blocks=blocks,
            work_ns=_UNIT_WORK_NS,
            share=share,
        )
        return op.work.time_ns * blocks * _UNIT_WORK_NS / _alone_ns(self.device, unit, self.jitter)

    # --- collectives ---------------------------------------------------------------------------

    def _collective(self, op: CollectiveOp) -> EngineOp:
        if op.time_ns is None:
            check_one_node(self.device, op.collective)
        footprint = load_footprint(op.library, self.device.arch)
        path = self._priced_path(op.library)
        plain = self._cost(op, footprint, path, None)
        own_blocks = op.blocks or default_blocks(self.device, op.collective)
        scale = op.time_ns / self._timed_ns(op, footprint, path) if op.time_ns else 1.0
        self.assumed += (*footprint.assumed, *plain.assumed)
        self.link_per_ns = max(self.link_per_ns, plain.link_bytes_per_s / 1e9 / scale)
        if footprint.block is None or (self.copy and not op.collective.needs_arithmetic):
            return self._copy(op, scale)
        if self.copy:
            self.without_effect.append(f"copy-engine on {op.name}: copy engines cannot add")
        if self.threads:
            footprint = footprint.with_threads(self.threads.threads)
        block = footprint.block
        assert block is not None
        blocks = self.blocks.blocks if self.blocks else own_blocks
        if footprint.max_blocks is not None and blocks > footprint.max_blocks:
            raise InputError(f"{op.name}: {blocks} blocks; {footprint.name} has at most {footprint.max_blocks}")
        if self.blocks and self.blocks.cluster:
            block = replace(block, cluster=self.blocks.cluster)
        if blocks % block.cluster:
            block = replace(block, cluster=1)  # as NCCL does
        check_launch(self.device, block)
        cost = self._cost(op, footprint, path, self.threads.threads if self.threads else None)
        self.assumed += cost.assumed
        time_ns = cost.alone_ns(blocks) * scale
        moved = cost.wire_bytes * cost.hbm_bytes_per_wire_byte / time_ns
        return EngineOp(
            name=op.name,
            kind="collective",
            stream=op.stream,
            priority=self.priority,
            part="comm" if self.partition else None,
            block=need(self.device.sm, block),
            blocks=blocks,
            work_ns=time_ns,
            share=NEIGHBOUR_SHARE * block.threads / NEIGHBOUR_THREADS if self.mechanisms.neighbours else 0.0,
            exposure=NEIGHBOUR_EXPOSURE if self.mechanisms.neighbours else 1.0,
            slack=self._slack(cost, blocks),
            power=self._moving_power(moved),
            hbm_per_ns=moved,
            l2_per_ns=moved,
            link_per_ns=cost.wire_bytes / time_ns,
            group=op.name,
        )

    def _timed_ns(self, op: CollectiveOp, footprint: CommFootprint, path: str) -> float:
        """What the device's links alone would take for the collective whose time was measured."""
        whole = op if op.timed is None else replace(op, collective=op.timed)
        own_blocks = op.blocks or default_blocks(self.device, whole.collective)
        return self._cost(whole, footprint, path, None).alone_ns(own_blocks)

    def _moving_power(self, hbm_per_ns: float) -> float:
        """The part of the power budget that a collective draws."""
        if not self.mechanisms.clocks or not self.device.hbm_bytes_per_s:
            return 0.0
        return MOVING_POWER * hbm_per_ns / (self.device.hbm_bytes_per_s / 1e9)

    def _slack(self, cost: CollectiveCost, blocks: int) -> float:
        """How much faster than its links the blocks of a collective could go."""
        if not (self.mechanisms.mixed_hbm or self.mechanisms.neighbours):
            return 1.0
        return max(1.0, blocks * cost.per_block_bytes_per_s / cost.link_bytes_per_s)

    def _priced_path(self, library: str) -> str:
        """The algorithm and protocol whose rates a library's path takes; ring-simple where none are known."""
        path = library.partition("/")[2].partition(",")[0]
        if path in PATHS:
            return path
        self.assumed.append(f"no rates known for {library}; those of ring-simple are used")
        return "ring-simple"

    def _cost(self, op: CollectiveOp, footprint: CommFootprint, path: str, threads: int | None) -> CollectiveCost:
        given = threads
        if given is None and footprint.block is not None and footprint.choices:
            given = footprint.block.threads if footprint.block.threads < footprint.choices[0].threads else None
        return collective_cost(self.device, op.collective, path=path, threads=given)

    def _copy(self, op: CollectiveOp, scale: float) -> EngineOp:
        variant = self.copy or CopyEngine()
        cost = dma_cost(self.device, op.collective, variant=variant.variant, prelaunch=variant.prelaunch)
        self.assumed += cost.assumed
        time_ns = cost.total_ns * scale
        moved = cost.hbm_bytes_per_s / 1e9 * cost.copy_ns / cost.total_ns / scale
        return EngineOp(
            name=op.name,
            kind="copy",
            stream=op.stream,
            work_ns=time_ns,
            hbm_per_ns=moved,
            link_per_ns=op.collective.wire_bytes / time_ns,
            power=self._moving_power(moved),
            group=op.name,
        )


def _only(controls: tuple[Control, ...], kind: type[_T]) -> _T | None:
    return next((control for control in controls if isinstance(control, kind)), None)


def _alone_ns(device: Device, op: EngineOp, jitter: float) -> float:
    program = Program(
        sm=device.sm,
        sites=(Site(part=None, gpc=0, sms=device.sms),),
        ranks=1,
        ops=(op,),
        saturation=saturation(device),
        jitter=jitter,
    )
    return kept_run(program, "block" if jitter else "class", StrictHeadOfLine(), Proportional()).end_ns
