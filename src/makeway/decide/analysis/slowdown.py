"""How much slower a compute kernel runs beside communication than alone, from the launches of one rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

from makeway.decide.analysis.findings import Slowdown, Slowdowns
from makeway.decide.analysis.intervals import cover, interval
from makeway.values.kernel import Launch
from makeway.values.timeline import Span

LEAST_SAMPLES = 3  # on each side
LEAST_ALONE_NS = 20_000  # shorter kernels vary more than overlap costs them


@dataclass(frozen=True, slots=True)
class _Group:
    """Durations of one kernel, and the time that those beside communication spent beside it."""

    alone_ns: list[int] = field(default_factory=list)
    beside_ns: list[int] = field(default_factory=list)
    shared_ns: list[int] = field(default_factory=list)

    @property
    def comparable(self) -> bool:
        return min(len(self.alone_ns), len(self.beside_ns)) >= LEAST_SAMPLES and median(self.alone_ns) >= LEAST_ALONE_NS


def slowdowns(spans: Sequence[Span], rank: int) -> Slowdowns:
    """Kernels of `rank` that ran both beside communication and alone, the costliest first.

    A group has one name, grid, block size and resources. A launch is "beside" if communication runs for more than half
    of its time and "alone" if none does; others are left out, as are launches without a recorded grid.
    `overlapped_ns` adds up each compute kernel's time beside communication (concurrent kernels each count);
    `covered_ns` is the part of it in comparable groups.

    One name and grid may still hide different work (a grouped GEMM, another row length): a ratio shows that a kernel
    was slower, not why.
    """
    own = [span for span in spans if span.rank == rank]
    comm = cover(interval(span) for span in own if span.kind in ("comm", "copy"))
    groups: dict[tuple[str, Launch], _Group] = defaultdict(_Group)
    overlapped_ns = 0
    for span in own:
        if span.kind != "compute":
            continue
        shared = comm.within_ns(span.start_ns, span.end_ns)
        overlapped_ns += shared
        if span.launch is None:
            continue
        group = groups[span.name, span.launch]
        if shared == 0:
            group.alone_ns.append(span.duration_ns)
        elif 2 * shared > span.duration_ns:
            group.beside_ns.append(span.duration_ns)
            group.shared_ns.append(shared)
    compared = [(_slowdown(key, group, rank), group) for key, group in groups.items() if group.comparable]
    return Slowdowns(
        groups=tuple(sorted((item for item, _ in compared), key=lambda item: (-item.cost_ns, item.kernel))),
        covered_ns=sum(sum(group.shared_ns) for _, group in compared),
        overlapped_ns=overlapped_ns,
    )


def _slowdown(key: tuple[str, Launch], group: _Group, rank: int) -> Slowdown:
    name, launch = key
    return Slowdown(
        kernel=name,
        rank=rank,
        blocks=launch.blocks,
        alone_ns=float(median(group.alone_ns)),
        alone_spread_ns=_interquartile_range(group.alone_ns),
        alone_samples=len(group.alone_ns),
        beside_ns=float(median(group.beside_ns)),
        beside_spread_ns=_interquartile_range(group.beside_ns),
        beside_samples=len(group.beside_ns),
    )


def _interquartile_range(durations_ns: Iterable[int]) -> float:
    lower, _, upper = quantiles(durations_ns, n=4, method="inclusive")
    return upper - lower
