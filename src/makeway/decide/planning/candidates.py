"""Which controls a workload can take on a device, and why not the others.

Only what the device, the library's block and the kernels can honour becomes a candidate; the score decides whether it
helps. Every rejection keeps its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

from makeway.decide.planning.control_sets import INTRUSIVENESS, Candidates, Option, kernels_of, ordered
from makeway.decide.planning.deadlock import deadlock_risk
from makeway.model.residency import check_launch, pad_range, resident_blocks
from makeway.model.room import make_room
from makeway.model.simulate.channels import partition_with_channels
from makeway.model.simulate.network import default_blocks
from makeway.model.simulate.rewrite import no_compression, rewritten
from makeway.values.collective import CommFootprint, load_footprint
from makeway.values.control import (
    LOSSY,
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Compress,
    Control,
    CopyEngine,
    DmaVariant,
    LaunchOrder,
    OwnCores,
    SmemPad,
    SmPartition,
    TileChoice,
    control_word,
    describe,
    refuse_lossy,
)
from makeway.values.device import Device
from makeway.values.errors import InputError, MakewayError
from makeway.values.kernel import KernelResources
from makeway.values.plan import Rejected
from makeway.values.units import format_bytes
from makeway.values.workload import CollectiveOp, Gemm, KernelOp, Workload

PARTITION_STEP = 8  # SMs: green contexts on Hopper, one CU of each XCD on MI300X (ConCCL, arXiv 2412.14335)
_PARTITION_SIZES = (8, 16, 24, 32, 48, 64, 96, 128)
_BLOCK_COUNTS = (2, 4, 8, 16, 24, 32, 48, 64)
_PIECES = (2, 4, 8)
MOST_OPERATIONS = 600  # of a workload in pieces: more take too long to score
ALL_RESIDENCIES = 4  # a kernel with more blocks per SM is padded to a few residencies only
MOST_SHAPES = 3  # kinds of block that are padded by themselves, those with the most blocks first
# The two tiles of the GEMM of arXiv 2606.09200; kernels of other shapes offer none unless the caller names some.
PUBLISHED_TILES = ((64, 64, 32), (64, 64, 64))

Tile = tuple[int, int, int]
_NO_DIGITS = str.maketrans("", "", "0123456789,")


def candidates(
    workload: Workload,
    device: Device,
    *,
    forced: Sequence[Control] = (),
    excluded: Sequence[Rejected] = (),
    withheld: Sequence[Rejected] = (),
    plain_copies: bool = False,
    allow_lossy: bool = False,
    tiles: Sequence[Tile] | None = None,
) -> Candidates:
    """What a planner may try; a forced control that cannot work is an error.

    `excluded` are kinds that must not be tried, with the reason; those in `withheld` must not even accompany another
    control. `plain_copies`: copy engines only as the library uses them. `allow_lossy`: controls
    that change the program's results, too. `tiles` are those that the matrix products
    offer; None: those of arXiv 2606.09200 for kernels of its shape.
    """
    refuse_lossy(forced, allowed=allow_lossy)
    check_forced(workload, device, forced)
    case = _Case(workload, device, None if tiles is None else tuple(tiles), tuple(_on_blocks(workload, device)))
    axes: list[tuple[Option, ...]] = []
    rejected: list[Rejected] = [*excluded, *withheld]
    absent = {type(item.control) for item in withheld}
    fixed = absent | {type(control) for control in (*forced, *(item.control for item in excluded))}
    for kind in INTRUSIVENESS:
        if kind in fixed or not (workload.collectives and workload.kernels) or (kind in LOSSY and not allow_lossy):
            continue
        offers = [_allowed(offer, absent, plain_copies) for offer in dict.fromkeys(_OFFERS[kind](case))]
        options = [
            offer if isinstance(offer, tuple) else (offer,) for offer in offers if not isinstance(offer, Rejected)
        ]
        for kernels in dict.fromkeys(kernels_of(option[0]) for option in options):
            axes.append(tuple(option for option in options if kernels_of(option[0]) == kernels))
        rejected += _first_of_each([offer for offer in offers if isinstance(offer, Rejected)])
    return Candidates(
        axes=tuple(axes),
        forced=ordered(forced),
        rejected=tuple(rejected),
        all_on_copy_engines=not any(op.collective.needs_arithmetic for op in workload.collectives),
        pad_room=_pad_room(case),
    )


def _allowed(offer: Offer, absent: Set[type[Control]], plain_copies: bool) -> Offer:
    """An offer, or why it is rejected where some kinds, or some ways to copy, are ruled out."""
    if isinstance(offer, Rejected):
        return offer
    option = offer if isinstance(offer, tuple) else (offer,)
    if missing := [control for control in option[1:] if type(control) in absent]:
        return Rejected(control=option[0], reason=f"needs {control_word(missing[0])}, which cannot be in this plan")
    if plain_copies and isinstance(option[0], CopyEngine) and option[0] != CopyEngine():
        return Rejected(control=option[0], reason="no carrier sets how copy engines copy")
    return offer


def _first_of_each(rejected: Sequence[Rejected]) -> list[Rejected]:
    """One rejection for each reason, numbers aside: the next larger values fail alike."""
    first = {item.reason.translate(_NO_DIGITS): item for item in reversed(rejected)}
    return [item for item in rejected if item in first.values()]


def check_forced(workload: Workload, device: Device, forced: Sequence[Control]) -> None:
    """Refuse a forced control that cannot work; the error names the resource it lacks, and how much of it."""
    if not forced:
        return
    if len({(type(control), getattr(control, "kernel", "*")) for control in forced}) < len(forced):
        raise InputError("a plan sets each kind of control once; two of a kind are required for the same kernels")
    if OwnCores() in forced:
        raise InputError(f"own-cores is for ranks that compute on a CPU; {device.name} has no threads to place")
    required = " with ".join(map(describe, forced))
    for control in forced:
        if isinstance(control, SmemPad):
            _check_pad(workload, device, control)
    try:
        risk = deadlock_risk(workload, device, forced)
    except MakewayError as error:
        raise InputError(f"{required}: required, but cannot work on {device.name}: {error}") from None
    if risk is not None and risk != deadlock_risk(workload, device, ()):
        raise InputError(f"{required}: required, but not safe: {risk}")


def _check_pad(workload: Workload, device: Device, control: SmemPad) -> None:
    padded = rewritten(workload, (control,)).kernels
    for kernel, bigger in zip(workload.kernels, padded, strict=True):
        short = bigger.resources.smem_bytes - device.sm.smem_block_bytes
        if bigger != kernel and short > 0:
            raise InputError(
                f"{describe(control)}: required, but cannot work on {device.name}: {kernel.name} uses "
                f"{format_bytes(kernel.resources.smem_bytes)} itself and with the pad exceeds the "
                f"{format_bytes(device.sm.smem_block_bytes)} of shared memory per block by {short:,} bytes"
            )


# --- one kind each -----------------------------------------------------------------------------


OnBlocks = tuple[CollectiveOp, CommFootprint, KernelResources]


@dataclass(frozen=True, slots=True)
class _Case:
    """The question, and the collectives that run on SMs with what a block of each occupies."""

    workload: Workload
    device: Device
    tiles: tuple[Tile, ...] | None
    on_blocks: tuple[OnBlocks, ...]

    @property
    def footprints(self) -> tuple[CommFootprint, ...]:
        """Each footprint once."""
        return tuple({footprint.name: footprint for _, footprint, _ in self.on_blocks}.values())

    @property
    def own_blocks(self) -> int:
        """The most blocks that any collective takes by default."""
        counts = [op.blocks or default_blocks(self.device, op.collective) for op, _, _ in self.on_blocks]
        return max(counts, default=0)


def _on_blocks(workload: Workload, device: Device) -> Iterator[OnBlocks]:
    for op in workload.collectives:
        footprint = load_footprint(op.library, device.arch)
        if footprint.block is not None:
            yield op, footprint, footprint.block


Offer = Control | Option | Rejected
Offers = Iterator[Offer]
_NO_BLOCKS = "every collective is on copy engines already: no block waits for an SM"


def _priority(case: _Case) -> Offers:
    yield CommPriority() if case.on_blocks else Rejected(control=CommPriority(), reason=_NO_BLOCKS)


def _order(case: _Case) -> Offers:
    if rewritten(case.workload, (LaunchOrder(),)) != case.workload:
        yield LaunchOrder()
    else:
        reason = "every collective waits for a kernel, or is launched first already"
        yield Rejected(control=LaunchOrder(), reason=reason)


def _blocks(case: _Case) -> Offers:
    if not case.on_blocks:
        yield Rejected(control=CommBlocks(_BLOCK_COUNTS[0]), reason=_NO_BLOCKS)
        return
    own, most = case.own_blocks, [footprint.max_blocks for footprint in case.footprints if footprint.max_blocks]
    fitting = min(resident_blocks(case.device, block) * case.device.sms for _, _, block in case.on_blocks)
    counts = {count for count in _BLOCK_COUNTS if own / 8 <= count <= own * 2} - {own}
    if own > 2 and any(block.cluster > 1 for _, _, block in case.on_blocks):
        counts.add(own - 2)  # not a multiple of a cluster: NCCL then starts each block by itself
    for count in sorted(counts):
        if most and count > min(most):
            library = case.on_blocks[0][1].name
            yield Rejected(control=CommBlocks(count), reason=f"{library} has at most {min(most)} blocks")
        elif count > fitting:
            yield Rejected(control=CommBlocks(count), reason=f"{case.device.name} holds at most {fitting} at once")
        else:
            yield CommBlocks(count)


def _threads(case: _Case) -> Offers:
    """None by itself: how a block's bandwidth follows from its threads has no source."""
    sizes = {choice.threads for footprint in case.footprints for choice in footprint.choices}
    smallest = min((block.threads for _, _, block in case.on_blocks), default=None)
    fewer = sorted(threads for threads in sizes if smallest is not None and threads < smallest)
    if not fewer:
        reason = _NO_BLOCKS if smallest is None else f"{case.footprints[0].name} has no blocks below {smallest} threads"
        yield Rejected(control=CommThreads(case.device.sm.warp_threads), reason=reason)
        return
    yield Rejected(
        control=CommThreads(fewer[-1]),
        reason="not evidenced: no source says what bandwidth a block of fewer threads keeps; --control requires it",
    )


def _pads(case: _Case) -> Offers:
    """The smallest pad of each residency, for all kernels together and for those of one kind of block."""
    device, shapes = case.device, _shapes(case)
    patterns = {"*": list(case.workload.kernels)} | (shapes if len(shapes) > 1 else {})
    for pattern, kernels in patterns.items():
        pads: set[int] = set()
        for resources in {kernel.resources: None for kernel in kernels}:
            pads |= _smallest_pads(case, resources)
        most = min(device.sm.smem_block_bytes - kernel.resources.smem_bytes for kernel in kernels)
        if not pads:
            smallest = SmemPad(max(device.sm.smem_unit_bytes, 1), pattern)
            reason = "no pad lowers the blocks per SM"
            room = _pad_room(case)
            yield Rejected(control=smallest, reason=f"{reason}; {room}" if room else reason)
        for pad in sorted(pads):
            if pad <= most:
                yield SmemPad(pad, pattern)
            else:
                reason = f"{pad - most:,} bytes of shared memory above the limit of a block"
                yield Rejected(control=SmemPad(pad, pattern), reason=reason)


def _shapes(case: _Case) -> dict[str, list[KernelOp]]:
    """Kernels by kind of block, under a pattern that matches them and no others; those with the most blocks first."""
    groups: dict[KernelResources, list[KernelOp]] = {}
    for kernel in case.workload.kernels:
        groups.setdefault(kernel.resources, []).append(kernel)
    shapes: dict[str, list[KernelOp]] = {}
    largest = sorted(groups.values(), key=lambda group: -sum(kernel.work.blocks for kernel in group))
    for group in largest[:MOST_SHAPES]:
        names = [kernel.name for kernel in group]
        prefix = names[0] if len(group) == 1 else _common_start(names)
        others = [kernel.name for kernel in case.workload.kernels if kernel not in group]
        plain = not set(prefix) & set("*?[")
        if plain and not any(name == prefix or (len(group) > 1 and name.startswith(prefix)) for name in others):
            shapes[prefix if len(group) == 1 else f"{prefix}*"] = group
    return shapes


def _common_start(names: Sequence[str]) -> str:
    first, last = min(names), max(names)
    different = (index for index, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(different, len(first))]


def _pad_room(case: _Case) -> str:
    """What the collective's block lacks beside one block of the largest kernel, whatever the pad."""
    if not case.on_blocks or not case.workload.kernels:
        return ""
    kernel = max(case.workload.kernels, key=lambda kernel: kernel.work.blocks)
    short = make_room(case.device, kernel.resources, case.on_blocks[0][1]).beside_one.short_of
    lacks = " and ".join(map(str, short))
    return f"beside one block of {kernel.name} the collective's block is short of {lacks}" if short else ""


def _smallest_pads(case: _Case, resources: KernelResources) -> set[int]:
    device, each = case.device, resident_blocks(case.device, resources)
    tried = set(range(1, each))
    if each > ALL_RESIDENCIES:
        joins = [option.compute_blocks for f in case.footprints for option in make_room(device, resources, f).options]
        tried &= {1, 2, each // 2, *joins}
    ranges = [pad_range(device, resources, blocks) for blocks in sorted(tried)]
    return {pad.smallest_bytes for pad in ranges if pad and pad.smallest_bytes}


def _partitions(case: _Case) -> Offers:
    """SMs in whole steps that hold at least one cluster and leave compute at least half of the device.

    Each comes with the channels that it holds, where the library's own would not all be resident.
    """
    if not case.on_blocks:
        yield SmPartition(PARTITION_STEP)  # SMs taken from compute: ConCCL's last step
        return
    least = max(-(-block.cluster // resident_blocks(case.device, block)) for _, _, block in case.on_blocks)
    each = min(resident_blocks(case.device, block) for _, _, block in case.on_blocks)
    whole = -(-case.own_blocks // each)
    fitting = -(-whole // PARTITION_STEP) * PARTITION_STEP
    for sms in sorted({*_PARTITION_SIZES, fitting}):
        if sms < least:
            yield Rejected(control=SmPartition(sms), reason=f"a cluster of the collective needs {least} SMs at once")
        elif sms * 2 > case.device.sms:
            reason = f"leaves compute {max(case.device.sms - sms, 0)} of {case.device.sms} SMs, less than half"
            yield Rejected(control=SmPartition(sms), reason=reason)
        elif sms <= 2 * fitting:
            yield partition_with_channels(case.workload, case.device, sms)


def _own_cores(case: _Case) -> Offers:
    yield Rejected(control=OwnCores(), reason="it places the threads of ranks that compute on a CPU")


def _copies(case: _Case) -> Offers:
    movable = [op for op in case.workload.collectives if not op.collective.needs_arithmetic]
    if not movable:
        adding = ", ".join(dict.fromkeys(op.collective.kind for op in case.workload.collectives))
        yield Rejected(control=CopyEngine(), reason=f"copy engines move bytes and cannot add: {adding} needs blocks")
        return
    if case.device.copy_engines is None:
        yield Rejected(control=CopyEngine(), reason=f"the number of copy engines of {case.device.name} is not known")
        return
    kinds = {op.collective.kind for op in movable}
    variants: list[DmaVariant] = ["parallel-copy", "one-engine"]
    if case.device.vendor == "amd":  # commands that write to two places are AMD's
        variants += ["broadcast"] if kinds == {"all-gather"} else ["swap"] if kinds == {"all-to-all"} else []
    for variant in variants:
        yield CopyEngine(variant)
        yield CopyEngine(variant, prelaunch=True)


def _pieces(case: _Case) -> Offers:
    for pieces in _PIECES:
        grown = len(case.workload.operations) * pieces
        smallest = min(op.collective.size_bytes for op in case.workload.collectives)
        if smallest < pieces:
            yield Rejected(control=Chunks(pieces), reason=f"the smallest collective has {smallest} bytes")
        elif grown > MOST_OPERATIONS:
            reason = f"about {grown} operations would be too many to predict ({MOST_OPERATIONS} at most)"
            yield Rejected(control=Chunks(pieces), reason=reason)
        else:
            yield Chunks(pieces)


def _compressions(case: _Case) -> Offers:
    for control in (Compress("bf16"), Compress("fp16"), Compress("powersgd"), Compress("topk")):
        reason = no_compression(case.workload, control)
        yield control if reason is None else Rejected(control=control, reason=reason)


def offered_tiles(kernel: KernelOp) -> tuple[Tile, ...]:
    """The tiles of arXiv 2606.09200 for a matrix product of its shape; other kernels offer none by default."""
    return PUBLISHED_TILES if isinstance(kernel.work, Gemm) and kernel.work.tile in PUBLISHED_TILES else ()


def _tiles(case: _Case) -> Offers:
    products = [kernel for kernel in case.workload.kernels if isinstance(kernel.work, Gemm)]
    tiles = (
        case.tiles if case.tiles is not None else tuple(dict.fromkeys(t for k in products for t in offered_tiles(k)))
    )
    if not products or not tiles:
        reason = "no kernel is a matrix product" if not products else "the matrix products offer no other tile"
        yield Rejected(control=TileChoice(*PUBLISHED_TILES[1]), reason=reason)
        return
    for tile in tiles:
        control = TileChoice(*tile)
        changed = rewritten(case.workload, (control,))
        if changed == case.workload:
            continue
        try:
            for kernel in changed.kernels:
                check_launch(case.device, kernel.resources)
        except InputError as error:
            yield Rejected(control=control, reason=str(error))
        else:
            yield control


_OFFERS: dict[type[Control], Callable[[_Case], Offers]] = {
    CommPriority: _priority, LaunchOrder: _order, CommBlocks: _blocks, CommThreads: _threads, SmemPad: _pads,
    SmPartition: _partitions, CopyEngine: _copies, Chunks: _pieces, TileChoice: _tiles,
    Compress: _compressions, OwnCores: _own_cores,
}  # fmt: skip
