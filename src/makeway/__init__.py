"""makeway makes room for communication on a busy GPU.

One function per question, one value per answer; each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from makeway.act.doctor.calibrate import CalibratedDevice, calibrate
    from makeway.act.doctor.checkup import Checkup, doctor
    from makeway.act.export.targets import export
    from makeway.act.export.values import Export
    from makeway.act.launch.compare_run import RunComparison, compare_run
    from makeway.act.launch.record import Recording, record
    from makeway.act.launch.run import DryRun, Run, dry_run, run
    from makeway.act.launch.tune_run import tune_run
    from makeway.act.launch.tuned import RunTuning
    from makeway.act.measure.bench import bench
    from makeway.act.measure.demo import Demo, demo
    from makeway.act.measure.experiment import Experiments
    from makeway.act.measure.job import Job
    from makeway.act.measure.outcome import Bench
    from makeway.decide.analysis.analyze import Analysis, analysis_of, analyze
    from makeway.decide.analysis.compare import Comparison, compare
    from makeway.decide.planning.difference import PlanDifference, compare_plans
    from makeway.decide.planning.planner import plan
    from makeway.decide.planning.recorded import NothingToPlan, plan_recorded
    from makeway.decide.scale.from_trace import ScaledRecording, scale_recorded
    from makeway.decide.scale.outcome import ScaleCurve, Scaled
    from makeway.decide.scale.scale import scale
    from makeway.decide.scale.step import predict_step
    from makeway.decide.scale.sweep import sweep_gpus
    from makeway.decide.validation import validate
    from makeway.model.presets import load_preset
    from makeway.model.residency import blocks_beside, pad_range, resident_blocks
    from makeway.model.room import RoomAnswer, make_room, verdict
    from makeway.model.simulate.predict import Prediction, simulate
    from makeway.model.simulate.sweep import Sweep, sweep
    from makeway.model.validate.run import Validation
    from makeway.read.binaries.inspect import Inspection, inspect
    from makeway.read.plan_file import dump_plan, load_plan
    from makeway.read.presets import load_cluster, load_model
    from makeway.read.workload_file import load_workload
    from makeway.show.report import report_of
    from makeway.values.cluster import Cluster
    from makeway.values.collective import CommFootprint, load_footprint
    from makeway.values.control import Control, control_word, parse_control
    from makeway.values.device import Device, DeviceList, SmLimits, known_devices, load_device
    from makeway.values.errors import MakewayError
    from makeway.values.kernel import KernelResources, parse_resources
    from makeway.values.layout import Layout
    from makeway.values.layout_word import parse_layout
    from makeway.values.model import Model
    from makeway.values.plan import Plan, Search, parse_controls
    from makeway.values.receipt import Receipt
    from makeway.values.step import Step
    from makeway.values.timeline import Timeline
    from makeway.values.workload import Workload, WorkloadBuilder

__version__ = "0.2.0"

_HOMES = {
    "Analysis": "decide.analysis.analyze",
    "Bench": "act.measure.outcome",
    "CalibratedDevice": "act.doctor.calibrate",
    "Checkup": "act.doctor.checkup",
    "Cluster": "values.cluster",
    "CommFootprint": "values.collective",
    "Comparison": "decide.analysis.compare",
    "Control": "values.control",
    "Demo": "act.measure.demo",
    "Device": "values.device",
    "DeviceList": "values.device",
    "DryRun": "act.launch.run",
    "Experiments": "act.measure.experiment",
    "Export": "act.export.values",
    "Inspection": "read.binaries.inspect",
    "Job": "act.measure.job",
    "KernelResources": "values.kernel",
    "Layout": "values.layout",
    "MakewayError": "values.errors",
    "Model": "values.model",
    "NothingToPlan": "decide.planning.recorded",
    "Plan": "values.plan",
    "PlanDifference": "decide.planning.difference",
    "Prediction": "model.simulate.predict",
    "Receipt": "values.receipt",
    "Recording": "act.launch.record",
    "RoomAnswer": "model.room",
    "Run": "act.launch.run",
    "RunComparison": "act.launch.compare_run",
    "RunTuning": "act.launch.tuned",
    "ScaleCurve": "decide.scale.outcome",
    "Scaled": "decide.scale.outcome",
    "ScaledRecording": "decide.scale.from_trace",
    "Search": "values.plan",
    "SmLimits": "values.device",
    "Step": "values.step",
    "Sweep": "model.simulate.sweep",
    "Timeline": "values.timeline",
    "Validation": "model.validate.run",
    "Workload": "values.workload",
    "WorkloadBuilder": "values.workload",
    "analysis_of": "decide.analysis.analyze",
    "analyze": "decide.analysis.analyze",
    "bench": "act.measure.bench",
    "blocks_beside": "model.residency",
    "calibrate": "act.doctor.calibrate",
    "compare": "decide.analysis.compare",
    "compare_plans": "decide.planning.difference",
    "compare_run": "act.launch.compare_run",
    "control_word": "values.control",
    "demo": "act.measure.demo",
    "doctor": "act.doctor.checkup",
    "dry_run": "act.launch.run",
    "dump_plan": "read.plan_file",
    "export": "act.export.targets",
    "inspect": "read.binaries.inspect",
    "known_devices": "values.device",
    "load_cluster": "read.presets",
    "load_device": "values.device",
    "load_footprint": "values.collective",
    "load_model": "read.presets",
    "load_plan": "read.plan_file",
    "load_preset": "model.presets",
    "load_workload": "read.workload_file",
    "make_room": "model.room",
    "pad_range": "model.residency",
    "parse_control": "values.control",
    "parse_controls": "values.plan",
    "parse_layout": "values.layout_word",
    "parse_resources": "values.kernel",
    "plan": "decide.planning.planner",
    "plan_recorded": "decide.planning.recorded",
    "predict_step": "decide.scale.step",
    "record": "act.launch.record",
    "report_of": "show.report",
    "resident_blocks": "model.residency",
    "run": "act.launch.run",
    "scale": "decide.scale.scale",
    "scale_recorded": "decide.scale.from_trace",
    "simulate": "model.simulate.predict",
    "sweep": "model.simulate.sweep",
    "sweep_gpus": "decide.scale.sweep",
    "tune_run": "act.launch.tune_run",
    "validate": "decide.validation",
    "verdict": "model.room",
}

__all__ = [
    "Analysis",
    "Bench",
    "CalibratedDevice",
    "Checkup",
    "Cluster",
    "CommFootprint",
    "Comparison",
    "Control",
    "Demo",
    "Device",
    "DeviceList",
    "DryRun",
    "Experiments",
    "Export",
    "Inspection",
    "Job",
    "KernelResources",
    "Layout",
    "MakewayError",
    "Model",
    "NothingToPlan",
    "Plan",
    "PlanDifference",
    "Prediction",
    "Receipt",
    "Recording",
    "RoomAnswer",
    "Run",
    "RunComparison",
    "RunTuning",
    "ScaleCurve",
    "Scaled",
    "ScaledRecording",
    "Search",
    "SmLimits",
    "Step",
    "Sweep",
    "Timeline",
    "Validation",
    "Workload",
    "WorkloadBuilder",
    "__version__",
    "analysis_of",
    "analyze",
    "bench",
    "blocks_beside",
    "calibrate",
    "compare",
    "compare_plans",
    "compare_run",
    "control_word",
    "demo",
    "doctor",
    "dry_run",
    "dump_plan",
    "export",
    "inspect",
    "known_devices",
    "load_cluster",
    "load_device",
    "load_footprint",
    "load_model",
    "load_plan",
    "load_preset",
    "load_workload",
    "make_room",
    "pad_range",
    "parse_control",
    "parse_controls",
    "parse_layout",
    "parse_resources",
    "plan",
    "plan_recorded",
    "predict_step",
    "record",
    "report_of",
    "resident_blocks",
    "run",
    "scale",
    "scale_recorded",
    "simulate",
    "sweep",
    "sweep_gpus",
    "tune_run",
    "validate",
    "verdict",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'makeway' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"makeway.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
