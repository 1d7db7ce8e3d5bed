"""Ranks as rows of spans: the recorded streams, and the rows that analysis adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from makeway.decide.analysis.findings import Cause, CauseKind
from makeway.decide.analysis.intervals import Interval, split
from makeway.decide.analysis.wording import ON_GPU, Wording, wording_for
from makeway.read.traces.read import natural
from makeway.values.timeline import Origin, Rank, Span, SpanKind, Timeline, union_ns

Colour = Literal["overlapped", "exposed"] | CauseKind
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackSpan:
    """A stretch of time that analysis marks."""

    name: str
    start_ns: int
    end_ns: int
    colour: Colour
    args: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A row that analysis adds to a rank; its spans are in order of start and may overlap."""

    name: str
    spans: tuple[TrackSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A recorded stream, in the fewest lanes without overlapping spans."""

    name: str
    mostly: SpanKind  # the kind that takes most of its time
    lanes: tuple[tuple[Span, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTracks:
    """All rows of one rank."""

    rank: Rank
    origin: Origin
    added: tuple[Track, ...]
    streams: tuple[Stream, ...]
    label: str = ""  # replaces the rank's number, e.g. "with the plan"

    @property
    def title(self) -> str:
        name = self.label or f"rank {self.rank.rank}"
        return name + (f" - {self.rank.device}" if self.rank.device else "")


def rank_tracks(timelines: Sequence[Timeline], causes: Iterable[Cause]) -> tuple[RankTracks, ...]:
    """The rows of every rank, in order of rank; causes are named for the hardware that the ranks ran on."""
    by_rank: dict[int, list[Cause]] = {}
    for cause in causes:
        by_rank.setdefault(cause.rank, []).append(cause)
    recorded = [(timeline, rank, spans) for timeline in timelines for rank, spans in _spans_by_rank(timeline)]
    wording = wording_for(rank.device for _, rank, _ in recorded)
    tracks = [
        RankTracks(
            rank=rank,
            origin=timeline.origin,
            added=added_tracks(spans, by_rank.get(rank.rank, ()), wording),
            streams=streams(spans),
        )
        for timeline, rank, spans in recorded
    ]
    return tuple(sorted(tracks, key=lambda item: item.rank.rank))


def compared_tracks(timelines: Sequence[tuple[str, Timeline]], *, rank: int = 0) -> tuple[RankTracks, ...]:
    """One rank of several timelines, each under its label and from its own start: measured beside predicted."""
    tracks = []
    for number, (label, timeline) in enumerate(timelines):
        spans = [span for span in timeline.spans if span.rank == rank]
        start_ns = min((span.start_ns for span in spans), default=0)
        moved = [
            replace(
                span,
                start_ns=span.start_ns - start_ns,
                end_ns=span.end_ns - start_ns,
                launched_ns=None if span.launched_ns is None else span.launched_ns - start_ns,
            )
            for span in spans
        ]
        tracks.append(
            RankTracks(
                rank=Rank(rank=number, device=timeline.device),
                origin=timeline.origin,
                added=tuple(track for track in added_tracks(moved, ()) if track.name != "cause"),
                streams=streams(moved),
                label=label,
            )
        )
    return tuple(tracks)


def _spans_by_rank(timeline: Timeline) -> list[tuple[Rank, list[Span]]]:
    spans: dict[int, list[Span]] = {rank.rank: [] for rank in timeline.ranks}
    for span in timeline.spans:
        spans.setdefault(span.rank, []).append(span)
    known = {rank.rank: rank for rank in timeline.ranks}
    return [(known.get(number) or Rank(rank=number, device=timeline.device), own) for number, own in spans.items()]


def streams(spans: Iterable[Span]) -> tuple[Stream, ...]:
    """The streams of one rank, stream 7 before stream 20."""
    by_stream: dict[str, list[Span]] = {}
    for span in spans:
        by_stream.setdefault(span.stream, []).append(span)
    return tuple(
        Stream(name=_title(name), mostly=_mostly(by_stream[name]), lanes=lanes(by_stream[name], interval))
        for name in sorted(by_stream, key=natural)
    )


def _title(stream: str) -> str:
    return f"stream {stream}" if stream.isdecimal() else stream


def _mostly(spans: Sequence[Span]) -> SpanKind:
    time_ns: dict[SpanKind, int] = {}
    for span in spans:
        time_ns[span.kind] = time_ns.get(span.kind, 0) + span.duration_ns
    return max(time_ns, key=lambda kind: time_ns[kind])


def lanes(items: Iterable[_T], when: Callable[[_T], Interval]) -> tuple[tuple[_T, ...], ...]:
    """The items in the fewest rows without overlap, each row in order of time."""
    rows: list[list[_T]] = []
    ends: list[int] = []
    for (start, end), item in sorted(((when(item), item) for item in items), key=lambda pair: pair[0]):
        for row, row_end in enumerate(ends):
            if row_end <= start:
                rows[row].append(item)
                ends[row] = end
                break
        else:
            rows.append([item])
            ends.append(end)
    return tuple(map(tuple, rows))


def interval(item: Span | TrackSpan) -> Interval:
    """Start and end."""
    return item.start_ns, item.end_ns


# --- what analysis adds --------------------------------------------------------------------------


def added_tracks(spans: Sequence[Span], causes: Iterable[Cause], wording: Wording = ON_GPU) -> tuple[Track, ...]:
    """Three rows for one rank: exposed communication, overlapped communication, and causes."""
    comm = union_ns(interval(span) for span in spans if span.kind in ("comm", "copy"))
    compute = union_ns(interval(span) for span in spans if span.kind == "compute")
    pieces = list(split(((None, start, end) for start, end in comm), compute))
    exposed = ((start, end) for _, start, end, side in pieces if side == "outside")
    overlapped = ((start, end) for _, start, end, side in pieces if side == "inside")
    return (
        Track(name="exposed", spans=tuple(_stretch("exposed", piece) for piece in exposed)),
        Track(name="overlapped", spans=tuple(_stretch("overlapped", piece) for piece in overlapped)),
        Track(name="cause", spans=_cause_spans(causes, wording)),
    )


def _stretch(name: Literal["overlapped", "exposed"], piece: Interval) -> TrackSpan:
    return TrackSpan(name=name, start_ns=piece[0], end_ns=piece[1], colour=name)


def _cause_spans(causes: Iterable[Cause], wording: Wording) -> tuple[TrackSpan, ...]:
    # A slowed kernel adds up many launches, so it has no place in time.
    placed = sorted((cause for cause in causes if cause.of != "slowed"), key=lambda cause: (cause.at_ns, cause.time_ns))
    return tuple(
        TrackSpan(
            name=wording.cause(cause.kind),
            start_ns=cause.at_ns,
            end_ns=cause.at_ns + cause.time_ns,
            colour=cause.kind,
            args=(
                ("time is", cause.of),
                ("collective", cause.collective),
                ("evidence", cause.evidence),
                ("confidence", cause.confidence),
                *((("record next", cause.record_next),) if cause.record_next else ()),
            ),
        )
        for cause in placed
    )
