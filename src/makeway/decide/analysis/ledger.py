"""A step's ledger: every nanosecond of a rank's step belongs to exactly one line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

LineKind = Literal[
    "compute",  # with or without communication beside it
    "transfer",  # exposed communication that moves data
    "waiting",  # exposed communication that waits for a late rank
    "late-launch",  # exposed communication; the host had not launched the compute that follows
    "no-room",  # exposed communication that started late, since compute held every SM
    "copies",  # only copies to and from the host and fills run
    "host",  # idle: the host had not launched what runs next
    "synchronisation",  # idle: the host was blocked in a synchronising call
    "loading",  # idle: the host was fetching the next batch
    "allocator",  # idle: the host was allocating or freeing device memory
    "gaps",  # idle: between two queued kernels
    "other",  # idle: the recording does not show why
]
EXPOSED: tuple[LineKind, ...] = ("transfer", "waiting", "late-launch", "no-room")
IDLE: tuple[LineKind, ...] = ("host", "synchronisation", "loading", "allocator", "gaps", "other")
ORDER: tuple[LineKind, ...] = ("compute", *EXPOSED, "copies", *IDLE)

MOST_TOP = 3  # kernels beside a line
Top = tuple[tuple[str, int], ...]  # kernel and time, the most time first


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """Time of one kind, and the kernels with most of it."""

    kind: LineKind
    ns: int
    rank: int | None = None  # waiting: the rank that arrived late; None in a job of many ranks
    top: Top = ()  # compute, copies: by the kernel that ran; idle: by the one that ran next; exposed: the collective


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Where a step goes; the lines add up to `total_ns`, and no line is empty."""

    lines: tuple[LedgerLine, ...] = ()
    total_ns: int = 0

    def __post_init__(self) -> None:
        assert sum(line.ns for line in self.lines) == self.total_ns, "the lines of a ledger add up to its total"
        assert all(line.ns > 0 for line in self.lines), "a line holds some time"

    def ns(self, *kinds: LineKind) -> int:
        """The time of all lines of these kinds."""
        return sum(line.ns for line in self.lines if line.kind in kinds)

    @property
    def idle_ns(self) -> int:
        return self.ns(*IDLE)

    @property
    def exposed_ns(self) -> int:
        return self.ns(*EXPOSED)

    def percent(self, ns: int) -> float:
        """A time as a percentage of the step."""
        return 100.0 * ns / self.total_ns if self.total_ns else 0.0


EMPTY_LEDGER = Ledger()


def job_ledger(ledgers: Sequence[Ledger]) -> Ledger:
    """The ledgers of all ranks added up: GPU time, so a line's share of it is the mean over the ranks by length."""
    time: Counter[tuple[LineKind, int | None]] = Counter()
    top: defaultdict[tuple[LineKind, int | None], Counter[str]] = defaultdict(Counter)
    for item in ledgers:
        for line in item.lines:
            time[line.kind, line.rank] += line.ns
            top[line.kind, line.rank].update(dict(line.top))
    return ledger_of(
        LedgerLine(kind=kind, ns=ns, rank=rank, top=tuple(top[kind, rank].most_common(MOST_TOP)))
        for (kind, rank), ns in time.items()
    )


def ledger_of(lines: Iterable[LedgerLine]) -> Ledger:
    """The lines that hold some time, in order."""
    kept = sorted(
        (line for line in lines if line.ns > 0),
        key=lambda line: (ORDER.index(line.kind), -line.ns, line.rank or 0),
    )
    return Ledger(lines=tuple(kept), total_ns=sum(line.ns for line in kept))
