"""Recordings of CPU ranks: what to change speaks of threads, operators and shared memory, never of a GPU."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser
from pathlib import Path

import pytest

from makeway.cli.record import configure
from makeway.decide.analysis.advice import advice
from makeway.decide.analysis.advice_texts import ON_CPU, ON_GPU, texts_for
from makeway.decide.analysis.analyze import Analysis, analyze
from makeway.decide.analysis.causes import rank_causes
from makeway.decide.analysis.compare import compare
from makeway.decide.analysis.exposure import ON_CPU as CPU_EVIDENCE
from makeway.decide.analysis.exposure import ON_GPU as GPU_EVIDENCE
from makeway.decide.analysis.findings import NO_MATCHING, Figures, RankFindings
from makeway.decide.analysis.ledger import IDLE, LedgerLine, ledger_of
from makeway.decide.analysis.wording import ON_CPU as WORDS_ON_CPU
from makeway.decide.analysis.wording import ON_GPU as WORDS_ON_GPU
from makeway.decide.analysis.wording import wording_for
from makeway.read.traces.cpu_ranks import CPU_HOST
from makeway.show.analysis import report
from makeway.show.comparison import report as comparison_report
from makeway.show.text import text
from makeway.values.timeline import Rank, Span, SpanKind, Timeline

RECORDED = Path(__file__).parents[2] / "examples" / "recordings" / "ddp-gloo-2ranks"
OF_A_GPU = re.compile(
    r"\bGPU|CUDA|cuda|\bSMs?\b|\bstreams?\b|pin_memory|pinned|\.cpu\(\)|expandable_segments|\bkernels?\b|launch"
)
NO_FIGURES = Figures(
    kernels=0, comm_kernels=0, compute_ns=0, comm_ns=0, memory_ns=0, overlap_ns=0, exposed_ns=0, idle_ns=0, span_ns=0
)


@pytest.fixture(scope="module")
def recorded() -> Analysis:
    return analyze([RECORDED])


def span(kind: SpanKind, stream: str, start_us: int, end_us: int, *, launched_us: int | None = None) -> Span:
    launched_us = start_us if launched_us is None else launched_us
    return Span(
        name="gloo:all_reduce" if kind == "comm" else "aten::mm",
        kind=kind,
        stream=stream,
        start_ns=start_us * 1_000,
        end_ns=end_us * 1_000,
        launched_ns=launched_us * 1_000,
    )


def findings(device: str, *lines: LedgerLine) -> RankFindings:
    return RankFindings(rank=0, device=device, source="x", figures=NO_FIGURES, ledger=ledger_of(lines))


def test_a_recording_of_cpu_ranks_gets_advice_and_evidence_for_cpus(recorded: Analysis) -> None:
    assert recorded.advice
    assert recorded.groups
    said = [item.text + item.why for item in recorded.advice] + [group.evidence for group in recorded.groups]
    assert [text for text in said if OF_A_GPU.search(text)] == []


def test_no_note_speaks_of_sms_on_a_host(recorded: Analysis) -> None:
    assert [note for note in recorded.notes if "SM" in note] == []


def test_gains_on_cpu_ranks_name_the_commands_that_find_them(recorded: Analysis) -> None:
    why = json.dumps(report(recorded).data)
    assert "makeway plan" in why
    assert "makeway run --tune" in why


@pytest.mark.parametrize("table", ["by_cause", "by_line", "line_evidence"])
def test_no_text_for_cpu_ranks_speaks_of_a_gpu(table: str) -> None:
    texts = getattr(ON_CPU, table)
    assert [text for text in texts.values() if OF_A_GPU.search(text)] == []
    assert set(texts) <= set(getattr(ON_GPU, table))


def test_every_line_that_gets_advice_on_a_gpu_gets_it_on_a_cpu() -> None:
    assert set(ON_CPU.line_evidence) == set(ON_GPU.line_evidence)
    assert not OF_A_GPU.search(ON_CPU.record_idle)


def test_what_to_record_next_is_an_option_of_record() -> None:
    (option,) = re.findall(r"`makeway record (--\S+)`", ON_CPU.record_idle)
    parser = ArgumentParser()
    configure(parser)
    assert vars(parser.parse_args([option, "--", "true"]))[option.removeprefix("--")] is True


@pytest.mark.parametrize(
    ("spans", "kinds"),
    [
        ((span("comm", "gloo", 0, 500), span("compute", "thread 1", 600, 900)), ["launch-bound"]),
        ((span("comm", "gloo", 0, 500), span("compute", "thread 1", 400, 900)), ["launch-bound"]),
        ((span("comm", "gloo", 0, 500), span("compute", "thread 1", 502, 900, launched_us=0)), ["dependency"]),
        ((span("comm", "gloo", 0, 500), span("compute", "thread 1", 700, 900, launched_us=0)), ["undetermined"]),
        ((span("comm", "thread 1", 0, 500), span("compute", "thread 1", 500, 900)), ["serialised"]),
    ],
)
def test_each_cause_is_worded_for_the_hardware(spans: tuple[Span, ...], kinds: list[str]) -> None:
    said: dict[str, list[str]] = {}
    for device in (CPU_HOST, None):
        timeline = Timeline(spans=spans, origin="imported", ranks=(Rank(rank=0, device=device),), device=device)
        causes = [cause for cause in rank_causes(timeline, 0, None) if cause.of == "exposed"]
        assert [cause.kind for cause in causes] == kinds
        said[str(device)] = [cause.evidence + (cause.record_next or "") for cause in causes]
    assert [text for text in said[CPU_HOST] if OF_A_GPU.search(text)] == []
    assert said[CPU_HOST] != said["None"]
    assert CPU_EVIDENCE != GPU_EVIDENCE


def test_idle_time_of_a_host_asks_for_less_python_and_of_a_gpu_for_graphs() -> None:
    line = LedgerLine(kind="host", ns=500)
    whole = LedgerLine(kind="compute", ns=500)
    (on_cpu,) = advice([findings(CPU_HOST, whole, line)], (), NO_MATCHING)
    (on_gpu,) = advice([findings("A100-SXM4-80GB", whole, line)], (), NO_MATCHING)
    assert "less Python between operators" in on_cpu.text
    assert "CUDA graphs" in on_gpu.text
    assert on_cpu.at_most_ns == on_gpu.at_most_ns == 500


def test_ranks_on_gpus_keep_their_texts() -> None:
    assert texts_for([findings("A100-SXM4-80GB")]) is ON_GPU
    assert texts_for([]) is ON_GPU
    assert texts_for([findings(CPU_HOST)]) is ON_CPU


def test_a_report_of_cpu_ranks_has_no_word_of_a_gpu(recorded: Analysis) -> None:
    said = text(report(recorded), verbose=True, width=200) + text(report(recorded))
    said += text(comparison_report(compare(RECORDED, RECORDED)), verbose=True, width=200)
    assert sorted(set(OF_A_GPU.findall(said))) == []


def test_a_line_has_one_name_in_text_and_json(recorded: Analysis) -> None:
    document, said = report(recorded), text(report(recorded))
    names = {line["name"] for line in document.data["ledger"]}
    assert {"exposed: next operator late", "idle: between operators"} <= names
    assert [name for name in names if name not in said] == []
    assert {item["line"] for item in document.data["advice"]} <= names


def test_only_ranks_that_all_ran_on_a_host_speak_of_operators() -> None:
    assert wording_for([CPU_HOST, CPU_HOST]) is WORDS_ON_CPU
    assert wording_for([CPU_HOST, "A100-SXM4-80GB"]) is WORDS_ON_GPU
    assert wording_for([None]) is wording_for([]) is WORDS_ON_GPU
    assert set(WORDS_ON_CPU.lines) == set(WORDS_ON_GPU.lines)
    assert set(WORDS_ON_CPU.idle) == set(IDLE)
