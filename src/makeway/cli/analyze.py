"""Why communication is exposed in a recorded run, and what to change: from profiler traces of one or more ranks."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from makeway import __version__
from makeway.cli.output import console, print_json
from makeway.cli.report_output import add_report_options, command_line, wants_report, write_report
from makeway.cli.trace_input import read_records
from makeway.decide.analysis.findings import Findings
from makeway.decide.analysis.rank import Question, exposed_step, findings
from makeway.decide.analysis.threshold import Threshold, missed, parse_threshold
from makeway.decide.planning.what_if import WhatIf, what_if_found
from makeway.show.analysis_data import analysis_document
from makeway.show.analysis_report import analysis_report
from makeway.show.analysis_text import print_analysis
from makeway.values.device import load_device
from makeway.values.errors import InputError
from makeway.values.timeline import Timeline

EXAMPLES = """\
examples:
  makeway analyze trace.json.gz
  makeway analyze traces/                        all ranks of a run: tells transfer from waiting
  makeway analyze rank*.json --step 12 --html why.html --perfetto why.json
  makeway analyze report.sqlite --device H100-SXM5-80GB --json
  makeway analyze traces/ --fail-if 'exposed>20%'

reads PyTorch profiler (Kineto) JSON, plain or gzip, Nsight Systems sqlite and rocprofv3 JSON
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a trace, or a directory with one per rank")
    parser.add_argument("--device", metavar="NAME", help="the GPU, where the trace does not say or you know better")
    parser.add_argument("--step", metavar="N|all", default="all", help="one profiler step, or all that was recorded")
    add_report_options(parser)
    parser.add_argument("--perfetto", metavar="FILE", type=Path, help="write a trace with overlap and cause tracks")
    parser.add_argument("--fail-if", metavar="LIMIT", help="exit 1 when a rank meets it, for example 'exposed>20%%'")
    parser.add_argument("--comm-names", metavar="FILE", type=Path, help="patterns of your own communication kernels")
    parser.add_argument("--hta-compatible", action="store_true", help="figures by HolisticTraceAnalysis' rules")
    parser.add_argument("--no-what-if", action="store_true", help="do not simulate controls on the recorded step")
    parser.add_argument("--jobs", metavar="N", type=int, help="processes that read traces (default: one per core)")


def run(options: argparse.Namespace) -> int:
    threshold = parse_threshold(options.fail_if) if options.fail_if else None
    question = Question(
        device=load_device(options.device) if options.device else None,
        step=_step(options.step),
        hta_compatible=options.hta_compatible,
    )
    read = read_records(
        options.paths,
        question,
        comm_names=options.comm_names,
        jobs=options.jobs,
        keep_spans=wants_report(options) or options.perfetto is not None,
    )
    result = findings(read.records)
    result = replace(result, notes=(*read.notes, *result.notes))
    answers: WhatIf | None = None
    step = "not asked for" if options.no_what_if else exposed_step(read.records, result)
    if not isinstance(step, str):
        result, answers = what_if_found(result, *step)
    no_answers = step if isinstance(step, str) else None
    if options.perfetto is not None:
        _write_perfetto(options.perfetto, read.timelines, result)
    write_report(
        options,
        lambda: analysis_report(result, read.timelines, answers, arguments=command_line(), version=__version__),
    )
    if options.json:
        print_json(analysis_document(result, answers, no_answers, threshold))
    else:
        print_analysis(console(), result, answers, no_answers)
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    return _verdict(threshold, result)


def _step(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdigit():
        raise InputError(f"--step takes the number of a profiler step or all, got {text!r}")
    return int(text)


def _write_perfetto(path: Path, timelines: list[Timeline], result: Findings) -> None:
    from makeway.show.perfetto import write_perfetto

    write_perfetto(path, timelines, result)
    print(f"wrote {path}: open it at ui.perfetto.dev or in chrome://tracing", file=sys.stderr)


def _verdict(threshold: Threshold | None, result: Findings) -> int:
    if threshold is None:
        return 0
    over = missed(threshold, result)
    for rank, value in over:
        print(
            f"makeway analyze: rank {rank} has {threshold.metric} {value:.4g}{threshold.unit}: {threshold}",
            file=sys.stderr,
        )
    return 1 if over else 0
