"""`report_of`: any result as a report that `text`, `page` and `json` render."""

from __future__ import annotations

from importlib import import_module

from makeway.show.blocks import Report

# Result type -> the module of this band that shows it. Names, so that showing one result loads no other.
_SHOWN_BY = {
    "Analysis": "analysis",
    "Bench": "bench",
    "CalibratedDevice": "calibrated",
    "Calibration": "checkup",
    "Checkup": "checkup",
    "Comparison": "comparison",
    "Demo": "demo",
    "Device": "devices",
    "DeviceList": "devices",
    "CurveShard": "scale_curve",
    "DryRun": "run",
    "Experiments": "experiment",
    "Export": "export",
    "Inspection": "inspection",
    "JobAnalysis": "job",
    "NothingToPlan": "plan",
    "Plan": "plan",
    "PlanDifference": "plan",
    "Prediction": "prediction",
    "Recording": "recording",
    "RoomAnswer": "residency",
    "Run": "run",
    "RunComparison": "run_comparison",
    "RunTuning": "run_tuning",
    "ScaleValidation": "scale_validation",
    "ScaleCurve": "scale_curve",
    "Scaled": "scale",
    "ScaledRecording": "scale_recorded",
    "ShardFile": "job",
    "Sweep": "prediction",
    "TuningSoFar": "tuning_so_far",
    "Validation": "validation",
}


def report_of(result: object, *, arguments: str = "") -> Report:
    """What `result` shows a reader; `arguments` is the command line that asked for it."""
    module = import_module(f"makeway.show.{_SHOWN_BY[type(result).__name__]}")
    report: Report = module.report(result, arguments=arguments)
    return report
