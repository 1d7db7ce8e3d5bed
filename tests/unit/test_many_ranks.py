"""Thousands of ranks: summaries and their reduce say what `analyze` says, whoever reads the traces."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kineto_files import DATE_US, kernel, write_kineto
from tests.recordings import RECORDINGS, needs_recordings

from makeway.cli.main import main
from makeway.decide.analysis.analyze import Analysis, analysis_of, analyze
from makeway.decide.analysis.ledger import ORDER, Ledger
from makeway.decide.analysis.many.analyze_job import Shard, analyze_job, merge, parse_shard, write_shard
from makeway.decide.analysis.many.columns import pack, unpack, unzigzag, zigzag
from makeway.decide.analysis.many.job import JobAnalysis
from makeway.decide.analysis.many.lane_matching import BATCH
from makeway.decide.analysis.many.map_rank import MapOptions, summaries_of, summary_of
from makeway.decide.analysis.many.reduce import job_of
from makeway.decide.analysis.many.summary import MAGIC, stored_summaries
from makeway.decide.analysis.rank import rank_records
from makeway.read import summary_cache
from makeway.read.fanout import WorkerLostError, engine, spread
from makeway.read.summary_cache import SummaryCache, prune
from makeway.show.json import json
from makeway.show.report import report_of
from makeway.show.text import text
from makeway.values.collective import CollectiveKind
from makeway.values.errors import InputError, TraceError
from makeway.values.own_files import cache_root
from makeway.values.timeline import Exchange, Rank, Span, Timeline

EXAMPLE = Path(__file__).parents[2] / "examples" / "recordings" / "tp-llama-70b"
JOBS_OF_OTHERS = (
    "astra-megatron-tp8",
    "param-dlrm8",
    "torchrec/a2a_opt4_w4",
    "torchrec/a2a_opt5_w4",
    "torchrec/straggler_sleep_w4",
    "torchrec/tiny_w2",
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# --- the same as the ordinary path ---------------------------------------------------------------


def job_of_timelines(timelines: list[Timeline], path: Path) -> JobAnalysis:
    entries = [summary_of(record, timeline) for timeline in timelines for record in rank_records(timeline)]
    path.write_bytes(MAGIC + b"".join(entries))
    return job_of(stored_summaries([path]))


def assert_same_ledger(ours: Ledger, theirs: Ledger) -> None:
    """The same lines, but that summaries do not tell apart communication without room."""
    assert ours.total_ns == theirs.total_ns
    assert ours.exposed_ns == theirs.exposed_ns
    exposed = ("transfer", "late-launch")
    for kind in ORDER:
        if kind not in (*exposed, "no-room") or not theirs.ns("no-room"):
            assert ours.ns(kind) == theirs.ns(kind), kind


def assert_same(job: JobAnalysis, analysis: Analysis) -> None:
    matching = analysis.matching
    assert job.matched == len(matching.matched)
    assert job.unmatched == sum(count for _, count in matching.unmatched)
    assert job.transfer_ns == matching.transfer_ns
    assert job.mean_waiting_ns == matching.mean_waiting_ns
    assert job.late_ranks == matching.late_ranks
    assert (job.straggler_rank, job.straggler_share) == (matching.straggler_rank, matching.straggler_share)
    for ours, theirs in zip(job.ranks, analysis.ranks, strict=True):
        assert ours.figures == theirs.figures
        assert ours.waiting_ns == theirs.waiting_ns
        assert ours.exposed_waiting_ns == theirs.exposed_waiting_ns
        assert_same_ledger(ours.ledger, theirs.ledger)
    assert_same_ledger(job.ledger, analysis.ledger)
    assert job.communication == analysis.communication
    costs: Counter[tuple[str, str]] = Counter()
    delays: Counter[tuple[str, str]] = Counter()
    for group in analysis.groups:
        costs[group.kind, group.of] += group.time_ns
        delays[group.kind, group.of] += group.delay_ns or 0
    assert {(cause.kind, cause.of): cause.delay_ns for cause in job.causes if cause.delay_ns} == dict(+delays)
    if not analysis.ledger.ns("no-room"):
        assert {(cause.kind, cause.of): cause.time_ns for cause in job.causes if cause.time_ns} == dict(+costs)


@needs_recordings
@pytest.mark.parametrize("name", JOBS_OF_OTHERS)
def test_a_recording_gives_the_same_figures_by_both_paths(name: str, tmp_path: Path) -> None:
    out = tmp_path / "all.summary"
    paths = sorted((RECORDINGS / name).iterdir())
    out.write_bytes(MAGIC + b"".join(summaries_of(path, MapOptions()) for path in paths))
    assert_same(merge([out]), analyze([RECORDINGS / name], what_if=False, jobs=1))


KINDS: tuple[CollectiveKind, ...] = ("all-reduce", "all-to-all")
spans = st.tuples(st.integers(0, 400), st.integers(1, 60), st.sampled_from(KINDS))


@st.composite
def jobs(draw: st.DrawFn) -> list[Timeline]:
    """A few ranks that run the same collectives at their own times; some miss some, with or without numbers."""
    common = draw(st.lists(spans, min_size=1, max_size=12))
    grouped, numbered = draw(st.booleans()), draw(st.booleans())
    timelines = []
    for rank in range(draw(st.integers(1, 4))):
        clock = draw(st.sampled_from((0, 0, 7_000_000)))
        items = []
        for number, (start, time, kind) in enumerate(sorted(common)):
            if draw(st.integers(0, 9)) == 0:
                continue
            exchange = Exchange(
                kind=kind, group="0" if grouped else None, sequence=number if numbered else None, in_bytes=8
            )
            begin = clock + 1000 * (start + draw(st.integers(0, 20)))
            end = begin + 1000 * (time + draw(st.integers(0, 20)))
            items.append(
                Span(name=kind, kind="comm", stream="7", start_ns=begin, end_ns=end, rank=rank, exchange=exchange)
            )
        for start, time, _ in draw(st.lists(spans, max_size=5)):
            begin = clock + 1000 * start
            items.append(
                Span(name="gemm", kind="compute", stream="1", start_ns=begin, end_ns=begin + 1000 * time, rank=rank)
            )
        ordered = tuple(sorted(items, key=lambda span: span.start_ns))
        timelines.append(Timeline(spans=ordered, origin="imported", ranks=(Rank(rank=rank),)))
    return timelines


def without_overlap(timelines: list[Timeline]) -> bool:
    """Whether no two collectives of a rank overlap: then a moment of exposed time has one collective."""
    for timeline in timelines:
        comm = [span for span in timeline.spans if span.kind == "comm"]
        if any(after.start_ns < before.end_ns for before, after in pairwise(comm)):
            return False
    return True


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_random_ranks_give_the_same_figures_by_both_paths(
    tmp_path_factory: pytest.TempPathFactory, timelines: list[Timeline]
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.summary"
    job, analysis = job_of_timelines(timelines, path), analysis_of(timelines, what_if=False)
    matching = analysis.matching
    assert (job.matched, job.transfer_ns) == (len(matching.matched), matching.transfer_ns)
    assert (job.late_ranks, job.straggler_rank) == (matching.late_ranks, matching.straggler_rank)
    assert [rank.waiting_ns for rank in job.ranks] == [rank.waiting_ns for rank in analysis.ranks]
    totals = [rank.ledger.total_ns for rank in analysis.ranks]
    assert [rank.ledger.total_ns for rank in job.ranks] == totals
    if without_overlap(timelines):
        assert_same(job, analysis)


def test_more_ranks_than_a_batch_give_the_same_figures(tmp_path: Path) -> None:
    timelines = []
    for rank in range(2 * BATCH + 3):
        items = tuple(
            Span(name="ar", kind="comm", stream="7", start_ns=1000 * at + early, end_ns=1000 * at + 500 + at, rank=rank)
            for at, early in ((at, rank * at % 300) for at in range(1, 6))
        )
        timelines.append(Timeline(spans=items, origin="imported", ranks=(Rank(rank=rank),)))
    assert_same(job_of_timelines(timelines, tmp_path / "x"), analysis_of(timelines, what_if=False))


# --- columns and files ---------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_a_column_comes_back_as_it_was(numbers: list[int]) -> None:
    assert list(unpack(pack(numbers), len(numbers))) == numbers


@given(st.lists(st.integers(-(2**62), 2**62)))
def test_signed_numbers_come_back_as_they_were(numbers: list[int]) -> None:
    assert unzigzag(zigzag(numbers)) == numbers


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_damaged_file_is_refused_or_read_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = MAGIC + summaries_of(next(iter(sorted(EXAMPLE.iterdir()))), MapOptions(cached=False))
    path = tmp_path_factory.getbasetemp() / "damaged.summary"
    at = data.draw(st.integers(0, len(whole) - 1))
    kept = data.draw(st.integers(0, len(whole)))
    broken = bytearray(whole[:kept] if data.draw(st.booleans()) else whole)
    if at < len(broken):
        broken[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(broken)
    with suppress(InputError):  # anything else is a crash
        merge([path])


def test_two_recordings_of_one_rank_are_refused(tmp_path: Path) -> None:
    [first, *_] = sorted(EXAMPLE.iterdir())
    path = tmp_path / "twice.summary"
    path.write_bytes(MAGIC + 2 * summaries_of(first, MapOptions()))
    with pytest.raises(TraceError, match="both say they are rank"):
        merge([path])


def test_collectives_of_different_runs_are_not_matched(tmp_path: Path) -> None:
    events = [kernel("gemm", 0, 90), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 100, 50, stream=20)]
    later = [{**event, "ts": event["ts"] + 3.6e9} for event in events]
    files = [
        write_kineto(tmp_path / f"rank{rank}.json", own, rank=rank, world=2, baseTimeNanoseconds=1000 * DATE_US)
        for rank, own in enumerate((events, later))
    ]
    job = analyze_job(files, options=MapOptions(cached=False), jobs=1)
    assert job is not None
    assert (job.matched, [rank.waiting_ns for rank in job.ranks]) == (0, [None, None])
    assert "2 different runs" in job.notes[0]
    assert_same(job, analyze(files, what_if=False, jobs=1))


def test_a_missing_rank_is_said(tmp_path: Path) -> None:
    [timeline] = [Timeline(spans=(), origin="imported", ranks=(Rank(rank=0, world=4096),))]
    assert any("4,096 ranks and 1 are given" in note for note in job_of_timelines([timeline], tmp_path / "x").notes)


# --- the cache -----------------------------------------------------------------------------------


def test_the_cache_is_private_and_follows_content(tmp_path: Path) -> None:
    [source, *_] = sorted(EXAMPLE.iterdir())
    trace = tmp_path / source.name
    trace.write_bytes(source.read_bytes())
    before = summaries_of(trace, MapOptions())
    [kept] = (cache_root() / summary_cache.FOLDER).iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    assert summaries_of(trace, MapOptions()) == before
    assert summaries_of(trace, MapOptions(device="A40")) is not None
    assert len(list(kept.parent.iterdir())) == 2  # another question, another summary
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    assert summaries_of(trace, MapOptions()) == before  # damaged: read again


def test_the_cache_forgets_what_was_not_used_for_longest() -> None:
    store = SummaryCache()
    keys = [f"{number:040x}" for number in range(1, 5)]
    for age, key in enumerate(keys):
        store.write(key, bytes(1000))
        os.utime((cache_root() / summary_cache.FOLDER) / f"{key}.summary", (1000 + age, 1000 + age))
    prune((cache_root() / summary_cache.FOLDER), most_bytes=2 * 1020)
    assert [store.read(key) is not None for key in keys] == [False, False, True, True]


# --- engines -------------------------------------------------------------------------------------


def die_once(number: int, *, mark: Path) -> int:
    """Kill this process the first time that item 3 is worked on."""
    if number == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def always_die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuse(number: int) -> int:
    raise TraceError(f"item {number} is no trace")


def test_a_worker_killed_midway_changes_nothing(tmp_path: Path) -> None:
    results = dict(spread(partial(die_once, mark=tmp_path / "died"), range(8), engine("local", jobs=2)))
    assert (tmp_path / "died").exists()
    assert results == {number: number * number for number in range(8)}


def test_workers_that_die_again_and_again_end_the_work() -> None:
    with pytest.raises(WorkerLostError, match="died 2 times"):
        list(spread(always_die, range(2), engine("local", jobs=1), attempts=2))


def test_the_error_of_an_item_arrives_as_it_was() -> None:
    with pytest.raises(TraceError, match="is no trace"):
        list(spread(refuse, range(2), engine("local", jobs=1)))


@pytest.mark.parametrize("on", ["dask", "dask://", "ray", "slurm://x", "locl"])
def test_unknown_engines_are_refused(on: str) -> None:
    with pytest.raises(InputError, match="unknown engine"):
        engine(on)


def test_shards_give_the_answer_of_all_traces(tmp_path: Path) -> None:
    whole = analyze_job([EXAMPLE], jobs=1)
    parts = [tmp_path / f"{index}.summary" for index in (1, 2, 3)]
    written = [write_shard([EXAMPLE], Shard(index=at, of=3), path, jobs=1) for at, path in enumerate(parts, start=1)]
    assert sum(part.traces for part in written if part) == written[0].all_traces  # type: ignore[union-attr]
    assert json(report_of(merge(reversed(parts)))) == json(report_of(whole))
    assert list(tmp_path.glob(".*unfinished")) == []


@pytest.mark.parametrize("shard", ["0/3", "4/3", "3", "a/b", "1/0", "-1/2"])
def test_impossible_shards_are_refused(shard: str) -> None:
    with pytest.raises(InputError, match="shard"):
        parse_shard(shard)


# --- what is shown -------------------------------------------------------------------------------


def test_4096_ranks_fit_on_one_screen() -> None:
    job = analyze_job([EXAMPLE], jobs=1)
    assert job is not None
    many = replace(job, ranks=tuple(replace(job.ranks[0], rank=rank) for rank in range(4096)))
    shown = text(report_of(many), width=80)
    assert len(shown.splitlines()) < 60
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard", "1/2"], "--shard and --out go together"),
        (["--on", "ray"], "unknown engine"),
        (["--on", "local", "--perfetto", "x.json"], "one by one"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(EXAMPLE), *arguments]) == 2
    assert message in capsys.readouterr().err
