"""What analysis says of timelines: the values that text, HTML and Perfetto output render."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from makeway.values.control import Control
from makeway.values.timeline import share_of_ideal

CauseKind = Literal[
    "straggler",  # a rank came late: the others wait inside the collective
    "no-room",  # compute kernels held every SM, and no block of the collective fits beside them
    "dependency",  # room was there: it waited for another stream, or compute waited for it
    "launch-bound",  # the host asked too late
    "serialised",  # it shares its stream with compute
    "contention",  # it ran beside compute, and one slowed the other
    "undetermined",
]
Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Interval unions over the GPU spans of one rank, or of one step of it (docs/numbers.md)."""

    kernels: int
    comm_kernels: int
    compute_ns: int
    comm_ns: int
    memory_ns: int
    overlap_ns: int  # comm with compute beside it
    exposed_ns: int  # comm without
    idle_ns: int  # neither compute nor comm nor memory
    span_ns: int  # first start to last end

    @property
    def overlap_percent(self) -> float | None:
        return 100.0 * self.overlap_ns / self.comm_ns if self.comm_ns else None

    @property
    def exposed_percent(self) -> float | None:
        """Exposed communication as a share of the whole span."""
        return 100.0 * self.exposed_ns / self.span_ns if self.span_ns else None

    @property
    def share_of_ideal(self) -> float | None:
        """Of the recorded durations: what overlap hid, against what the longer side could have hidden."""
        return share_of_ideal(
            t_sequential=self.compute_ns + self.comm_ns,
            t=self.compute_ns + self.comm_ns - self.overlap_ns,
            t_compute=self.compute_ns,
            t_comm=self.comm_ns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """How much of an SM's warps a kernel can hold: ours, and what Kineto's 48 KB cap makes of it."""

    kernels: int  # launches whose resources are recorded
    kineto_wrong: int  # of them: Kineto's formula, with its cap, is off by more than 1 point
    mean_percent: float | None  # weighted by kernel time


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """One kernel (same name, grid and resources) beside communication against alone, on one rank."""

    kernel: str
    rank: int
    blocks: int | None
    alone_ns: float  # median
    alone_spread_ns: float  # interquartile range
    alone_samples: int
    beside_ns: float
    beside_spread_ns: float
    beside_samples: int

    @property
    def ratio(self) -> float:
        return self.beside_ns / self.alone_ns

    @property
    def cost_ns(self) -> float:
        """What overlap added to this kernel's time; negative when it was faster beside communication."""
        return (self.beside_ns - self.alone_ns) * self.beside_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdowns:
    """The groups that could be compared, and how much of the overlapped compute time they cover."""

    groups: tuple[Slowdown, ...]
    covered_ns: int
    overlapped_ns: int  # compute time beside communication, comparable or not


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """One collective seen on several ranks."""

    name: str
    members: tuple[tuple[int, int, int], ...]  # (rank, start_ns, end_ns)

    @property
    def transfer_ns(self) -> int:
        """The shortest rank: it came last and waited for nobody."""
        return min(end - start for _, start, end in self.members)

    def waiting_ns(self, rank: int) -> int:
        return next(end - start for member, start, end in self.members if member == rank) - self.transfer_ns

    @property
    def last_rank(self) -> int:
        """Whom the others waited for."""
        return min(self.members, key=lambda member: (member[2] - member[1], member[0]))[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Collectives matched over ranks: transfer against waiting, and the rank that was waited for."""

    matched: tuple[Matched, ...]
    unmatched: tuple[tuple[int, int], ...]  # (rank, collectives without a counterpart)
    transfer_ns: int  # sum of the shortest ranks
    waiting_ns: tuple[tuple[int, int], ...]  # (rank, sum of its waiting)
    straggler_rank: int | None  # None: nobody stands out
    straggler_share: float | None  # of all waiting, the part spent waiting for that rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why time of one collective on one rank was late or exposed, with the evidence for it."""

    kind: CauseKind
    of: Literal["late", "exposed", "slowed"]  # between ready and start; without compute beside it; longer than alone
    collective: str
    rank: int
    at_ns: int  # where this time begins
    time_ns: int
    confidence: Confidence
    evidence: str
    kernel: str | None = None  # the compute kernel involved, where there is one
    resource: str | None = None  # what bound
    short_by: str | None = None  # how much of it was missing
    record_next: str | None = None  # undetermined: what to record next time


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to change, and what it can bring at most."""

    title: str
    why: str
    bound_ns: int  # per rank: the time that the cause accounts for
    cause: CauseKind
    controls: tuple[Control, ...] = ()  # what `makeway simulate` and `plan` call it; empty: a change in the program
    predicted_gain_ns: float | None = None  # from the simulator; None: not predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """The figures of one profiler step."""

    number: int
    figures: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFindings:
    """What one rank's timeline says."""

    rank: int
    device: str | None
    source: str
    figures: Figures
    steps: tuple[StepFigures, ...]
    occupancy: Occupancy | None
    slowdowns: Slowdowns
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the timelines of all ranks say together."""

    ranks: tuple[RankFindings, ...]
    matching: Matching
    causes: tuple[Cause, ...]
    advice: tuple[Advice, ...]
    notes: tuple[str, ...] = ()
