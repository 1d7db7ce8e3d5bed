"""Causes of late, exposed and slowed collectives, each with its evidence; and causes that are alike, added up."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from makeway.decide.analysis.exposure import exposed_causes
from makeway.decide.analysis.findings import Cause, CauseKind, Confidence, Matched, Matching, Slowdowns
from makeway.decide.analysis.lateness import late_causes
from makeway.decide.analysis.names import short_name
from makeway.decide.analysis.streams import StreamView, milliseconds
from makeway.values.device import Device
from makeway.values.timeline import Timeline

# Below, a slow-down is within what the same kernel varies by from launch to launch.
SLOWED = 1.05


def rank_causes(timeline: Timeline, rank: int, device: Device | None) -> tuple[Cause, ...]:
    """What one rank's own record says of its late and exposed communication; other ranks may know better."""
    view = StreamView(timeline, rank)
    late = [cause for span in view.spans if span.kind in ("comm", "copy") for cause in late_causes(view, span, device)]
    return (*late, *exposed_causes(view))


def slowed_causes(slowdowns: Slowdowns, rank: int) -> tuple[Cause, ...]:
    """Compute kernels that took longer beside communication than alone."""
    return tuple(
        Cause(
            kind="contention",
            of="slowed",
            collective="",
            rank=rank,
            at_ns=0,
            time_ns=round(group.cost_ns),
            confidence="high" if group.beside_ns - group.alone_ns > group.alone_spread_ns else "low",
            evidence=(
                f"{short_name(group.kernel)} takes {group.beside_ns / 1e3:,.0f} us beside communication and "
                f"{group.alone_ns / 1e3:,.0f} us alone (x{group.ratio:.2f}, medians of {group.beside_samples} "
                f"and {group.alone_samples} launches)"
            ),
            kernel=group.kernel,
        )
        for group in slowdowns.groups
        if group.ratio >= SLOWED
    )


def with_waiting(causes: Sequence[Cause], matching: Matching) -> tuple[Cause, ...]:
    """The causes with the part of exposed time that was waiting for the last rank blamed on that rank.

    Until the last rank came, nothing could move: what ran beside it, or did not, comes second.
    """
    arrivals: dict[int, list[tuple[int, int, int, Matched]]] = {}
    for matched in matching.matched:
        moved = matched.transfer_ns
        for rank, start, end in matched.members:
            arrivals.setdefault(rank, []).append((start, end, end - moved, matched))
    for known in arrivals.values():
        known.sort(key=lambda item: item[:3])
    return tuple(part for cause in causes for part in _split_waiting(cause, arrivals.get(cause.rank, [])))


def _split_waiting(cause: Cause, known: list[tuple[int, int, int, Matched]]) -> list[Cause]:
    if cause.of != "exposed":
        return [cause]
    found = _collective_at(cause, known)
    if found is None:
        return [cause]
    arrived, matched = found
    end = cause.at_ns + cause.time_ns
    waiting = min(arrived, end) - cause.at_ns
    if waiting <= 0:
        return [cause]
    late = Cause(
        kind="straggler",
        of="exposed",
        collective=cause.collective,
        rank=cause.rank,
        at_ns=cause.at_ns,
        time_ns=waiting,
        confidence="high",
        evidence=(
            f"rank {matched.last_rank} came last: its part of the collective took {milliseconds(matched.transfer_ns)}, "
            "the others waited in theirs"
        ),
    )
    rest = replace(cause, at_ns=cause.at_ns + waiting, time_ns=cause.time_ns - waiting)
    return [late, rest] if rest.time_ns else [late]


def _collective_at(cause: Cause, known: list[tuple[int, int, int, Matched]]) -> tuple[int, Matched] | None:
    at = bisect_right(known, cause.at_ns, key=lambda item: item[0])
    for start, end, arrived, matched in reversed(known[max(0, at - 8) : at]):
        if start <= cause.at_ns < end and matched.name == cause.collective:
            return arrived, matched
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseGroup:
    """Causes alike in kind, time, kernel and resource, over all collectives and ranks."""

    kind: CauseKind
    of: str
    time_ns: int  # all ranks together
    rank_ns: int  # of the rank with most
    count: int  # how many times
    ranks: tuple[int, ...]
    confidence: Confidence
    kernel: str | None
    resource: str | None
    short_by: str | None
    evidence: str  # of the longest
    record_next: str | None


def cause_groups(causes: Iterable[Cause]) -> tuple[CauseGroup, ...]:
    """Causes that are alike, added up; the most time first."""
    alike: dict[tuple[object, ...], list[Cause]] = {}
    for cause in causes:
        kernel = cause.kernel if cause.kind in ("no-room", "contention") else None
        resource = cause.resource if cause.kind == "no-room" else None
        alike.setdefault((cause.kind, cause.of, kernel, resource), []).append(cause)
    groups = [_group(members) for members in alike.values()]
    return tuple(sorted(groups, key=lambda group: (-group.time_ns, group.kind, group.of, group.kernel or "")))


def _group(members: list[Cause]) -> CauseGroup:
    longest = max(members, key=lambda cause: cause.time_ns)
    by_rank: dict[int, int] = {}
    for cause in members:
        by_rank[cause.rank] = by_rank.get(cause.rank, 0) + cause.time_ns
    named = longest.kind in ("no-room", "contention")
    return CauseGroup(
        kind=longest.kind,
        of=longest.of,
        time_ns=sum(by_rank.values()),
        rank_ns=max(by_rank.values()),
        count=len(members),
        ranks=tuple(sorted(by_rank)),
        confidence=_agreed(members),
        kernel=longest.kernel if named else None,
        resource=longest.resource if named else None,
        short_by=longest.short_by if named else None,
        evidence=longest.evidence,
        record_next=longest.record_next,
    )


def _agreed(members: list[Cause]) -> Confidence:
    """The confidence that at least half of the time has."""
    whole = sum(cause.time_ns for cause in members)
    high = sum(cause.time_ns for cause in members if cause.confidence == "high")
    low = sum(cause.time_ns for cause in members if cause.confidence == "low")
    if 2 * high >= whole:
        return "high"
    return "low" if 2 * low > whole else "medium"
