"""Samples of the self-test before they are judged; the measuring process sends them as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from makeway.values.device import Device, named_device
from makeway.values.errors import MakewayError, UnknownNameError
from makeway.values.kernel import KernelResources
from makeway.values.recorded_device import RecordedLimits, device_from_recording


def sampled_device(name: str, limits: RecordedLimits | None) -> Device:
    """The device of that name, or one built from its limits where makeway has no file of it."""
    try:
        return named_device(name)
    except UnknownNameError:
        built = None if limits is None else device_from_recording(name, limits)
        if built is None:
            raise
        return built


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a kernel that holds its SM for a while, on the GPU's clock."""

    sm: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedRun:
    """A kernel launched with a pad, with enough blocks to fill the device twice."""

    device: str  # its name in the driver
    block: KernelResources  # without the pad
    pad_bytes: int
    blocks: tuple[Block, ...]
    limits: RecordedLimits | None = None  # as the runtime describes the device


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityRun:
    """A long kernel and a short one launched after it, at a higher priority and at the same."""

    long_beside_high: tuple[Block, ...]
    high: tuple[Block, ...]
    long_beside_equal: tuple[Block, ...]
    equal: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRun:
    """A kernel that would fill the device, on a stream confined to some SMs."""

    given_sms: int
    device_sms: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRun:
    """A copy on a stream of its own while a kernel holds every SM; times from the kernel's start."""

    path: str  # "GPU 0 to GPU 1"
    size_bytes: int
    held_from_ns: int  # every SM is full
    held_until_ns: int  # the first block ends
    copy_end_ns: int
    intact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadState:
    """One thread as Linux shows it."""

    comm: bool
    cores: tuple[int, ...]
    niceness: int
    slice_ns: int | None = None
    realtime: int = 0  # priority; 0: an ordinary thread


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRun:
    """One CPU control on one rank: its receipt, and every thread before, under and after it."""

    control: str  # its word
    status: str
    detail: str
    before: dict[str, ThreadState]  # by thread id
    during: dict[str, ThreadState]
    after: dict[str, ThreadState]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectRun:
    """A sum over the ranks through shared memory, compared with Gloo's."""

    size_bytes: int
    equal: bool
    receipt: str  # status of the CopyEngine receipt
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """The observations of one rank."""

    rank: int
    ranks: int
    controls: tuple[ControlRun, ...]
    direct: DirectRun


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupancyRow:
    """One question to the driver: how many blocks of this kernel fit on an SM at the largest carve-out."""

    kernel: str
    block: KernelResources
    blocks: int  # the driver's answer


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """The device as its driver describes it, and its answers about occupancy."""

    device: str
    driver_version: int  # CUDA's: 13000
    limits: RecordedLimits
    smem_reserved_bytes: int
    max_blocks: int  # of an SM
    clock_hz: float | None
    l2_bytes: int | None
    copy_engines: int | None
    occupancy: tuple[OccupancyRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideRun:
    """A kernel that holds the SMs, and another one launched after it at the same priority."""

    case: str  # "room", "no room", "default carve-out", "largest carve-out", "queue"
    device: str
    held: KernelResources
    held_per_sm: int
    other: KernelResources
    held_blocks: tuple[Block, ...]
    other_blocks: tuple[Block, ...]
    limits: RecordedLimits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRun:
    """Processor time of one launch, by round."""

    launches: int  # in a round
    round_ns: tuple[float, ...]  # per launch


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesRun:
    """Rates measured on the device: medians of a few rounds."""

    device: str
    fp16_flops_per_s: float
    tf32_flops_per_s: float | None  # None: AMD
    hbm_bytes_per_s: float
    pcie_bytes_per_s: float
    link_bytes_per_s: float | None  # None: there is one GPU
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a measuring process: which check begins, or its result."""

    check: str
    refused: str | None = None  # why it could not be measured
    padded: tuple[PaddedRun, ...] | None = None
    priority: PriorityRun | None = None
    partition: PartitionRun | None = None
    copy: CopyRun | None = None
    rank: RankRun | None = None
    versions: dict[str, str] | None = None  # of the loaded libraries
    driver: DriverFacts | None = None
    beside: tuple[BesideRun, ...] | None = None
    cost: CostRun | None = None
    rates: RatesRun | None = None
    document: dict[str, Any] | None = None  # what a command of makeway printed with --json

    @property
    def begins(self) -> bool:
        """True where there is no result yet."""
        return all(getattr(self, field.name) is None for field in fields(self) if field.name != "check")


def write_line(line: Line) -> None:
    """Send a line to the process that judges it."""
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def write_checks(checks: Sequence[str], measure: Callable[[str], Line]) -> None:
    """Measure one check after another: say which begins, then its result or why there is none."""
    for check in checks:
        write_line(Line(check=check))
        try:
            line = measure(check)
        except MakewayError as error:
            line = Line(check=check, refused=" ".join(str(error).split()))
        write_line(line)
