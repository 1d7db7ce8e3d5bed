"""Causes of late, exposed and slowed collectives with their evidence, and groups of similar causes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from makeway.decide.analysis.exposure import ON_CPU, exposed_causes
from makeway.decide.analysis.findings import Cause, CauseGroup, Confidence, Matched, Matching, Slowdowns
from makeway.decide.analysis.lateness import late_causes
from makeway.decide.analysis.names import short_name
from makeway.decide.analysis.streams import StreamView, milliseconds
from makeway.decide.analysis.wording import on_cpu
from makeway.values.device import Device
from makeway.values.timeline import Timeline

# A smaller slow-down is within the variation of one kernel from launch to launch.
SLOWED = 1.05

_Arrival = tuple[int, int, int, Matched]  # of a rank in a collective: start, end, when the last rank arrived


def rank_causes(timeline: Timeline, rank: int, device: Device | None) -> tuple[Cause, ...]:
    """Causes of late and exposed communication, as far as one rank's own record shows them."""
    view = StreamView(timeline, rank)
    if on_cpu([timeline.device]):  # a thread starts a collective when it is free; there is no room to look for
        return tuple(exposed_causes(view, ON_CPU))
    late = [cause for span in view.spans if span.kind in ("comm", "copy") for cause in late_causes(view, span, device)]
    return (*late, *exposed_causes(view))


def slowed_causes(slowdowns: Slowdowns, rank: int) -> tuple[Cause, ...]:
    """Compute kernels that took longer beside communication than alone, by more than their times vary."""
    return tuple(
        Cause(
            kind="contention",
            of="slowed",
            collective="",
            rank=rank,
            at_ns=0,
            time_ns=round(group.cost_ns),
            cost_ns=round(group.cost_ns),
            confidence="high",
            evidence=(
                f"{short_name(group.kernel)} takes {group.beside_ns / 1e3:,.0f} us beside communication and "
                f"{group.alone_ns / 1e3:,.0f} us alone (x{group.ratio:.2f}, medians of {group.beside_samples} "
                f"and {group.alone_samples} launches)"
            ),
            kernel=group.kernel,
        )
        for group in slowdowns.groups
        if group.ratio >= SLOWED and group.separated
    )


def with_waiting(causes: Sequence[Cause], matching: Matching) -> tuple[Cause, ...]:
    """The causes, with exposed time spent waiting for the last rank attributed to that rank.

    Nothing moves until the last rank arrives, so this cause comes before any other.
    """
    arrivals: dict[int, list[_Arrival]] = {}
    for matched in matching.matched:
        transfer_ns = matched.transfer_ns
        for rank, start, end in matched.members:
            arrivals.setdefault(rank, []).append((start, end, end - transfer_ns, matched))
    for on_rank in arrivals.values():
        on_rank.sort(key=lambda arrival: arrival[:3])
    return tuple(part for cause in causes for part in _split_waiting(cause, arrivals.get(cause.rank, [])))


def _split_waiting(cause: Cause, arrivals: list[_Arrival]) -> list[Cause]:
    arrival = _collective_at(cause, arrivals) if cause.of == "exposed" else None
    if arrival is None:
        return [cause]
    _, _, arrived_ns, matched = arrival
    waiting = min(arrived_ns - cause.at_ns, cause.time_ns)
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
        collective_ns=cause.collective_ns,
        cost_ns=waiting,
        waits_for=matched.last_rank,
        evidence=f"rank {matched.last_rank} arrived last and spent {milliseconds(matched.transfer_ns)} in the "
        "collective; the others waited in theirs",
    )
    left = cause.time_ns - waiting
    rest = replace(cause, at_ns=cause.at_ns + waiting, time_ns=left, cost_ns=left)
    return [late, rest] if rest.time_ns else [late]


def with_costs(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """The causes, with exposed time of collectives that started late for lack of room moved to that cause.

    A collective that starts earlier by its delay is exposed for at most that much less; so a delay costs no more than
    the exposed time of the collective that is not waiting. Other delays cost nothing by themselves: a collective that
    is queued behind its data starts when the data exist.
    """
    delays: Counter[tuple[int, str, int]] = Counter()
    for cause in causes:
        if cause.kind == "no-room" and cause.of == "late":
            delays[_collective(cause)] += cause.time_ns
    if not delays:
        return tuple(causes)
    left, costs = delays.copy(), []
    for cause in causes:
        taken = 0
        if cause.of == "exposed" and cause.kind != "straggler":
            taken = min(cause.time_ns, left[_collective(cause)])
            left[_collective(cause)] -= taken
        costs.append(cause.time_ns - taken if cause.of == "exposed" else cause.cost_ns)
    moved = delays - left
    for index, cause in enumerate(causes):
        if cause.kind == "no-room" and cause.of == "late":
            costs[index] = min(cause.time_ns, moved[_collective(cause)])
            moved[_collective(cause)] -= costs[index]
    return tuple(
        cause if cause.cost_ns == cost else replace(cause, cost_ns=cost)
        for cause, cost in zip(causes, costs, strict=True)
    )


def _collective(cause: Cause) -> tuple[int, str, int]:
    return cause.rank, cause.collective, cause.collective_ns


def _collective_at(cause: Cause, arrivals: list[_Arrival]) -> _Arrival | None:
    at = bisect_right(arrivals, cause.at_ns, key=lambda arrival: arrival[0])
    for arrival in reversed(arrivals[max(0, at - 8) : at]):
        start, end, _, matched = arrival
        if start <= cause.at_ns < end and matched.name == cause.collective:
            return arrival
    return None


def cause_groups(causes: Iterable[Cause]) -> tuple[CauseGroup, ...]:
    """Similar causes added up, the most time first."""
    similar: dict[tuple[object, ...], list[Cause]] = {}
    for cause in causes:
        kernel = cause.kernel if cause.kind in ("no-room", "contention") else None
        resource = cause.resource if cause.kind == "no-room" else None
        similar.setdefault((cause.kind, cause.of, kernel, resource), []).append(cause)
    groups = [_group(members) for members in similar.values()]
    return tuple(sorted(groups, key=lambda group: (-group.time_ns, group.kind, group.of, group.kernel or "")))


def _group(members: list[Cause]) -> CauseGroup:
    longest = max(members, key=lambda cause: cause.time_ns)
    by_rank: dict[int, int] = {}
    for cause in members:
        by_rank[cause.rank] = by_rank.get(cause.rank, 0) + cause.cost_ns
    named = longest.kind in ("no-room", "contention")
    return CauseGroup(
        kind=longest.kind,
        of=longest.of,
        time_ns=sum(by_rank.values()),
        most_on_one_rank_ns=max(by_rank.values()),
        delay_ns=sum(cause.time_ns for cause in members) if longest.of == "late" else None,
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
