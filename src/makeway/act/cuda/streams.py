"""Streams with priority, and a compute stream confined to some SMs. Not yet run on hardware.

Priority orders waiting blocks only; running blocks stay (CUDA driver API, cuStreamCreateWithPriority).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from makeway.values.errors import InputError
from makeway.values.units import floor_to

# Smallest green context and its granularity in SMs, by major compute capability: CUDA driver API, "Green Contexts",
# guideline for each architecture. The driver rounds up; we round down, so that communication loses no SM.
_GREEN_UNITS = {6: (1, 1), 7: (2, 2), 8: (4, 2)}
_GREEN_UNITS_FROM_9 = (8, 8)


def prioritised_stream(torch: Any, device: int) -> Any:
    """A stream of the device's highest priority (the lowest number)."""
    return torch.cuda.Stream(device=device, priority=min(torch.cuda.Stream(device=device).priority_range()))


def compute_sms(sms: int, comm_sms: int, major: int) -> int:
    """The SMs left to compute when communication gets at least `comm_sms`, rounded to CUDA's granularity."""
    least, unit = _GREEN_UNITS.get(major, _GREEN_UNITS_FROM_9)
    left = floor_to(sms - comm_sms, unit)
    if comm_sms < 1 or left < least:
        raise InputError(
            f"{comm_sms} of {sms} SMs for communication leave {max(left, 0)} for compute; a green context needs at "
            f"least {least}, in steps of {unit}"
        )
    return left


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfinedStream:
    """A stream whose kernels stay on some SMs, and what was read back."""

    stream: Any
    sms: int  # or CUs
    detail: str


@contextmanager
def green_stream(torch: Any, device: int, comm_sms: int) -> Iterator[ConfinedStream]:
    """A compute stream in a green context of all but `comm_sms` SMs.

    Only what is launched on it is confined; communication may still use every SM. torch cannot read back how many SMs
    the driver granted, so `sms` is the number requested, which follows the driver's granularity.
    """
    facts = torch.cuda.get_device_properties(device)
    wanted = compute_sms(facts.multi_processor_count, comm_sms, facts.major)
    context = torch.cuda.green_contexts.GreenContext.create(num_sms=wanted, device_id=device)
    try:
        detail = (
            f"compute stream in a green context of {wanted} of {facts.multi_processor_count} SMs (requested: torch "
            "cannot read it back); only kernels on that stream are confined"
        )
        yield ConfinedStream(stream=context.Stream(), sms=wanted, detail=detail)
    finally:
        torch.cuda.synchronize(device)  # nothing may run in a context that is destroyed
        del context
