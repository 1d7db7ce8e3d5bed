"""report.json: a report as one JSON document. docs/reports.md lists its keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, assert_never

from makeway.report.blocks import (
    REPORT_VERSION,
    Bars,
    Block,
    Facts,
    HeatMap,
    Lines,
    Notes,
    Report,
    Room,
    Section,
    Table,
    Words,
)
from makeway.report.tracks import RankTracks, Track
from makeway.timeline import Span


def report_document(report: Report) -> dict[str, Any]:
    """The document; each block says what it is."""
    return {
        "report": REPORT_VERSION,
        "command": report.command,
        "arguments": report.arguments,
        "makeway": report.version,
        "over": report.over,
        "headline": asdict(report.headline),
        "lead": [asdict(words) for words in report.lead],
        "sections": [_section(section) for section in report.sections],
    }


def _section(section: Section) -> dict[str, Any]:
    return {"name": section.name, "title": section.title, "blocks": [_block(block) for block in section.blocks]}


def _block(block: Block) -> dict[str, Any]:
    match block:
        case Words():
            return {"block": "words", **asdict(block)}
        case Notes():
            return {"block": "notes", **asdict(block)}
        case Facts(pairs=pairs):
            return {"block": "facts", "facts": dict(pairs)}
        case Table():
            return {"block": "table", **asdict(block)}
        case Bars():
            return {"block": "bars", **asdict(block)}
        case HeatMap():
            return {"block": "heat map", **asdict(block)}
        case Lines(name=name, ranks=ranks):
            return {"block": "timeline", "name": name, "ranks": [_rank(rank) for rank in ranks]}
        case Room():
            return {"block": "room", **asdict(block)}
        case _:
            assert_never(block)


def _rank(rank: RankTracks) -> dict[str, Any]:
    return {
        "rank": rank.rank.rank,
        "device": rank.rank.device,
        "origin": rank.origin,
        "added": [_track(track) for track in rank.added],
        "streams": [
            {"name": stream.name, "spans": [_span(span) for lane in stream.lanes for span in lane]}
            for stream in rank.streams
        ],
    }


def _track(track: Track) -> dict[str, Any]:
    return {"name": track.name, "spans": [[one.name, one.start_ns, one.end_ns] for one in track.spans]}


def _span(span: Span) -> list[Any]:
    """Short, since there may be many: name, kind, start, end and waiting in ns."""
    return [span.name, span.kind, span.start_ns, span.end_ns, span.waiting_ns]
