"""Measure a workload on real ranks: one after the other, overlapped, under each control, and as planned."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.table import Table

from makeway.cli.output import console, print_json
from makeway.cli.simulate import sides
from makeway.device import load_device
from makeway.errors import InputError, UnsupportedError
from makeway.measure.bench import job_settings, run_bench, run_here, torchrun_ranks, with_usual_steps
from makeway.measure.job import DEFAULT_TIMEOUT_S, Job
from makeway.measure.link import parse_rate
from makeway.measure.names import family, workload_names, workload_summary
from makeway.measure.outcome import PLANNED, SEQUENTIAL, Bench, document
from makeway.measure.simulated import simulated_bench
from makeway.measure.statistics import summary
from makeway.measure.variants import parse_variant
from makeway.units import parse_bytes

EXAMPLES = """\
examples:
  makeway bench gemm-ar
  makeway bench gemm-ag --control copy-engine --control priority+chunks=4 --repeats 20
  makeway bench ddp --link 2gbit --bucket-mb 4 --compress fp16
  makeway bench cb-ar --on sim:A100-SXM4-80GB
  torchrun --nproc-per-node 2 -m makeway bench gemm-ar

The ranks are processes of this host with torch's Gloo. Times are medians of rounds in which all variants take turns.
share of ideal = (t_seq / t - 1) / (t_seq / max(t_compute, t_comm) - 1), each part measured alone in the same rounds.
`overlap` has torch's default of a thread per core in every rank, `overlap_torchrun` torchrun's of one thread per rank.
"""
_GPUS: dict[str, Literal["nvidia", "amd"]] = {"cuda": "nvidia", "rocm": "amd"}


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
    parser.add_argument("--ranks", type=int, metavar="N", help="(default: 2, or the preset's for sim)")
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
    parser.add_argument("--grid", metavar="XxY", help="grid of the published experiment's GEMM (sim)")
    parser.add_argument("--tile", metavar="MxNxK", help="tile of a preset's GEMM (sim)")
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


def run(options: argparse.Namespace) -> int:
    if options.on.startswith("sim:"):
        return _told(_predicted(options), options)
    if options.on in _GPUS:
        raise UnsupportedError(_no_gpu(options.on))
    if options.on != "cpu":
        raise InputError(f"cannot run on {options.on!r}; write --on cpu, cuda, rocm or sim:DEVICE")
    family(options.workload)
    try:
        found = _measured(options)
    except KeyboardInterrupt:
        print("makeway bench: interrupted; all ranks have been ended", file=sys.stderr)
        return 130
    return 0 if found is None else _told(found, options)  # None: a rank other than 0 under torchrun


def _no_gpu(on: str) -> str:
    """Why nothing can be measured on that kind of GPU here."""
    from makeway.runtime.cuda.machine import look

    missing = look(_GPUS[on]).missing
    instead = "measure on this host with --on cpu, or predict with --on sim:DEVICE (`makeway devices` lists them)"
    if missing is not None:
        return f"--on {on}: {missing}; {instead}"
    return (
        f"--on {on}: the loop for GPUs (makeway.runtime.cuda.overlap) has not been run on hardware and is not part of "
        f"this command yet; {instead}"
    )


def _told(found: Bench, options: argparse.Namespace) -> int:
    if options.perfetto and found.timeline is not None:
        found = replace(found, timeline_path=str(options.perfetto))
        _write_perfetto(options.perfetto, found)
    if options.json:
        print_json(document(found))
    else:
        show(found)
    return 0


def _predicted(options: argparse.Namespace) -> Bench:
    if options.link:
        raise InputError("--link paces real ranks; a simulated device has the links of its own")
    return simulated_bench(
        options.workload,
        load_device(options.on.removeprefix("sim:")),
        controls=[parse_variant(text) for text in options.control],
        ranks=options.ranks,
        grid=sides(options.grid, 2, "--grid 64x64"),  # type: ignore[arg-type]
        tile=sides(options.tile, 3, "--tile 64x64x32"),  # type: ignore[arg-type]
        in_flight=options.in_flight,
        iterations=options.steps,
        library=options.library,
        plan=not options.no_plan,
    )


def _measured(options: argparse.Namespace) -> Bench | None:
    launched = torchrun_ranks()
    if launched is not None:
        if options.link:
            raise InputError(
                "--link needs ranks that makeway starts itself; leave torchrun out: makeway bench --ranks N"
            )
        return run_here(_job(options, launched))
    rate = parse_rate(options.link) if options.link else None
    ranks = 2 if options.ranks is None else options.ranks
    return run_bench(_job(options, ranks), ranks, rate=rate, start_s=options.start_timeout, progress=_progress)


def _job(options: argparse.Namespace, ranks: int) -> Job:
    if ranks < 1:
        raise InputError(f"--ranks must be 1 or more, got {ranks}")
    settings, candidates = job_settings(
        options.control, ranks, apart=bool(options.link), plan=not options.no_plan, wide=options.tune
    )
    job = Job(
        workload=options.workload,
        settings=settings,
        candidates=candidates,
        repeats=options.repeats,
        warmup=options.warmup,
        size_bytes=parse_bytes(options.size) if options.size else None,
        scale=options.scale,
        in_flight=options.in_flight or 1,
        bucket_mb=options.bucket_mb,
        compress=options.compress,
        timeout_s=options.timeout,
    )
    return replace(job, steps=options.steps) if options.steps else with_usual_steps(job)


def _progress(stage: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{stage}", end="", file=sys.stderr, flush=True)
    else:
        print(stage, file=sys.stderr, flush=True)


def _write_perfetto(path: Path, found: Bench) -> None:
    from makeway.analysis.rank import findings, rank_records
    from makeway.report.perfetto import write_perfetto

    assert found.timeline is not None
    write_perfetto(path, [found.timeline], findings(rank_records(found.timeline)))


def show(found: Bench) -> None:
    """The result as tables: the collective as nccl-tests shows it, then the variants."""
    out = console()
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    out.print(f"{found.workload} on {found.on}, {found.ranks} ranks, {found.origin}: {found.link}", style="bold")
    out.print(_nccl_table(found))
    out.print()
    out.print(_variant_table(found))
    compute, comm = summary(found.compute_ns), summary(found.comm_ns)
    out.print(
        f"alone: compute {compute.median_ns / 1e6:.3f} ms, communication {comm.median_ns / 1e6:.3f} ms; "
        f"ideal {found.ideal_ns / 1e6:.3f} ms"
    )
    if found.choice:
        out.print(f"planned: {found.choice}")
    if found.origin == "measured":
        out.print("every result verified" if found.verified else "RESULTS DIFFER: see the column `wrong`")
    for note in found.notes:
        out.print(f"note: {note}", style="bright_black")


def _nccl_table(found: Bench) -> Table:
    columns = ("size", "type", "time", "algbw", "busbw", "t_seq", "t_naive", "t_ctrl", "%ideal")
    table = Table(*(f"#{columns[0]}", *columns[1:]), box=None, pad_edge=False, header_style="")
    for column in table.columns:
        column.justify = "right"
    naive, best = found.better_baseline, _controlled(found)
    share = found.share_of_ideal(best) if best else None
    bandwidths = found.bandwidths
    table.add_row("(B)", "", "(us)", "(GB/s)", "(GB/s)", "(ms)", "(ms)", "(ms)", "")
    table.add_row(
        str(found.exchange.size_bytes) if found.exchange else "-",
        found.exchange.kind if found.exchange else "several",
        f"{summary(found.comm_ns).median_ns / 1e3 / found.exchanges:.1f}",
        f"{bandwidths[0] / 1e9:.2f}" if bandwidths else "-",
        f"{bandwidths[1] / 1e9:.2f}" if bandwidths else "-",
        _ms(found, SEQUENTIAL),
        _ms(found, naive.name) if naive else "-",
        _ms(found, best) if best else "-",
        "-" if share is None else f"{share:.0%}",
    )
    return table


def _controlled(found: Bench) -> str | None:
    """The planned variant, or else the fastest with controls."""
    right = [variant for variant in found.variants if variant.wrong is None]
    if any(variant.name == PLANNED for variant in right):
        return PLANNED
    controlled = [variant for variant in right if variant.controls]
    return min(controlled, key=lambda variant: variant.summary.median_ns).name if controlled else None


def _ms(found: Bench, name: str) -> str:
    return f"{found.variant(name).summary.median_ns / 1e6:.3f}"


def _variant_table(found: Bench) -> Table:
    columns = ("variant", "threads", "median ms", "spread ms", "n", "far out", "of ideal", "beside compute", "wrong")
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns[1:-1]:
        column.justify = "right"
    for variant in found.variants:
        numbers, share = variant.summary, found.share_of_ideal(variant.name)
        table.add_row(
            variant.name,
            "-" if variant.threads is None else str(variant.threads),
            f"{numbers.median_ns / 1e6:.3f}",
            f"{numbers.spread_ns / 1e6:.3f}",
            str(numbers.n),
            str(numbers.outliers),
            "-" if share is None else f"{share:.0%}",
            "-" if variant.overlap_rate is None else f"{variant.overlap_rate:.0%}",
            variant.wrong or "",
        )
    return table
