"""The values that make up an analysis: figures, slow-downs, matched collectives, causes and advice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from makeway.decide.analysis.ledger import EMPTY_LEDGER, Ledger, LineKind
from makeway.values.control import Control
from makeway.values.timeline import Origin, Span, share_of_ideal

CauseKind = Literal[
    "straggler",  # a rank arrived late: the others wait inside the collective
    "no-room",  # compute kernels held every SM, and no block of the collective fits beside them
    "dependency",  # there was room, but it waited for another stream, or compute waited for it
    "launch-bound",  # the host launched too late
    "serialised",  # it shares its stream with compute
    "contention",  # it ran beside compute, and one slowed the other
    "undetermined",
]
Confidence = Literal["high", "medium", "low"]
Loss = Literal[
    "late",  # between ready and start
    "exposed",  # without compute beside it
    "slowed",  # compute that took longer than alone
]


# Matrix products of cuBLAS, CUTLASS, cuDNN and hipBLASLt; convolutions of cuDNN are named after the GEMM they run.
_GEMM = re.compile(r"gemm|cutlass|nvjet|xmma|Cijk_", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Interval unions over the GPU spans of one rank or one of its steps (docs/numbers.md)."""

    SHOWN: ClassVar = ("compute_alone_ns", "memory_alone_ns", "overlap_percent", "exposed_percent", "share_of_ideal")

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
    def compute_alone_ns(self) -> int:
        return self.compute_ns - self.overlap_ns

    @property
    def memory_alone_ns(self) -> int:
        """Only copies and fills run."""
        return self.span_ns - self.idle_ns - self.compute_ns - self.exposed_ns

    @property
    def overlap_percent(self) -> float | None:
        return 100.0 * self.overlap_ns / self.comm_ns if self.comm_ns else None

    @property
    def exposed_percent(self) -> float | None:
        """Exposed communication as a share of the whole span."""
        return 100.0 * self.exposed_ns / self.span_ns if self.span_ns else None

    @property
    def share_of_ideal(self) -> float | None:
        """Of the recorded durations: what overlap hid over what the longer side could have hidden."""
        return share_of_ideal(
            t_sequential=self.compute_ns + self.comm_ns,
            t=self.compute_ns + self.comm_ns - self.overlap_ns,
            t_compute=self.compute_ns,
            t_comm=self.comm_ns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """How much of an SM's warps kernels can hold, and how often Kineto's formula gets it wrong."""

    kernels: int  # launches whose resources are recorded
    kineto_wrong: (
        int | None
    )  # of them: Kineto's formula, with its 48 KB cap, is off by over 1 point; None: not recorded
    mean_percent: float | None  # weighted by kernel time


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """One kernel alone and beside communication, on one rank: same name, grid, resources, arguments and place."""

    kernel: str
    rank: int
    blocks: int | None
    alone_ns: float  # median
    alone_spread_ns: float  # interquartile range
    alone_samples: int
    beside_ns: float
    beside_spread_ns: float
    beside_samples: int
    separated: bool = True  # whether the middle halves of the times do not overlap

    @property
    def ratio(self) -> float:
        return self.beside_ns / self.alone_ns

    @property
    def cost_ns(self) -> float:
        """What overlap added to this kernel's time; negative when it was faster beside communication."""
        return (self.beside_ns - self.alone_ns) * self.beside_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Launches of one name and grid that look slower or faster beside communication, and why that shows nothing."""

    kernel: str
    rank: int
    blocks: int | None
    ratio: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdowns:
    """The kernels that ran both ways, and how much of the overlapped compute time they cover."""

    SHOWN: ClassVar = ("covered_percent", "gemm_ratio")

    groups: tuple[Slowdown, ...]
    covered_ns: int
    overlapped_ns: int  # compute time beside communication, comparable or not
    refused: tuple[Refused, ...] = ()  # not comparable after all

    @property
    def covered_percent(self) -> float | None:
        return 100.0 * self.covered_ns / self.overlapped_ns if self.overlapped_ns else None

    @property
    def gemm_ratio(self) -> float | None:
        """How much longer matrix products take beside communication, weighted by their launches; None without any."""
        gemms = [group for group in self.groups if _GEMM.search(group.kernel)]
        alone_ns = sum(group.alone_ns * group.beside_samples for group in gemms)
        return sum(group.beside_ns * group.beside_samples for group in gemms) / alone_ns if alone_ns else None


NO_SLOWDOWNS = Slowdowns(groups=(), covered_ns=0, overlapped_ns=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """One collective as several ranks recorded it."""

    name: str
    members: tuple[tuple[int, int, int], ...]  # (rank, start_ns, end_ns)

    @property
    def transfer_ns(self) -> int:
        """The shortest rank's time: it arrived last and waited for nobody."""
        return min(end - start for _, start, end in self.members)

    def waiting_ns(self, rank: int) -> int:
        return next(end - start for member, start, end in self.members if member == rank) - self.transfer_ns

    @property
    def last_rank(self) -> int:
        """The rank that the others waited for."""
        return min(self.members, key=lambda member: (member[2] - member[1], member[0]))[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Collectives matched across ranks: transfer, waiting, and the ranks that were waited for."""

    matched: tuple[Matched, ...] = ()
    unmatched: tuple[tuple[int, int], ...] = ()  # (rank, collectives without a counterpart)
    transfer_ns: int = 0  # sum of the shortest ranks
    waiting_ns: tuple[tuple[int, int], ...] = ()  # (rank, sum of its waiting)
    late_ranks: tuple[tuple[int, float], ...] = ()  # (rank, share of all waiting spent waiting for it), largest first
    straggler_rank: int | None = None  # None: no rank stands out
    straggler_share: float | None = None  # of all waiting

    @property
    def mean_waiting_ns(self) -> float | None:
        """Waiting per rank; None where nothing is matched."""
        return sum(time for _, time in self.waiting_ns) / len(self.waiting_ns) if self.matched else None


NO_MATCHING = Matching()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why one stretch of time of a collective on one rank was lost, with the evidence."""

    kind: CauseKind
    of: Loss
    collective: str
    rank: int
    at_ns: int  # where this time begins
    time_ns: int
    confidence: Confidence
    evidence: str
    collective_ns: int = 0  # when the collective started
    cost_ns: int = 0  # of the step's ledger: the time that this cause accounts for, and no other does
    waits_for: int | None = None  # straggler: the rank that arrived last
    kernel: str | None = None  # the compute kernel involved, where there is one
    resource: str | None = None  # what bound
    short_by: str | None = None  # how much of it was missing
    record_next: str | None = None  # undetermined: what to record next time


def cause_of(
    comm: Span,
    kind: CauseKind,
    of: Loss,
    when: tuple[int, int],
    confidence: Confidence,
    evidence: str,
    *,
    kernel: str | None = None,
    resource: str | None = None,
    short_by: str | None = None,
    record_next: str | None = None,
) -> Cause:
    """A cause of the time `when` (start and end) of a collective."""
    return Cause(
        kind=kind,
        of=of,
        collective=comm.name,
        rank=comm.rank,
        at_ns=when[0],
        time_ns=when[1] - when[0],
        confidence=confidence,
        evidence=evidence,
        collective_ns=comm.start_ns,
        cost_ns=when[1] - when[0] if of == "exposed" else 0,
        kernel=kernel,
        resource=resource,
        short_by=short_by,
        record_next=record_next,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseGroup:
    """Causes of the same kind, loss, kernel and resource, over all collectives and ranks."""

    kind: CauseKind
    of: Loss
    time_ns: int  # what they cost (`Cause.cost_ns`), all ranks together
    most_on_one_rank_ns: int
    delay_ns: int | None  # late: from ready to start, all ranks together; most of it costs nothing
    count: int
    ranks: tuple[int, ...]
    confidence: Confidence
    kernel: str | None
    resource: str | None
    short_by: str | None
    evidence: str  # of the longest
    record_next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to change, and the most it can gain."""

    text: str
    why: str
    at_most_ns: int  # on one rank: what the change could take off `line`, and never more than that line holds
    line: str  # of the ledger
    cause: CauseKind | LineKind
    controls: tuple[Control, ...] = ()  # empty: a change in the program
    predicted_gain_ns: float | None = None  # from the simulator; None: not predicted
    why_no_gain: str | None = None  # why no gain is predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """The figures of one profiler step."""

    number: int
    figures: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFindings:
    """What one rank's timeline shows."""

    SHOWN: ClassVar = ("exposed_other_ns",)

    rank: int
    device: str | None
    source: str
    figures: Figures
    origin: Origin = "imported"
    library: str | None = None  # "nccl-2.17.1"
    spans: int = 0
    waiting_ns: int | None = None  # inside matched collectives, for other ranks
    exposed_waiting_ns: int = 0  # of it: the part without compute beside it
    ledger: Ledger = EMPTY_LEDGER
    step_ns: int | None = None  # wall time of the marked steps; None: the ledger is of `figures.span_ns`
    steps: tuple[StepFigures, ...] = ()
    occupancy: Occupancy | None = None
    slowdowns: Slowdowns = NO_SLOWDOWNS
    notes: tuple[str, ...] = ()

    @property
    def exposed_other_ns(self) -> int:
        """Exposed communication that is not known to be waiting."""
        return self.figures.exposed_ns - self.exposed_waiting_ns
