"""Controls that a recording shows to be in force already: stream priorities, and SMs that grids leave free."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from makeway.values.control import CommPriority, Control, SmPartition
from makeway.values.device import Device
from makeway.values.timeline import Span

# Of the collectives, for a priority to be in force.
_MOSTLY = 0.9
# SMs set apart show in the grids of persistent kernels: several kernels with the same number of blocks, one for each
# SM that is left, which together take at least this share of the compute time.
_PERSISTENT_SHARE = 0.25
_PERSISTENT_KERNELS = 2


@dataclass(frozen=True, slots=True)
class InForce:
    """A control that the program or its libraries set themselves, and where the recording shows it."""

    control: Control
    evidence: str


def in_force(spans: Sequence[Span], device: Device) -> tuple[InForce, ...]:
    """The controls in force while one rank's spans were recorded."""
    return tuple(item for item in (_priority(spans), _partition(spans, device)) if item is not None)


def _priority(spans: Sequence[Span]) -> InForce | None:
    compute = [span.priority for span in spans if span.kind == "compute" and span.priority is not None]
    comm = [span.priority for span in spans if span.kind == "comm"]
    if not compute or not comm:
        return None
    usual = Counter(compute).most_common(1)[0][0]
    urgent = [priority for priority in comm if priority is not None and priority < usual]
    if len(urgent) < _MOSTLY * len(comm):
        return None
    level = Counter(urgent).most_common(1)[0][0]
    return InForce(CommPriority(), f"collectives run on streams of priority {level}, compute on {usual}")


def _partition(spans: Sequence[Span], device: Device) -> InForce | None:
    time: Counter[int] = Counter()
    kernels: defaultdict[int, set[str]] = defaultdict(set)
    whole = 0
    for span in spans:
        if span.kind == "compute":
            whole += span.duration_ns
            if span.launch is not None and device.sms // 2 < span.launch.blocks <= device.sms:
                time[span.launch.blocks] += span.duration_ns
                kernels[span.launch.blocks].add(span.name)
    if not time:
        return None
    [(blocks, time_ns)] = time.most_common(1)
    if blocks == device.sms or len(kernels[blocks]) < _PERSISTENT_KERNELS or time_ns < _PERSISTENT_SHARE * whole:
        return None
    return InForce(
        SmPartition(device.sms - blocks),
        f"{len(kernels[blocks])} kernels have grids of {blocks} blocks on {device.sms} SMs, so {device.sms - blocks} "
        "SMs are set apart",
    )
