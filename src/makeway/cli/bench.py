"""Measure a workload on real ranks: sequential, overlapped, under each control, and as planned."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

from makeway.act.measure.bench import bench
from makeway.act.measure.experiment import CPU_SIDES, PAPER_SIDES, parse_grids, parse_tiles
from makeway.act.measure.job import DEFAULT_TIMEOUT_S, GemmKernel, Job, NumberType
from makeway.act.measure.link import parse_rate
from makeway.act.measure.names import workload_names, workload_summary
from makeway.act.measure.outcome import Bench, measured_plan
from makeway.act.measure.variants import parse_variant
from makeway.cli.output import add_output_options, show, show_stage, write_file
from makeway.cli.streams import say
from makeway.cli.workload_input import print_list
from makeway.values.errors import InputError
from makeway.values.units import parse_bytes

EXAMPLES = """\
examples:
  makeway bench gemm-ar
  makeway bench gemm-ag --control copy-engine --control priority+chunks=4 --repeats 20
  makeway bench ddp --link 2gbit --bucket-mb 4 --compress fp16
  makeway bench ddp --link 200mbit --control compress=powersgd:4 --allow-lossy
  makeway bench gemm-ar --out plan.toml --html bench.html
  makeway bench gemm-ar --device host.toml
  makeway bench cb-ar --on sim:A40 --grid squares --tile 64x64x32,64x64x64
  makeway bench cb-ar --on cuda --grid 8x8
  makeway bench gemm-rs --on cuda --kernel torch --type bf16 --cuda-graph
  torchrun --nproc-per-node 2 -m makeway bench gemm-ar

The ranks are processes of this host, with torch's Gloo on its cores or NCCL on its GPUs (not yet run on hardware).
Times are medians of rounds in which all variants take turns; differences are medians of paired rounds.
share of ideal = (t_seq / t - 1) / (t_seq / max(t_compute, t_comm) - 1), each part measured alone in the same rounds.
`overlap` has torch's default of a thread per core in every rank, `overlap_torchrun` torchrun's of one thread per rank.
"""


class _List(argparse.Action):
    """--list: print the workloads and stop, as --help does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print_list(parser, "workloads", [(name, workload_summary(name)) for name in workload_names()])


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--list", action=_List, nargs=0, help="list the workloads and stop")
    parser.add_argument("workload", nargs="?", default="gemm-ar", help="a name of --list (default: gemm-ar)")
    parser.add_argument("--on", default="cpu", metavar="WHERE", help="cpu, cuda, rocm or sim:DEVICE (default: cpu)")
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="2 or more (default: 2; one for each GPU; or the preset's for sim)"
    )
    parser.add_argument("--link", metavar="RATE", help="pace the link between ranks, e.g. 2gbit or 500mbit")
    parser.add_argument("--control", action="append", default=[], metavar="CONTROL", help="a variant; may be repeated")
    parser.add_argument("--tune", action="store_true", help="search more widely for the planned variant")
    parser.add_argument("--no-plan", action="store_true", help="leave the planned variant out")
    parser.add_argument("--repeats", type=int, default=10, metavar="N", help="rounds (default: 10)")
    parser.add_argument("--warmup", type=int, default=2, metavar="N", help="rounds before them (default: 2)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of the workload in one round")
    parser.add_argument("--size", metavar="SIZE", help="bytes of the collective, e.g. 16MiB")
    parser.add_argument("--scale", type=float, metavar="X", help="size of the workload relative to its own")
    parser.add_argument("--in-flight", type=int, metavar="N", help="GEMMs of cb-* and mb-* at once")
    parser.add_argument(
        "--grid", metavar="XxY,...", help="blocks of the GEMM, which loop over its tiles; several are compared"
    )
    parser.add_argument("--tile", metavar="MxNxK,...", help="tile of the GEMM; several are compared")
    parser.add_argument(
        "--kernel",
        choices=get_args(GemmKernel),
        default="triton",
        help="GEMM on a GPU: our own or torch.mm's (cuda, rocm)",
    )
    parser.add_argument("--type", choices=get_args(NumberType), help="operands of that GEMM (default: tf32 or fp32)")
    parser.add_argument("--cuda-graph", action="store_true", help="capture each round in a CUDA graph (cuda, rocm)")
    parser.add_argument(
        "--device", metavar="FILE", help="predict with it: a calibrated host (cpu), a device (cuda, rocm)"
    )
    parser.add_argument(
        "--library", metavar="NAME", help="footprint of the collectives, e.g. nccl-2.27.5/ring-simple (sim)"
    )
    parser.add_argument("--bucket-mb", type=float, default=1.0, metavar="MB", help="gradient buckets of ddp")
    parser.add_argument("--compress", choices=("none", "fp16", "powersgd"), default="none", help="gradients of ddp")
    parser.add_argument("--allow-lossy", action="store_true", help="also controls that change results: compress of ddp")
    parser.add_argument(
        "--timeout", type=float, default=DEFAULT_TIMEOUT_S, metavar="S", help="for one collective (default: 10)"
    )
    parser.add_argument("--start-timeout", type=float, default=60.0, metavar="S", help="for ranks to meet")
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write the last round of each variant as a trace")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the planned controls as a plan file")
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    job = _job(options)
    try:
        result = bench(job, progress=_progress)
    except KeyboardInterrupt:
        say("makeway bench: interrupted; all ranks have been ended")
        return 130
    finally:
        show_stage("")
    if result is None:  # a rank other than 0 under torchrun
        return 0
    if isinstance(result, Bench):
        result = _with_files(result, options)
    show(result, options)
    return 0


def _job(options: argparse.Namespace) -> Job:
    sides = CPU_SIDES if options.on == "cpu" else PAPER_SIDES
    job = Job(
        workload=options.workload,
        on=options.on,
        ranks=options.ranks,
        link=parse_rate(options.link) if options.link else None,
        controls=tuple(parse_variant(text) for text in options.control),
        plan=not options.no_plan,
        wide=options.tune,
        device=options.device,
        grids=parse_grids(options.grid, sides) if options.grid else (),
        tiles=parse_tiles(options.tile) if options.tile else (),
        library=options.library,
        kernel=options.kernel,
        number_type=options.type,
        cuda_graph=options.cuda_graph,
        repeats=options.repeats,
        warmup=options.warmup,
        steps=options.steps,
        size_bytes=parse_bytes(options.size) if options.size else None,
        scale=options.scale,
        in_flight=options.in_flight,
        bucket_mb=options.bucket_mb,
        compress=options.compress,
        allow_lossy=options.allow_lossy,
        timeout_s=options.timeout,
        start_s=options.start_timeout,
    )
    if job.swept and (options.perfetto or options.out):
        raise InputError("--perfetto and --out are of one bench; name one grid and one tile")
    if options.out and options.no_plan:
        raise InputError("--out writes what planning chose; leave --no-plan out")
    return job


def _with_files(result: Bench, options: argparse.Namespace) -> Bench:
    """The bench, after writing its plan and its trace."""
    if options.out:
        from makeway.read.plan_file import dump_plan

        hint = f": apply it with `makeway run --plan {options.out} -- CMD`"
        write_file(options.out, dump_plan(measured_plan(result)), hint)
    if options.perfetto is None or result.timeline is None:
        return result
    from makeway.decide.analysis.analyze import analysis_of
    from makeway.show.perfetto import write_perfetto

    write_perfetto(options.perfetto, analysis_of([result.timeline], what_if=False))
    return replace(result, timeline_path=str(options.perfetto))


def _progress(stage: str) -> None:
    show_stage(stage)
    if not sys.stderr.isatty():
        say(stage)
