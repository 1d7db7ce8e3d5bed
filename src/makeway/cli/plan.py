"""Choose the controls for a workload or a recorded step, and say why."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from makeway import __version__
from makeway.cli.output import console, print_json
from makeway.cli.report_output import add_report_options, command_line, write_report
from makeway.cli.trace_input import trace_progress
from makeway.decide.analysis.analyze import analyze
from makeway.decide.analysis.what_if import not_shown_by_a_trace
from makeway.decide.planning.planner import BUDGET_MS, PLANNER, Planned, make_plan
from makeway.decide.planning.policies import policy_names
from makeway.decide.planning.score import score
from makeway.model.presets import PresetOptions, load_preset, preset_names
from makeway.model.simulate.policies import DISPATCHES
from makeway.model.simulate.predict import simulate
from makeway.read.plan_file import dump_plan, load_plan
from makeway.show.blocks import Report
from makeway.show.new_file import new_file
from makeway.show.plan_data import as_plan, plan_document, print_plan
from makeway.show.predicted_report import plan_report
from makeway.values.collective import load_footprint
from makeway.values.control import Control, MadeFor, Plan, Rejected, control_word, describe, parse_control
from makeway.values.device import Device, load_device
from makeway.values.errors import InputError, UnsupportedError
from makeway.values.workload import CollectiveOp, Workload, load_workload

EXAMPLES = """\
examples:
  makeway plan gemm-ar --device H100-SXM5-80GB --out plan.toml
  makeway plan conccl-04 --device MI300X --policy conccl-dma
  makeway plan my-step.toml --device A100-SXM4-80GB --control priority --json
  makeway plan gemm-ar --device H100-SXM5-80GB --html plan.html
  makeway plan traces/ --out plan.toml                    the step of the rank with most exposed communication
  makeway plan --compare old.toml new.toml gemm-ar --device H100-SXM5-80GB

All times are predicted: the worst of the dispatch rules that the device may follow (--dispatch names one).
"""

TRACE_BUDGET_MS = 1_000.0  # reading takes time too


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", nargs="*", metavar="WORKLOAD|TRACE", help="a preset, a workload file (.toml), or traces of a run"
    )
    parser.add_argument("--device", metavar="NAME", help="a device name or FILE.toml (traces: default what they name)")
    parser.add_argument("--gpus", type=int, metavar="N", help="ranks of a preset (default: the preset's)")
    parser.add_argument("--nccl", metavar="VERSION", help="library of the collectives, e.g. 2.27.5 or rccl-5.4.3")
    parser.add_argument(
        "--budget-ms",
        type=float,
        metavar="N",
        help=f"effort (default: {BUDGET_MS:g}, for traces {TRACE_BUDGET_MS:g}); a number of predictions, not a clock",
    )
    parser.add_argument(
        "--policy", default=PLANNER, metavar="NAME", help=f"one of {PLANNER}, {', '.join(policy_names())}"
    )
    parser.add_argument("--control", action="append", default=[], metavar="CONTROL", help="must be in the plan")
    parser.add_argument("--dispatch", choices=tuple(DISPATCHES), help="plan for this dispatch rule alone")
    parser.add_argument("--step", type=int, metavar="N", help="profiler step of a trace")
    parser.add_argument("--out", metavar="FILE", help="write the plan file there; - for stdout")
    add_report_options(parser)
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="what changes from plan A to plan B")


def run(options: argparse.Namespace) -> int:
    if options.compare:
        return _compare(options)
    if not options.inputs:
        raise InputError(f"give a preset ({', '.join(preset_names()[:3])}, ...), a workload file or traces to plan for")
    forced = [parse_control(text) for text in options.control]
    subject = _subject(options)
    if isinstance(subject, _NothingToPlan):
        return _print_nothing(subject, options)
    workload, device = subject.workload, subject.device
    planned = make_plan(
        workload,
        device,
        budget_ms=subject.budget_ms if options.budget_ms is None else options.budget_ms,
        dispatch=DISPATCHES[options.dispatch] if options.dispatch else None,
        forced=forced,
        excluded=subject.excluded,
        policy=options.policy,
    )
    notes = subject.notes
    made_for = MadeFor(workload=workload.name, device=device.name, gpus=workload.ranks, library=_library(workload))
    if options.out == "-":
        sys.stdout.write(dump_plan(as_plan(planned, made_for)))
        return 0
    if options.out:
        with new_file(Path(options.out)) as file:
            file.write(dump_plan(as_plan(planned, made_for)))
        print(f"wrote {options.out}", file=sys.stderr)
    write_report(options, lambda: _report(planned, subject, notes))
    if options.json:
        print_json(plan_document(planned, made_for, notes))
    else:
        print_plan(console(), planned)
        for note in (*planned.notes, *notes):
            print(f"note: {note}", file=sys.stderr)
    return 0


def _report(planned: Planned, subject: _Subject, notes: tuple[str, ...]) -> Report:
    timelines = [("as it comes", simulate(subject.workload, subject.device).timeline)]
    if planned.controls:
        timelines.append(("with the plan", simulate(subject.workload, subject.device, planned.controls).timeline))
    return plan_report(
        planned,
        subject.workload,
        subject.device,
        timelines,
        notes=notes,
        arguments=command_line(),
        version=__version__,
    )


# --- what to plan for --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What to plan for, what must not be tried and why, and what to know about it."""

    workload: Workload
    device: Device
    budget_ms: float = BUDGET_MS
    excluded: tuple[Rejected, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _NothingToPlan:
    """Traces in which no control can be chosen, and why."""

    why: str
    device: str | None
    notes: tuple[str, ...]


def _subject(options: argparse.Namespace) -> _Subject | _NothingToPlan:
    first = options.inputs[0]
    if len(options.inputs) == 1 and (first.endswith(".toml") or not Path(first).exists()):
        if options.device is None:
            raise InputError("--device is needed: a workload does not name one (see `makeway devices`)")
        device = load_device(options.device)
        workload = _with_library(_described(first, options, device), options.nccl, device)
        return _Subject(workload=workload, device=device)
    return _recorded(options)


def _described(name: str, options: argparse.Namespace, device: Device) -> Workload:
    if options.step is not None:
        raise InputError("--step is for traces")
    if not name.endswith(".toml"):
        return load_preset(name, device, PresetOptions(ranks=options.gpus))
    if options.gpus is not None:
        raise InputError("--gpus is for presets; a workload file says it itself")
    return load_workload(Path(name))


def _with_library(workload: Workload, version: str | None, device: Device) -> Workload:
    """The workload with its collectives in another version of the library; what it does not know is an error."""
    if version is None:
        return workload
    library = version if not version[:1].isdigit() else f"nccl-{version}"
    operations = []
    for op in workload.operations:
        changed = op
        if isinstance(op, CollectiveOp) and "/" in op.library:
            changed = replace(op, library=f"{library}/{op.library.partition('/')[2]}")
            load_footprint(changed.library, device.arch)
        operations.append(changed)
    return replace(workload, operations=tuple(operations))


def _recorded(options: argparse.Namespace) -> _Subject | _NothingToPlan:
    """The step of the rank with most exposed communication."""
    if options.gpus is not None or options.nccl is not None:
        raise InputError("--gpus and --nccl are for workloads; a trace shows its own ranks and its library's blocks")
    device = load_device(options.device) if options.device else None
    with trace_progress() as progress:
        analysis = analyze(options.inputs, device=device, step=options.step, what_if=False, progress=progress)
    step = analysis.step
    if step is None:
        if not analysis.devices:
            raise UnsupportedError("which GPU was recorded is not known: pass --device (see `makeway devices`)")
        why = (analysis.no_step or "").partition("\n")[0]
        return _NothingToPlan(why=why, device=", ".join(analysis.devices), notes=analysis.notes)
    return _Subject(
        workload=replace(step.workload, name=f"rank {step.rank} of {Path(options.inputs[0]).name}"),
        device=step.device,
        budget_ms=TRACE_BUDGET_MS,
        excluded=not_shown_by_a_trace(step),
        notes=(*analysis.notes, *step.workload.assumed),
    )


def _print_nothing(nothing: _NothingToPlan, options: argparse.Namespace) -> int:
    reason = f"No control can be chosen here, because {nothing.why}."
    if options.json:
        times = ("t_naive_ms", "t_plan_ms", "t_ideal_ms", "share_of_ideal_naive", "share_of_ideal_plan")
        nulls: dict[str, object] = dict.fromkeys(times)
        lists: dict[str, object] = {"controls": [], "rejected": [], "reasons": [reason], "notes": list(nothing.notes)}
        print_json({"device": nothing.device, "leave_as_is": True, "baselines": {}, **nulls, **lists})
    else:
        console().print(reason, markup=False)
    return 0


def _library(workload: Workload) -> str | None:
    libraries = {op.library for op in workload.collectives}
    return libraries.pop() if len(libraries) == 1 else None


# --- two plans ---------------------------------------------------------------------------------


def _compare(options: argparse.Namespace) -> int:
    """What changes from one plan to the other, and what it costs: predicted for the workload given, else as written."""
    old, new = (load_plan(path) for path in options.compare)
    added = [control for control in new.controls if control not in old.controls]
    removed = [control for control in old.controls if control not in new.controls]
    times = _times(options, old, new)
    if options.json:
        print_json(
            {
                "added": [control_word(control) for control in added],
                "removed": [control_word(control) for control in removed],
                "kept": [control_word(control) for control in new.controls if control in old.controls],
                "t_a_ms": times[0],
                "t_b_ms": times[1],
                "change_ms": None if None in times else (times[1] or 0.0) - (times[0] or 0.0),
                "origin": "predicted",
            }
        )
        return 0
    out = console()
    for sign, controls in (("-", removed), ("+", added)):
        for control in controls:
            out.print(f"{sign} {describe(control)}", markup=False)
    if not added and not removed:
        out.print("the same controls", markup=False)
    if times[0] is None or times[1] is None:
        out.print("what it costs is not known: give the workload and --device", markup=False)
    else:
        change = 100.0 * (times[1] / times[0] - 1.0)
        out.print(f"{times[0]:.3f} ms with A, {times[1]:.3f} ms with B: {change:+.1f} % (predicted)", markup=False)
    return 0


def _times(options: argparse.Namespace, old: Plan, new: Plan) -> tuple[float | None, float | None]:
    if not options.inputs:
        same = old.made_for == new.made_for and old.made_for is not None
        written = (old.predicted, new.predicted)
        return tuple(item.t_plan_ms if item and same else None for item in written)  # type: ignore[return-value]
    subject = _subject(options)
    if isinstance(subject, _NothingToPlan):
        raise UnsupportedError(f"the plans cannot be compared on these traces: {subject.why}")
    dispatch = DISPATCHES[options.dispatch] if options.dispatch else None

    def time_ms(controls: tuple[Control, ...]) -> float:
        return round(score(subject.workload, subject.device, controls, dispatch=dispatch).t_ns / 1e6, 6)

    return time_ms(old.controls), time_ms(new.controls)
