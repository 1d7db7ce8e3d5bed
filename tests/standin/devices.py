"""The device file of a stand-in driver: a makeway Device as key=value lines."""

from __future__ import annotations

from dataclasses import asdict

from makeway.values.device import Device

# Width of the memory bus, by the vendors' data sheets; the clock follows from the bandwidth. Triton asks for both.
_MEMORY_BUS_BITS = {
    "A40": 384,
    "A100-SXM4-40GB": 5120,
    "A100-SXM4-80GB": 5120,
    "H100-SXM5-80GB": 5120,
    "H200": 6144,
    "L40S": 384,
    "MI250X": 4096,
    "MI300X": 8192,
    "V100-SXM2-16GB": 4096,
    "V100-SXM2-32GB": 4096,
}
# The range that cuCtxGetStreamPriorityRange and hipDeviceGetStreamPriorityRange give: least, greatest.
_PRIORITIES = {"nvidia": (0, -5), "amd": (1, -1)}


def device_file(device: Device, *, devices: int = 1, driver_version: int | None = None) -> str:
    """What the stand-in reads: the limits of `device`, how many of them the host has, and an older driver's version."""
    numbers = {key: value for key, value in asdict(device.sm).items() if type(value) is int}
    least, greatest = _PRIORITIES[device.vendor]
    numbers |= {"sms": device.sms, "devices": devices, "least_priority": least, "greatest_priority": greatest}
    optional = {
        "driver_version": driver_version,
        "memory_bytes": device.memory_bytes,
        "l2_bytes": device.l2_bytes,
        "copy_engines": device.copy_engines,
        "clock_khz": device.clock_hz and device.clock_hz // 1000,
    }
    numbers |= {key: int(value) for key, value in optional.items() if value is not None}
    bus = _MEMORY_BUS_BITS.get(device.name)
    if bus and device.hbm_bytes_per_s:
        # two transfers per clock
        numbers |= {"memory_bus_bits": bus, "memory_clock_khz": round(device.hbm_bytes_per_s * 8 / bus / 2 / 1000)}
    name = device.aliases[0] if device.aliases else device.name
    return "".join(f"{key}={value}\n" for key, value in {"name": name, "arch": device.arch, **numbers}.items())
