"""The entries of a step's ledger: which line each nanosecond of a rank's step belongs to.

The rules, in this order, for each moment of the step:

1. compute runs: compute;
2. communication runs: exposed, and split by cause;
3. copies or fills run: copies;
4. nothing runs: the host is in a call that keeps it from launching (allocator, loading, synchronisation); else the
   host has not launched what runs next (host); else the next kernel is queued and starts within the time that a launch
   takes (gaps); else the recording does not show the reason (other).

All times are integers, so the lines add up to the step exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from makeway.decide.analysis.findings import Cause, CauseKind, Figures
from makeway.decide.analysis.intervals import Interval, split
from makeway.decide.analysis.lateness import LATE_NS
from makeway.decide.analysis.ledger import EXPOSED, MOST_TOP, Ledger, LedgerLine, LineKind, Top, ledger_of
from makeway.values.timeline import HostCall, HostCallKind, Span, union_ns

_EXPOSED_BY: dict[CauseKind, LineKind] = {"straggler": "waiting", "launch-bound": "late-launch"}  # else transfer
# Of the calls that overlap, the first of these counts.
_CALLS: tuple[HostCallKind, ...] = ("allocator", "loading", "synchronisation")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLedger:
    """What one rank's recording shows by itself: all lines but the split of exposed communication."""

    compute_ns: int
    exposed_ns: int
    copies_ns: int
    idle: tuple[tuple[LineKind, int], ...]
    top: tuple[tuple[LineKind, Top], ...] = ()


def local_ledger(
    spans: Sequence[Span], figures: Figures, *, window: Interval | None = None, host: Iterable[HostCall] = ()
) -> LocalLedger:
    """The ledger of one rank's spans over `window`, which contains them (default: from the first to the last).

    `figures` are of the same spans; `host` are the rank's calls.
    """
    idle: Counter[LineKind] = Counter()
    following: defaultdict[LineKind, Counter[str]] = defaultdict(Counter)
    for kind, start, end, upcoming in _idle_pieces(spans, window, host):
        idle[kind] += end - start
        if upcoming is not None:
            following[kind][upcoming.name] += end - start
    ran: dict[LineKind, Counter[str]] = {"compute": Counter(), "copies": Counter()}
    kinds: dict[str, Counter[str]] = {"compute": ran["compute"], "memory": ran["copies"]}
    for span in spans:
        if span.kind in kinds:
            kinds[span.kind][span.name] += span.end_ns - span.start_ns
    return LocalLedger(
        compute_ns=figures.compute_ns,
        exposed_ns=figures.exposed_ns,
        copies_ns=figures.memory_alone_ns,
        idle=tuple(sorted(idle.items())),
        top=tuple((kind, tuple(names.most_common(MOST_TOP))) for kind, names in {**ran, **following}.items() if names),
    )


def rank_ledger(local: LocalLedger, causes: Iterable[Cause] = ()) -> Ledger:
    """The whole ledger of a rank, with its exposed time split by `causes` (its own, see `with_waiting`)."""
    top = dict(local.top)
    lines = [LedgerLine(kind="compute", ns=local.compute_ns, top=top.get("compute", ()))]
    lines += _exposed_lines(local.exposed_ns, causes)
    lines += [LedgerLine(kind="copies", ns=local.copies_ns, top=top.get("copies", ()))]
    lines += [LedgerLine(kind=kind, ns=ns, top=top.get(kind, ())) for kind, ns in local.idle]
    return ledger_of(lines)


# --- exposed communication ---------------------------------------------------------------------


def line_of(cause: Cause) -> LineKind | None:
    """The line that a cause's cost lies in; None if it costs nothing that a ledger shows."""
    match cause.of:
        case "slowed":
            return "compute"
        case "late":
            return "no-room" if cause.kind == "no-room" else None
        case "exposed":
            return exposed_line(cause.kind)


def exposed_line(cause: CauseKind) -> LineKind:
    """The line of exposed time with this cause."""
    return _EXPOSED_BY.get(cause, "transfer")


def _exposed_lines(exposed_ns: int, causes: Iterable[Cause]) -> Iterator[LedgerLine]:
    time: Counter[tuple[LineKind, int | None]] = Counter()
    top: defaultdict[tuple[LineKind, int | None], Counter[str]] = defaultdict(Counter)
    for cause in causes:
        kind = line_of(cause)
        if kind in EXPOSED and cause.cost_ns > 0:
            key = kind, cause.waits_for if kind == "waiting" else None
            time[key] += cause.cost_ns
            top[key][cause.collective] += cause.cost_ns
    time["transfer", None] += exposed_ns - time.total()
    for (kind, rank), ns in time.items():
        yield LedgerLine(kind=kind, ns=ns, rank=rank, top=tuple(top[kind, rank].most_common(MOST_TOP)))


# --- idle time ---------------------------------------------------------------------------------


def _idle_pieces(
    spans: Sequence[Span], window: Interval | None, host: Iterable[HostCall]
) -> Iterator[tuple[LineKind, int, int, Span | None]]:
    """Times at which nothing runs, each with its line and what runs next."""
    calls = _call_pieces(host)
    starts = [start for start, _, _ in calls]
    gaps = ((gap, gap.start_ns, gap.end_ns) for gap in _gaps(spans, window))
    for gap, start, end, side in split(gaps, [(begin, until) for begin, until, _ in calls]):
        if side == "inside":
            yield calls[bisect_right(starts, start) - 1][2], start, end, gap.upcoming
        else:
            yield from _unexplained(start, end, gap.upcoming)


def _unexplained(start: int, end: int, upcoming: Span | None) -> Iterator[tuple[LineKind, int, int, Span | None]]:
    """Idle time without a call that explains it: before the launch of what runs next, and after."""
    if upcoming is None:  # after the last kernel of a marked step: the host launches nothing more
        yield "host", start, end, None
        return
    if upcoming.launched_ns is None:
        yield "other", start, end, upcoming
        return
    launched = min(max(upcoming.launched_ns, start), end)
    if launched > start:
        yield "host", start, launched, upcoming
    if launched < end:
        yield "gaps" if end - launched <= LATE_NS else "other", launched, end, upcoming


@dataclass(frozen=True, slots=True)
class _Gap:
    """A time at which nothing runs, and the span that ends it; None: the window ends first."""

    start_ns: int
    end_ns: int
    upcoming: Span | None


def _gaps(spans: Sequence[Span], window: Interval | None) -> Iterator[_Gap]:
    ordered = sorted(spans, key=lambda span: span.start_ns)
    position = window[0] if window else ordered[0].start_ns if ordered else 0
    for span in ordered:
        if span.start_ns > position:
            yield _Gap(position, span.start_ns, span)
        position = max(position, span.end_ns)
    if window and window[1] > position:
        yield _Gap(position, window[1], None)


def _call_pieces(host: Iterable[HostCall]) -> list[tuple[int, int, HostCallKind]]:
    """Disjoint pieces of the calls in order; where calls of several kinds overlap, by `_CALLS`."""
    by_kind: dict[HostCallKind, list[Interval]] = {kind: [] for kind in _CALLS}
    for call in host:
        by_kind[call.kind].append((call.start_ns, call.end_ns))
    pieces: list[tuple[int, int, HostCallKind]] = []
    taken: list[Interval] = []
    for kind in _CALLS:
        own = union_ns(by_kind[kind])
        free = split(((kind, start, end) for start, end in own), taken)
        pieces += [(start, end, kind) for kind, start, end, side in free if side == "outside"]
        taken = union_ns([*taken, *own])
    return sorted(pieces)


def by_rank(causes: Iterable[Cause]) -> Mapping[int, list[Cause]]:
    """The causes of each rank."""
    lists: defaultdict[int, list[Cause]] = defaultdict(list)
    for cause in causes:
        lists[cause.rank].append(cause)
    return lists
