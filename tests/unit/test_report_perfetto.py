"""Rows of spans, and the trace file that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from makeway.decide.analysis.analyze import Analysis
from makeway.decide.analysis.findings import NO_MATCHING, Cause, CauseKind, Matching
from makeway.decide.analysis.matching import match_collectives
from makeway.show.new_file import new_file
from makeway.show.perfetto import microseconds, write_perfetto
from makeway.show.tracks import Track, added_tracks, interval, lanes, rank_tracks, streams
from makeway.values.errors import InputError
from makeway.values.kernel import KernelResources, Launch
from makeway.values.timeline import Exchange, Rank, Span, SpanKind, Timeline, covered_ns, union_ns

LONG_AGO = 1_698_957_820_972_482_000  # a real clock: above 2**53, where doubles count in steps of 256 ns

times = st.tuples(st.integers(0, 80), st.integers(0, 15)).map(lambda pair: (pair[0], pair[0] + pair[1]))
spans = st.builds(
    lambda name, kind, stream, when, rank, delay: Span(
        name=name, kind=kind, stream=stream, start_ns=LONG_AGO + when[0], end_ns=LONG_AGO + when[1], rank=rank,
        launched_ns=None if delay is None else LONG_AGO + when[0] - delay,
    ),
    st.sampled_from(["gemm", 'void f<int, "x">(char*)', "nccl\u2028</script>", "\\"]),
    st.sampled_from(get_args(SpanKind)),
    st.sampled_from(["7", "20", "copy"]),
    times,
    st.integers(0, 2),
    st.none() | st.integers(-5, 30),
)  # fmt: skip
causes = st.builds(
    lambda kind, of, when, rank: Cause(
        kind=kind, of=of, collective="nccl", rank=rank, at_ns=LONG_AGO + when[0], time_ns=when[1] - when[0],
        confidence="high", evidence="seen",
    ),
    st.sampled_from(get_args(CauseKind)),
    st.sampled_from(["late", "exposed", "slowed"]),
    times,
    st.integers(0, 2),
)  # fmt: skip


def timeline(of: Sequence[Span], ranks: Sequence[Rank] = ()) -> Timeline:
    return Timeline(spans=tuple(of), origin="imported", ranks=tuple(ranks))


def written(
    timelines: Sequence[Timeline], of: Sequence[Cause] = (), matching: Matching = NO_MATCHING
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "out.json")
        write_perfetto(path, Analysis(ranks=(), matching=matching, causes=tuple(of), timelines=tuple(timelines)))
        assert [found.name for found in Path(directory).iterdir()] == ["out.json"]
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def named(document: dict[str, Any], what: str) -> dict[tuple[int, int], str]:
    events = document["traceEvents"]
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == what}


def complete(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


# --- rows ----------------------------------------------------------------------------------------


@given(st.lists(spans, max_size=14))
def test_communication_is_either_overlapped_or_exposed_and_never_both(some: list[Span]) -> None:
    exposed, overlapped, _ = added_tracks(some, ())
    comm = [interval(span) for span in some if span.kind in ("comm", "copy")]
    compute = [interval(span) for span in some if span.kind == "compute"]
    pieces = [interval(piece) for track in (exposed, overlapped) for piece in track.spans]
    assert sum(end - start for start, end in pieces) == covered_ns(comm)
    assert union_ns(pieces) == [one for one in union_ns(comm) if one[0] < one[1]]
    assert all(covered_ns(compute) == covered_ns([*compute, interval(piece)]) for piece in overlapped.spans)
    assert covered_ns(compute) + exposed_ns(exposed) == covered_ns([*compute, *map(interval, exposed.spans)])


def exposed_ns(track: Track) -> int:
    return sum(piece.end_ns - piece.start_ns for piece in track.spans)


@given(st.lists(times, max_size=20))
def test_lanes_keep_everything_apart_and_are_as_few_as_possible(some: list[tuple[int, int]]) -> None:
    rows = lanes(some, lambda when: when)
    assert Counter(when for row in rows for when in row) == Counter(some)
    assert all(one[1] <= other[0] for row in rows for one, other in pairwise(row))
    busiest = max((sum(start <= at < end for start, end in some) for at in range(100)), default=0)
    if all(start < end for start, end in some):
        assert len(rows) == busiest


def test_streams_come_in_the_order_of_their_numbers_and_say_what_they_mostly_hold() -> None:
    found = streams(
        [
            Span(name="nccl", kind="comm", stream="20", start_ns=0, end_ns=9),
            Span(name="gemm", kind="compute", stream="7", start_ns=0, end_ns=5),
            Span(name="fill", kind="memory", stream="7", start_ns=5, end_ns=6),
        ]
    )
    assert [(stream.name, stream.mostly) for stream in found] == [("stream 7", "compute"), ("stream 20", "comm")]


def test_a_rank_that_recorded_nothing_has_rows_all_the_same() -> None:
    (found,) = rank_tracks([timeline([], [Rank(rank=3, device="A100")])], ())
    assert (found.title, found.streams) == ("rank 3 - A100", ())


# --- the file ------------------------------------------------------------------------------------


@given(st.lists(spans, max_size=14), st.lists(causes, max_size=8))
def test_every_span_and_every_cause_appears_exactly_once(some: list[Span], of: list[Cause]) -> None:
    document = written([timeline(some)], of)
    ranks, threads = named(document, "process_name"), named(document, "thread_name")
    origin = int(document["otherData"]["times count from, in ns of the record"])
    found: Counter[tuple[str, str, int, int]] = Counter()
    for event in complete(document):
        start = origin + round(1000 * event["ts"])
        rank, row = ranks[event["pid"], 0], threads[event["pid"], event["tid"]]
        if event["cat"] != "makeway":
            row = row.partition(" (")[0]
        found[f"{rank}/{row.partition(',')[0]}", event["name"], start, start + round(1000 * event["dur"])] += 1
    expected: Counter[tuple[str, str, int, int]] = Counter()
    for span in some:
        stream = f"stream {span.stream}" if span.stream.isdecimal() else span.stream
        expected[f"rank {span.rank}/{stream}", span.name, span.start_ns, span.end_ns] += 1
    present = {span.rank for span in some}
    for cause in of:
        if cause.of != "slowed" and cause.rank in present:
            expected[f"rank {cause.rank}/cause", cause.kind, cause.at_ns, cause.at_ns + cause.time_ns] += 1
    added = {key: count for key, count in found.items() if key[0].endswith(("/exposed", "/overlapped"))}
    assert {key: count for key, count in found.items() if key not in added} == expected
    comm = {
        rank: [interval(span) for span in some if span.rank == rank and span.kind in ("comm", "copy")]
        for rank in present
    }
    assert sum(end - start for _, _, start, end in added) == sum(map(covered_ns, comm.values()))
    assert set(added.values()) <= {1}


@given(st.lists(spans, max_size=14), st.lists(causes, max_size=8))
def test_no_two_events_of_a_thread_overlap_even_for_a_reader_that_cuts_fractions_off(
    some: list[Span], of: list[Cause]
) -> None:
    rows: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in complete(written([timeline(some)], of)):
        start, length = int(event["ts"] * 1000.0), int(event["dur"] * 1000.0)
        rows.setdefault((event["pid"], event["tid"]), []).append((start, start + length))
    for row in rows.values():
        assert row == sorted(row)
        assert all(one[1] <= other[0] for one, other in pairwise(row))


@given(st.integers(0, 10**14))
@example(1_001)  # 1.001 * 1000 is 1000.9999999999999
def test_times_are_exact_to_the_nanosecond_whether_a_reader_rounds_or_cuts(time_ns: int) -> None:
    shown = json.loads(json.dumps(microseconds(time_ns)))
    assert int(shown * 1000.0) == round(shown * 1000.0) == time_ns


def test_processes_are_ranks_in_order_and_threads_have_numbers_of_their_own() -> None:
    one = timeline([Span(name="nccl", kind="comm", stream="7", start_ns=5, end_ns=6, rank=10)])
    other = timeline([Span(name="nccl", kind="comm", stream="7", start_ns=5, end_ns=6, rank=2)])
    document = written([one, other])
    assert named(document, "process_name") == {(1, 0): "rank 2", (2, 0): "rank 10"}
    threads = named(document, "thread_name")
    assert len({thread for _, thread in threads} - {0, 1, 2}) == len(threads) == 4
    order = [event["args"]["sort_index"] for event in document["traceEvents"] if event["name"] == "thread_sort_index"]
    assert order == sorted(order)


def test_an_event_says_what_its_kernel_took_and_how_long_after_its_launch_it_started() -> None:
    kernel = Span(
        name="ncclDevKernel_AllGather", kind="comm", stream="20", start_ns=1_000_500, end_ns=1_001_000,
        launched_ns=990_500, priority=-1, exchange=Exchange(kind="all-gather", in_bytes=64, out_bytes=512, group="dp"),
        launch=Launch(blocks=16, threads=544, resources=KernelResources(
            threads=544, registers_per_thread=96, smem_bytes=98304)),
    )  # fmt: skip
    (event,) = [event for event in complete(written([timeline([kernel])])) if event["cat"] == "comm"]
    assert (event["ts"], event["dur"]) == (0.0, 0.5)
    assert event["args"] == {
        "blocks": 16, "threads": 544, "registers per thread": 96, "shared memory bytes": 98304,
        "collective": "all-gather", "in bytes": 64, "out bytes": 512, "group": "dp",
        "start after launch us": 10.0, "stream priority": -1,
    }  # fmt: skip


# --- the Trace Event Format ----------------------------------------------------------------------

# By phase: the fields an event must have, and those it may have, as the format's description lists them.
REQUIRED: dict[str, dict[str, type | tuple[type, ...]]] = {
    "X": {"name": str, "cat": str, "ts": (int, float), "dur": (int, float), "pid": int, "tid": int},
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
    "s": {"name": str, "cat": str, "id": int, "ts": (int, float), "pid": int, "tid": int},
    "t": {"name": str, "cat": str, "id": int, "ts": (int, float), "pid": int, "tid": int},
    "f": {"name": str, "cat": str, "id": int, "ts": (int, float), "pid": int, "tid": int, "bp": str},
}
ALLOWED = {"X": {"args", "cname"}}
METADATA = {
    "process_name": ("name", str), "process_labels": ("labels", str), "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str), "thread_sort_index": ("sort_index", int),
}  # fmt: skip


def by_rank(some: Sequence[Span]) -> dict[int, list[Span]]:
    ranks = sorted({span.rank for span in some})
    return {rank: [span for span in some if (span.rank, span.kind) == (rank, "comm")] for rank in ranks}


@given(st.lists(spans, max_size=14), st.lists(causes, max_size=8))
def test_every_event_has_the_fields_of_its_phase_and_no_others(some: list[Span], of: list[Cause]) -> None:
    document = written([timeline(some)], of, match_collectives(by_rank(some)))
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    for event in document["traceEvents"]:
        required = REQUIRED[event["ph"]]
        assert {"ph", *required} <= set(event) <= {"ph", *required} | ALLOWED.get(event["ph"], set())
        assert all(isinstance(event[field], kind) for field, kind in required.items())
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "M":
            field, kind = METADATA[event["name"]]
            assert list(event["args"]) == [field]
            assert isinstance(event["args"][field], kind)


@given(st.lists(spans, max_size=14), st.lists(causes, max_size=8))
def test_every_thread_is_named_once_before_its_first_event_and_its_events_come_in_order(
    some: list[Span], of: list[Cause]
) -> None:
    events = written([timeline(some)], of)["traceEvents"]
    for what in ("process_name", "thread_name", "process_sort_index", "thread_sort_index"):
        places = [(event["pid"], event["tid"]) for event in events if event["name"] == what]
        assert len(places) == len(set(places))
    known: set[tuple[int, int]] = set()
    last: dict[tuple[int, int], float] = {}
    for event in events:
        place = event["pid"], event["tid"]
        if event["name"] == "thread_name":
            known.add(place)
        elif event["ph"] == "X":
            assert place in known
            assert event["ts"] >= last.get(place, 0.0)
            last[place] = event["ts"]


@given(st.lists(spans.map(lambda span: replace(span, name="nccl", kind="comm", stream="20")), max_size=14))
def test_a_flow_starts_once_ends_once_and_hangs_on_a_collective_of_each_rank(some: list[Span]) -> None:
    matching = match_collectives(by_rank(some))
    document = written([timeline(some)], (), matching)
    open_at = {(event["pid"], event["tid"], event["ts"]): event for event in complete(document) if event["dur"] > 0}
    flows: dict[int, list[dict[str, Any]]] = {}
    for event in document["traceEvents"]:
        if event["ph"] in "stf":
            flows.setdefault(event["id"], []).append(event)
    for flow in flows.values():
        assert [step["ph"] for step in flow] == ["s", *["t"] * (len(flow) - 2), "f"]
        assert [step["ts"] for step in flow] == sorted(step["ts"] for step in flow)
        assert len({step["pid"] for step in flow}) == len(flow)
        assert {open_at[step["pid"], step["tid"], step["ts"]]["cat"] for step in flow} == {"comm"}
    drawn = [one for one in matching.matched if all(start < end for _, start, end in one.members)]
    assert sorted(map(len, flows.values())) == sorted(len(one.members) for one in drawn)


def test_a_flow_goes_from_the_first_rank_to_arrive_to_the_last() -> None:
    some = [
        Span(name="nccl", kind="comm", stream="7", start_ns=start, end_ns=9_000, rank=rank)
        for rank, start in enumerate((4_000, 0, 2_000))
    ]
    document = written([timeline(some)], (), match_collectives(by_rank(some)))
    flow = [(event["ph"], event["pid"], event["ts"]) for event in document["traceEvents"] if event["ph"] in "stf"]
    assert flow == [("s", 2, 0.0), ("t", 3, 2.0), ("f", 1, 4.0)]


def test_nothing_recorded_is_still_a_file_that_opens() -> None:
    assert complete(written([timeline([])])) == []


# --- files that appear whole or not at all -------------------------------------------------------


def test_a_file_that_fails_half_way_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        _half_written(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def _half_written(path: Path) -> None:
    with new_file(path) as file:
        file.write("new")
        file.flush()
        raise ZeroDivisionError


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    with new_file(link) as file:
        file.write("new")
    assert (link.is_symlink(), target.read_text()) == (True, "new")


def test_what_is_no_regular_file_is_written_to_and_not_replaced() -> None:
    with new_file(Path("/dev/null")) as file:
        file.write("gone")
    assert not Path("/dev/null").is_file()


def test_a_place_that_cannot_be_written_is_named_with_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=r"there is no directory .*nowhere; create it"),
        new_file(tmp_path / "nowhere/x"),
    ):
        pass
    with pytest.raises(InputError, match="it is a directory; name a file in it"), new_file(tmp_path):
        pass
    # Not even root may create files there.
    with (
        pytest.raises(InputError, match=r"cannot write /proc/x.json: .*choose a place"),
        new_file(Path("/proc/x.json")),
    ):
        pass
