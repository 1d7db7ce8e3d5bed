"""`JobAnalysis`: what the summaries of all ranks show together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from makeway.decide.analysis.evidence import NO_COMMUNICATION, Communication
from makeway.decide.analysis.findings import Figures
from makeway.decide.analysis.ledger import EMPTY_LEDGER, Ledger
from makeway.decide.analysis.many.summary import KernelClass
from makeway.decide.analysis.wording import Wording, wording_for

if TYPE_CHECKING:
    from makeway.decide.analysis.threshold import Gate

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.99, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRank:
    """One rank of the job."""

    rank: int
    source: str
    device: str | None
    figures: Figures
    waiting_ns: int | None  # inside matched collectives, for other ranks; None: nothing to match with
    exposed_waiting_ns: int  # of it: the part without compute beside it
    caused_ns: int  # waiting of other ranks for this one
    ledger: Ledger  # adds up to the wall time of its steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """The matched collectives of one group of ranks."""

    SHOWN: ClassVar = ("mean_waiting_ns",)

    name: str
    size: int  # ranks that recorded it
    lowest_rank: int
    highest_rank: int
    collectives: int
    transfer_ns: int
    waiting_ns: int  # of all its ranks
    late_rank: int | None  # most of that waiting is for it
    late_share: float | None

    @property
    def mean_waiting_ns(self) -> float:
        """Waiting per rank."""
        return self.waiting_ns / self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCause:
    """All time lost for one reason."""

    kind: str
    of: str
    time_ns: int  # of all ranks: what it costs
    delay_ns: int | None  # late: from ready to start, all ranks together; most of it costs nothing
    ranks: int  # that have it
    worst_rank: int
    worst_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How one figure varies over the ranks: its quantiles."""

    figure: str
    least_ns: int
    lower_quartile_ns: int
    median_ns: int
    upper_quartile_ns: int
    percentile_99_ns: int
    most_ns: int
    most_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnalysis:
    """A job of any number of ranks, from their summaries."""

    ranks: tuple[JobRank, ...]
    origin: str
    spans: int
    matched: int = 0
    unmatched: int = 0  # collectives, over all ranks
    transfer_ns: int = 0
    late_ranks: tuple[tuple[int, float], ...] = ()  # (rank, share of all waiting that is for it), largest first
    straggler_rank: int | None = None
    straggler_share: float | None = None
    communicators: tuple[Communicator, ...] = ()  # most waiting per rank first
    causes: tuple[JobCause, ...] = ()  # most time first
    communication: Communication = NO_COMMUNICATION  # by which rules, and what no rule claims
    ledger: Ledger = EMPTY_LEDGER  # of all ranks
    kernels: tuple[KernelClass, ...] = ()  # of all ranks, most time first
    spreads: tuple[Spread, ...] = ()
    libraries: tuple[str, ...] = ()
    gate: Gate | None = None
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> JobRank:
        """The rank with most exposed communication."""
        return max(self.ranks, key=lambda rank: (rank.figures.exposed_ns, -rank.rank))

    @property
    def wording(self) -> Wording:
        """How to speak of the hardware that the ranks ran on."""
        return wording_for(rank.device for rank in self.ranks)

    @property
    def mean_waiting_ns(self) -> float | None:
        """Waiting per rank; None where nothing is matched."""
        return sum(rank.waiting_ns or 0 for rank in self.ranks) / len(self.ranks) if self.matched else None


def spread_of(figure: str, ranks: Sequence[JobRank], value: Callable[[JobRank], int]) -> Spread:
    """The quantiles of one figure: each is the figure of some rank, the nearest one above."""
    ordered = sorted((value(rank), rank.rank) for rank in ranks)
    least, lower, middle, upper, high, most = (
        ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in QUANTILES
    )
    return Spread(
        figure=figure,
        least_ns=least[0],
        lower_quartile_ns=lower[0],
        median_ns=middle[0],
        upper_quartile_ns=upper[0],
        percentile_99_ns=high[0],
        most_ns=most[0],
        most_rank=most[1],
    )
