"""Choose the controls for a workload or a recorded step, and say why."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from makeway.cli.output import add_output_options, show, show_reading, show_stage, write_file
from makeway.cli.streams import say, write_out
from makeway.cli.workload_input import add_preset_choices, workload_of
from makeway.decide.planning.carried import destinations
from makeway.decide.planning.difference import PlanDifference, compare_plans
from makeway.decide.planning.heuristics import heuristic_names
from makeway.decide.planning.planner import PLANNER
from makeway.decide.planning.planner import plan as plan_workload
from makeway.decide.planning.recorded import NothingToPlan, plan_recorded, step_to_plan
from makeway.model.presets import known_presets, preset_names
from makeway.model.simulate.policies import DISPATCHES
from makeway.read.plan_file import dump_plan, load_plan
from makeway.values.device import Device, load_device
from makeway.values.errors import InputError, UnsupportedError, suggestion
from makeway.values.plan import Plan, parse_controls

EXAMPLES = """\
examples:
  makeway plan gemm-ar --device H100-SXM5-80GB --out plan.toml
  makeway plan conccl-04 --device MI300X --heuristic conccl-dma
  makeway plan my-step.toml --device A100-SXM4-80GB --control priority --json
  makeway plan gemm-ar --device H100-SXM5-80GB --html plan.html
  makeway plan conccl-04 --device H100-SXM5-80GB --for run --exclude priority
  makeway plan traces/ --out plan.toml                    the step of the rank with most exposed communication
  makeway plan recording/ --for run                       of CPU ranks: for this host, calibrated on first use
  makeway plan --compare old.toml new.toml gemm-ar --device H100-SXM5-80GB

All times are predicted, and are those of `makeway simulate`. A plan is made for the vendor's dispatch
policy and is not slower than nothing under the others that the device may follow (--dispatch names one).
"""
_TRACE_ONLY, _WORKLOAD_ONLY = ("step",), ("ranks", "grid", "tile", "in_flight", "iterations", "library", "block")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", nargs="*", metavar="WORKLOAD|TRACE", help="a preset, a workload file (.toml), or traces of a run"
    )
    parser.add_argument("--device", metavar="NAME", help="a device or FILE.toml (default for traces: what they name)")
    add_preset_choices(parser)
    parser.add_argument("--step", type=int, metavar="N", help="profiler step of a trace")
    parser.add_argument("--control", action="append", default=[], metavar="CONTROL", help="must be in the plan")
    parser.add_argument(
        "--for",
        dest="destination",
        metavar="CARRIER",
        help=f"only controls that it can apply: {', '.join(destinations())}",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="KIND", help="only this kind of control, or these"
    )
    parser.add_argument("--exclude", action="append", default=[], metavar="KIND", help="not this kind of control")
    parser.add_argument("--allow-lossy", action="store_true", help="also controls that change results: compress")
    parser.add_argument(
        "--heuristic",
        default=PLANNER,
        metavar="NAME",
        help=f"{PLANNER} searches (default); or a published one: {', '.join(heuristic_names())}",
    )
    parser.add_argument("--dispatch", choices=tuple(DISPATCHES), help="plan for this dispatch policy alone")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="what changes from plan A to plan B")
    parser.add_argument("--out", metavar="FILE", help="write the plan file; - for stdout")
    add_output_options(parser)


def run(options: argparse.Namespace) -> int:
    answer = _difference(options) if options.compare else _plan(options)
    if options.out and isinstance(answer, Plan):
        if options.out == "-":
            write_out(dump_plan(answer))
            return 0
        write_file(Path(options.out), dump_plan(answer))
    show(answer, options)
    return 0


def _plan(options: argparse.Namespace) -> Plan | NothingToPlan:
    traces, device = _subject(options)
    controls = parse_controls(options.control)
    dispatch = DISPATCHES[options.dispatch] if options.dispatch else None
    if traces:
        answer = plan_recorded(
            traces,
            device,
            step=options.step,
            controls=controls,
            heuristic=options.heuristic,
            dispatch=dispatch,
            **_kinds(options),
            timelines=options.html is not None,
            progress=show_reading,
            stage=show_stage,
            host=_this_host,
        )
        show_stage("")
        return answer
    assert device is not None
    answer = plan_workload(
        workload_of(options, device, options.inputs[0]),
        device,
        controls=controls,
        heuristic=options.heuristic,
        dispatch=dispatch,
        **_kinds(options),
        timelines=options.html is not None,
        progress=show_stage,
    )
    show_stage("")
    return answer


def _this_host() -> Device:
    """This machine, for recordings of CPU ranks."""
    from makeway.act.measure.this_host import this_host

    return this_host(progress=show_stage, say=lambda message: say(f"makeway plan: {message}")).device


def _kinds(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "destination": options.destination,
        "only": options.only,
        "exclude": options.exclude,
        "allow_lossy": options.allow_lossy,
    }


def _difference(options: argparse.Namespace) -> PlanDifference:
    a, b = (load_plan(path) for path in options.compare)
    dispatch = DISPATCHES[options.dispatch] if options.dispatch else None
    if not options.inputs:
        return compare_plans(a, b)
    traces, device = _subject(options)
    if not traces:
        assert device is not None
        return compare_plans(a, b, workload_of(options, device, options.inputs[0]), device, dispatch)
    step = step_to_plan(traces, device, step=options.step, progress=show_reading)
    show_stage("")
    if isinstance(step, NothingToPlan):
        raise UnsupportedError(f"the plans cannot be compared on these traces: {step.reason}")
    return compare_plans(a, b, step.workload, step.device, dispatch)


def _subject(options: argparse.Namespace) -> tuple[list[Path], Device | None]:
    """The traces to plan for, none if the input names a workload; and the device, which a workload needs."""
    if not options.inputs:
        raise InputError(f"give a preset ({', '.join(preset_names()[:3])}, ...), a workload file or traces to plan for")
    first = options.inputs[0]
    workload = len(options.inputs) == 1 and (first in preset_names() or first.endswith(".toml"))
    if not workload and len(options.inputs) == 1 and not Path(first).exists():
        near = suggestion(first, preset_names())
        raise InputError(f"{first} does not exist, and no preset has that name{near}\n{known_presets()}")
    device = load_device(options.device) if options.device else None
    for name in _TRACE_ONLY if workload else _WORKLOAD_ONLY:
        if getattr(options, name) is not None:
            raise InputError(f"--{name.replace('_', '-')} is for {'traces' if workload else 'workloads'}")
    if workload and device is None:
        raise InputError("--device is needed: a workload does not name one (see `makeway devices`)")
    return [] if workload else [Path(name) for name in options.inputs], device
