"""An analysis as a Chrome Trace Event file, for Perfetto's page and chrome://tracing.

Format: "Trace Event Format" (Google, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TypeVar

from makeway.decide.analysis.analyze import Analysis
from makeway.decide.analysis.findings import Matched
from makeway.show.new_file import new_file
from makeway.show.tracks import Colour, RankTracks, TrackSpan, interval, lanes, rank_tracks
from makeway.values.errors import InputError
from makeway.values.timeline import Span, Timeline

_T = TypeVar("_T", Span, TrackSpan)
_Event = dict[str, object]
_Member = tuple[int, int, int]  # of a matched collective: rank, start_ns, end_ns

# From chrome://tracing's fixed list of colours; Perfetto's page colours by name instead.
_CNAMES: dict[Colour, str] = {"overlapped": "good", "exposed": "terrible"}
_CAUSE_CNAME = "bad"


def write_perfetto(path: Path, analysis: Analysis) -> None:
    """Write one process per rank, with a thread for each stream and for each row that analysis adds.

    A flow joins the ranks of each matched collective, from the first to arrive to the last. Times count from the
    earliest start of all ranks. The file appears whole or not at all.
    """
    if not analysis.timelines:
        raise InputError("a Perfetto trace needs spans: analyse with keep_spans=True")
    ranks = rank_tracks(analysis.timelines, analysis.causes)
    starts = (span.start_ns for timeline in analysis.timelines for span in timeline.spans)
    added = (span.start_ns for rank in ranks for track in rank.added for span in track.spans)
    origin_ns = min(chain(starts, added), default=0)
    _write(path, ranks, analysis.matching.matched, origin_ns)


def write_timeline(path: Path, timeline: Timeline) -> None:
    """Write one process per rank of a timeline, as `write_perfetto` does of an analysis."""
    _write(path, rank_tracks([timeline], ()), (), min((span.start_ns for span in timeline.spans), default=0))


def _write(path: Path, ranks: Sequence[RankTracks], matched: Sequence[Matched], origin_ns: int) -> None:
    with new_file(path) as file:
        file.write('{"displayTimeUnit": "ns",\n"otherData": ')
        file.write(json.dumps(_about(ranks, origin_ns)))
        file.write(',\n"traceEvents": [')
        for number, event in enumerate(_events(ranks, matched, origin_ns)):
            file.write(",\n" if number else "\n")
            file.write(json.dumps(event))
        file.write("\n]}\n")


def _about(ranks: Sequence[RankTracks], origin_ns: int) -> dict[str, object]:
    return {
        "written by": "makeway",
        "origin": " and ".join(sorted({rank.origin for rank in ranks})),
        "times count from, in ns of the record": str(origin_ns),  # over 2**53: a number would be rounded
        "files": [rank.rank.source for rank in ranks if rank.rank.source],
    }


def _events(ranks: Sequence[RankTracks], matched: Sequence[Matched], origin_ns: int) -> Iterator[_Event]:
    # Every number is unique: Perfetto takes a thread with its process's number for the main thread, and 0 for idle.
    threads = count(len(ranks) + 1)
    homes: dict[_Member, tuple[int, int]] = {}
    for process, rank in enumerate(ranks, start=1):
        yield _named("process_name", process, 0, name=rank.title)
        yield _named("process_labels", process, 0, labels=rank.origin)
        # chrome://tracing keeps to this order; Perfetto's page shows busy processes first (google/perfetto issue 764).
        yield _named("process_sort_index", process, 0, sort_index=process)
        for track in rank.added:
            for name, row in _numbered(track.name, lanes(track.spans, interval)):
                thread = next(threads)
                yield from _thread(process, thread, name)
                for span in row:
                    yield _complete(process, thread, span.name, interval(span), origin_ns, _track_fields(span))
        for stream in rank.streams:
            for name, spans in _numbered(f"{stream.name} ({stream.mostly})", stream.lanes):
                thread = next(threads)
                yield from _thread(process, thread, name)
                for recorded in spans:
                    fields = _span_fields(recorded)
                    yield _complete(process, thread, recorded.name, interval(recorded), origin_ns, fields)
                    if recorded.kind == "comm":
                        homes[recorded.rank, recorded.start_ns, recorded.end_ns] = process, thread
    for number, collective in enumerate(matched, start=1):
        yield from _flow(number, collective, homes, origin_ns)


def _flow(
    number: int, collective: Matched, homes: Mapping[_Member, tuple[int, int]], origin_ns: int
) -> Iterator[_Event]:
    """The ranks of one collective in order of arrival; empty unless every rank has a span to attach to.

    A flow attaches to the span that is open at its time, and a span without duration never is.
    """
    members = sorted(collective.members, key=lambda member: member[1:])
    if len(members) < 2 or any(start == end or (rank, start, end) not in homes for rank, start, end in members):
        return
    for index, member in enumerate(members):
        phase = "s" if index == 0 else "f" if index == len(members) - 1 else "t"
        process, thread = homes[member]
        head = {"ph": phase, "id": number, "name": "matched", "cat": "makeway", "pid": process, "tid": thread}
        yield head | {"ts": microseconds(member[1] - origin_ns)} | ({"bp": "e"} if phase == "f" else {})


def _numbered(name: str, rows: Sequence[tuple[_T, ...]]) -> Iterator[tuple[str, tuple[_T, ...]]]:
    for number, row in enumerate(rows, start=1):
        yield (name if number == 1 else f"{name}, lane {number}"), row


def _named(what: str, process: int, thread: int, **args: object) -> _Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def _thread(process: int, thread: int, name: str) -> Iterator[_Event]:
    yield _named("thread_name", process, thread, name=name)
    yield _named("thread_sort_index", process, thread, sort_index=thread)


def _complete(
    process: int, thread: int, name: str, when: tuple[int, int], origin_ns: int, fields: dict[str, object]
) -> _Event:
    start, end = when
    times = {"ts": microseconds(start - origin_ns), "dur": microseconds(end - start)}
    return {"ph": "X", "name": name, "pid": process, "tid": thread, **times, **fields}


def microseconds(time_ns: int) -> float:
    """The time in the format's unit, exact to the nanosecond however a reader converts it back.

    Older versions of Perfetto truncate `ts * 1000`, and then drop events that seem to overlap by a nanosecond. Where
    1.001 * 1000 is 1000.9999, the next number up is written.
    """
    time_us = time_ns / 1000
    return time_us if int(time_us * 1000) == time_ns else math.nextafter(time_us, math.inf)


def _track_fields(span: TrackSpan) -> dict[str, object]:
    return {"cat": "makeway", "cname": _CNAMES.get(span.colour, _CAUSE_CNAME), "args": dict(span.args)}


def _span_fields(span: Span) -> dict[str, object]:
    args: dict[str, object] = {}
    if span.launch:
        args |= {"blocks": span.launch.blocks, "threads": span.launch.threads}
        if block := span.launch.resources:
            args |= {"registers per thread": block.registers_per_thread, "shared memory bytes": block.smem_bytes}
    if span.exchange:
        args |= {
            "collective": span.exchange.kind,
            "in bytes": span.exchange.in_bytes,
            "out bytes": span.exchange.out_bytes,
            "group": span.exchange.group,
            "sequence": span.exchange.sequence,
        }
    if span.waiting_ns:
        args["waiting us"] = span.waiting_ns / 1000
    if span.launched_ns is not None:
        args["start after launch us"] = (span.start_ns - span.launched_ns) / 1000
    args["stream priority"] = span.priority
    return {"cat": span.kind, "args": {name: value for name, value in args.items() if value is not None}}
