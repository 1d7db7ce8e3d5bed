"""Residency: which blocks fit on one SM together, what binds, and which pad makes room.

One kernel alone equals NVIDIA's `cuda_occupancy.h` at the largest shared-memory carve-out
(tests/oracle checks that). Two kernels side by side is makeway's own model; no vendor publishes
one: registers are granted per warp in the SM partition where the warp lives, and the warps
of a kernel spread evenly over the partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from makeway.values.device import Device, SmLimits
from makeway.values.errors import InvalidKernelError
from makeway.values.kernel import KernelResources
from makeway.values.units import ceil_to, floor_to, format_bytes


class Resource(StrEnum):
    """What can keep a block off an SM."""

    REGISTERS = "registers"
    SCALAR_REGISTERS = "scalar_registers"
    SMEM = "smem"
    WARPS = "warps"
    SLOTS = "slots"
    BARRIERS = "barriers"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Residency:
    """Blocks of one kernel on an empty SM, and the resources that limit them."""

    blocks: int
    binds: tuple[Resource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one block takes of one SM, each amount rounded up as the hardware does."""

    warps: int
    registers_per_warp: int
    scalar_registers_per_warp: int
    smem_bytes: int
    barriers: int
    cluster: int


def need(sm: SmLimits, kernel: KernelResources) -> Need:
    """What one block of `kernel` takes of an SM."""
    warps = -(-kernel.threads // sm.warp_threads)
    spared = sm.barriers is None or (sm.barriers_spare_one_warp_blocks and warps == 1)
    return Need(
        warps=warps,
        registers_per_warp=ceil_to(kernel.registers_per_thread * sm.warp_threads, sm.register_unit),
        scalar_registers_per_warp=(kernel.scalar_registers or 0) if sm.scalar_registers else 0,
        smem_bytes=ceil_to(kernel.smem_bytes + sm.smem_reserved_bytes, sm.smem_unit_bytes),
        barriers=0 if spared else kernel.barriers,
        cluster=kernel.cluster,
    )


def check_launch(device: Device, kernel: KernelResources) -> None:
    """Raise the error that a launch of this block would meet on this device."""
    sm = device.sm
    if kernel.threads > sm.max_threads_per_block:
        raise InvalidKernelError(
            f"{kernel.threads:,} threads per block; {device.name} allows at most {sm.max_threads_per_block:,}"
        )
    if kernel.registers_per_thread > sm.max_registers_per_thread:
        raise InvalidKernelError(
            f"{kernel.registers_per_thread} registers per thread; {device.name} allows at most "
            f"{sm.max_registers_per_thread}"
        )
    if kernel.smem_bytes > sm.smem_block_bytes:
        raise InvalidKernelError(
            f"{format_bytes(kernel.smem_bytes)} of shared memory per block; {device.name} allows at most "
            f"{format_bytes(sm.smem_block_bytes)}"
        )
    if kernel.cluster > sm.max_cluster:
        raise InvalidKernelError(f"clusters of {kernel.cluster} blocks; {device.name} allows at most {sm.max_cluster}")
    if (alone := residency(device, kernel)).blocks == 0:
        raise InvalidKernelError(
            f"{kernel.threads} threads x {kernel.registers_per_thread} registers never fit on an SM of {device.name} "
            f"({', '.join(alone.binds)})"
        )


# --- one kernel alone --------------------------------------------------------------------------


def resident_blocks(device: Device, kernel: KernelResources) -> int:
    """Blocks of `kernel` that fit on one empty SM; 0 when not even one does."""
    return residency(device, kernel).blocks


def residency(device: Device, kernel: KernelResources) -> Residency:
    """Blocks of `kernel` on one empty SM, and what limits them."""
    sm = device.sm
    limits = _limits(sm, need(sm, kernel), kernel)
    blocks = min(limits.values())
    return Residency(blocks, tuple(resource for resource, most in limits.items() if most == blocks))


def _limits(sm: SmLimits, block: Need, kernel: KernelResources) -> dict[Resource, int]:
    limits = {
        Resource.REGISTERS: _warps_by_registers(sm, block) // block.warps,
        Resource.WARPS: sm.max_warps // block.warps,
        Resource.SLOTS: sm.max_blocks,
    }
    if block.smem_bytes:
        limits[Resource.SMEM] = sm.smem_bytes // block.smem_bytes if kernel.smem_bytes <= sm.smem_block_bytes else 0
    if kernel.registers_per_thread > sm.max_registers_per_thread:
        limits[Resource.REGISTERS] = 0
    if block.barriers and sm.barriers is not None:
        limits[Resource.BARRIERS] = sm.barriers // block.barriers
    if block.scalar_registers_per_warp and sm.scalar_registers:
        per_partition = sm.scalar_registers // block.scalar_registers_per_warp
        limits[Resource.SCALAR_REGISTERS] = per_partition * sm.partitions // block.warps
    if block.cluster > sm.max_cluster:
        limits[Resource.CLUSTER] = 0
    return limits


def _warps_by_registers(sm: SmLimits, block: Need) -> int:
    # A warp lives in one partition: what is left over in one cannot help a warp in another.
    return sm.registers // sm.partitions // block.registers_per_warp * sm.partitions


# --- one kernel beside another -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What `count` blocks of a kernel leave free on an SM."""

    registers: tuple[int, ...]  # per partition
    scalar_registers: tuple[int, ...] | None  # per partition
    smem_bytes: int
    warps: int
    slots: int
    barriers: int | None


def room_beside(device: Device, held: KernelResources, count: int) -> Room:
    """What is left of an SM that holds `count` blocks of `held`."""
    if count > resident_blocks(device, held):
        raise InvalidKernelError(f"{count} blocks of {held} do not fit on one SM of {device.name}")
    return room_left(device.sm, ((need(device.sm, held), count),))


def room_left(sm: SmLimits, held: Sequence[tuple[Need, int]]) -> Room:
    """What is left of an SM beside any mixture of blocks: (what one takes, how many).

    The warps of each kernel spread evenly over the partitions; those that do not divide go where the most
    registers are free.
    """
    partitions = range(sm.partitions)
    registers = [sm.registers // sm.partitions] * sm.partitions
    scalars = [sm.scalar_registers or 0] * sm.partitions
    smem, warps, slots, barriers = sm.smem_bytes, sm.max_warps, sm.max_blocks, sm.barriers or 0
    for block, count in held:
        each, more = divmod(count * block.warps, sm.partitions)
        for rank, index in enumerate(sorted(partitions, key=registers.__getitem__, reverse=True)):
            here = each + (rank < more)
            registers[index] -= here * block.registers_per_warp
            scalars[index] -= here * block.scalar_registers_per_warp
        smem -= count * block.smem_bytes
        warps -= count * block.warps
        slots -= count
        barriers -= count * block.barriers
    return Room(
        registers=tuple(registers),
        scalar_registers=tuple(scalars) if sm.scalar_registers else None,
        smem_bytes=smem,
        warps=warps,
        slots=slots,
        barriers=None if sm.barriers is None else barriers,
    )


def blocks_in(device: Device, room: Room, kernel: KernelResources) -> int:
    """Blocks of `kernel` that fit into what is left of an SM."""
    return capacity(need(device.sm, kernel), room)


def capacity(block: Need, room: Room) -> int:
    """Blocks that fit into what is left of an SM, each taking `block`."""
    per_warp = block.registers_per_warp
    warps = min(room.warps, sum([free // per_warp for free in room.registers]))
    if room.scalar_registers is not None and block.scalar_registers_per_warp:
        warps = min(warps, sum([free // block.scalar_registers_per_warp for free in room.scalar_registers]))
    blocks = min(room.slots, warps // block.warps)
    if block.smem_bytes:
        blocks = min(blocks, room.smem_bytes // block.smem_bytes)
    if room.barriers is not None and block.barriers:
        blocks = min(blocks, room.barriers // block.barriers)
    return max(blocks, 0)


def blocks_beside(device: Device, held: KernelResources, count: int, kernel: KernelResources) -> int:
    """Blocks of `kernel` that fit on an SM that already holds `count` blocks of `held`."""
    return blocks_in(device, room_beside(device, held, count), kernel)


@dataclass(frozen=True, slots=True)
class Shortage:
    """How much of a resource is missing for one more block.

    `in_partition` is set when the SM as a whole has enough but no spread over its partitions works;
    the amount is then what the fullest partition lacks for an even share of the warps.
    """

    resource: Resource
    amount: int
    in_partition: bool = False

    @property
    def key(self) -> str:
        """The name used in reports; it has the unit."""
        match self.resource:
            case Resource.SMEM:
                return "smem_bytes"
            case Resource.REGISTERS if self.in_partition:
                return "registers_in_a_partition"
            case _:
                return self.resource.value

    def __str__(self) -> str:
        match self.resource:
            case Resource.SMEM:
                return f"{self.amount:,} bytes of shared memory"
            case Resource.REGISTERS if self.in_partition:
                return f"{self.amount:,} registers in one SM partition"
            case resource:
                return f"{self.amount:,} {resource.value.replace('_', ' ')}"


def shortages(device: Device, room: Room, kernel: KernelResources) -> tuple[Shortage, ...]:
    """Why one block of `kernel` does not fit into `room`: empty when it does."""
    block = need(device.sm, kernel)
    wanted = (
        (Resource.SMEM, block.smem_bytes, room.smem_bytes),
        (Resource.WARPS, block.warps, room.warps),
        (Resource.SLOTS, 1, room.slots),
        (Resource.BARRIERS, block.barriers, block.barriers if room.barriers is None else room.barriers),
    )
    short = [Shortage(resource, wants - has) for resource, wants, has in wanted if wants > has]
    by_file = (
        (Resource.REGISTERS, block.registers_per_warp, room.registers),
        (Resource.SCALAR_REGISTERS, block.scalar_registers_per_warp, room.scalar_registers),
    )
    files = [_register_shortage(resource, block.warps, each, free) for resource, each, free in by_file if free and each]
    return tuple([shortage for shortage in files if shortage] + short)


def _register_shortage(resource: Resource, warps: int, per_warp: int, free: tuple[int, ...]) -> Shortage | None:
    if sum([left // per_warp for left in free]) >= warps:
        return None
    missing = warps * per_warp - sum(free)
    if missing > 0:
        return Shortage(resource, missing)
    share = -(-warps // len(free)) * per_warp
    return Shortage(resource, share - min(free), in_partition=True)


# --- the pad that makes room -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PadRange:
    """The pads (extra dynamic shared memory per block) that leave a kernel a given residency."""

    smallest_bytes: int
    largest_bytes: int


def pad_range(device: Device, kernel: KernelResources, blocks: int) -> PadRange | None:
    """The pads that leave exactly `blocks` blocks of `kernel` on an SM; None when no pad does."""
    sm = device.sm
    if blocks < 1 or kernel.smem_bytes > sm.smem_block_bytes:
        return None
    most = min(_most_smem(sm, blocks), sm.smem_block_bytes)
    least = _most_smem(sm, blocks + 1) + 1  # one byte more than `blocks + 1` of them could have
    smallest, largest = max(least - kernel.smem_bytes, 0), most - kernel.smem_bytes
    if resident_blocks(device, kernel) == blocks:
        smallest = 0
    if smallest > largest or resident_blocks(device, kernel.padded(smallest)) != blocks:
        return None
    return PadRange(smallest, largest)


def _most_smem(sm: SmLimits, blocks: int) -> int:
    """The most shared memory a block may ask for when `blocks` of them share an SM."""
    return floor_to(sm.smem_bytes // blocks, sm.smem_unit_bytes) - sm.smem_reserved_bytes
