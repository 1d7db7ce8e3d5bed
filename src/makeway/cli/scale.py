"""A training step on thousands of GPUs: predicted time, memory and ledger of a layout, or the fastest layouts."""

from __future__ import annotations

import argparse
from pathlib import Path

from makeway.cli.output import add_output_options, show, show_stage, write_file
from makeway.cli.streams import say, write_out
from makeway.cli.workload_input import print_list
from makeway.decide.scale.presets import known_clusters, known_models, load_cluster, load_model
from makeway.decide.scale.scale import scale
from makeway.decide.scale.shards import write_curve_shard
from makeway.decide.scale.sweep import parse_gpus, sweep_gpus, sweep_request
from makeway.read.fanout import engine
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

layout: tp, cp, ep, pp, vp, dp, mbs, gbs (counts); sp, graphs; sharding=none|zero1|zero2|zero3|fsdp|hsdp;
        recompute=none|selective|full; schedule=1f1b|interleaved|zb-h1|zb-2p|zbv|dualpipe|dualpipev|gpipe;
        precision=bf16|fp16|fp8; overlap=dp+tp+pp+ep; bucket=40MiB; compression=fp8|powersgd:4|top-k:0.01; stages=20+20

Nothing here is measured. Other jobs on the network, adaptive routing and data loading are not modelled.
"""
EXPORTS = ("megatron", "torchtitan")


class ShowPresets(argparse.Action):
    """--list: print models and clusters and stop."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        models = [(name, load_model(name).summary) for name in known_models()]
        clusters = [(name, load_cluster(name).summary) for name in known_clusters()]
        print_list(parser, "presets", [*models, *clusters])


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="a model (--list) or FILE.toml")
    parser.add_argument("--cluster", required=True, metavar="NAME", help="a cluster (--list) or FILE.toml")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of the job")
    parser.add_argument("--layout", metavar="PARTS", help="predict this layout; without it, search for the fastest")
    parser.add_argument("--global-batch", type=int, metavar="N", help="sequences per step (default: 4 Mi tokens or more)")
    parser.add_argument("--control", action="append", default=[], metavar="CONTROL", help="a control; may be repeated")
    parser.add_argument("--sweep", metavar="gpus=A..B", help="scaling curves over GPUs, doubling from A to B")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="layouts to show (default: 10)")
    parser.add_argument("--from-trace", type=Path, metavar="PATH", help="kernel times of a recorded job, with more GPUs")
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write the step of every pipeline stage as a trace")
    parser.add_argument("--export", choices=EXPORTS, help="the layout as arguments of a framework")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file of --export or --shard (--export: stdout)")
    parser.add_argument("--on", metavar="ENGINE", help="compute on local, dask://HOST:PORT, mpi or slurm")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes at a time")
    parser.add_argument("--shard", metavar="I/N", help="every Nth number of GPUs of --sweep only, for makeway merge")
    parser.add_argument("--list", action=ShowPresets, nargs=0, help="list models and clusters and stop")
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    _check(options)
    cluster = load_cluster(options.cluster)
    controls = parse_controls(options.control) if options.control else None
    open_executor = engine(options.on or "local", jobs=options.jobs) if options.on or options.jobs else None
    if options.from_trace is not None:
        from makeway.decide.scale.from_trace import scale_recorded

        show(scale_recorded(options.from_trace, cluster, gpus=options.gpus), options)
        return 0
    model = load_model(options.model)
    try:
        if options.sweep is not None:
            request = sweep_request(model, cluster, layout=options.layout, global_batch=options.global_batch)
            gpus = parse_gpus(options.sweep)
            if options.shard is not None:
                written = write_curve_shard(request, gpus, options.shard, options.out, open_executor=open_executor)
                show_stage("")
                show(written, options)
                return 0
            curve = sweep_gpus(request, gpus, open_executor=open_executor, progress=_show_progress)
            show_stage("")
            show(curve, options)
            return 0
        layout = (
            parse_layout(options.layout, gpus=options.gpus, global_batch=options.global_batch)
            if options.layout
            else None
        )
        result = scale(
            model,
            cluster,
            gpus=options.gpus or (layout.gpus if layout else 0),
            layout=layout,
            global_batch=options.global_batch,
            controls=controls,
            top=options.top,
            open_executor=open_executor,
            progress=show_stage,
        )
    finally:
        show_stage("")
    if options.perfetto is not None:
        from makeway.show.perfetto import write_timeline

        write_timeline(options.perfetto, result.step.timeline)
        say(f"wrote {options.perfetto}: open it at ui.perfetto.dev or in chrome://tracing")
    if options.export is not None:
        return _export(result, options)
    show(result, options)
    return 0
