"""How much of an SM's warps a launch holds, and what Kineto records for it.

As in Kineto, achieved occupancy is estimated from the launch alone. Blocks per SM are the resident blocks, or the
grid's blocks per SM if that is less. It is an average over SMs, so it may be less than one block.

    occupancy = min(resident blocks, blocks / SMs) x warps of a block / warps an SM can hold

Kineto (pytorch/kineto, libkineto/src/DeviceProperties.cpp) counts threads instead of warps, and calls the occupancy
calculator without the opt-in to large shared memory. So a block above the default limit of 48 KiB does not fit, and
its occupancy is recorded as 0. Every NCCL kernel of recent versions is such a block.
"""

from __future__ import annotations

from collections.abc import Iterable

from makeway.decide.analysis.findings import Occupancy
from makeway.model.residency import need, resident_blocks
from makeway.values.device import Device
from makeway.values.errors import InputError
from makeway.values.kernel import KernelResources, Launch
from makeway.values.timeline import Span

WRONG_BY_POINTS = 1.0  # Kineto records whole percentages


def occupancy_percent(device: Device, launch: Launch) -> float:
    """Warps that an SM holds on average while `launch` runs alone, as a percentage of its limit."""
    resources = _resources(launch)
    blocks = min(resident_blocks(device, resources), launch.blocks / device.sms)
    return 100.0 * blocks * need(device.sm, resources).warps / device.sm.max_warps


def kineto_percent(device: Device, launch: Launch) -> float:
    """Kineto's "est. achieved occupancy %" before rounding: 0 above the default shared-memory limit."""
    resources, sm = _resources(launch), device.sm
    if resources.smem_bytes > sm.smem_default_block_bytes:
        return 0.0
    blocks = min(resident_blocks(device, resources), launch.blocks / device.sms)
    return 100.0 * blocks * launch.threads / (sm.max_warps * sm.warp_threads)


def occupancy(spans: Iterable[Span], device: Device, *, kineto: bool = True) -> Occupancy:
    """The occupancy of all kernels with recorded resources, weighted by their time.

    `kineto`: whether the recording holds Kineto's own estimate, which may then be wrong.
    """
    known: dict[Launch, tuple[float, bool]] = {}
    kernels = wrong = time_ns = 0
    weighted = 0.0
    for span in spans:
        launch = span.launch
        if launch is None or launch.resources is None:
            continue
        if launch not in known:
            percent = occupancy_percent(device, launch)
            known[launch] = percent, abs(kineto_percent(device, launch) - percent) > WRONG_BY_POINTS
        percent, off = known[launch]
        kernels += 1
        wrong += off
        time_ns += span.duration_ns
        weighted += percent * span.duration_ns
    return Occupancy(
        kernels=kernels,
        kineto_wrong=wrong if kineto else None,
        mean_percent=weighted / time_ns if time_ns else None,
    )


def _resources(launch: Launch) -> KernelResources:
    if launch.resources is None:
        raise InputError(
            "occupancy needs registers and shared memory, which are not recorded for this launch\n"
            "Kineto traces of ROCm lack them; rocprofv3 and NVIDIA traces have them."
        )
    return launch.resources
