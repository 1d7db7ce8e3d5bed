"""A partition with the channels that it holds: two controls that belong together."""

from __future__ import annotations

from makeway.model.residency import need
from makeway.model.simulate.device_numbers import device_sites
from makeway.model.simulate.network import default_blocks
from makeway.model.simulate.partition import blocks_at_once
from makeway.model.simulate.predict import vendor_dispatch
from makeway.values.collective import load_footprint
from makeway.values.control import CommBlocks, Control, SmPartition
from makeway.values.device import Device
from makeway.values.kernel import KernelResources
from makeway.values.workload import Workload


def partition_with_channels(workload: Workload, device: Device, comm_sms: int) -> tuple[Control, ...]:
    """The partition, and comm-blocks where a collective's own blocks would not all be resident in it."""
    partition = SmPartition(comm_sms)
    blocks = [
        (op.blocks or default_blocks(device, op.collective), block)
        for op in workload.collectives
        if (block := load_footprint(op.library, device.arch).block) is not None
    ]
    holds = min((fitting_blocks(device, block, comm_sms) for _, block in blocks), default=0)
    if not holds or all(own <= fitting_blocks(device, block, comm_sms) for own, block in blocks):
        return (partition,)
    return (partition, CommBlocks(holds))


def fitting_blocks(device: Device, block: KernelResources, comm_sms: int) -> int:
    """The most blocks of a collective that so many SMs hold at once, in whole clusters."""
    parts = [("compute", device.sms - comm_sms), ("comm", comm_sms)]
    sites = device_sites(device, parts, gpcs=vendor_dispatch(device).gpcs, clusters=block.cluster > 1)
    return blocks_at_once(device.sm, sites, need(device.sm, block), "comm")
