"""Published heuristics for choosing controls: baselines for every plan.

None of them simulates overlap: each looks at sizes and isolated times only, as its paper does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from makeway.decide.planning.candidates import MOST_OPERATIONS, PARTITION_STEP, PUBLISHED_TILES, offered_tiles
from makeway.decide.planning.control_sets import ordered
from makeway.model.residency import check_launch, resident_blocks
from makeway.model.simulate.channels import partition_with_channels
from makeway.model.simulate.compile import compile_program
from makeway.model.simulate.network import default_blocks
from makeway.model.simulate.predict import Prediction, Settings, simulate, vendor_dispatch
from makeway.model.simulate.program import EngineOp
from makeway.model.simulate.rewrite import rewritten
from makeway.values.collective import load_footprint
from makeway.values.control import Chunks, CommPriority, Control, CopyEngine, LaunchOrder, TileChoice
from makeway.values.device import Device
from makeway.values.errors import InputError, UnknownNameError, suggestion
from makeway.values.units import MIB
from makeway.values.workload import CollectiveOp, KernelOp, Operation, Workload

# ConCCL (arXiv 2412.14335): below, collectives are bound by latency and copies four times slower than RCCL.
DMA_LEAST_BYTES = {"all-gather": 32 * MIB, "all-to-all": 64 * MIB, "send-recv": 32 * MIB}
RESERVED_POWERS = (8, 16, 32, 64, 128)  # CUs that ConCCL swept: powers of two from one per XCD
GROUPS = (1, 2, 4, 8)  # FlashOverlap searches how tiles are grouped; here equal groups
FLASHOVERLAP_SMS = 2  # that the collective takes from the GEMM (its tune/search.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolated:
    """What the heuristics look at: all kernels alone, all collectives alone."""

    compute_ns: float
    comm_ns: float


def heuristic_names() -> tuple[str, ...]:
    """Names of all published heuristics."""
    return tuple(_HEURISTICS)


def heuristic_controls(
    name: str, workload: Workload, device: Device, *, isolated: Isolated | None = None
) -> tuple[Control, ...]:
    """The controls that a published heuristic sets; `isolated` times are simulated unless given."""
    if name not in _HEURISTICS:
        known = ", ".join(_HEURISTICS)
        raise UnknownNameError(f"no heuristic {name!r}{suggestion(name, _HEURISTICS)}\nKnown: {known}")
    if not workload.collectives or not workload.kernels:
        return ()
    return ordered(_HEURISTICS[name](workload, device, isolated or isolated_times(workload, device)))


def isolated_times(workload: Workload, device: Device) -> Isolated:
    return as_isolated(simulate(workload, device, (), Settings(engine="class")))


def as_isolated(prediction: Prediction) -> Isolated:
    return Isolated(compute_ns=prediction.t_compute_ns, comm_ns=prediction.t_comm_ns)


_Heuristic = Callable[[Workload, Device, Isolated], tuple[Control, ...]]


def _naive(_workload: Workload, _device: Device, _isolated: Isolated) -> tuple[Control, ...]:
    return ()


def _schedule(workload: Workload, _device: Device, _isolated: Isolated) -> tuple[Control, ...]:
    """ConCCL, schedule prioritization: kernels in ascending number of workgroups, communication first; and priority."""
    first = rewritten(workload, (LaunchOrder(),)) != workload
    return (CommPriority(), LaunchOrder()) if first else (CommPriority(),)


def _reserve(workload: Workload, device: Device, isolated: Isolated) -> tuple[Control, ...]:
    """ConCCL, resource partitioning: the CUs with the smallest of max(compute, comm) by tables of slow-down.

    Instead of its measured tables: compute slows with the SMs it loses, a collective with the blocks it loses.
    """
    collectives = [(op, load_footprint(op.library, device.arch).block) for op in workload.collectives]
    blocks = [
        (op.blocks or default_blocks(device, op.collective), block) for op, block in collectives if block is not None
    ]
    if not blocks:
        return ()

    def predicted(sms: int) -> float:
        part = min(min(1.0, resident_blocks(device, block) * sms / count) for count, block in blocks)
        return max(isolated.compute_ns * device.sms / (device.sms - sms), isolated.comm_ns / part)

    sizes = [sms for sms in RESERVED_POWERS if PARTITION_STEP <= sms <= device.sms // 2]
    if not sizes:
        return ()
    return partition_with_channels(workload, device, min(sizes, key=lambda sms: (predicted(sms), sms)))


def _copies(workload: Workload, device: Device, isolated: Isolated) -> tuple[Control, ...]:
    """ConCCL: copy engines if all movable collectives are large enough; else its schedule."""
    movable = [op for op in workload.collectives if not op.collective.needs_arithmetic]
    large = [op for op in movable if op.collective.size_bytes >= DMA_LEAST_BYTES[op.collective.kind]]
    if not large or len(large) < len(movable) or device.copy_engines is None:
        return _schedule(workload, device, isolated)
    return (CopyEngine(),)


def _tiling(workload: Workload, device: Device, _isolated: Isolated) -> tuple[Control, ...]:
    """Cui and Pericas (arXiv 2606.09200): priority, and its larger tile for kernels that offer it."""
    tile = TileChoice(*PUBLISHED_TILES[1])
    if not all(offered_tiles(kernel) for kernel in workload.kernels):
        return (CommPriority(),)
    changed = rewritten(workload, (tile,))
    try:
        for kernel in changed.kernels:
            check_launch(device, kernel.resources)
    except InputError:
        return (CommPriority(),)
    return (CommPriority(), tile) if changed != workload else (CommPriority(),)


def _groups(workload: Workload, device: Device, _isolated: Isolated) -> tuple[Control, ...]:
    """FlashOverlap (arXiv 2504.19519): a high-priority stream, and the number of pieces its two clocks find best.

    The compute clock adds the waves of each group, the comm clock starts when both are ready (tune/search.py).
    """
    chains = _fed_collectives(workload)
    if not chains:
        return (CommPriority(),)
    kernels = _compiled(tuple(replace(kernel, after=()) for kernel, _ in chains), workload, device)
    comms = tuple(replace(op, after=()) for _, op in chains)

    def end_ns(groups: int) -> float:
        pieces = _compiled(comms, workload, device, *([Chunks(groups)] if groups > 1 else []))
        sent = [op.work_ns for op in pieces[::groups]]
        return sum(
            _two_clocks(_beside_comm_ns(op, kernel, device), comm_ns, groups)
            for op, (kernel, _), comm_ns in zip(kernels, chains, sent, strict=True)
        )

    affordable = [groups for groups in GROUPS if len(workload.operations) * groups <= MOST_OPERATIONS]
    best = min(affordable or [1], key=lambda groups: (end_ns(groups), groups))
    return (CommPriority(), Chunks(best)) if best > 1 else (CommPriority(),)


def _fed_collectives(workload: Workload) -> list[tuple[KernelOp, CollectiveOp]]:
    """Collectives that wait for one kernel that can be split, and that kernel."""
    by_name = {kernel.name: kernel for kernel in workload.kernels if not kernel.persistent}
    waits = [(by_name.get(op.after[0]), op) for op in workload.collectives if len(op.after) == 1]
    return list({kernel.name: (kernel, op) for kernel, op in waits if kernel is not None}.values())


def _compiled(ops: Sequence[Operation], workload: Workload, device: Device, *controls: Control) -> tuple[EngineOp, ...]:
    only = replace(workload, operations=tuple(ops))
    return compile_program(only, device, controls, dispatch=vendor_dispatch(device)).program.ops


def _beside_comm_ns(op: EngineOp, kernel: KernelOp, device: Device) -> float:
    """The kernel's time in whole waves on the SMs that the collective leaves it."""
    each = resident_blocks(device, kernel.resources)
    waves = -(-op.blocks // (each * max(device.sms - FLASHOVERLAP_SMS, 1)))
    return waves * op.work_ns / op.share * max(1.0, op.share * each)


def _two_clocks(compute_ns: float, piece_ns: float, groups: int) -> float:
    """When the last piece arrives, if each is sent as soon as its part of the kernel is done."""
    computed = sent = 0.0
    for _ in range(groups):
        computed += compute_ns / groups
        sent = max(computed, sent) + piece_ns
    return sent


_HEURISTICS: dict[str, _Heuristic] = {
    "naive": _naive,
    "conccl-sp": _schedule,
    "conccl-rp": _reserve,
    "conccl-dma": _copies,
    "cui-pericas": _tiling,
    "flashoverlap": _groups,
}
