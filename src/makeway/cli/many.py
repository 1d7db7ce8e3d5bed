"""`makeway analyze` for many ranks: one summary per trace, on any engine, then one answer."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from makeway.cli.output import show, show_stage
from makeway.cli.streams import say
from makeway.decide.analysis.many.analyze_job import MANY_FILES, analyze_job, parse_shard, write_shard
from makeway.decide.analysis.many.map_rank import MapOptions
from makeway.decide.analysis.threshold import gate, parse_threshold
from makeway.read.traces.read import more_traces_than
from makeway.values.errors import InputError

_ONE_BY_ONE = {"perfetto": "--perfetto", "hta_compatible": "--hta-compatible"}


def many_traces(paths: Sequence[Path]) -> bool:
    """Whether there are too many traces to look at each rank one by one."""
    return more_traces_than(MANY_FILES, paths)


def run_job(options: argparse.Namespace) -> int:
    """Analyse a job, or write one shard of its summaries."""
    for name, option in _ONE_BY_ONE.items():
        if getattr(options, name):
            raise InputError(f"{option} looks at each rank one by one: give at most {MANY_FILES} traces, without --on")
    if (options.shard is None) != (options.out is None):
        raise InputError("--shard and --out go together: makeway analyze TRACES --shard 1/16 --out shard-1.summary")
    from makeway.cli.analyze import step_number

    threshold = parse_threshold(options.fail_if) if options.fail_if else None
    chosen = MapOptions(
        device=options.device,
        step=step_number(options.step),
        comm_names=options.comm_names,
        cached=not options.no_cache,
    )
    on = options.on or "local"
    try:
        if options.shard is not None:
            written = write_shard(
                options.paths,
                parse_shard(options.shard),
                options.out,
                on=on,
                options=chosen,
                jobs=options.jobs,
                progress=_show_progress,
            )
            if written is not None:
                show(written, options)
            return 0
        job = analyze_job(options.paths, on=on, options=chosen, jobs=options.jobs, progress=_show_progress)
    finally:
        show_stage("")
    if job is None:  # another MPI rank answers
        return 0
    if threshold is not None:
        job = replace(job, gate=gate(threshold, job.ranks))
    show(job, options)
    missed = job.gate.sentences if job.gate else ()
    for sentence in missed:
        say(f"makeway analyze: {sentence}")
    return 1 if missed else 0


def _show_progress(done: int, of: int) -> None:
    show_stage(f"read {done:,} of {of:,} traces")
