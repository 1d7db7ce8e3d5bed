"""Samples of the self-test before they are judged; the measuring process sends them as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from makeway.values.kernel import KernelResources


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

    @property
    def begins(self) -> bool:
        """True where there is no result yet."""
        results = (self.refused, self.padded, self.priority, self.partition, self.copy, self.rank, self.versions)
        return all(result is None for result in results)
