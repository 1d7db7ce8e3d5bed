"""Why communication is exposed in a recorded run, and what to change: from profiler traces of one or more ranks."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from makeway.cli.many import many_traces, run_job
from makeway.cli.output import add_output_options, show, show_reading, show_stage
from makeway.cli.streams import say
from makeway.decide.analysis.analyze import analyze
from makeway.decide.analysis.threshold import gate, parse_threshold
from makeway.values.device import load_device
from makeway.values.errors import InputError

EXAMPLES = """\
examples:
  makeway analyze trace.json.gz
  makeway analyze traces/                        all ranks of a run: separates transfer from waiting
  makeway analyze rank*.json --step 12 --html why.html --perfetto why.json
  makeway analyze report.sqlite --device H100-SXM5-80GB --json
  makeway analyze traces/ --fail-if 'exposed>20%'
  makeway analyze traces/ --on dask://head:8786      thousands of ranks, read by a cluster

reads JSON of PyTorch's profiler (GPU jobs, and Gloo jobs on CPUs) and of JAX's, plain or gzip, Nsight Systems reports
and databases, and rocprofv3 JSON; directories with all below them; s3:// and other places of fsspec
"""
_MOST_DIGITS = 15  # of a step's number


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a trace, or a directory with one per rank")
    parser.add_argument("--device", metavar="NAME", help="the GPU, if the trace does not name it or names it wrong")
    parser.add_argument("--step", metavar="N|all", default="all", help="one profiler step (default: all)")
    parser.add_argument("--perfetto", metavar="FILE", type=Path, help="write a trace with overlap and cause tracks")
    parser.add_argument("--fail-if", metavar="LIMIT", help="exit 1 if it holds on any rank, e.g. 'exposed>20%%'")
    parser.add_argument(
        "--comm-names", metavar="PATTERN|FILE", help="kernels of yours that communicate: a pattern of names, or .toml"
    )
    parser.add_argument("--hta-compatible", action="store_true", help="figures by HolisticTraceAnalysis' rules")
    parser.add_argument("--no-what-if", action="store_true", help="do not simulate controls on the recorded step")
    parser.add_argument("--jobs", metavar="N", type=int, help="processes that read traces (default: one per core)")
    parser.add_argument("--on", metavar="ENGINE", help="summarise ranks on local, dask://HOST:PORT, mpi or slurm")
    parser.add_argument("--shard", metavar="I/N", type=str, help="summarise every Nth trace only, for makeway merge")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the summaries of --shard")
    parser.add_argument("--no-cache", action="store_true", help="read every trace again, even if it is summarised")
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    if options.on or options.shard or options.out or many_traces(options.paths):
        return run_job(options)
    threshold = parse_threshold(options.fail_if) if options.fail_if else None
    try:
        analysis = analyze(
            options.paths,
            device=load_device(options.device) if options.device else None,
            step=step_number(options.step),
            comm_names=options.comm_names,
            hta_compatible=options.hta_compatible,
            what_if=not options.no_what_if,
            jobs=options.jobs,
            keep_spans=options.html is not None or options.perfetto is not None,
            progress=show_reading,
        )
    finally:
        show_stage("")
    if threshold is not None:
        analysis = replace(analysis, gate=gate(threshold, analysis.ranks))
    if options.perfetto is not None:
        from makeway.show.perfetto import write_perfetto

        write_perfetto(options.perfetto, analysis)
        say(f"wrote {options.perfetto}: open it at ui.perfetto.dev or in chrome://tracing")
    show(analysis, options)
    missed = analysis.gate.sentences if analysis.gate else ()
    for sentence in missed:
        say(f"makeway analyze: {sentence}")
    return 1 if missed else 0


def step_number(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise InputError(f"--step takes the number of a profiler step or all, got {text!r}")
    return int(text)
