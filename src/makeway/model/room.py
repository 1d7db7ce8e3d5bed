"""The room-making question: can a collective's block join an SM that a compute kernel has filled?

For a given residency the smallest pad leaves the collective the most shared memory, and a pad
changes no other resource. So trying each residency once, at its smallest pad, covers every pad:
when no option comes out, none exists, and the shortage beside a single block is the proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from makeway.model.residency import (
    Residency,
    Resource,
    Shortage,
    blocks_in,
    check_launch,
    need,
    pad_range,
    residency,
    room_beside,
    shortages,
)
from makeway.values.collective import CommFootprint, load_footprint
from makeway.values.control import CommThreads, Control, SmemPad
from makeway.values.device import Device, SmLimits
from makeway.values.kernel import KernelResources
from makeway.values.units import floor_to

Joins = Literal["beside_full", "after_one_retires", "whole_drain"]


@dataclass(frozen=True, slots=True)
class Fit:
    """A collective's block beside `compute_blocks` resident compute blocks."""

    compute_blocks: int
    comm_blocks: int  # how many of them fit there
    short_of: tuple[Shortage, ...]  # why not one does

    @property
    def fits(self) -> bool:
        return self.comm_blocks > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option that lets the collective's block in, and what it costs in resident compute blocks.

    beside_full: the SM is full of (padded) compute blocks and the block still fits.
    after_one_retires: it fits in the place of one of them.
    whole_drain: one compute block per SM; when it retires the SM is empty.
    """

    SHOWN: ClassVar = ("controls",)

    joins: Joins
    pad_bytes: int  # the smallest that works
    pad_most_bytes: int  # the largest that does the same
    comm_threads: int
    setting: str | None  # what gives the collective these threads; None: its default
    compute_blocks: int  # resident per SM before the collective comes
    comm_blocks: int  # that can join on one SM
    sms_at_once: int  # SMs that must have this room at the same moment (clusters)

    @property
    def controls(self) -> tuple[Control, ...]:
        """The controls it takes; none when the block fits as it is."""
        pad: tuple[Control, ...] = (SmemPad(self.pad_bytes),) if self.pad_bytes else ()
        return (*pad, CommThreads(self.comm_threads)) if self.setting else pad


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomAnswer:
    """Whether a collective's block fits beside a compute kernel, what binds, and what makes room."""

    device: Device
    compute: KernelResources
    comm: CommFootprint
    alone: Residency
    beside_full: Fit
    beside_one: Fit
    options: tuple[Option, ...]

    @property
    def short_of(self) -> tuple[Shortage, ...]:
        """What is missing beside one block; where one fits, what is missing beside a full SM."""
        return self.beside_one.short_of or self.beside_full.short_of

    @property
    def binds(self) -> tuple[Resource, ...]:
        """The resources behind `short_of`."""
        return tuple(shortage.resource for shortage in self.short_of)


def make_room(device: Device, compute: KernelResources, comm: CommFootprint | str) -> RoomAnswer:
    """Whether the collective's block fits beside the compute kernel, and which pad or thread count makes it fit.

    `comm` is a footprint or its name.
    """
    check_launch(device, compute)
    if isinstance(comm, str):
        comm = load_footprint(comm, device.arch)
    alone = residency(device, compute)
    if comm.block is None:
        free = Fit(alone.blocks, 0, ())
        return RoomAnswer(
            device=device, compute=compute, comm=comm, alone=alone, beside_full=free, beside_one=free, options=()
        )
    check_launch(device, comm.block)
    return RoomAnswer(
        device=device,
        compute=compute,
        comm=comm,
        alone=alone,
        beside_full=_fit(device, compute, alone.blocks, comm.block),
        beside_one=_fit(device, compute, 1, comm.block),
        options=_options(device, compute, comm),
    )


def _fit(device: Device, compute: KernelResources, count: int, comm: KernelResources) -> Fit:
    room = room_beside(device, compute, count)
    return Fit(count, blocks_in(device, room, comm), shortages(device, room, comm))


def _options(device: Device, compute: KernelResources, comm: CommFootprint) -> tuple[Option, ...]:
    """The best option of each kind for each thread count the collective can be given from its present one down."""
    assert comm.block is not None
    sizes: list[tuple[int, str | None]] = [(comm.block.threads, None)]
    sizes += [(choice.threads, choice.setting) for choice in comm.choices if choice.threads < comm.block.threads]
    options = []
    for threads, setting in sizes:
        block = comm.with_threads(threads).block if setting else comm.block
        assert block is not None
        options += _options_at(device, compute, block, setting)
    order: dict[Joins, int] = {"beside_full": 0, "after_one_retires": 1, "whole_drain": 2}
    worthy = [option for option in options if not any(_beats(other, option) for other in options)]
    return tuple(sorted(worthy, key=lambda option: (order[option.joins], -option.compute_blocks, -option.comm_threads)))


def _beats(better: Option, other: Option) -> bool:
    """Whether `better` does what `other` does with less interference: more threads left, no larger pad."""
    return (
        better.joins == other.joins
        and better.comm_threads > other.comm_threads
        and better.pad_bytes <= other.pad_bytes
        and better.compute_blocks >= other.compute_blocks
        and better.comm_blocks >= other.comm_blocks
    )


def _options_at(device: Device, compute: KernelResources, block: KernelResources, setting: str | None) -> list[Option]:
    best: dict[Joins, Option] = {}
    joins: Joins
    for blocks in range(residency(device, compute).blocks, 0, -1):
        pad = pad_range(device, compute, blocks)
        if pad is None:
            continue
        padded = compute.padded(pad.smallest_bytes)
        held, joins = blocks, "beside_full"
        joined = blocks_in(device, room_beside(device, padded, held), block)
        if not joined:
            held, joins = blocks - 1, "after_one_retires" if blocks > 1 else "whole_drain"
            joined = blocks_in(device, room_beside(device, padded, held), block)
        if joined and joins not in best:
            best[joins] = Option(
                joins=joins,
                pad_bytes=pad.smallest_bytes,
                pad_most_bytes=min(pad.largest_bytes, _most_pad(device.sm, compute, held, block, joined)),
                comm_threads=block.threads,
                setting=setting,
                compute_blocks=blocks,
                comm_blocks=joined,
                sms_at_once=-(-block.cluster // joined),
            )
        if joins == "beside_full" and joined:
            break  # fewer compute blocks could only do the same at a higher price
    return list(best.values())


def _most_pad(sm: SmLimits, compute: KernelResources, held: int, block: KernelResources, joined: int) -> int:
    """The largest pad of `held` compute blocks that leaves shared memory for `joined` of the collective's."""
    if not held:
        return sm.smem_block_bytes - compute.smem_bytes
    left = (sm.smem_bytes - joined * need(sm, block).smem_bytes) // held
    return floor_to(left, sm.smem_unit_bytes) - sm.smem_reserved_bytes - compute.smem_bytes


# --- in prose ----------------------------------------------------------------------------------


def verdict(answer: RoomAnswer) -> str:
    """The answer in a few plain sentences."""
    return " ".join(sentences(answer))


def sentences(answer: RoomAnswer) -> tuple[str, ...]:
    """The answer, and what explains it."""
    comm, full = answer.comm, answer.beside_full
    if comm.block is None:
        return (f"{comm.name} uses no SM: copy engines move the data, so there is nothing to make room for.",)
    block = f"a {comm.block.threads}-thread block of {comm.name}"
    if full.fits:
        yes = f"Yes: {block} fits on an SM that already holds {_held(full.compute_blocks)}, as it is."
        return yes, *_cluster_sentence(comm.block, full.comm_blocks)
    no = f"No: {block} does not fit on a full SM ({_held(answer.alone.blocks)}), short of {_list(full.short_of)}."
    beside_one = f"Even beside one compute block it is short of {_list(answer.beside_one.short_of)}."
    only_one = answer.beside_one.fits or full.compute_blocks == 1
    return no, *(() if only_one else (beside_one,)), _best_option(answer), *_cluster_sentence(comm.block, 1)


def _best_option(answer: RoomAnswer) -> str:
    best = answer.options[0] if answer.options else None
    if best is not None and best.joins == "beside_full":
        return f"{_how(best)} it fits beside {_held(best.compute_blocks)}."
    nothing = "No pad and no thread count lets it join a full SM."
    if best is not None and best.joins == "after_one_retires":
        return f"{nothing} {_how(best)} it fits in the place of one of {_held(best.compute_blocks)}."
    return (
        f"{nothing} It needs an SM to itself: whole SMs must come free (priority, comm-first, partition), "
        "or the data must move without SMs (copy-engine)."
    )


def _how(option: Option) -> str:
    pad = f"a pad of {option.pad_bytes:,} B per compute block" if option.pad_bytes else ""
    threads = f"{option.comm_threads} threads ({option.setting})" if option.setting else ""
    both = " and ".join(part for part in (pad, threads) if part)
    return f"With {both}" if both else "As it is"


def _held(blocks: int) -> str:
    return f"{blocks} compute block{'' if blocks == 1 else 's'}"


def _list(short_of: tuple[Shortage, ...]) -> str:
    return " and ".join(str(shortage) for shortage in short_of)


def _cluster_sentence(block: KernelResources, joined: int) -> tuple[str, ...]:
    if block.cluster == 1:
        return ()
    sms = -(-block.cluster // joined)
    return (f"Its blocks start in clusters of {block.cluster}: {sms} SMs of one GPC must have this room at once.",)
