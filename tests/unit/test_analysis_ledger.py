"""The ledger: laws on any timeline, then small timelines that a reader can check by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.recordings import RECORDINGS, needs_recordings

from makeway.decide.analysis.analyze import Analysis, analysis_of, analyze
from makeway.decide.analysis.figures import figures
from makeway.decide.analysis.ledger import EXPOSED, Ledger, LineKind, job_ledger
from makeway.decide.analysis.ledger_entries import local_ledger, rank_ledger
from makeway.decide.analysis.wording import ON_GPU
from makeway.show.analysis import report
from makeway.values.kernel import KernelResources, Launch
from makeway.values.timeline import HostCall, HostCallKind, Rank, Span, SpanKind, Step, Timeline

GEMM = Launch(blocks=4_000, threads=256, resources=KernelResources(threads=256, registers_per_thread=128))
NCCL = Launch(blocks=24, threads=640, resources=KernelResources(threads=640, registers_per_thread=96))


def span(
    kind: SpanKind, start_us: int, end_us: int, *, launched_us: int | None = 0, stream: str = "", rank: int = 0
) -> Span:
    launch = {"compute": GEMM, "comm": NCCL}.get(kind)
    return Span(
        name={"comm": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}.get(kind, kind),
        kind=kind,
        stream=stream or kind,
        rank=rank,
        start_ns=start_us * 1_000,
        end_ns=end_us * 1_000,
        launch=launch,
        launched_ns=None if launched_us is None else launched_us * 1_000,
    )


def call(kind: HostCallKind, start_us: int, end_us: int, rank: int = 0) -> HostCall:
    return HostCall(rank=rank, kind=kind, start_ns=start_us * 1_000, end_ns=end_us * 1_000)


def analysed(*spans: Span, host: tuple[HostCall, ...] = (), steps: tuple[Step, ...] = ()) -> Analysis:
    ranks = tuple(Rank(rank=rank, device="A100-SXM4-80GB", world=2) for rank in sorted({item.rank for item in spans}))
    recorded = Timeline(spans=spans, origin="imported", ranks=ranks, host=host, steps=steps)
    return analysis_of([recorded], what_if=False)


def lines_us(ledger: Ledger) -> dict[str, float]:
    return {ON_GPU.line(line): line.ns / 1_000 for line in ledger.lines}


# --- laws --------------------------------------------------------------------------------------


@st.composite
def recordings(draw: st.DrawFn) -> Timeline:
    """Up to three ranks with spans on streams, calls of the host and sometimes steps."""
    spans: list[Span] = []
    host: list[HostCall] = []
    kinds: list[SpanKind] = ["compute", "comm", "copy", "memory"]
    calls: list[HostCallKind] = ["synchronisation", "loading", "allocator"]
    ranks = draw(st.integers(1, 3))
    for rank in range(ranks):
        for stream in draw(st.lists(st.sampled_from(["7", "20", "21"]), min_size=1, max_size=3, unique=True)):
            at = draw(st.integers(0, 300))
            for _ in range(draw(st.integers(1, 6))):
                start = at + draw(st.integers(0, 200))
                at = start + draw(st.integers(0, 300))
                launched = draw(st.none() | st.integers(0, start))
                kind = draw(st.sampled_from(kinds))
                spans.append(span(kind, start, at, launched_us=launched, stream=stream, rank=rank))
        for kind_of_call in draw(st.lists(st.sampled_from(calls), max_size=4)):
            start = draw(st.integers(0, 1_500))
            host.append(call(kind_of_call, start, start + draw(st.integers(1, 400)), rank))
    steps = [
        Step(number=number, rank=rank, start_ns=number * 500_000, end_ns=(number + 1) * 500_000)
        for rank in range(ranks)
        for number in range(draw(st.integers(0, 3)))
    ]
    return Timeline(
        spans=tuple(spans),
        origin="imported",
        ranks=tuple(Rank(rank=rank, device="A100-SXM4-80GB", world=ranks) for rank in range(ranks)),
        host=tuple(host),
        steps=tuple(steps),
    )


@given(recordings())
def test_the_lines_partition_the_step_and_agree_with_the_figures(recorded: Timeline) -> None:
    analysis = analysis_of([recorded], what_if=False)
    for rank in analysis.ranks:
        ledger, known = rank.ledger, rank.figures
        assert sum(line.ns for line in ledger.lines) == ledger.total_ns == (rank.step_ns or known.span_ns)
        assert ledger.ns("compute") == known.compute_ns
        assert ledger.exposed_ns == known.exposed_ns
        assert ledger.ns("waiting") == rank.exposed_waiting_ns
        assert ledger.ns("copies") == known.memory_alone_ns
        assert ledger.idle_ns == known.idle_ns + ledger.total_ns - known.span_ns
        assert len({ON_GPU.line(line) for line in ledger.lines}) == len(ledger.lines)
    assert analysis.ledger.total_ns == sum(rank.ledger.total_ns for rank in analysis.ranks)


@given(recordings())
def test_no_advice_exceeds_the_line_it_names(recorded: Timeline) -> None:
    analysis = analysis_of([recorded], what_if=False)
    for item in analysis.advice:
        most = max(line.ns for rank in analysis.ranks for line in rank.ledger.lines if ON_GPU.line(line) == item.line)
        assert 0 < item.at_most_ns <= most


@given(recordings())
def test_the_cost_of_exposed_and_late_causes_is_the_exposed_time(recorded: Timeline) -> None:
    analysis = analysis_of([recorded], what_if=False)
    for rank in analysis.ranks:
        causes = [cause for cause in analysis.causes if cause.rank == rank.rank and cause.of != "slowed"]
        assert sum(cause.cost_ns for cause in causes) == rank.figures.exposed_ns
        assert all(0 <= cause.cost_ns <= cause.time_ns for cause in causes)


@given(recordings())
def test_calls_of_the_host_move_idle_time_and_nothing_else(recorded: Timeline) -> None:
    busy: tuple[LineKind, ...] = ("compute", *EXPOSED, "copies")
    with_calls = analysis_of([recorded], what_if=False)
    without = analysis_of([replace(recorded, host=())], what_if=False)
    for rank, plain in zip(with_calls.ranks, without.ranks, strict=True):
        assert rank.ledger.ns(*busy) == plain.ledger.ns(*busy)
        assert rank.ledger.idle_ns == plain.ledger.idle_ns


@needs_recordings
@pytest.mark.parametrize("name", ["param-dlrm8", "torchrec/tiny_w2", "hta/w128_sampled_rank0.json.gz"])
def test_the_ledgers_of_recordings_add_up_and_bound_all_advice(name: str) -> None:
    data = report(analyze([RECORDINGS / name], what_if=False)).data
    for rank in data["ranks"]:
        total = rank["span_ms"] if rank["step_ms"] is None else rank["step_ms"]
        assert sum(line["ms"] for line in rank["ledger"]) == pytest.approx(total, abs=1e-3)
    for item in data["advice"]:
        lines = [line["ms"] for rank in data["ranks"] for line in rank["ledger"] if line["name"] == item["line"]]
        assert 0 < item["at_most_ms"] <= max(lines)


# --- worked examples ---------------------------------------------------------------------------


def test_a_gpu_that_waits_for_launches_is_bound_by_the_host() -> None:
    spans = [span("compute", 100 * i, 100 * i + 10, launched_us=100 * i - 5) for i in range(1, 5)]
    (rank,) = analysed(*spans).ranks
    assert lines_us(rank.ledger) == {
        "compute": 40,
        "idle: waiting for launches": 3 * 85,
        "idle: gaps between kernels": 3 * 5,
    }


def test_calls_explain_idle_time_and_memory_comes_before_loading_and_synchronisation() -> None:
    host = (call("synchronisation", 20, 200), call("loading", 150, 300), call("allocator", 290, 310))
    (rank,) = analysed(span("compute", 0, 100), span("compute", 400, 500, launched_us=390), host=host).ranks
    assert lines_us(rank.ledger) == {
        "compute": 200,
        "idle: waiting for launches": 80,
        "idle: synchronisation": 50,
        "idle: data loading": 140,
        "idle: allocator": 20,
        "idle: gaps between kernels": 10,
    }


def test_a_queued_kernel_that_does_not_start_for_long_is_not_the_hosts_fault() -> None:
    (rank,) = analysed(span("compute", 0, 100), span("compute", 400, 500, launched_us=50)).ranks
    assert lines_us(rank.ledger) == {"compute": 200, "idle: other": 300}


def test_a_marked_step_begins_and_ends_with_the_host() -> None:
    step = Step(number=1, rank=0, start_ns=0, end_ns=1_000_000)
    host = (call("loading", 0, 600),)
    (rank,) = analysed(span("compute", 700, 800, launched_us=690), host=host, steps=(step,)).ranks
    assert rank.step_ns == 1_000_000
    assert lines_us(rank.ledger) == {
        "compute": 100,
        "idle: waiting for launches": 90 + 200,
        "idle: data loading": 600,
        "idle: gaps between kernels": 10,
    }


def test_waiting_goes_to_the_rank_that_arrives_late_and_the_advice_names_it() -> None:
    waits = [span("comm", 100, 1_000, rank=0), span("comm", 800, 1_000, launched_us=790, rank=1)]
    work = [span("compute", 0, 100, rank=0), span("compute", 0, 100, rank=1)]
    analysis = analysed(*waits, *work)
    victim, culprit = analysis.ranks
    assert lines_us(victim.ledger) == {"compute": 100, "exposed: transfer": 200, "exposed: waiting for rank 1": 700}
    assert lines_us(culprit.ledger)["idle: waiting for launches"] == 690
    named = [item for item in analysis.advice if item.line == "exposed: waiting for rank 1"]
    assert [item.at_most_ns for item in named] == [700_000]
    assert "rank 1" in named[0].text


def test_the_job_adds_up_the_lines_of_all_ranks() -> None:
    spans = [span("compute", 0, 100)]
    one = rank_ledger(local_ledger(spans, figures(spans)))
    job = job_ledger([one, one])
    assert (job.total_ns, job.ns("compute")) == (200_000, 200_000)


def test_queueing_behind_data_that_does_not_exist_yet_costs_nothing() -> None:
    """A collective launched early runs when its data is there: nothing to gain from launching it earlier."""
    work = [span("compute", 0, 1_000), span("compute", 1_205, 2_000)]
    analysis = analysed(*work, span("comm", 1_002, 1_200, launched_us=1))
    assert sum(item.at_most_ns for item in analysis.advice) <= 198_000
    assert all("as soon as" not in item.text for item in analysis.advice)


def test_the_headline_says_first_that_the_gpu_waits_for_launches() -> None:
    """As on a B200 that idles for 86 % of its time: the little exposed communication is not the news."""
    spans = [span("compute", 1_000 * at, 1_000 * at + 100, launched_us=1_000 * at - 8) for at in range(1, 9)]
    exposed = span("comm", 1_150, 1_170, launched_us=1_140)
    sentence = report(analysed(*spans, exposed)).headline.sentence.replace("\N{NO-BREAK SPACE}", " ")
    assert sentence.startswith("The GPU is idle for 88 % of the recorded 7.10 ms, ")
    assert sentence.endswith("waiting for the host's launches")
    (first, *_) = analysed(*spans, exposed).advice
    assert (first.line, first.cause) == ("idle: waiting for launches", "host")
