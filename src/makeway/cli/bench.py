"""Measure a workload on real ranks: one after the other, overlapped, under each control, and as planned."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from makeway import __version__
from makeway.act.measure.asked import Asked, answer
from makeway.act.measure.experiment import Sweep, parse_tiles, sweep_document
from makeway.act.measure.job import DEFAULT_TIMEOUT_S
from makeway.act.measure.link import parse_rate
from makeway.act.measure.names import workload_names, workload_summary
from makeway.act.measure.outcome import Bench, document, measured_plan
from makeway.cli.output import console, print_json, show_stage
from makeway.cli.report_output import add_report_options, command_line, write_report
from makeway.read.plan_file import dump_plan
from makeway.show.bench_report import bench_report, experiment_report
from makeway.show.bench_text import print_bench, print_sweep
from makeway.show.blocks import Report
from makeway.show.new_file import new_file
from makeway.values.errors import InputError
from makeway.values.units import parse_bytes

EXAMPLES = """\
examples:
  makeway bench gemm-ar
  makeway bench gemm-ag --control copy-engine --control priority+chunks=4 --repeats 20
  makeway bench ddp --link 2gbit --bucket-mb 4 --compress fp16
  makeway bench gemm-ar --out plan.toml --html bench.html
  makeway bench gemm-ar --device host.toml
  makeway bench cb-ar --on sim:A40 --grid squares --tile 64x64x32,64x64x64
  makeway bench cb-ar --on cuda --grid 8x8
  torchrun --nproc-per-node 2 -m makeway bench gemm-ar

The ranks are processes of this host, with torch's Gloo on its cores or NCCL on its GPUs (not yet run on hardware).
Times are medians of rounds in which all variants take turns.
share of ideal = (t_seq / t - 1) / (t_seq / max(t_compute, t_comm) - 1), each part measured alone in the same rounds.
`overlap` has torch's default of a thread per core in every rank, `overlap_torchrun` torchrun's of one thread per rank.
"""


class _ShowWorkloads(argparse.Action):
    """--workloads: list them and stop, as --help does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        for name in workload_names():
            sys.stdout.write(f"{name:<12} {workload_summary(name)}\n")
        parser.exit()


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workloads", action=_ShowWorkloads, nargs=0, help="list the workloads and stop")
    parser.add_argument("workload", nargs="?", default="gemm-ar", help="a name of --workloads (default: gemm-ar)")
    parser.add_argument("--on", default="cpu", metavar="WHERE", help="cpu, cuda, rocm or sim:DEVICE (default: cpu)")
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="(default: 2; one for each GPU; or the preset's for sim)"
    )
    parser.add_argument("--link", metavar="RATE", help="pace the link between ranks, e.g. 2gbit or 500mbit")
    parser.add_argument("--control", action="append", default=[], metavar="CONTROL", help="a variant; may be repeated")
    parser.add_argument("--tune", action="store_true", help="search more widely for the planned variant")
    parser.add_argument("--no-plan", action="store_true", help="leave the planned variant out")
    parser.add_argument("--repeats", type=int, default=10, metavar="N", help="rounds (default: 10)")
    parser.add_argument("--warmup", type=int, default=2, metavar="N", help="rounds before them (default: 2)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of the workload in one round")
    parser.add_argument("--size", metavar="SIZE", help="bytes of the collective, e.g. 16MiB")
    parser.add_argument("--scale", type=float, metavar="X", help="size of the workload against its own")
    parser.add_argument("--in-flight", type=int, metavar="N", help="GEMMs of cb-* and mb-* at once")
    parser.add_argument(
        "--grid", metavar="XxY,...", help="blocks of the GEMM, which loop over its tiles; several sweep"
    )
    parser.add_argument("--tile", metavar="MxNxK,...", help="tile of the GEMM; several are compared")
    parser.add_argument(
        "--device", metavar="FILE", help="predict with it: a calibrated host (cpu), a device (cuda, rocm)"
    )
    parser.add_argument(
        "--library", metavar="NAME", help="footprint of the collectives, e.g. nccl-2.27.5/ring-simple (sim)"
    )
    parser.add_argument("--bucket-mb", type=float, default=1.0, metavar="MB", help="gradient buckets of ddp")
    parser.add_argument("--compress", choices=("none", "fp16", "powersgd"), default="none", help="gradients of ddp")
    parser.add_argument(
        "--timeout", type=float, default=DEFAULT_TIMEOUT_S, metavar="S", help="for one collective (default: 10)"
    )
    parser.add_argument("--start-timeout", type=float, default=60.0, metavar="S", help="for ranks to meet")
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write the last round of each variant as a trace")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the planned controls as a plan file")
    add_report_options(parser)


def run(options: argparse.Namespace) -> int:
    try:
        found = answer(_asked(options), _progress)
    except KeyboardInterrupt:
        print("makeway bench: interrupted; all ranks have been ended", file=sys.stderr)
        return 130
    finally:
        show_stage("")
    if found is not None:
        write_report(options, lambda: _report(found))
    if isinstance(found, Bench) and options.out:
        _write_plan(options.out, found)
    match found:
        case Sweep() if options.json:
            print_json(sweep_document(found))
        case Sweep():
            print_sweep(console(), found)
        case Bench() if options.json:
            print_json(document(_traced(found, options.perfetto)))
        case Bench():
            print_bench(console(), _traced(found, options.perfetto))
        case None:
            pass  # a rank other than 0 under torchrun
    return 0


def _asked(options: argparse.Namespace) -> Asked:
    asked = Asked(
        workload=options.workload,
        on=options.on,
        ranks=options.ranks,
        rate=parse_rate(options.link) if options.link else None,
        controls=tuple(options.control),
        plan=not options.no_plan,
        wide=options.tune,
        device=options.device,
        grids=options.grid,
        tiles=parse_tiles(options.tile) if options.tile else (),
        library=options.library,
        repeats=options.repeats,
        warmup=options.warmup,
        steps=options.steps,
        size_bytes=parse_bytes(options.size) if options.size else None,
        scale=options.scale,
        in_flight=options.in_flight,
        bucket_mb=options.bucket_mb,
        compress=options.compress,
        timeout_s=options.timeout,
        start_s=options.start_timeout,
    )
    if asked.swept and (options.perfetto or options.out):
        raise InputError("--perfetto and --out are of one bench; name one grid and one tile")
    if options.out and options.no_plan:
        raise InputError("--out writes what planning chose; leave --no-plan out")
    return asked


def _report(found: Bench | Sweep) -> Report:
    if isinstance(found, Bench):
        return bench_report(found, arguments=command_line(), version=__version__)
    return experiment_report(found.experiments, arguments=command_line(), version=__version__)


def _write_plan(path: Path, found: Bench) -> None:
    with new_file(path) as file:
        file.write(dump_plan(measured_plan(found)))
    print(f"wrote {path}: apply it with `makeway run --plan {path} -- CMD`", file=sys.stderr)


def _traced(found: Bench, path: Path | None) -> Bench:
    """The bench, with its trace in a file where one was asked for."""
    if path is None or found.timeline is None:
        return found
    from makeway.decide.analysis.analyze import analysis_of
    from makeway.show.perfetto import write_perfetto

    write_perfetto(path, analysis_of([found.timeline], what_if=False))
    return replace(found, timeline_path=str(path))


def _progress(stage: str) -> None:
    show_stage(stage)
    if not sys.stderr.isatty():
        print(stage, file=sys.stderr, flush=True)
