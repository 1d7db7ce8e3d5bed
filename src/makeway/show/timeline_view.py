"""The timeline of a page: rows of spans in a compact form for its script to draw."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from makeway.decide.analysis.names import short_name
from makeway.decide.analysis.wording import wording_for
from makeway.show.markup import Html, embedded, joined, legend, notes
from makeway.show.tracks import RankTracks, TrackSpan, interval, lanes
from makeway.values.timeline import Span
from makeway.values.units import format_bytes

MOST_SPANS = 300_000  # in all rows; more would make the page larger than 6 MB and slow to open
_MOST_EVIDENCE = 2_000  # causes shown with evidence; the rest show kind and confidence
_LONGEST_NAME = 300
_OPEN_RANKS = 4  # drawn at first; the others open on a click

# start_ns, end_ns, index of what it is, launch delay in ns
_Drawn = tuple[int, int, int, int | None]
_Rows = list[tuple[str, list[_Drawn]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineView:
    """The markup of a timeline, and the time 0 of each rank."""

    html: Html
    origin_ns: Mapping[int, int]


@dataclass(slots=True)
class _Numbered:
    """Values numbered in order of first use."""

    numbers: dict[object, int] = field(default_factory=dict)

    def number(self, value: object) -> int:
        return self.numbers.setdefault(value, len(self.numbers))


@dataclass(slots=True)
class _Tables:
    names: _Numbered = field(default_factory=_Numbered)
    kinds: _Numbered = field(default_factory=_Numbered)
    details: _Numbered = field(default_factory=_Numbered)
    whats: _Numbered = field(default_factory=_Numbered)

    def what(self, name: str, kind: str, detail: tuple[tuple[str, str], ...] = ()) -> int:
        shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
        return self.whats.number((self.names.number(shown), self.kinds.number(kind), self.details.number(detail)))


def timeline_view(ranks: Sequence[RankTracks], *, name: str = "timeline", most_spans: int = MOST_SPANS) -> TimelineView:
    """A timeline of all ranks on one time axis, with zoom and pan."""
    origins, clock_notes = _origins(ranks)
    tables = _Tables()
    evidence_from_ns, evidence_notes = _evidence_from(ranks)
    rows = [_rows(rank, origin_ns, tables, evidence_from_ns) for rank, origin_ns in zip(ranks, origins, strict=True)]
    rows, join_notes = _thinned(rows, tables, most_spans)
    causes: dict[str, str] = {
        span.colour: span.name
        for rank in ranks
        for track in rank.added
        if track.name == "cause"
        for span in track.spans
    }
    kinds = [(causes.get(str(kind), str(kind)), str(kind)) for kind in tables.kinds.numbers]
    data = {
        "whole": max((spans[-1][1] for own in rows for _, spans in own if spans), default=0),
        "labels": [short_name(str(name)) for name in tables.names.numbers],
        "names": list(tables.names.numbers),
        "kinds": list(tables.kinds.numbers),
        "shown": [name for name, _ in kinds],  # of each kind
        "details": list(tables.details.numbers),
        "whats": list(tables.whats.numbers),
        "ranks": [
            {
                "rank": rank.rank.rank,
                "launched": wording_for([rank.rank.device]).launched,
                "rows": [{"name": name, "count": len(spans), "data": _packed(spans)} for name, spans in own],
            }
            for rank, own in zip(ranks, rows, strict=True)
        ],
    }
    body = joined(
        _tools(),
        legend(kinds),
        *(_rank_box(rank, opened=index < _OPEN_RANKS) for index, rank in enumerate(ranks)),
        notes([*clock_notes, *join_notes, *evidence_notes]),
        embedded(f"{name}-data", json.dumps(data, separators=(",", ":"), ensure_ascii=False)),
    )
    return TimelineView(
        html=Html(f'<div data-timeline="{escape(name)}-data">{body}</div>'),
        origin_ns={rank.rank.rank: origin_ns for rank, origin_ns in zip(ranks, origins, strict=True)},
    )


def _tools() -> Html:
    return Html(
        '<div class="tools"><button type="button" class="plain" data-do="in">zoom in</button>'
        '<button type="button" class="plain" data-do="out">zoom out</button>'
        '<button type="button" class="plain" data-do="whole">whole</button>'
        '<span class="hint pointer">Drag to pan; click a timeline, then <kbd>wheel</kbd> or <kbd>+</kbd> <kbd>-</kbd> '
        "to zoom, arrows to pan and to choose a row, <kbd>Shift</kbd> + arrows from span to span, <kbd>0</kbd> for the "
        "whole.</span></div><noscript><p>The timeline is drawn by a script, and scripts are off.</p></noscript>"
    )


def _rank_box(rank: RankTracks, *, opened: bool) -> Html:
    title = escape(f"{rank.title} ({rank.origin})")
    return Html(
        f'<details class="rank"{" open" if opened else ""}><summary>{title}</summary>'
        f'<canvas tabindex="0" role="application" aria-label="timeline of {title}: arrows pan and choose a row, '
        'plus and minus zoom, shift and arrows go from span to span" height="120"></canvas></details>\n'
    )


# --- rows ----------------------------------------------------------------------------------------


def _origins(ranks: Sequence[RankTracks]) -> tuple[list[int], tuple[str, ...]]:
    """The time 0 of each rank: the same moment, unless the ranks have no time in common."""
    reach = [_reach(rank) for rank in ranks]
    known = [times for times in reach if times is not None]
    if not known or max(start for start, _ in known) <= min(end for _, end in known):
        return [min((start for start, _ in known), default=0)] * len(ranks), ()
    note = "The ranks were recorded at different times, or their clocks disagree: each is drawn from its own start."
    return [times[0] if times is not None else 0 for times in reach], (note,)


def _reach(rank: RankTracks) -> tuple[int, int] | None:
    times = [interval(span) for stream in rank.streams for lane in stream.lanes for span in lane]
    times += [interval(span) for track in rank.added for span in track.spans]
    return (min(start for start, _ in times), max(end for _, end in times)) if times else None


def _rows(rank: RankTracks, origin_ns: int, tables: _Tables, evidence_from_ns: int) -> _Rows:
    rows: _Rows = []
    for track in rank.added:
        for lane in lanes(track.spans, interval) or ((),):
            rows.append((track.name, [_drawn_track(span, origin_ns, tables, evidence_from_ns) for span in lane]))
    for stream in rank.streams:
        for spans in stream.lanes:
            rows.append((f"{stream.name} ({stream.mostly})", [_drawn(span, origin_ns, tables) for span in spans]))
    return rows


def _drawn(span: Span, origin_ns: int, tables: _Tables) -> _Drawn:
    delay = None if span.launched_ns is None else span.start_ns - span.launched_ns
    what = tables.what(span.name, span.kind, _details(span))
    return span.start_ns - origin_ns, span.end_ns - origin_ns, what, delay


def _drawn_track(span: TrackSpan, origin_ns: int, tables: _Tables, evidence_from_ns: int) -> _Drawn:
    detailed = span.end_ns - span.start_ns >= evidence_from_ns
    args = tuple((name, value) for name, value in span.args if detailed or name == "confidence")
    return span.start_ns - origin_ns, span.end_ns - origin_ns, tables.what(span.name, span.colour, args), None


def _evidence_from(ranks: Sequence[RankTracks]) -> tuple[int, tuple[str, ...]]:
    """The shortest time whose causes show evidence, and a note about the others."""
    times = sorted(
        (span.end_ns - span.start_ns for rank in ranks for track in rank.added for span in track.spans if span.args),
        reverse=True,
    )
    if len(times) <= _MOST_EVIDENCE:
        return 0, ()
    least = times[_MOST_EVIDENCE - 1] + 1
    note = f"Causes below {least / 1000:,.0f} us are drawn without their evidence, to keep the page small."
    return least, (note,)


def _details(span: Span) -> tuple[tuple[str, str], ...]:
    details: list[tuple[str, str]] = []
    if span.launch:
        details.append(("blocks", f"{span.launch.blocks:,} of {span.launch.threads:,} threads"))
        if block := span.launch.resources:
            details.append(("each thread", f"{block.registers_per_thread} registers"))
            details.append(("each block", f"{format_bytes(block.smem_bytes)} of shared memory"))
    if exchange := span.exchange:
        details += [("collective", exchange.kind)] if exchange.kind else []
        details += [("in", format_bytes(exchange.in_bytes))] if exchange.in_bytes is not None else []
        details += [("out", format_bytes(exchange.out_bytes))] if exchange.out_bytes is not None else []
        details += [("group", exchange.group)] if exchange.group else []
    if span.waiting_ns:
        details.append(("waiting", f"{span.waiting_ns / 1000:,.1f} us for another rank"))
    if span.priority is not None:
        details.append(("priority", str(span.priority)))
    return tuple(details)


# --- thinning and packing ------------------------------------------------------------------------


def _thinned(ranks: list[_Rows], tables: _Tables, most: int) -> tuple[list[_Rows], tuple[str, ...]]:
    """The rows with as few short neighbours joined as necessary, and a note about it."""
    rows = [row for rank in ranks for _, row in rank if row]
    spans = left = sum(map(len, rows))
    if spans <= most:
        return ranks, ()
    whole_ns = max(row[-1][1] for row in rows) - min(row[0][0] for row in rows)
    # A row has at most three spans per cell, so this ends. The first cell is an eighth of one that surely suffices.
    cell_ns = max(whole_ns * len(rows) // (8 * most), 1)
    kinds = [what[1] for what in tables.whats.numbers if isinstance(what, tuple)]
    thinned = ranks
    while left > most and cell_ns <= 2 * whole_ns:
        thinned = [[(name, _joined(row, kinds, cell_ns, tables)) for name, row in rank] for rank in ranks]
        left = sum(len(row) for rank in thinned for _, row in rank)
        cell_ns *= 2
    note = (
        f"{spans:,} spans are drawn as {left:,}: neighbours within {cell_ns / 2000:,.1f} us are joined, in the colour "
        "of the longest. The tables count every span."
    )
    return thinned, (note,)


def _joined(row: list[_Drawn], kinds: Sequence[int], cell_ns: int, tables: _Tables) -> list[_Drawn]:
    """The row with all spans of one cell of time joined."""
    kept: list[_Drawn] = []
    members, cell, longest_ns = 0, -1, 0
    for span in row:
        start, end, what, _ = span
        if end // cell_ns == start // cell_ns == cell:
            first, _, kept_what, _ = kept[-1]
            if end - start > longest_ns:
                longest_ns, kept_what = end - start, what
            kept[-1] = first, end, kept_what, None
            members += 1
            continue
        _name_run(kept, members, kinds, tables)
        kept.append(span)
        members, cell, longest_ns = 1, start // cell_ns if end // cell_ns == start // cell_ns else -1, end - start
    _name_run(kept, members, kinds, tables)
    return kept


def _name_run(kept: list[_Drawn], members: int, kinds: Sequence[int], tables: _Tables) -> None:
    if members > 1:
        start, end, what, _ = kept[-1]
        joined_what = (tables.names.number(f"{members} joined"), kinds[what], tables.details.number(()))
        kept[-1] = (start, end, tables.whats.number(joined_what), None)


def _packed(row: Iterable[_Drawn]) -> str:
    """Gap, time, what and launch delay of each span, as numbers of 7 bits per byte, lowest first."""
    packed = bytearray()
    before = 0
    for start, end, what, delay in row:
        # 0: not recorded; odd: before the start; even: after it, if clocks disagree
        code = 0 if delay is None else 2 * delay + 1 if delay >= 0 else -2 * delay
        for value in (start - before, end - start, what, code):
            left = value
            while left > 127:
                packed.append(left & 127 | 128)
                left >>= 7
            packed.append(left)
        before = end
    return base64.b64encode(packed).decode("ascii")
