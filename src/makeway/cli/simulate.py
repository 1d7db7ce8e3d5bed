"""Predict what happens when a workload's kernels and collectives share a GPU, under any controls."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from makeway import __version__
from makeway.cli.output import console, print_json
from makeway.cli.report_output import add_report_options, command_line, wants_report, write_report
from makeway.control import describe, parse_control
from makeway.device import Device, load_device
from makeway.errors import InputError
from makeway.plan_file import load_plan
from makeway.presets import PresetOptions, load_preset, preset_names, preset_summary
from makeway.report.predicted_report import simulation_report
from makeway.simulate.policies import DISPATCHES, HBM_RULES
from makeway.simulate.predict import Prediction, Settings, simulate
from makeway.simulate.sweep import HONEST_JITTER, Alternative, alternatives, run_points, sweep_points
from makeway.workload import Workload, load_workload

EXAMPLES = """\
examples:
  makeway simulate --presets
  makeway simulate gemm-ar --device H100-SXM5-80GB
  makeway simulate gemm-ar --device H100-SXM5-80GB --control priority --control comm-threads=288
  makeway simulate cb-ar --device A40 --grid 64x64 --sweep priority
  makeway simulate gemm-ar --device A100-SXM4-80GB --control priority --html step.html
  makeway simulate my-step.toml --device MI300X --control copy-engine --json

controls: pad=48KiB[:kernel*]  tile=64x64x64  priority  comm-first  comm-blocks=16  comm-threads=288
          partition=32  copy-engine[=broadcast[,prelaunch]]  chunks=4

Nothing here is measured. Two rules of the hardware are not known (who is dispatched first, how HBM
is shared): the text output shows every combination, with 5 % spread of block times (--rules).
"""


_PRESET_OPTIONS = ("gpus", "grid", "tile", "in_flight", "iterations", "library")
MANY_BLOCKS = 30_000  # more take the per-block engine several seconds


class _ShowPresets(argparse.Action):
    """--presets: list them and stop, as --help does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        for name in preset_names():
            sys.stdout.write(f"{name:<18} {preset_summary(name)}\n")
        parser.exit()


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--presets", action=_ShowPresets, nargs=0, help="list the presets and stop")
    parser.add_argument("workload", help=f"a preset ({', '.join(preset_names()[:4])}, ...) or a workload file (.toml)")
    parser.add_argument("--device", required=True, help="a device name (`makeway devices`) or FILE.toml")
    parser.add_argument("--gpus", type=int, metavar="N", help="ranks of a preset (default: the preset's)")
    parser.add_argument("--control", action="append", default=[], metavar="CONTROL", help="a control; may be repeated")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="take the controls from a plan file")
    parser.add_argument("--engine", choices=("auto", "class", "block"), default="auto")
    parser.add_argument("--dispatch", choices=tuple(DISPATCHES), help="dispatch rule (default: the vendor's)")
    parser.add_argument("--hbm", choices=tuple(HBM_RULES), default="proportional", help="how HBM is shared")
    parser.add_argument("--jitter", type=float, default=0.0, metavar="X", help="relative spread of block times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skew-us", type=float, default=0.0, metavar="T", help="the last rank starts so much later")
    parser.add_argument("--grid", metavar="XxY", help="grid of the published experiment's GEMM")
    parser.add_argument("--tile", metavar="MxNxK", help="tile of a preset's GEMM")
    parser.add_argument("--in-flight", type=int, metavar="N", help="GEMMs of different iterations in flight")
    parser.add_argument("--iterations", type=int, metavar="N")
    parser.add_argument("--library", metavar="NAME", help="footprint of the collectives, e.g. nccl-2.27.5/ring-simple")
    parser.add_argument(
        "--rules",
        choices=("auto", "all", "none"),
        default="auto",
        help="try the rules that are not known (text output)",
    )
    add_report_options(parser)
    parser.add_argument(
        "--sweep", choices=("pad", "priority", "comm-blocks", "grid"), help="run one knob over its values"
    )


def run(options: argparse.Namespace) -> int:
    device = load_device(options.device)
    workload = _workload(options, device)
    controls = [parse_control(text) for text in options.control]
    if options.plan:
        controls += load_plan(options.plan).controls
    settings = Settings(
        engine=options.engine,
        dispatch=DISPATCHES[options.dispatch] if options.dispatch else None,
        hbm=HBM_RULES[options.hbm],
        jitter=options.jitter,
        seed=options.seed,
        skew_ns=options.skew_us * 1e3,
        record=options.json and not options.sweep,
    )
    if options.sweep:
        if wants_report(options):
            raise InputError("--html and --report show one prediction; leave --sweep out")
        points = sweep_points(options.sweep, workload, device, controls)
        _sweep(points, device, settings, as_json=options.json)
        return 0
    prediction = simulate(workload, device, controls, settings)
    write_report(
        options,
        lambda: simulation_report(prediction, workload, device, arguments=command_line(), version=__version__),
    )
    if options.json:
        print_json(document(prediction) | _timeline_document(prediction))
    else:
        _show(prediction)
        if options.rules == "all" or (options.rules == "auto" and prediction.blocks <= MANY_BLOCKS):
            _show_others(list(alternatives(workload, device, prediction, settings)), prediction)
        elif options.rules == "auto":
            console().print(f"other rules not tried: {prediction.blocks:,} blocks take a while; ask with --rules all")
        _show_notes(prediction)
    return 0


def _workload(options: argparse.Namespace, device: Device) -> Workload:
    if options.workload.endswith(".toml"):
        given = [name for name in _PRESET_OPTIONS if getattr(options, name) is not None]
        if given:
            raise InputError(f"--{given[0].replace('_', '-')} is for presets; a workload file says it itself")
        return load_workload(Path(options.workload))
    return load_preset(
        options.workload,
        device,
        PresetOptions(
            ranks=options.gpus,
            grid=sides(options.grid, 2, "--grid 64x64"),  # type: ignore[arg-type]
            tile=sides(options.tile, 3, "--tile 64x64x32"),  # type: ignore[arg-type]
            in_flight=options.in_flight,
            iterations=options.iterations,
            library=options.library,
        ),
    )


def sides(text: str | None, count: int, example: str) -> tuple[int, ...] | None:
    """The numbers of "64x64", or None where nothing was said."""
    if text is None:
        return None
    if not re.fullmatch(r"\d+" + r"x\d+" * (count - 1), text):
        raise InputError(f"cannot read {text!r}; write for example {example}")
    return tuple(int(part) for part in text.split("x"))


def document(prediction: Prediction) -> dict[str, Any]:
    """A prediction as data."""
    share, rate = prediction.share_of_ideal, prediction.overlap_rate
    return {
        "origin": "predicted",
        "workload": prediction.workload,
        "device": prediction.device,
        "controls": [describe(control) for control in prediction.controls],
        "t_compute_ms": _ms(prediction.t_compute_ns),
        "t_comm_ms": _ms(prediction.t_comm_ns),
        "t_sequential_ms": _ms(prediction.t_sequential_ns),
        "t_ms": _ms(prediction.t_ns),
        "ideal_ms": _ms(prediction.ideal_ns),
        "share_of_ideal": None if share is None else round(share, 6),
        "overlap_rate": None if rate is None else round(rate, 6),
        "engine": prediction.engine,
        "dispatch": prediction.dispatch,
        "hbm": prediction.hbm,
        "jitter": prediction.jitter,
        "assumed": prediction.assumed,
        "without_effect": prediction.without_effect,
    }


def _timeline_document(prediction: Prediction) -> dict[str, Any]:
    timeline = prediction.timeline
    return {
        "spans": [
            {
                "name": span.name,
                "kind": span.kind,
                "rank": span.rank,
                "stream": span.stream,
                "start_ms": _ms(span.start_ns),
                "end_ms": _ms(span.end_ns),
                "waiting_ms": _ms(span.waiting_ns),
            }
            for span in timeline.spans
        ],
        "residency": [
            {"time_ms": _ms(held.time_ns), "rank": held.rank, "sms": held.sms, "blocks": dict(held.blocks)}
            for held in timeline.holdings
        ],
    }


def _ms(time_ns: float) -> float:
    return round(time_ns / 1e6, 6)


def _show(prediction: Prediction) -> None:
    out = console()
    share = prediction.share_of_ideal
    gain = f"{share:.0%} of the ideal gain" if share is not None else "nothing to gain"
    out.print(
        f"{prediction.workload} on {prediction.device}: {prediction.t_ns / 1e6:.3f} ms predicted, {gain}", style="bold"
    )
    for control in prediction.controls:
        out.print(f"  with {describe(control)}")
    table = Table("", "ms", box=None, pad_edge=False)
    for label, value in (
        ("compute alone", prediction.t_compute_ns),
        ("communication alone", prediction.t_comm_ns),
        ("sequential (each operation by itself)", prediction.t_sequential_ns),
        ("ideal (the longer of the two)", prediction.ideal_ns),
        ("predicted", prediction.t_ns),
    ):
        table.add_row(label, f"{value / 1e6:.3f}")
    out.print(table)
    rate = prediction.overlap_rate
    if rate is not None:
        out.print(f"communication beside compute: {rate:.0%} of its time")
    out.print(
        f"engine {prediction.engine}, dispatch {prediction.dispatch}, HBM {prediction.hbm}, "
        f"jitter {prediction.jitter:g}"
    )


def _show_notes(prediction: Prediction) -> None:
    out = console()
    for text in prediction.without_effect:
        out.print(f"no effect: {text}")
    for text in prediction.assumed:
        out.print(f"assumed: {text}", style="bright_black")


def _show_others(others: list[Alternative], prediction: Prediction) -> None:
    out = console()
    jitter = max(prediction.jitter, HONEST_JITTER)
    out.print(f"\nif the hardware follows other rules (block times spread by {jitter:.0%}):")
    table = Table("dispatch", "HBM", "ms", "share of ideal", box=None, pad_edge=False)
    for other in others:
        share = other.share_of_ideal
        table.add_row(other.dispatch, other.hbm, f"{other.t_ns / 1e6:.3f}", "-" if share is None else f"{share:.0%}")
    out.print(table)


def _sweep(points: list[Any], device: Device, settings: Settings, *, as_json: bool) -> None:
    rows: list[tuple[str, Prediction | str]] = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("simulating", total=len(points))
        for row in run_points(points, device, settings):
            rows.append(row)
            progress.advance(task)
    if as_json:
        print_json(
            {
                "origin": "predicted",
                "points": [
                    {"label": label, "error": found} if isinstance(found, str) else {"label": label} | document(found)
                    for label, found in rows
                ],
            }
        )
        return
    longest = max((found.t_ns for _, found in rows if not isinstance(found, str)), default=1.0)
    table = Table("setting", "predicted ms", "share of ideal", "", box=None, pad_edge=False)
    for label, found in rows:
        if isinstance(found, str):
            table.add_row(label, "-", "-", found)
        else:
            share = found.share_of_ideal
            bar = "█" * max(round(40 * found.t_ns / longest), 1)
            table.add_row(label, f"{found.t_ns / 1e6:.3f}", "-" if share is None else f"{share:.0%}", bar)
    console().print(table)
