"""A training step on thousands of GPUs: predicted time, memory and ledger of a layout, or the fastest layouts."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from makeway.act.export.layouts import SCHEDULES
from makeway.cli.output import add_output_options, show, show_stage, write_file
from makeway.cli.streams import say, say_note, write_out
from makeway.cli.workload_input import print_list
from makeway.decide.analysis.many.analyze_job import parse_shard
from makeway.decide.scale.goodput import CHECKPOINT_S, PUBLISHED_GPU_HOURS_PER_FAILURE, RESTART_S, Reliability
from makeway.decide.scale.outcome import Scaled
from makeway.decide.scale.recorded_jitter import recorded_jitter
from makeway.decide.scale.scale import scale
from makeway.decide.scale.shards import curve_shard
from makeway.decide.scale.sweep import parse_gpus, sweep_gpus, sweep_request
from makeway.read.fanout import engine
from makeway.read.presets import known_clusters, known_models, load_cluster, load_model
from makeway.values.errors import InputError
from makeway.values.layout_word import parse_layout
from makeway.values.plan import parse_controls

EXAMPLES = """\
examples:
  makeway scale --list                                              models and clusters
  makeway scale llama-3-70b --cluster dgx-h100 --gpus 1024          the fastest layouts
  makeway scale llama-3-70b --cluster dgx-h100 --gpus 1024 --layout tp=8,pp=4,vp=5,mbs=1,gbs=1024,sp
  makeway scale llama-3-70b --cluster dgx-h100 --sweep gpus=64..16384 --html scaling.html
  makeway scale llama-3-70b --cluster dgx-h100 --gpus 1024 --export megatron --out run.args
  makeway scale --from-trace traces/ --cluster dgx-h100 --gpus 1024
  makeway scale llama-3-8b --cluster dgx-h100 --gpus 1024 --jitter-from traces/ --checkpoint-s 60 --restart-s 600

layout: tp, cp, ep, pp, vp, dp, mbs, gbs (counts); sp, graphs, adapters; sharding=none|zero1|zero2|zero3|fsdp|hsdp;
        recompute=none|selective|ops|full; schedule=1f1b|interleaved|zb-h1|zb-h2|zb-2p|zbv|dualpipe|dualpipev|gpipe;
        precision=bf16|fp16|fp8|fp4; gradients=fp32|bf16; dispatcher=alltoall|deepep; overlap=dp+tp+pp+ep; bucket=40MiB;
        compression=fp8|powersgd:4|topk:0.01; stages=20+20

Nothing here is measured. Other jobs on the network, adaptive routing and data loading are not modelled.
"""
EXPORTS = SCHEDULES


class ShowPresets(argparse.Action):
    """--list: print models and clusters and stop."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        models = [
            (model.name, f"{model.parameters / 1e9:,.1f} billion parameters")
            for model in map(load_model, known_models())
        ]
        clusters = [
            (cluster.name, f"{cluster.device.name}, {', '.join(level.name for level in cluster.levels)}")
            for cluster in map(load_cluster, known_clusters())
        ]
        print_list(parser, "presets", [*models, *clusters])


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="a model (--list) or FILE.toml")
    parser.add_argument("--cluster", required=True, metavar="NAME", help="a cluster (--list) or FILE.toml")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of the job")
    parser.add_argument("--layout", metavar="PARTS", help="predict this layout; without it, search for the fastest")
    parser.add_argument(
        "--global-batch", type=int, metavar="N", help="sequences per step (default: 4 Mi tokens or more)"
    )
    parser.add_argument("--control", action="append", default=[], metavar="CONTROL", help="a control; may be repeated")
    parser.add_argument("--sweep", metavar="gpus=A..B", help="scaling curves over GPUs, doubling from A to B")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="layouts to show (default: 10)")
    parser.add_argument(
        "--from-trace", type=Path, metavar="PATH", help="kernel times of a recorded job, with more GPUs"
    )
    parser.add_argument(
        "--jitter-from",
        type=Path,
        metavar="PATH",
        help="how much GPUs vary, from the recorded steps of a job (default: as in published runs)",
    )
    parser.add_argument(
        "--gpu-hours-per-failure",
        type=float,
        default=PUBLISHED_GPU_HOURS_PER_FAILURE,
        metavar="H",
        help="GPUs x hours between failures of a job (default: 50,677, Llama 3 on 16,384 H100)",
    )
    parser.add_argument(
        "--checkpoint-s", type=float, default=CHECKPOINT_S, metavar="S", help="that a checkpoint stops training (30)"
    )
    parser.add_argument(
        "--restart-s", type=float, default=RESTART_S, metavar="S", help="from a failure to the first new step (300)"
    )
    parser.add_argument(
        "--perfetto", type=Path, metavar="FILE", help="write the step of every pipeline stage as a trace"
    )
    parser.add_argument("--export", choices=tuple(EXPORTS), help="the layout as arguments of a framework")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file of --export or --shard (--export: stdout)")
    parser.add_argument("--on", metavar="ENGINE", help="compute on local, dask://HOST:PORT, mpi or slurm")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes at a time")
    parser.add_argument("--shard", metavar="I/N", help="every Nth number of GPUs of --sweep only, for makeway merge")
    parser.add_argument("--list", action=ShowPresets, nargs=0, help="list models and clusters and stop")
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    _check(options)
    try:
        result = _answer(options)
    finally:
        show_stage("")
    if result is None:  # another MPI rank answers
        return 0
    if options.perfetto is not None and isinstance(result, Scaled) and result.step.timeline is not None:
        from makeway.show.perfetto import write_timeline

        write_timeline(options.perfetto, result.step.timeline)
        say(f"wrote {options.perfetto}: open it at ui.perfetto.dev or in chrome://tracing")
    if options.export is not None and isinstance(result, Scaled):
        _export(result, options)
    else:
        show(result, options)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuse options that do not go together, before any work."""
    if (options.model is None) == (options.from_trace is None):
        raise InputError("give a MODEL (makeway scale --list), or a recording with --from-trace, not both")
    if options.from_trace is not None and options.gpus is None:
        raise InputError("how many GPUs? Give --gpus N: a multiple of those that were recorded")
    if options.sweep is None and options.gpus is None and options.layout is None:
        raise InputError("how many GPUs? Give --gpus N, --sweep gpus=64..16384, or --layout with dp=")
    if options.sweep is not None and (options.export or options.perfetto or options.from_trace or options.gpus):
        raise InputError("--sweep goes over many numbers of GPUs: leave out --gpus, --export, --perfetto, --from-trace")
    if (options.shard is None) != (options.out is None or options.export is not None):
        raise InputError("--shard and --out go together: --sweep gpus=64..16384 --shard 1/4 --out part-1.json")
    if options.shard is not None and options.sweep is None:
        raise InputError("--shard divides a sweep: give --sweep gpus=64..16384, too")
    if options.from_trace is not None and options.jitter_from is not None:
        raise InputError("--from-trace keeps the recorded waiting; --jitter-from is for a MODEL")
    single = options.sweep is None and options.from_trace is None
    if not single and _reliability(options) != Reliability():
        raise InputError("--gpu-hours-per-failure, --checkpoint-s and --restart-s are of one step: give --gpus N")
    if options.top < 1:
        raise InputError(f"--top takes at least 1, got {options.top}")


def _reliability(options: argparse.Namespace) -> Reliability:
    return Reliability(
        gpu_hours_per_failure=options.gpu_hours_per_failure,
        checkpoint_s=options.checkpoint_s,
        restart_s=options.restart_s,
    )


def _answer(options: argparse.Namespace) -> object:
    cluster = load_cluster(options.cluster)
    if options.jitter_from is not None:
        cluster = replace(cluster, jitter=recorded_jitter(options.jitter_from))
    open_executor = engine(options.on or "local", jobs=options.jobs) if options.on or options.jobs is not None else None
    if options.from_trace is not None:
        from makeway.decide.scale.from_trace import scale_recorded

        recorded = parse_layout(options.layout) if options.layout else None
        return scale_recorded(options.from_trace, cluster, gpus=options.gpus, layout=recorded, progress=show_stage)
    model = load_model(options.model)
    if options.sweep is not None:
        gpus = parse_gpus(options.sweep)
        request = sweep_request(model, cluster, gpus, layout=options.layout, global_batch=options.global_batch)
        if options.shard is None:
            return sweep_gpus(request, gpus, open_executor=open_executor, progress=_show_progress)
        part = curve_shard(request, gpus, parse_shard(options.shard), open_executor=open_executor)
        write_file(options.out, part.content.decode())
        return part
    layout = None
    if options.layout is not None:
        layout = parse_layout(options.layout, gpus=options.gpus, global_batch=options.global_batch)
    return scale(
        model,
        cluster,
        gpus=options.gpus if options.gpus is not None else layout.gpus if layout else 0,
        layout=layout,
        global_batch=options.global_batch,
        controls=parse_controls(options.control) if options.control else None,
        top=options.top,
        runs=EXPORTS[options.export] if options.export else None,
        reliability=_reliability(options),
        open_executor=open_executor,
        progress=show_stage,
    )


def _export(result: Scaled, options: argparse.Namespace) -> None:
    """Write the layout as a framework takes it, to a file or to stdout; what it cannot say goes to stderr."""
    from makeway.act.export.layouts import export_layout

    exported = export_layout(result.model, result.step.layout, options.export)
    if options.out is None:
        write_out(exported.text)
    else:
        write_file(options.out, exported.text)
        show(result, options)
    for sentence in exported.unsaid:
        say_note(sentence)


def _show_progress(done: int, of: int) -> None:
    show_stage(f"{done:,} of {of:,} numbers of GPUs")
