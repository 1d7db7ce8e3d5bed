"""A device built from what a recording says about its GPU, for GPUs that makeway has no file of.

The recording's own numbers come first. Limits that profilers do not record come from the architecture, or from the
nearest known one. Rates are borrowed from the known device of that architecture with the closest number of SMs (of
several, the best confirmed), and arithmetic rates are scaled by the number of SMs. Everything borrowed is marked as
unconfirmed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from makeway.values.device import Device, Vendor, architecture_names, built_device, known_devices
from makeway.values.errors import DataFileError
from makeway.values.facts import Fact, Value

_SCALED = ("fp32_flops_per_s", "tf32_flops_per_s", "fp16_flops_per_s")
_BORROWED = (
    "clock_hz", *_SCALED, "memory_bytes", "hbm_bytes_per_s", "l2_bytes", "l2_bytes_per_s", "links", "link_bytes_per_s",
    "pcie_bytes_per_s", "copy_engines",
)  # fmt: skip
_SOURCE = "the recording's own device properties"
MOST_SMS = 1_024  # of one GPU; the largest have 304
_MOST_OF_AN_SM = 1 << 20  # registers, threads or bytes of shared memory


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLimits:
    """The limits of a GPU as a profiler recorded them; None: not recorded."""

    vendor: Vendor
    arch: str | None = None  # "sm_90", "gfx942"
    sms: int | None = None
    memory_bytes: int | None = None
    registers: int | None = None  # of an SM
    threads: int | None = None  # of an SM
    max_threads_per_block: int | None = None
    warp_threads: int | None = None
    smem_bytes: int | None = None  # of an SM
    smem_block_bytes: int | None = None  # with opt-in
    smem_default_block_bytes: int | None = None

    @property
    def plausible(self) -> bool:
        """Whether a GPU could have these limits: numbers in recordings are hostile."""
        of_an_sm = (self.registers, self.threads, self.smem_bytes, self.smem_block_bytes, self.smem_default_block_bytes)
        return (self.sms or 0) <= MOST_SMS and all(number is None or number <= _MOST_OF_AN_SM for number in of_an_sm)


def device_from_recording(name: str, limits: RecordedLimits) -> Device | None:
    """The device that the recording describes; None where it does not say enough or contradicts itself."""
    if not limits.sms or limits.arch is None or not limits.plausible:
        return None
    arch = nearest_architecture(limits.arch)
    if arch is None:
        return None
    relatives = [device for device in known_devices().devices if device.arch == arch and device.limits]
    if not relatives:
        return None
    relative = min(relatives, key=lambda device: (abs(device.sms - (limits.sms or 0)), _doubts(device), device.name))
    facts = {**_shared(relative, arch, limits.arch), **_borrowed(relative, limits.sms), **_recorded(limits)}
    if limits.smem_bytes != relative.sm.smem_bytes and "smem_bytes" in facts:
        facts.pop("carveouts_bytes", None)
    try:
        return built_device(
            name=name,
            vendor=limits.vendor,
            arch=arch,
            link=relative.link,
            notes=(_note(name, limits.arch, arch, relative),),
            facts=facts,
        )
    except DataFileError:
        return None


def _doubts(device: Device) -> int:
    return sum(fact.unconfirmed is not None for fact in device.facts.values())


def with_recorded_sms(device: Device, limits: RecordedLimits) -> Device:
    """The device with as many SMs as the recording counts: a partition of it, or another board of that name."""
    if not limits.sms or limits.sms == device.sms or not limits.plausible:
        return device
    facts = {**device.facts, "sms": Fact(value=limits.sms, source=_SOURCE)}
    note = f"The trace counts {limits.sms} SMs where {device.name} has {device.sms}: the trace's number is used."
    return replace(device, sms=limits.sms, facts=facts, notes=(note, *device.notes))


def nearest_architecture(arch: str) -> str | None:
    """The known architecture that stands for `arch`: itself, else the closest older one of its family, else newer."""
    known = architecture_names()
    if arch in known:
        return arch
    family, number = _numbered(arch)
    relatives = [(_numbered(other)[1], other) for other in known if _numbered(other)[0] == family]
    if number < 0 or not relatives:
        return None
    older = [item for item in relatives if item[0] <= number]
    return (max(older) if older else min(relatives))[1]


def _numbered(arch: str) -> tuple[str, int]:
    """The family and a number that orders its members: ("sm_", 103), ("gfx", 0x942)."""
    match = re.fullmatch(r"(sm_|gfx)([0-9a-f]{2,6})", arch)
    return (match[1], int(match[2], 16 if match[1] == "gfx" else 10)) if match and _readable(match) else ("", -1)


def _readable(match: re.Match[str]) -> bool:
    return match[1] == "gfx" or match[2].isdecimal()


def _shared(relative: Device, arch: str, recorded: str) -> dict[str, Fact]:
    """Limits of the architecture; unconfirmed where another architecture stands in."""
    limits = {key: fact for key, fact in relative.facts.items() if key not in (*_BORROWED, "sms")}
    if arch == recorded:
        return limits
    why = f"{arch}'s, taken for {recorded}"
    return {key: Fact(value=fact.value, source=fact.source, unconfirmed=why) for key, fact in limits.items()}


def _borrowed(relative: Device, sms: int) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    for key in _BORROWED:
        if (fact := relative.facts.get(key)) is None:
            continue
        value: Value = fact.value
        if key in _SCALED and not isinstance(value, tuple):
            value = value * sms / relative.sms
        facts[key] = Fact(value=value, source=fact.source, unconfirmed=f"borrowed from {relative.name}")
    return facts


def _recorded(limits: RecordedLimits) -> Mapping[str, Fact]:
    numbers: dict[str, int | None] = {"sms": limits.sms, "memory_bytes": limits.memory_bytes}
    if limits.vendor == "nvidia":  # ROCm's numbers for a CU mean other things than CUDA's for an SM
        warps = limits.threads // limits.warp_threads if limits.threads and limits.warp_threads else None
        numbers |= {
            "registers": limits.registers,
            "max_warps": warps,
            "max_threads_per_block": limits.max_threads_per_block,
            "smem_bytes": limits.smem_bytes,
            "smem_block_bytes": limits.smem_block_bytes,
            "smem_default_block_bytes": limits.smem_default_block_bytes,
        }
    return {key: Fact(value=number, source=_SOURCE) for key, number in numbers.items() if number}


def _note(name: str, recorded: str, arch: str, relative: Device) -> str:
    stands = "" if recorded == arch else f" {arch} stands for its architecture {recorded}."
    return (
        f"Built from the trace, which carries the limits of {name!r}. Its rates are borrowed from {relative.name}, "
        f"arithmetic scaled by the number of SMs.{stands}"
    )
