"""Pages: what they hold, that nothing from a trace can break out of its place, and that they stay small."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.decide.analysis.analyze import Analysis
from makeway.decide.analysis.causes import cause_groups
from makeway.decide.analysis.figures import figures
from makeway.decide.analysis.findings import Advice, Cause, RankFindings
from makeway.decide.analysis.ledger import job_ledger
from makeway.decide.analysis.ledger_entries import local_ledger, rank_ledger
from makeway.decide.analysis.what_if import Outcome, Replay, WhatIf
from makeway.read.traces.cpu_ranks import CPU_HOST
from makeway.show.analysis import report, time_parts
from makeway.show.blocks import Cell, Column, Table
from makeway.show.markup import embedded
from makeway.show.numbers import number, time_text
from makeway.show.page import page as html_page
from makeway.show.table_view import table_view
from makeway.show.timeline_view import timeline_view
from makeway.show.tracks import rank_tracks
from makeway.values.control import CommPriority, CopyEngine
from makeway.values.errors import InputError
from makeway.values.timeline import Rank, Span, SpanKind, Timeline

NASTY = "k</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"'<!--"
CLOCK = 1_698_957_820_972_482_000


def span(kind: SpanKind, start: int, end: int, *, name: str = "gemm", stream: str = "7", rank: int = 0) -> Span:
    return Span(name=name, kind=kind, stream=stream, start_ns=CLOCK + start, end_ns=CLOCK + end, rank=rank)


def timeline(*spans: Span) -> Timeline:
    ranks = sorted({one.rank for one in spans})
    return Timeline(
        spans=spans, origin="imported", ranks=tuple(Rank(rank=rank, source=f"rank{rank}.json") for rank in ranks)
    )  # fmt: skip


def findings(rank: Rank, spans: list[Span]) -> RankFindings:
    known = figures(spans)
    ledger = rank_ledger(local_ledger(spans, known))
    return RankFindings(rank=rank.rank, device=NASTY, source=rank.source, figures=known, ledger=ledger)


def analysis(recorded: Timeline, *causes: Cause, advice: tuple[Advice, ...] = ()) -> Analysis:
    ranks = tuple(findings(rank, [one for one in recorded.spans if one.rank == rank.rank]) for rank in recorded.ranks)
    return Analysis(
        ranks=ranks,
        ledger=job_ledger([rank.ledger for rank in ranks]),
        causes=causes,
        groups=cause_groups(causes),
        longest=causes[:200],
        advice=advice,
        notes=(NASTY,),
        timelines=(recorded,),
    )


def cause(at: int, time: int, *, evidence: str = NASTY) -> Cause:
    return Cause(
        kind="straggler", of="exposed", collective=NASTY, rank=0, at_ns=CLOCK + at, time_ns=time, confidence="high",
        evidence=evidence,
    )  # fmt: skip


RECORDED = timeline(
    span("compute", 0, 40_000_000),
    span("comm", 30_000_000, 100_000_000, name=NASTY, stream="20"),
    span("memory", 100_000_000, 110_000_000, name=NASTY, stream="22"),
)
FOUND = analysis(
    RECORDED,
    cause(40_000_000, 25_000_000),
    advice=(Advice(text=NASTY, why=NASTY, at_most_ns=25_000_000, line=NASTY, cause="straggler"),),
)
ANSWERS = WhatIf(
    rank=0,
    device=NASTY,
    replay=Replay(recorded_ns=100_000_000, predicted_ns=103_200_000.0),
    outcomes=(
        Outcome(control=CommPriority(), gain_ns=1_250_000.0),
        Outcome(control=CopyEngine(), gain_ns=None, why_not=NASTY),
    ),
    assumed=(NASTY,),
)


def analysed(found: Analysis = FOUND, answers: WhatIf | None = ANSWERS) -> str:
    return html_page(report(replace(found, what_if=answers), arguments=f"makeway analyze {NASTY}"))


class Elements(HTMLParser):
    """The tags of a page, their attributes, and its text outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._inside = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self._inside == "script" else [] if self._inside else self.text).append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).replace("\N{NO-BREAK SPACE}", " ").split())


def drawn(html: str) -> dict[str, Any]:
    data = next(text for text in Elements(html).scripts if text.startswith("{"))
    document: dict[str, Any] = json.loads(data)
    return document


def unpacked(row: dict[str, Any]) -> Iterator[tuple[int, int, int, int | None]]:
    """The spans of a row, read the way the page's script reads them."""
    numbers, value, scale = [], 0, 1
    for byte in base64.b64decode(row["data"]):
        value += (byte & 127) * scale
        scale *= 128
        if byte < 128:
            numbers.append(value)
            value, scale = 0, 1
    assert len(numbers) == 4 * row["count"]
    at = 0
    for gap, time, what, code in zip(*[iter(numbers)] * 4, strict=True):
        delay = None if code == 0 else (code - 1) // 2 if code % 2 else -code // 2
        yield at + gap, at + gap + time, what, delay
        at += gap + time


# --- nothing breaks out, nothing comes in --------------------------------------------------------


def test_names_from_a_trace_stay_text_wherever_they_appear() -> None:
    page = Elements(analysed())
    assert page.tags["script"] == 2  # the data and the page's own
    assert page.tags["img"] == 0
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    for where in ("makeway analyze k</script>", "GPU k</script>", "Assumed, since the trace does not say: k</script>"):
        assert where in page.words
    assert NASTY in drawn(analysed())["names"]


@given(st.text())
def test_embedded_data_come_back_as_they_were_and_cannot_end_their_element(words: str) -> None:
    html = embedded("x", json.dumps({"words": words}, ensure_ascii=False))
    inside = html.partition(">")[2].rpartition("</script>")[0]
    assert "<" not in inside
    assert json.loads(inside) == {"words": words}


@given(st.text(), st.text(), st.text())
def test_a_table_shows_any_words_as_words(words: str, hint: str, caption: str) -> None:
    html = table_view(Table(name="t", caption=caption, columns=(Column("a"),), rows=((Cell(words, hint=hint),),)))
    assert set(Elements(html).tags) == {"div", "span", "table", "thead", "tbody", "tr", "th", "td", "button"}


def test_the_page_refers_to_nothing_outside_itself() -> None:
    html = analysed()
    links = [value for _, name, value in Elements(html).attributes if name in ("src", "href", "srcset", "action")]
    assert links
    assert all(value.startswith("#") or value == "data:," for value in links)
    assert "default-src 'none'" in html
    ours = "".join((files("makeway.show") / "assets" / name).read_text() for name in ("page.css", "page.js"))
    assert not re.search(r"https?:|@import|url\(|fetch\(|XMLHttpRequest|</script", ours)


def test_the_same_findings_make_the_same_page() -> None:
    assert analysed() == analysed()


def test_the_script_stays_small() -> None:
    assert len((files("makeway.show") / "assets" / "page.js").read_text().splitlines()) < 600


# --- what it says --------------------------------------------------------------------------------


def test_the_headline_is_the_one_number_that_matters_and_where_it_comes_from() -> None:
    words = Elements(analysed()).words
    assert "60.0 ms of communication is exposed: 55 % of the recorded 110 ms imported" in words


def test_with_several_ranks_the_headline_is_of_the_one_with_most_exposed_time() -> None:
    both = timeline(span("comm", 0, 5_000_000), span("comm", 0, 9_000_000, rank=1))
    words = Elements(analysed(analysis(both), None)).words
    assert "9.00 ms of communication is exposed on rank 1: 100 % of the recorded 9.00 ms imported" in words
    assert "9.00 ms of 9.00 ms of communication is exposed on rank 1, the most of 2 ranks" in words


def test_a_record_without_communication_and_one_that_hides_it_all_say_so() -> None:
    alone = timeline(span("compute", 0, 5_000_000))
    assert "No communication in the recorded 5.00 ms" in analysed(analysis(alone), None).replace("\xa0", " ")
    hidden = timeline(span("compute", 0, 5_000_000), span("comm", 1, 1_000_001, stream="20"))
    page = analysed(analysis(hidden), None).replace("\xa0", " ")
    assert "All 1.00 ms of communication run beside compute" in page


def test_predictions_stand_beside_the_replay_error_and_are_called_predicted() -> None:
    words = Elements(analysed()).words
    assert "The replay error is +3.2 %, within the 10 %" in words
    assert "a negative gain is a loss. predicted" in words
    assert re.search(r"priority 1\.250 1\.2\b", words)
    far = replace(ANSWERS, replay=Replay(recorded_ns=100, predicted_ns=150.0))
    assert "directions, not as numbers" in analysed(answers=far)
    without = analysed(replace(FOUND, no_what_if="the limits of its GPU are not known"), None)
    assert "Controls are not simulated: the limits of its GPU are not known." in Elements(without).words


def test_no_rank_is_an_error_that_says_what_to_give() -> None:
    with pytest.raises(InputError, match="give at least one trace"):
        analysed(found=replace(FOUND, ranks=()))


@given(
    st.lists(
        st.builds(
            lambda kind, start, time: span(kind, start, start + time),
            st.sampled_from(get_args(SpanKind)), st.integers(0, 60), st.integers(0, 12),
        ),
        min_size=1, max_size=12,
    ),
    st.data(),
)  # fmt: skip
def test_the_parts_of_a_bar_add_up_to_the_recorded_time(spans: list[Span], data: st.DataObject) -> None:
    (rank,) = analysis(timeline(*spans)).ranks
    waiting = data.draw(st.integers(0, rank.figures.exposed_ns))
    parts = time_parts(replace(rank, exposed_waiting_ns=waiting))
    assert sum(part.amount for part in parts) == rank.figures.span_ns
    assert min(part.amount for part in parts) >= 0


def test_unknown_numbers_are_a_dash_that_sorts_last() -> None:
    assert (number(None).text, number(None).value) == ("–", None)
    shown = table_view(Table(name="t", caption="", columns=(Column("a", "number"),), rows=((number(None),),)))
    assert 'data-value=""' in shown


@pytest.mark.parametrize(
    ("time_ns", "words"),
    [(0, "0 ns"), (999, "999 ns"), (87_921_000, "87.9 ms"), (464_594_000, "465 ms"), (1_234e6, "1,234 ms"),
     (12.34e9, "12.3 s"), (-1_500, "-1.50 us")],
)  # fmt: skip
def test_times_in_words_have_three_digits(time_ns: float, words: str) -> None:
    assert time_text(time_ns).replace("\N{NO-BREAK SPACE}", " ") == words


# --- the drawing ---------------------------------------------------------------------------------

drawn_spans = st.lists(
    st.builds(
        lambda kind, start, time, stream, rank, delay: replace(
            span(kind, start, start + time, stream=stream, rank=rank),
            launched_ns=None if delay is None else CLOCK + start - delay,
        ),
        st.sampled_from(get_args(SpanKind)),
        st.integers(0, 10**11),
        st.integers(0, 10**10),
        st.sampled_from(["7", "20"]),
        st.integers(0, 1),
        st.none() | st.integers(-(10**10), 10**10),
    ),
    min_size=1,
    max_size=20,
)


@given(drawn_spans)
def test_the_drawing_holds_every_span_to_the_nanosecond(spans: list[Span]) -> None:
    ranks = rank_tracks([timeline(*spans)], ())
    view = timeline_view(ranks)
    data = drawn(view.html)
    found = Counter(
        (rank["rank"], view.origin_ns[rank["rank"]] + start, view.origin_ns[rank["rank"]] + end, kind, delay)
        for rank in data["ranks"]
        for row in rank["rows"]
        for start, end, what, delay in unpacked(row)
        if (kind := data["kinds"][data["whats"][what][1]]) in get_args(SpanKind)
    )
    assert found == Counter(
        (one.rank, one.start_ns, one.end_ns, one.kind,
         None if one.launched_ns is None else one.start_ns - one.launched_ns)
        for one in spans
    )  # fmt: skip


def test_tooltips_of_cpu_ranks_speak_of_no_launch() -> None:
    (on_gpu,) = drawn(timeline_view(rank_tracks([timeline(span("comm", 0, 10))], ())).html)["ranks"]
    host = replace(timeline(span("comm", 0, 10)), ranks=(Rank(rank=0, device=CPU_HOST),))
    (on_cpu,) = drawn(timeline_view(rank_tracks([host], ())).html)["ranks"]
    assert (on_gpu["launched"], on_cpu["launched"]) == ("launched", "due")


@pytest.mark.parametrize(("device", "shown"), [(CPU_HOST, "late-operator"), ("A100-SXM4-80GB", "launch-bound")])
def test_legend_rows_and_tooltips_name_a_cause_for_the_hardware(device: str, shown: str) -> None:
    late = Cause(
        kind="launch-bound", of="exposed", collective="all_reduce", rank=0, at_ns=CLOCK, time_ns=10, evidence="late",
        confidence="high",
    )  # fmt: skip
    recorded = replace(timeline(span("comm", 0, 10)), ranks=(Rank(rank=0, device=device),))
    view = timeline_view(rank_tracks([recorded], (late,)))
    data = drawn(view.html)
    assert f"</span>{shown}</li>" in view.html
    assert shown in data["names"]
    assert dict(zip(data["kinds"], data["shown"], strict=True))["launch-bound"] == shown


def test_ranks_with_no_time_in_common_are_each_drawn_from_their_own_start_and_the_page_says_so() -> None:
    apart = timeline(span("comm", 0, 10), span("comm", 5_000, 5_010, rank=1))
    view = timeline_view(rank_tracks([apart], ()))
    assert view.origin_ns == {0: CLOCK, 1: CLOCK + 5_000}
    assert "their clocks disagree" in view.html
    assert drawn(view.html)["whole"] == 10


def test_too_many_spans_are_joined_row_by_row_and_the_page_says_so() -> None:
    short = [span("compute", 1_500 * at, 1_500 * at + 600) for at in range(3_000)]
    many = timeline(*short, span("comm", 0, 4_500_000, stream="20"))
    view = timeline_view(rank_tracks([many], ()), most_spans=1_000)
    data = drawn(view.html)
    rows = {row["name"]: list(unpacked(row)) for row in data["ranks"][0]["rows"]}
    assert "are joined" in view.html
    assert sum(map(len, rows.values())) <= 1_000
    assert rows["stream 20 (comm)"] == [(0, 4_500_000, rows["stream 20 (comm)"][0][2], None)]
    first, last = rows["stream 7 (compute)"][0], rows["stream 7 (compute)"][-1]
    assert (first[0], last[1]) == (0, 1_500 * 2_999 + 600)
    assert "are joined" not in timeline_view(rank_tracks([many], ())).html


@given(drawn_spans, st.integers(1, 12))
def test_joining_never_loses_time_never_makes_spans_overlap_and_keeps_to_the_limit(
    spans: list[Span], most: int
) -> None:
    ranks = rank_tracks([timeline(*spans)], ())
    plain, thin = (drawn(timeline_view(ranks, most_spans=limit).html) for limit in (10**6, most))
    rows = sum(len(rank["rows"]) for rank in thin["ranks"])
    count = 0
    for before, after in zip(plain["ranks"], thin["ranks"], strict=True):
        for one, other in zip(before["rows"], after["rows"], strict=True):
            whole, joined = list(unpacked(one)), list(unpacked(other))
            count += len(joined)
            assert all(any(to[0] <= span[0] <= span[1] <= to[1] for to in joined) for span in whole)
            assert [edge for span in joined for edge in span[:2]] == sorted(
                edge for span in joined for edge in span[:2]
            )
            assert not whole or (whole[0][0], whole[-1][1]) == (joined[0][0], joined[-1][1])
    assert count <= max(most, rows)  # no row vanishes


def test_a_page_of_a_hundred_thousand_spans_stays_below_six_megabytes() -> None:
    spans = [
        replace(
            span("comm" if at % 20 == 0 else "compute", 2_713 * at, 2_713 * at + 1_907 + at % 700,
                 name=f"void at::native::vectorized_elementwise_kernel<{at % 300}>", stream=str(at % 4)),
            launched_ns=CLOCK + 2_713 * at - 7_000 - at % 5_000,
        )
        for at in range(100_000)
    ]  # fmt: skip
    recorded = timeline(*spans)
    html = analysed(analysis(recorded, *(cause(2_713 * at, 500, evidence=f"{at} " * 40) for at in range(5_000))))
    assert len(html.encode()) < 6_000_000
    assert "are joined" not in html
    assert "drawn without their evidence" in html
