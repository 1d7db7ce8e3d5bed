"""The timeline of a page: rows of spans in a compact form that its script draws."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from makeway.decide.analysis.names import short_name
from makeway.show.markup import Html, embedded, joined, legend, notes
from makeway.show.tracks import RankTracks, TrackSpan, interval, lanes
from makeway.values.timeline import Span
from makeway.values.units import format_bytes

MOST_SPANS = 300_000  # drawn, in all rows; more would make the page larger than 6 MB and slow to open
_MOST_EVIDENCE = 2_000  # causes whose evidence is told; the rest show kind and confidence
_LONGEST_NAME = 300
_OPEN_RANKS = 8  # drawn at once; the others open at a click

# start_ns, end_ns, what it is (an index), launch delay in ns
_Drawn = tuple[int, int, int, int | None]
_Rows = list[tuple[str, list[_Drawn]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineView:
    """Markup of a timeline, and where each rank's times count from."""

    html: Html
    origin_ns: Mapping[int, int]


@dataclass(slots=True)
class _Numbered:
    """Things in the order in which they first came."""

    places: dict[object, int] = field(default_factory=dict)

    def place(self, thing: object) -> int:
        return self.places.setdefault(thing, len(self.places))


@dataclass(slots=True)
class _Tables:
    names: _Numbered = field(default_factory=_Numbered)
    kinds: _Numbered = field(default_factory=_Numbered)
    details: _Numbered = field(default_factory=_Numbered)
    whats: _Numbered = field(default_factory=_Numbered)

    def what(self, name: str, kind: str, detail: tuple[tuple[str, str], ...] = ()) -> int:
        shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
        return self.whats.place((self.names.place(shown), self.kinds.place(kind), self.details.place(detail)))


def timeline_view(ranks: Sequence[RankTracks], *, name: str = "timeline", most_spans: int = MOST_SPANS) -> TimelineView:
    """A timeline of all ranks under one time axis, to zoom and to pan."""
    origins, told = _origins(ranks)
    tables = _Tables()
    evidence_from_ns, left_out = _evidence_from(ranks)
    rows = [_rows(rank, origin_ns, tables, evidence_from_ns) for rank, origin_ns in zip(ranks, origins, strict=True)]
    rows, joins = _thinned(rows, tables, most_spans)
    data = {
        "whole": max((spans[-1][1] for own in rows for _, spans in own if spans), default=0),
        "labels": [short_name(str(name)) for name in tables.names.places],
        "names": list(tables.names.places),
        "kinds": list(tables.kinds.places),
        "details": list(tables.details.places),
        "whats": list(tables.whats.places),
        "ranks": [
            {
                "rank": rank.rank.rank,
                "rows": [{"name": name, "count": len(spans), "data": _packed(spans)} for name, spans in own],
            }
            for rank, own in zip(ranks, rows, strict=True)
        ],
    }
    body = joined(
        _tools(),
        legend([(str(kind), str(kind)) for kind in tables.kinds.places]),
        *(_rank_box(rank, place) for place, rank in enumerate(ranks)),
        notes([*told, *joins, *left_out]),
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


def _rank_box(rank: RankTracks, place: int) -> Html:
    title = escape(f"{rank.title} ({rank.origin})")
    return Html(
        f'<details class="rank"{" open" if place < _OPEN_RANKS else ""}><summary>{title}</summary>'
        f'<canvas tabindex="0" role="application" aria-label="timeline of {title}: arrows pan and choose a row, '
        'plus and minus zoom, shift and arrows go from span to span" height="120"></canvas></details>\n'
    )


# --- rows ----------------------------------------------------------------------------------------


def _origins(ranks: Sequence[RankTracks]) -> tuple[list[int], tuple[str, ...]]:
    """Where each rank's times count from: the same moment, unless the ranks have no time in common."""
    reach = [_reach(rank) for rank in ranks]
    known = [times for times in reach if times is not None]
    if not known or max(start for start, _ in known) <= min(end for _, end in known):
        return [min((start for start, _ in known), default=0)] * len(ranks), ()
    words = "The ranks were recorded at different times, or their clocks disagree: each is drawn from its own start."
    return [times[0] if times is not None else 0 for times in reach], (words,)


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
    """The time from which causes are told with their evidence, and a word about the others."""
    times = sorted(
        (span.end_ns - span.start_ns for rank in ranks for track in rank.added for span in track.spans if span.args),
        reverse=True,
    )
    if len(times) <= _MOST_EVIDENCE:
        return 0, ()
    least = times[_MOST_EVIDENCE - 1] + 1
    words = f"Causes below {least / 1000:,.0f} us are drawn without their evidence, to keep the page small."
    return least, (words,)


def _details(span: Span) -> tuple[tuple[str, str], ...]:
    told: list[tuple[str, str]] = []
    if span.launch:
        told.append(("blocks", f"{span.launch.blocks:,} of {span.launch.threads:,} threads"))
        if block := span.launch.resources:
            told.append(("each thread", f"{block.registers_per_thread} registers"))
            told.append(("each block", f"{format_bytes(block.smem_bytes)} of shared memory"))
    if exchange := span.exchange:
        told += [("collective", exchange.kind)] if exchange.kind else []
        told += [("in", format_bytes(exchange.in_bytes))] if exchange.in_bytes is not None else []
        told += [("out", format_bytes(exchange.out_bytes))] if exchange.out_bytes is not None else []
        told += [("group", exchange.group)] if exchange.group else []
    if span.waiting_ns:
        told.append(("waiting", f"{span.waiting_ns / 1000:,.1f} us for another rank"))
    if span.priority is not None:
        told.append(("priority", str(span.priority)))
    return tuple(told)


# --- thinning and packing ------------------------------------------------------------------------


def _thinned(ranks: list[_Rows], tables: _Tables, most: int) -> tuple[list[_Rows], tuple[str, ...]]:
    """The rows with short neighbours joined, as few as it takes; and a word about it."""
    rows = [row for rank in ranks for _, row in rank if row]
    spans = left = sum(map(len, rows))
    if spans <= most:
        return ranks, ()
    whole_ns = max(row[-1][1] for row in rows) - min(row[0][0] for row in rows)
    # A row has at most three spans per cell, so this ends; an eighth of the cell that is surely enough is a start.
    cell_ns = max(whole_ns * len(rows) // (8 * most), 1)
    kinds = [what[1] for what in tables.whats.places if isinstance(what, tuple)]
    found = ranks
    while left > most and cell_ns <= 2 * whole_ns:
        found = [[(name, _joined(row, kinds, cell_ns, tables)) for name, row in rank] for rank in ranks]
        left = sum(len(row) for rank in found for _, row in rank)
        cell_ns *= 2
    words = (
        f"{spans:,} spans are drawn as {left:,}: neighbours within {cell_ns / 2000:,.1f} us are joined, in the colour "
        "of the longest of them. The numbers in the tables count every span."
    )
    return found, (words,)


def _joined(row: list[_Drawn], kinds: Sequence[int], cell_ns: int, tables: _Tables) -> list[_Drawn]:
    """The row with those spans that lie in one cell of time as one."""
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
        joined_what = (tables.names.place(f"{members} joined"), kinds[what], tables.details.place(()))
        kept[-1] = (start, end, tables.whats.place(joined_what), None)


def _packed(row: Iterable[_Drawn]) -> str:
    """Gap, time, what and launch delay of each span, as numbers of 7 bits a byte, lowest first."""
    packed = bytearray()
    before = 0
    for start, end, what, delay in row:
        # 0: not recorded; odd: before the start; even: after it, as clocks that disagree may say
        code = 0 if delay is None else 2 * delay + 1 if delay >= 0 else -2 * delay
        for value in (start - before, end - start, what, code):
            left = value
            while left > 127:
                packed.append(left & 127 | 128)
                left >>= 7
            packed.append(left)
        before = end
    return base64.b64encode(packed).decode("ascii")
