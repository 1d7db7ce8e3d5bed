"""The whole story on this machine, GPU or not: real ranks, published experiments, a real recording; one report."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.resources import as_file
from pathlib import Path

from makeway import __version__
from makeway.act.measure.experiment import PAPER_SIDES, Grid
from makeway.act.measure.outcome import Bench, document
from makeway.act.measure.simulated import simulated_experiment
from makeway.cli.output import print_json, show_stage
from makeway.cli.report_output import command_line, write_report
from makeway.decide.analysis.analyze import analyze
from makeway.decide.analysis.what_if import not_shown_by_a_trace
from makeway.decide.planning.planner import plan as make_plan
from makeway.model.validate.conccl import conccl_rows
from makeway.model.validate.grid import PAPER_DEVICES, published_device
from makeway.model.validate.rows import Row, published_csv
from makeway.show.blocks import Report
from makeway.show.demo_report import Demo, DeviceMap, demo_lines, demo_report
from makeway.show.report import report_of
from makeway.values.control import describe
from makeway.values.errors import MakewayError
from makeway.values.facts import data_files

EXAMPLES = """\
examples:
  makeway demo                           some two minutes; needs torch for the real ranks
  makeway demo --quick --out demo.html   a few seconds, without the real ranks
"""
_NAME = "makeway-demo.html"
_WORKLOAD, _LINK = "gemm-ar", "2gbit"
_QUICK_SIDES = (4, 16, 64, 256)
_PLAN_BUDGET_MS = 1_000.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="leave the real ranks out, and most grids: under 20 s")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=f"the page (default: {_NAME} here, else in a temporary directory)"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write what the page shows as JSON")


def run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    options.html = options.out or _place()
    benches, no_bench = ((), "left out by --quick") if options.quick else _real_ranks()
    sides = _QUICK_SIDES if options.quick else PAPER_SIDES
    maps = tuple(_device_map(name, sides) for name in PAPER_DEVICES)
    _say("simulating ConCCL's ladder on MI300X")
    ladder = _ladder()
    _say("analysing a recording of eight A100s")
    analysis, plan = _recording()
    demo = Demo(
        benches=benches,
        no_bench=no_bench,
        maps=maps,
        ladder=ladder,
        analysis=analysis,
        plan=plan,
        seconds=time.monotonic() - started,
    )
    write_report(options, lambda: demo_report(demo, arguments=command_line(), version=__version__))
    lines = demo_lines(demo)
    if options.json:
        print_json(_document(demo, lines, options.html))
    else:
        sys.stdout.write("\n".join([*lines, f"Open {options.html} in a browser."]) + "\n")
    return 0


def _say(stage: str) -> None:
    show_stage("")
    print(f"makeway demo: {stage} ...", file=sys.stderr, flush=True)


def _place() -> Path:
    """Here, or where one can write."""
    if os.access(".", os.W_OK):
        return Path(_NAME)
    return Path(tempfile.mkdtemp(prefix="makeway-")) / _NAME


# --- the parts -----------------------------------------------------------------------------------


def _real_ranks() -> tuple[tuple[Bench, ...], str | None]:
    """GEMM beside all-reduce on two processes, over memory and over a paced loopback; why not, where that cannot be."""
    if importlib.util.find_spec("torch") is None:
        return (), "torch is not installed (pip install 'makeway[torch]')"
    from makeway.act.measure.bench import job_settings, run_bench
    from makeway.act.measure.job import Job
    from makeway.act.measure.link import parse_rate

    found: list[Bench] = []
    for link in (None, _LINK):
        _say(f"measuring {_WORKLOAD} on 2 real ranks, {f'over {link}' if link else 'same host'}")
        settings, candidates = job_settings([], 2, apart=link is not None, plan=True, wide=False)
        job = Job(workload=_WORKLOAD, settings=settings, candidates=candidates, repeats=8, trial_rounds=3, timeout_s=60)
        try:
            found.append(run_bench(job, 2, rate=parse_rate(link) if link else None, progress=show_stage))
        except MakewayError as error:
            return tuple(found), str(error).partition("\n")[0]
    return tuple(found), None


def _device_map(name: str, sides: tuple[int, ...]) -> DeviceMap:
    _say(f"simulating the published experiment on {name}")
    device = published_device(name)
    grids: list[Grid] = [(x, y) for y in sides for x in sides]
    found = simulated_experiment("cb-ar", device, grids, comm_time="fitted")
    table = [row for row in published_csv("grid_time_ratio.csv") if row["device"] == name]
    published = {(int(row["grid_x"]), int(row["grid_y"])): float(row["time_ratio"]) for row in table}
    return DeviceMap(
        name=name, experiment=found, published={grid: published[grid] for grid in grids if grid in published}
    )


def _ladder() -> tuple[Row, ...]:
    """The steps of the ladder, with the numbers that were fitted to it."""
    return tuple(row for row in conccl_rows() if row.unit == "%" and row.status == "calibration")


def _recording() -> tuple[Report, str]:
    with ExitStack() as stack:
        traces = stack.enter_context(as_file(data_files("traces").joinpath("astra-megatron-tp8")))
        analysis = analyze([traces], keep_spans=True)
    plan, step = "No step of it can be simulated.", analysis.step
    if step is not None:
        planned = make_plan(step.workload, step.device, budget_ms=_PLAN_BUDGET_MS, excluded=not_shown_by_a_trace(step))
        controls = ", ".join(describe(control) for control in planned.controls) or "leave as is"
        plan = f"Plan for it: {controls} (predicted). First advice: {analysis.advice[0].title}."
    return report_of(analysis, arguments=command_line()), plan


def _document(demo: Demo, lines: list[str], page: Path) -> dict[str, object]:
    return {
        "page": str(page),
        "lines": lines,
        "seconds": round(demo.seconds, 1),
        "benches": [document(bench) for bench in demo.benches],
        "no_bench": demo.no_bench,
        "maps": [{"device": one.name, "mean_absolute_error": one.error} for one in demo.maps],
        "ladder": [{"step": row.case, "published": row.published, "predicted": row.predicted} for row in demo.ladder],
        "recording": demo.analysis.headline.sentence,
        "plan": demo.plan,
    }
