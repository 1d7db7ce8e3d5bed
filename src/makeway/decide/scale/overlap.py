"""Communication beside compute: what stays exposed and what compute loses, from the one-GPU model.

Each class of kernel meets each class of collective once, in a run of the fluid engine under the layout's controls. That
gives three numbers: how long the collective waits for room, and the rates of both while they share the device. A
stretch of a step is put together from these. Nothing here is a percentage that somebody sets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from makeway.decide.planning.host import carrier_rates
from makeway.model.presets import gemm_kernel, library_for
from makeway.model.simulate.predict import Settings, predicted_run
from makeway.values.collective import Collective, CollectiveKind
from makeway.values.control import Control, CopyEngine, SmemPad, SmPartition, TileChoice
from makeway.values.device import Device
from makeway.values.errors import MakewayError, UnsupportedError
from makeway.values.kernel import KernelResources
from makeway.values.units import KIB
from makeway.values.workload import BlockWork, CollectiveOp, Gemm, KernelOp, Workload

KernelClass = Literal["product", "attention", "pass"]

PIECES = 4  # that a tensor-parallel collective and its product are cut into
_LAUNCHES = 5  # of a kernel in a probe; the collective arrives when the first has ended
_RANKS = 8
EVEN_SHARE = 0.5  # of a core, for the thread that computes and for those that move bytes
_GRID = 1.25  # rates and sizes are rounded to powers of this, so that layouts share probes
_PASS_BLOCK = KernelResources(threads=256, registers_per_thread=40)
_PASS_BLOCKS, _PASS_BYTES = 8192, 64 * KIB  # a pass over 512 MiB
# FlashAttention-2's forward block at head size 128; one fits on an SM.
_ATTENTION_BLOCK = KernelResources(threads=256, registers_per_thread=255, smem_bytes=96 * KIB)
_ATTENTION_FLOPS, _ATTENTION_BYTES = 4.0e9, 1.0e6  # of a block: a tile of queries over a sequence of 8,192
_ON_COMPUTE = (SmemPad, SmPartition, TileChoice)  # controls that act on kernels without any collective, too
_SETTINGS = Settings(engine="fluid", jitter=0.0)


@dataclass(frozen=True, slots=True)
class Overlap:
    """A stretch of compute with communication beside it."""

    exposed_ns: float
    contention_ns: float  # compute that takes longer


@dataclass(frozen=True, slots=True)
class Meeting:
    """A class of kernels beside a collective, under controls."""

    wait: float  # from the collective's arrival until its blocks are resident, in kernels
    compute_rate: float  # of what it is alone, while both run
    comm_rate: float
    alone: float  # time of the kernels alone under the controls, over that without


IDEAL = Meeting(0.0, 1.0, 1.0, 1.0)


@dataclass(slots=True)
class Kernels:
    """Kernels of one class that run one after another."""

    ns: float = 0.0
    square_ns: float = 0.0  # of each of them, added up

    def add(self, ns: float, square_ns: float, times: float = 1.0) -> None:
        self.ns += ns * times
        self.square_ns += square_ns * times

    @property
    def typical_ns(self) -> float:
        """The length of the kernel that runs at a moment, on average."""
        return self.square_ns / self.ns if self.ns else 0.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """A collective: its time alone, the bytes that a rank sends, and how many launches it is cut into."""

    kind: CollectiveKind
    ns: float
    wire_bytes: float
    launches: float = 1.0


def meeting(device: Device, kernel: KernelClass, traffic: Traffic, controls: tuple[Control, ...]) -> Meeting:
    """What a class of kernels and a collective of this rate do to each other."""
    rate = traffic.wire_bytes / traffic.ns if traffic.ns else 0.0
    if rate <= 0:
        return IDEAL
    if device.vendor == "cpu":
        return _on_host(device, traffic.kind, rate, controls)
    able = effective(device, kernel, traffic.kind, controls)
    return _measured(device, kernel, traffic.kind, round(math.log(rate, _GRID)), able)


@lru_cache(maxsize=8192)
def effective(
    device: Device, kernel: KernelClass, kind: CollectiveKind, controls: tuple[Control, ...]
) -> tuple[Control, ...]:
    """The controls that can act on this pair: copy engines cannot add, and a pad must fit the kernel's block."""
    adds = Collective(kind=kind, size_bytes=_RANKS, ranks=_RANKS).needs_arithmetic
    block = _kernels(device, kernel)[0].resources
    return tuple(
        control
        for control in controls
        if not (isinstance(control, CopyEngine) and adds)
        and not (isinstance(control, SmemPad) and block.smem_bytes + control.pad_bytes > device.sm.smem_block_bytes)
    )


def _on_host(device: Device, kind: CollectiveKind, bytes_per_ns: float, controls: tuple[Control, ...]) -> Meeting:
    """On a CPU host the threads that move bytes take the cores from compute, as in `makeway.decide.planning.host`.

    A core that both want is shared evenly: bytes that cost more than half of it move more slowly, and still take from
    compute what each of them costs.
    """
    if controls:
        raise UnsupportedError(f"{device.name} is a CPU host: controls are not part of its step at scale.")
    taken = bytes_per_ns * carrier_rates(device, "gloo", kind).cpu_ns_per_byte
    share = min(taken, EVEN_SHARE)
    return Meeting(wait=0.0, compute_rate=1 - share, comm_rate=share / taken if taken else 1.0, alone=1.0)


@lru_cache(maxsize=64)
def unmodelled(device: Device) -> str | None:
    """Why contention cannot be predicted on a device; None where it can."""
    if device.vendor == "cpu":
        return None
    try:
        _probe(device, "product", "all-gather", 10.0, ())
    except MakewayError as error:
        return f"contention is not modelled on {device.name}: {str(error).splitlines()[0]}"
    return None


@lru_cache(maxsize=8192)
def _measured(
    device: Device, kernel: KernelClass, kind: CollectiveKind, step: int, controls: tuple[Control, ...]
) -> Meeting:
    try:
        return _probe(device, kernel, kind, _GRID**step, controls)
    except MakewayError:
        if controls:
            raise  # a control that cannot work here is the caller's mistake
        return IDEAL


def _probe(
    device: Device, kernel: KernelClass, kind: CollectiveKind, bytes_per_ns: float, controls: tuple[Control, ...]
) -> Meeting:
    free = _end_ns(device, kernel, ())
    alone = _end_ns(device, kernel, controls) if controls else free
    comm_ns = free * (_LAUNCHES - 2) / _LAUNCHES
    share = 2 * (_RANKS - 1) / _RANKS if kind == "all-reduce" else 1.0 if kind == "send-recv" else 1 - 1 / _RANKS
    size = max(_RANKS, round(bytes_per_ns * comm_ns / share))
    op = CollectiveOp(
        name="comm",
        collective=Collective(kind=kind, size_bytes=size, ranks=2 if kind == "send-recv" else _RANKS),
        library=library_for(device, kind),
        after=("kernel 0",),
        time_ns=comm_ns,
    )
    workload = Workload(name="meeting", operations=(*_kernels(device, kernel), op), ranks=_RANKS, host_launch_ns=0.0)
    run = predicted_run(workload, device, controls, _SETTINGS)
    names = [item.name for item in run.compiled.program.ops]
    times = dict(zip(names, run.result.times, strict=True))
    moved = [time for name, time in times.items() if name.startswith("comm")]
    begun, ended = min(time.moving_ns for time in moved), max(time.ended_ns for time in moved)
    done = max(time.ended_ns for name, time in times.items() if name.startswith("kernel"))
    arrived = min(time.arrived_ns for time in moved)
    together = max(min(ended, done) - begun, 1e-9)
    computed = alone - begun - max(0.0, done - ended)
    carried = comm_ns - max(0.0, ended - done)
    return Meeting(
        wait=max(0.0, begun - arrived) / (alone / _LAUNCHES),
        compute_rate=min(1.0, max(0.05, computed / together)),
        comm_rate=min(1.0, max(0.05, carried / together)),
        alone=alone / free,
    )


@lru_cache(maxsize=1024)
def _end_ns(device: Device, kernel: KernelClass, controls: tuple[Control, ...]) -> float:
    workload = Workload(name="alone", operations=_kernels(device, kernel), host_launch_ns=0.0)
    able = tuple(control for control in controls if isinstance(control, _ON_COMPUTE))
    return predicted_run(workload, device, able, _SETTINGS).result.end_ns


def _kernels(device: Device, kernel: KernelClass) -> tuple[KernelOp, ...]:
    work: Gemm | BlockWork
    match kernel:
        case "product":
            tile, block, efficiency = gemm_kernel(device)
            work = Gemm(m=8192, n=8192, k=8192, tile=tile, efficiency=efficiency)
        case "attention":
            block = _ATTENTION_BLOCK if device.vendor == "nvidia" else _PASS_BLOCK
            work = BlockWork(
                blocks=8 * device.sms,
                flops_per_block=_ATTENTION_FLOPS,
                hbm_bytes_per_block=_ATTENTION_BYTES,
                dtype="bf16",
            )
        case "pass":
            block = _PASS_BLOCK
            work = BlockWork(blocks=_PASS_BLOCKS, hbm_bytes_per_block=float(_PASS_BYTES), dtype="bf16")
    return tuple(KernelOp(name=f"kernel {index}", resources=block, work=work) for index in range(_LAUNCHES))


def beside(
    device: Device,
    compute: Mapping[KernelClass, Kernels],
    traffic: Traffic,
    controls: tuple[Control, ...],
    *,
    contention: bool,
) -> Overlap:
    """Compute that does not wait for a collective, with the collective beside it.

    Kernels have the times that they take alone under the controls.
    """
    total = sum([kernels.ns for kernels in compute.values()])
    if traffic.ns <= 0:
        return Overlap(0.0, 0.0)
    if not contention or total <= 0:
        return Overlap(max(0.0, traffic.ns - total), 0.0)
    slowed = carried = wait = 0.0
    for kernel, kernels in compute.items():
        if kernels.ns:
            met = meeting(device, kernel, traffic, controls)
            slowed += kernels.ns / met.compute_rate
            carried += kernels.ns / met.compute_rate * met.comm_rate
            wait += met.wait * kernels.typical_ns * kernels.ns / total
    pace, comm_pace = total / slowed, carried / slowed
    late = min(wait * traffic.launches, slowed)
    room = slowed - late
    needed = traffic.ns / comm_pace
    if needed <= room:
        return Overlap(0.0, needed * (1 - pace))
    return Overlap(traffic.ns - room * comm_pace, room * (1 - pace))


def in_pieces(
    device: Device, kernel: KernelClass, compute_ns: float, traffic: Traffic, controls: tuple[Control, ...],
    *, contention: bool,
) -> Overlap:  # fmt: skip
    """A collective cut into pieces beside the operation that uses its data: one piece is never hidden."""
    hidden = 1 - 1 / PIECES
    part = Traffic(traffic.kind, traffic.ns * hidden, traffic.wire_bytes * hidden)
    outcome = beside(device, {kernel: Kernels(compute_ns * hidden, 0.0)}, part, controls, contention=contention)
    return Overlap(outcome.exposed_ns + traffic.ns / PIECES, outcome.contention_ns)
