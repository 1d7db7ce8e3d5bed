"""How much slower a compute kernel runs beside communication than alone, from the launches of one rank.

A name and a grid do not make a kernel comparable: a copy of another size, or a persistent kernel in another role, has
the same. So launches are compared only with launches of the same name, grid, block, resources and input sizes (where
recorded) that run between the same kernels of their stream and, where steps repeat and sizes are not recorded, at the
same place in the step. Times that fall into several clusters are several kinds of work, and are refused as evidence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, quantiles

from makeway.decide.analysis.findings import Refused, Slowdown, Slowdowns
from makeway.decide.analysis.intervals import cover, interval
from makeway.values.kernel import Launch
from makeway.values.timeline import Span

LEAST_SAMPLES = 3  # on each side
LEAST_ALONE_NS = 20_000  # shorter kernels vary more than overlap costs them
NEIGHBOURS = 2  # kernels before and after it on its stream that must be the same
# Times of the same work lie closer together than this; a larger step between neighbouring times parts two clusters.
CLUSTER_STEP = 1.5


@dataclass(frozen=True, slots=True)
class _Group:
    """Durations of one kernel, and the time that those beside communication spent beside it."""

    alone_ns: list[int] = field(default_factory=list)
    beside_ns: list[int] = field(default_factory=list)
    shared_ns: list[int] = field(default_factory=list)

    @property
    def comparable(self) -> bool:
        return min(len(self.alone_ns), len(self.beside_ns)) >= LEAST_SAMPLES and median(self.alone_ns) >= LEAST_ALONE_NS

    def add(self, duration_ns: int, shared_ns: int) -> None:
        if shared_ns == 0:
            self.alone_ns.append(duration_ns)
        else:
            self.beside_ns.append(duration_ns)
            self.shared_ns.append(shared_ns)


def slowdowns(spans: Sequence[Span], rank: int, *, step_starts_ns: Sequence[int] = ()) -> Slowdowns:
    """Kernels of `rank` that ran both beside communication and alone, the costliest first.

    A launch is "beside" if communication runs for more than half of its time and "alone" if none does; others are left
    out, as are launches without a recorded grid. `overlapped_ns` adds up each compute kernel's time beside
    communication (concurrent kernels each count); `covered_ns` is the part of it in comparable groups.
    """
    own = [span for span in spans if span.rank == rank]
    comm = cover(interval(span) for span in own if span.kind in ("comm", "copy"))
    launches: dict[tuple[str, int], list[tuple[Span, int]]] = defaultdict(list)
    number = _Numbers()
    overlapped_ns = 0
    for span in own:
        if span.kind != "compute":
            continue
        shared = comm.within_ns(span.start_ns, span.end_ns)
        overlapped_ns += shared
        if span.launch is not None and (shared == 0 or 2 * shared > span.duration_ns):
            launches[span.name, number.of(span.launch)].append((span, shared))
    both = [members for members in launches.values() if _group(members).comparable]
    names = {members[0][0].name for members in both}
    places = _Places(own, step_starts_ns, number, names) if both else None
    compared: list[tuple[Slowdown, _Group]] = []
    refused: list[Refused] = []
    for members in both:
        assert places is not None
        key = members[0][0]
        accepted, why = _judged(members, places)
        compared += [(_slowdown(key, group, rank), group) for group in accepted]
        if not accepted:
            refused.append(_refused(key, _group(members), rank, why))
    return Slowdowns(
        groups=tuple(sorted((item for item, _ in compared), key=lambda item: (-item.cost_ns, item.kernel))),
        refused=tuple(sorted(refused, key=lambda item: (-item.ratio, item.kernel))),
        covered_ns=sum(sum(group.shared_ns) for _, group in compared),
        overlapped_ns=overlapped_ns,
    )


class _Numbers:
    """A number for each distinct launch; traces share one value between identical launches, so few are compared."""

    def __init__(self) -> None:
        self._by_value: dict[Launch, int] = {}
        self._by_id: dict[int, tuple[Launch, int]] = {}  # keeps the value alive, and so its id its own

    def of(self, launch: Launch | None) -> int:
        if launch is None:
            return -1
        known = self._by_id.get(id(launch))
        if known is None:
            known = launch, self._by_value.setdefault(launch, len(self._by_value))
            self._by_id[id(launch)] = known
        return known[1]


def _group(members: Iterable[tuple[Span, int]]) -> _Group:
    group = _Group()
    for span, shared in members:
        group.add(span.duration_ns, shared)
    return group


def _judged(members: Sequence[tuple[Span, int]], places: _Places) -> tuple[list[_Group], str]:
    """The comparable groups among launches of one name and grid, or why there are none."""
    similar: dict[object, list[tuple[Span, int]]] = defaultdict(list)
    for span, shared in members:
        similar[places.of(span)].append((span, shared))
    groups = [group for group in map(_group, similar.values()) if group.comparable]
    if not groups:
        return [], "it runs alone and beside communication in different places, so it may do different work there"
    accepted = [group for group in groups if not _clustered(group.alone_ns) and not _clustered(group.beside_ns)]
    return accepted, "its times fall into several clusters: one name and grid, different work"


def _clustered(durations_ns: Sequence[int]) -> bool:
    """Whether the times fall into several clusters, none of which is a single outlier."""
    ordered = sorted(durations_ns)
    steps = [place for place, (one, other) in enumerate(pairwise(ordered), 1) if other >= CLUSTER_STEP * max(one, 1)]
    return any(2 <= place <= len(ordered) - 2 or len(ordered) < 2 * LEAST_SAMPLES for place in steps)


class _Places:
    """Where each kernel runs: its arguments, its neighbours on the stream and, where steps repeat, its ordinal."""

    def __init__(self, spans: Sequence[Span], step_starts_ns: Sequence[int], number: _Numbers, names: Set[str]) -> None:
        lines: dict[str, list[Span]] = defaultdict(list)
        for span in sorted(spans, key=lambda span: span.start_ns):
            if span.kind == "compute":
                lines[span.stream].append(span)
        self._lines: Mapping[str, list[Span]] = lines
        self._at = {id(span): at for line in lines.values() for at, span in enumerate(line)}
        judged = [[span for span in line if span.name in names] for line in lines.values()]
        self._ordinal = _ordinals(judged, sorted(step_starts_ns), number) if len(step_starts_ns) > 1 else {}

    def of(self, span: Span) -> tuple[object, ...]:
        line, at = self._lines[span.stream], self._at[id(span)]
        beside = [*line[max(at - NEIGHBOURS, 0) : at], *line[at + 1 : at + 1 + NEIGHBOURS]]
        ordinal = self._ordinal.get(id(span)) if span.inputs is None else None
        return (span.inputs, ordinal, *((item.name, _blocks(item)) for item in beside))


def _blocks(span: Span) -> int | None:
    return span.launch.blocks if span.launch else None


def _ordinals(lines: Iterable[Sequence[Span]], starts_ns: Sequence[int], number: _Numbers) -> dict[int, int]:
    """The number of each kernel among those of its name and grid in its step, where every step has as many of them."""
    counts: Counter[tuple[int, object]] = Counter()
    numbered: list[tuple[Span, tuple[int, object], int]] = []
    for line in lines:
        step = 0
        for span in line:
            time_ns = span.start_ns if span.launched_ns is None else span.launched_ns
            while step < len(starts_ns) and starts_ns[step] <= time_ns:
                step += 1
            key = step, (span.name, number.of(span.launch), span.stream)
            numbered.append((span, key, counts[key]))
            counts[key] += 1
    per_step: dict[object, set[int]] = defaultdict(set)
    for (_, kernel), amount in counts.items():
        per_step[kernel].add(amount)
    return {id(span): number for span, (_, kernel), number in numbered if len(per_step[kernel]) == 1}


def _slowdown(kernel: Span, group: _Group, rank: int) -> Slowdown:
    alone, beside = _quartiles(group.alone_ns), _quartiles(group.beside_ns)
    return Slowdown(
        kernel=kernel.name,
        rank=rank,
        blocks=_blocks(kernel),
        alone_ns=float(median(group.alone_ns)),
        alone_spread_ns=alone[1] - alone[0],
        alone_samples=len(group.alone_ns),
        beside_ns=float(median(group.beside_ns)),
        beside_spread_ns=beside[1] - beside[0],
        beside_samples=len(group.beside_ns),
        separated=alone[1] < beside[0] or beside[1] < alone[0],
    )


def _refused(kernel: Span, group: _Group, rank: int, why: str) -> Refused:
    ratio = median(group.beside_ns) / median(group.alone_ns)
    return Refused(kernel=kernel.name, rank=rank, blocks=_blocks(kernel), ratio=ratio, why=why)


def _quartiles(durations_ns: Iterable[int]) -> tuple[float, float]:
    lower, _, upper = quantiles(durations_ns, n=4, method="inclusive")
    return lower, upper
