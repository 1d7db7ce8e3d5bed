"""Numbers of the model that belong to a device, and its SMs as the engines see them; docs/model.md explains each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from makeway.model.residency import need
from makeway.model.simulate.program import Saturation, Site
from makeway.values.device import Device, device_names, load_device
from makeway.values.facts import Fact
from makeway.values.workload import KernelOp

DEFAULT_SMS_PER_GPC = 16
# Resident warps that saturate an SM: one number for every device, chosen on Fig. 2 of arXiv 2606.09200.
DEFAULT_SATURATING_WARPS = 12.0
# Numbers that a device without its own takes from another; without the others the model leaves the effect out.
BORROWED = ("saturating_warps", "soft_saturation", "sms_per_gpc")


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


def saturation(device: Device) -> Saturation:
    """Whether throughput grows in proportion to resident warps up to a limit (hard) or levels off (soft)."""
    return "soft" if model_number(device, "soft_saturation", 0.0) else "hard"


def warp_share(device: Device, op: KernelOp, saturating: float | None = None) -> float:
    """The part of an SM that one block of the kernel can use: its warps over those that saturate an SM."""
    warps = need(device.sm, op.resources).warps
    return min(1.0, warps / (saturating or model_number(device, "saturating_warps", DEFAULT_SATURATING_WARPS)))


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
