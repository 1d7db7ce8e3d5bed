"""Compiles a workload, a device and controls into what the engines run.

The constants of the model that are not facts of a device are here; docs/model.md explains each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TypeVar, assert_never

from makeway.model.residency import check_launch, need, resident_blocks
from makeway.model.simulate.dma import dma_cost
from makeway.model.simulate.driver import run
from makeway.model.simulate.network import PATHS, CollectiveCost, check_one_node, collective_cost, default_blocks
from makeway.model.simulate.partition import check_channels
from makeway.model.simulate.policies import Dispatch
from makeway.model.simulate.program import EngineOp, Interference, Program, Saturation, Site
from makeway.model.simulate.rewrite import idle_controls, rewritten
from makeway.values.collective import CommFootprint, load_footprint
from makeway.values.control import CommBlocks, CommPriority, CommThreads, Control, CopyEngine, SmPartition
from makeway.values.device import Device, device_names, load_device
from makeway.values.errors import InputError, UnsupportedError
from makeway.values.facts import Fact
from makeway.values.workload import BlockWork, CollectiveOp, DataType, Gemm, KernelOp, Measured, Workload

# How often a tiled product moves each matrix: at least once; L2 misses repeat part of it. Assumed.
GEMM_TRAFFIC = 2.0
# All SMs together can demand this much more than HBM delivers: what makes a kernel memory-bound. Assumed.
MEMORY_OVERDRIVE = 1.5
DEFAULT_SMS_PER_GPC = 16
DEFAULT_SATURATING_WARPS = 16.0
# Numbers that a device without its own takes from another; without the others the model leaves the effect out.
BORROWED = ("saturating_warps", "soft_saturation", "comm_over_compute", "sms_per_gpc")
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
    seed: int = 0,
    skew_ns: Sequence[float] = (0.0,),
) -> Compiled:
    """The program of `workload` on `device` under `controls`; one simulated rank per entry of `skew_ns`.

    All ranks run the same operations, so ranks that start together behave alike and one represents them all.
    """
    compiler = _Compiler(device, tuple(controls), dispatch)
    compiler.without_effect += idle_controls(workload, controls)
    return compiler.compile(rewritten(workload, controls), jitter=jitter, seed=seed, skew_ns=tuple(skew_ns))


class _Compiler:
    def __init__(self, device: Device, controls: tuple[Control, ...], dispatch: Dispatch) -> None:
        self.device = device
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

    def compile(self, workload: Workload, *, jitter: float, seed: int, skew_ns: tuple[float, ...]) -> Compiled:
        self.assumed += workload.assumed
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
            saturation=saturation(self.device),
            interference=Interference(
                any=model_number(self.device, "overlap_loss", 0.0),
                comm=model_number(self.device, "overlap_comm_loss", 0.0),
            ),
            jitter=jitter,
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
        share = op.share if op.share is not None else warp_share(self.device, op)
        work, hbm_bytes = self._work(op, blocks, share)
        return EngineOp(
            name=op.name,
            kind="kernel",
            stream=op.stream,
            part="compute" if self.partition else None,
            block=need(self.device.sm, op.resources),
            blocks=blocks,
            work_ns=work,
            share=share,
            hbm_per_ns=hbm_bytes / work,
            l2_per_ns=max(hbm_bytes, op.work.l2_bytes / blocks if isinstance(op.work, Gemm) else 0.0) / work,
        )

    def _work(self, op: KernelOp, blocks: int, share: float) -> tuple[float, float]:
        """Work and HBM bytes of one block."""
        match op.work:
            case Gemm():
                self.assumed.append(
                    f"matrix products reach {op.work.efficiency:.0%} of peak, move each matrix {GEMM_TRAFFIC:g} times"
                )
                hbm_bytes = op.work.min_bytes * GEMM_TRAFFIC / blocks
                return self._roofline(op.work.flops / op.work.efficiency / blocks, hbm_bytes, op.work.dtype), hbm_bytes
            case BlockWork():
                whole = op.work.blocks / blocks  # a persistent kernel divides the same work among fewer blocks
                hbm_bytes = op.work.hbm_bytes_per_block * whole
                return self._roofline(op.work.flops_per_block * whole, hbm_bytes, op.work.dtype), hbm_bytes
            case Measured():
                work = self._measured_work(op, share) / blocks
                most = (
                    math.inf if not self.device.hbm_bytes_per_s else self.device.hbm_bytes_per_s / 1e9 / self.device.sms
                )
                return work, min(op.work.hbm_bytes / blocks, most * work)
            case _:
                assert_never(op.work)

    def _roofline(self, flops: float, hbm_bytes: float, dtype: DataType) -> float:
        """Time of one block with an SM to itself: its arithmetic or its memory traffic, whichever takes longer."""
        device = self.device
        key: str = {"fp32": "fp32", "tf32": "tf32", "fp16": "fp16", "bf16": "fp16"}[dtype]
        peak = getattr(device, f"{key}_flops_per_s")
        for needed, rate, fact in ((flops, peak, key + "_flops"), (hbm_bytes, device.hbm_bytes_per_s, "hbm_bytes")):
            if needed and not rate:
                raise UnsupportedError(f"{device.name} has no fact {fact}_per_s; give the kernel a measured time")
        arithmetic = flops / (peak / device.sms) * 1e9 if flops else 0.0
        most = MEMORY_OVERDRIVE * (device.hbm_bytes_per_s or 0.0) / device.sms
        memory = hbm_bytes / most * 1e9 if hbm_bytes else 0.0
        return max(arithmetic, memory)

    def _measured_work(self, op: KernelOp, share: float) -> float:
        """Work of all blocks together for which the kernel, as measured, takes its time on the whole device."""
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
        return op.work.time_ns * blocks * _UNIT_WORK_NS / _alone_ns(self.device, unit)

    # --- collectives ---------------------------------------------------------------------------

    def _collective(self, op: CollectiveOp) -> EngineOp:
        if op.time_ns is None:
            check_one_node(self.device, op.collective)
        footprint = load_footprint(op.library, self.device.arch)
        path = self._priced_path(op.library)
        plain = self._cost(op, footprint, path, None)
        own_blocks = op.blocks or default_blocks(self.device, op.collective)
        scale = op.time_ns / plain.alone_ns(own_blocks) if op.time_ns else 1.0
        self.assumed += plain.assumed
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
        if blocks % block.cluster:
            block = replace(block, cluster=1)  # as NCCL does
        check_launch(self.device, block)
        cost = self._cost(op, footprint, path, self.threads.threads if self.threads else None)
        time_ns = cost.alone_ns(blocks) * scale
        return EngineOp(
            name=op.name,
            kind="collective",
            stream=op.stream,
            priority=self.priority,
            part="comm" if self.partition else None,
            block=need(self.device.sm, block),
            blocks=blocks,
            work_ns=time_ns,
            share=0.0,
            hbm_per_ns=cost.wire_bytes * cost.hbm_bytes_per_wire_byte / time_ns,
            l2_per_ns=cost.wire_bytes * cost.hbm_bytes_per_wire_byte / time_ns,
            link_per_ns=cost.wire_bytes / time_ns,
            group=op.name,
        )

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
        return EngineOp(
            name=op.name,
            kind="copy",
            stream=op.stream,
            work_ns=time_ns,
            hbm_per_ns=cost.hbm_bytes_per_s / 1e9 * cost.copy_ns / cost.total_ns / scale,
            link_per_ns=op.collective.wire_bytes / time_ns,
            group=op.name,
        )


def device_sites(
    device: Device, parts: Sequence[tuple[str | None, int]], *, gpcs: int, clusters: bool
) -> tuple[Site, ...]:
    """SMs by part and, where it matters, by GPC (neighbours, for clusters) or shader engine (in turn)."""
    per_gpc = int(model_number(device, "sms_per_gpc", DEFAULT_SMS_PER_GPC)) if clusters else device.sms
    counts: dict[tuple[str | None, int], int] = {}
    for index, part in enumerate(part for part, sms in parts for _ in range(sms)):
        key = (part, index % gpcs if gpcs > 1 else index // per_gpc)
        counts[key] = counts.get(key, 0) + 1
    return tuple(Site(part=part, gpc=gpc, sms=sms) for (part, gpc), sms in counts.items())


def _only(controls: tuple[Control, ...], kind: type[_T]) -> _T | None:
    return next((control for control in controls if isinstance(control, kind)), None)


# --- numbers of the model that belong to a device ----------------------------------------------


def saturation(device: Device) -> Saturation:
    """Whether throughput grows in proportion to resident warps up to a limit (hard) or levels off (soft)."""
    return "soft" if model_number(device, "soft_saturation", 0.0) else "hard"


def warp_share(device: Device, op: KernelOp) -> float:
    """The part of an SM that one block of the kernel can use: its warps over those that saturate an SM."""
    warps = need(device.sm, op.resources).warps
    return min(1.0, warps / model_number(device, "saturating_warps", DEFAULT_SATURATING_WARPS))


def model_fact(device: Device, key: str) -> tuple[Fact, str] | None:
    """A number of the model and the name of the device it belongs to.

    A device without its own borrows it: from a device of the same vendor with as many warps per SM, else from any
    of the same vendor, the first by name. None where the vendor has none.
    """
    if key in device.facts:
        return device.facts[key], device.name
    if key not in BORROWED:
        return None
    same = [other for other in fitted_devices(key) if other.vendor == device.vendor]
    for other in sorted(same, key=lambda other: (other.sm.max_warps != device.sm.max_warps, other.name)):
        return other.facts[key], other.name
    return None


@cache
def fitted_devices(key: str) -> tuple[Device, ...]:
    """The known devices that have this number of their own."""
    return tuple(device for device in map(load_device, device_names()) if device.limits and key in device.facts)


def model_number(device: Device, key: str, default: float) -> float:
    """A number of the model; the default where neither the device nor its vendor has one."""
    owned = model_fact(device, key)
    return float(owned[0].value) if owned and not isinstance(owned[0].value, tuple) else default


def _alone_ns(device: Device, op: EngineOp) -> float:
    program = Program(
        sm=device.sm,
        sites=(Site(part=None, gpc=0, sms=device.sms),),
        ranks=1,
        ops=(op,),
        saturation=saturation(device),
    )
    return _end_ns(program)


@lru_cache(maxsize=4096)
def _end_ns(program: Program) -> float:
    """Cached: a planner compiles the same measured kernels hundreds of times."""
    return run(program, engine="class").end_ns
