"""What the engines run: operations reduced to blocks, work and rates on one kind of SM.

Times are nanoseconds, rates are per nanosecond. A block's work is its time with a whole SM to itself,
if it could use all of it; `share` is the part of an SM that one block can use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from makeway.model.residency import Need
from makeway.model.simulate.mechanisms import Reuse
from makeway.values.device import SmLimits

OpKind = Literal["kernel", "collective", "copy"]
Saturation = Literal["hard", "soft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOp:
    """One operation of one rank. A copy is a collective on copy engines: it needs no block."""

    name: str
    kind: OpKind
    rank: int = 0
    stream: str = "compute"
    after: tuple[int, ...] = ()  # indexes of operations that must have ended
    launch_ns: float = 0.0  # when the host has launched it
    priority: int = 0  # higher goes first
    part: str | None = None  # the part of a partitioned device it may use; None: all of it
    block: Need | None = None
    blocks: int = 0
    work_ns: float = 0.0  # kernel: of one block; collective: the whole of it, alone
    share: float = 1.0
    exposure: float = 1.0  # part of a block's time that its SM neighbours stretch
    memory: float = 1.0  # part of its time that HBM latency stretches, without neighbours; only with a knee
    hbm_per_ns: float = 0.0  # bytes per nanosecond of work done: one block, or the whole collective
    reuse: tuple[Reuse, ...] = ()  # a kernel's repeated reads per nanosecond of work, as far as caches keep them
    l2_per_ns: float = 0.0  # likewise through L2
    link_per_ns: float = 0.0  # bytes on the wire per nanosecond of a collective's work
    power: float = 0.0  # part of the power budget: a kernel on all SMs at full clock, or a collective
    slack: float = 1.0  # how much faster than its links a collective's blocks could go
    jitter: float | None = None  # relative spread of its block times; None: the program's
    group: str | None = None  # collectives of the same group on all ranks are one


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """SMs that are alike in what may be placed on them: same part of the device, same GPC (AMD: shader engine)."""

    part: str | None
    gpc: int
    sms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turnaround:
    """How long an ended block keeps its room: its writes drain and the next block starts up.

    It grows with the blocks resident on the SM, the ended one among them. 0: the room is free at once.
    """

    base_ns: float = 0.0
    per_block_ns: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.base_ns or self.per_block_ns)

    def ns(self, resident: int) -> float:
        return self.base_ns + self.per_block_ns * resident


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """How long an operation takes to reach its queue once the last operation it waits for has ended.

    With equal latencies, operations that become ready at the same moment arrive in a fixed order: first the next
    of a stream, then those that waited for an event of another stream; all of them before the room of the ended
    blocks is given away. docs/model.md shows what other latencies change.
    """

    stream_ns: float = 0.0
    event_ns: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Everything that one simulation needs."""

    sm: SmLimits
    sites: tuple[Site, ...]  # of every rank
    ranks: int
    ops: tuple[EngineOp, ...]
    hbm_per_ns: float | None = None  # None: never a limit
    mixed_hbm: float = 1.0  # part of it that is left while kernels and collectives share it
    l2_per_ns: float | None = None
    link_per_ns: float | None = None
    memory_side_cache: bool = False  # the cache before HBM sees copy engines too
    power_exponent: float | None = None  # power grows with this power of the clock; None: power is never a limit
    hbm_knee: float | None = None  # how sharply latency rises near the HBM limit; None: a limit without latency
    saturation: Saturation = "hard"
    comm_loss: float = 0.0  # share of its speed that a collective on SMs loses while a kernel runs (fabric, caches)
    latencies: Latencies = Latencies()
    turnaround: Turnaround = Turnaround()
    jitter: float = 0.0  # relative spread of block times
    seed: int = 0
