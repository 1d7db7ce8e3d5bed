"""A recording cut into steps: how long each took, where it went, and what its kernels and collectives took.

A step lasts from its first span to the first span of the next one; the last ends with its own last span or its mark.
So the steps of a rank cover its recording without gaps, and what runs across a boundary counts on both sides of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from makeway.decide.analysis.figures import figures, spans_by_step
from makeway.decide.analysis.intervals import Interval
from makeway.decide.analysis.ledger_entries import local_ledger
from makeway.decide.analysis.rank import each_rank
from makeway.values.timeline import Origin, Rank, Span, Timeline

MOST_NAMES = 2_000  # of kernels, and of collectives, with most time
Name = tuple[str, int | None]  # of a kernel or collective, and the bytes that it was given


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Launches of one name: how many and how long, step by step."""

    counts: tuple[int, ...]
    times_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSteps:
    """The steps of one rank."""

    rank: int
    origin: Origin
    device: str | None
    source: str
    marked: bool  # False: no steps are marked, and the whole recording counts as one
    times_ns: tuple[int, ...]
    lines: Mapping[str, tuple[int, ...]]  # of its ledger; "exposed" is not split by cause
    kernels: Mapping[Name, Repeated]
    collectives: Mapping[Name, Repeated]


def rank_steps(timeline: Timeline) -> list[RankSteps]:
    """The steps of each rank of a timeline; ranks without any span have none."""
    return [_steps_of(own, info) for info, own in each_rank(timeline) if own.spans]


def _steps_of(timeline: Timeline, info: Rank) -> RankSteps:
    windows = _windows(timeline, info.rank)
    pieces = _clipped(timeline.spans, windows)
    ledgers = [
        local_ledger(spans, figures(spans), window=window, host=timeline.host)
        for spans, window in zip(pieces, windows, strict=True)
    ]
    lines: dict[str, list[int]] = defaultdict(lambda: [0] * len(windows))
    for index, ledger in enumerate(ledgers):
        for kind, ns in (
            ("compute", ledger.compute_ns),
            ("exposed", ledger.exposed_ns),
            ("copies", ledger.copies_ns),
            *ledger.idle,
        ):
            if ns:
                lines[kind][index] += ns
    return RankSteps(
        rank=info.rank,
        origin=timeline.origin,
        device=info.device,
        source=info.source,
        marked=bool(timeline.steps),
        times_ns=tuple(end - start for start, end in windows),
        lines={kind: tuple(times) for kind, times in lines.items()},
        kernels=_repeated(timeline.spans, windows, ("compute",)),
        collectives=_repeated(timeline.spans, windows, ("comm", "copy")),
    )


def _windows(timeline: Timeline, rank: int) -> list[Interval]:
    """The wall time of each step."""
    marks, by_step = spans_by_step(timeline, rank)
    starts = [min(span.start_ns for span in spans) for spans in by_step if spans]
    if not starts:
        return [(min(span.start_ns for span in timeline.spans), max(span.end_ns for span in timeline.spans))]
    starts.sort()
    last = max([marks[-1].end_ns, *(span.end_ns for spans in by_step[-1:] for span in spans)])
    edges = [*starts, max(last, starts[-1] + 1)]
    return [(start, end) for start, end in pairwise(edges) if end > start]


def _clipped(spans: Sequence[Span], windows: Sequence[Interval]) -> list[list[Span]]:
    """The parts of the spans inside each window; the windows follow one another."""
    pieces: list[list[Span]] = [[] for _ in windows]
    first = 0
    for span in sorted(spans, key=lambda span: span.start_ns):
        while first < len(windows) and windows[first][1] <= span.start_ns:
            first += 1
        at = first
        while at < len(windows) and windows[at][0] < span.end_ns:
            start, end = max(span.start_ns, windows[at][0]), min(span.end_ns, windows[at][1])
            whole = start == span.start_ns and end == span.end_ns
            pieces[at].append(span if whole else replace(span, start_ns=start, end_ns=end))
            at += 1
    return pieces


def _repeated(spans: Sequence[Span], windows: Sequence[Interval], kinds: tuple[str, ...]) -> dict[Name, Repeated]:
    """Launches by name and size, in the window where each starts."""
    counts: dict[Name, Counter[int]] = defaultdict(Counter)
    times: dict[Name, Counter[int]] = defaultdict(Counter)
    at = 0
    for span in sorted(spans, key=lambda span: span.start_ns):
        while at < len(windows) and windows[at][1] <= span.start_ns:
            at += 1
        if span.kind in kinds and at < len(windows) and span.start_ns >= windows[at][0]:
            name = span.name, span.exchange.in_bytes if span.exchange else None
            counts[name][at] += 1
            times[name][at] += span.duration_ns
    most = sorted(times, key=lambda name: -times[name].total())[:MOST_NAMES]
    steps = range(len(windows))
    return {
        name: Repeated(
            counts=tuple(counts[name][step] for step in steps), times_ns=tuple(times[name][step] for step in steps)
        )
        for name in most
    }
