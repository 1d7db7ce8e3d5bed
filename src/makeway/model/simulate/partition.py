"""How many blocks of a collective a part of the device holds at once.

A collective moves data only while all its blocks are resident (docs/model.md), so a partition needs its channel count:
with more blocks than it holds, the collective would never end.
"""

from __future__ import annotations

from collections.abc import Sequence

from makeway.model.residency import Need, capacity, room_left
from makeway.model.simulate.program import EngineOp, Site
from makeway.values.device import Device, SmLimits
from makeway.values.errors import InputError


def blocks_at_once(sm: SmLimits, sites: Sequence[Site], block: Need, part: str | None) -> int:
    """Blocks that a part of the empty device holds, in whole clusters."""
    each = capacity(block, room_left(sm, ()))
    by_gpc: dict[int, int] = {}
    for site in sites:
        if site.part == part:
            by_gpc[site.gpc] = by_gpc.get(site.gpc, 0) + site.sms * each
    return sum(room // block.cluster * block.cluster for room in by_gpc.values())


def check_channels(device: Device, comm_sms: int, sites: Sequence[Site], ops: Sequence[EngineOp]) -> None:
    """Refuse a partition that does not hold all blocks of a collective; the error says how many it holds."""
    short: list[tuple[EngineOp, int]] = []
    for op in ops:
        if op.kind == "collective" and op.block is not None:
            room = blocks_at_once(device.sm, sites, op.block, op.part)
            if op.blocks > room:
                short.append((op, room))
    if not short:
        return
    op, room = min(short, key=lambda item: item[1])
    advice = f"add comm-blocks={room}, or make" if room else "make"
    raise InputError(
        f"partition={comm_sms}: {op.name} has {op.blocks} blocks that must be resident at once, and "
        f"{comm_sms} SMs hold {room or 'none'} of them; {advice} the partition larger"
    )
