"""makeway makes room for communication on a busy GPU.

One function per question, one value per answer; each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from makeway.act.launch.run import DryRun, Run, dry_run, run
    from makeway.model.presets import load_preset
    from makeway.model.residency import blocks_beside, pad_range, resident_blocks
    from makeway.model.room import RoomAnswer, make_room, verdict
    from makeway.model.simulate.predict import Prediction, simulate
    from makeway.model.simulate.sweep import Sweep, sweep
    from makeway.read.plan_file import load_plan
    from makeway.show.report import report_of
    from makeway.values.collective import CommFootprint, load_footprint
    from makeway.values.control import Control, Plan, parse_control
    from makeway.values.device import Device, SmLimits, load_device
    from makeway.values.errors import MakewayError
    from makeway.values.kernel import KernelResources, parse_resources
    from makeway.values.receipt import Receipt
    from makeway.values.timeline import Timeline
    from makeway.values.workload import Workload, WorkloadBuilder, load_workload

__version__ = "0.1.0"

_HOMES = {
    "CommFootprint": "values.collective",
    "Control": "values.control",
    "Device": "values.device",
    "DryRun": "act.launch.run",
    "KernelResources": "values.kernel",
    "MakewayError": "values.errors",
    "Plan": "values.control",
    "Prediction": "model.simulate.predict",
    "Receipt": "values.receipt",
    "RoomAnswer": "model.room",
    "Run": "act.launch.run",
    "SmLimits": "values.device",
    "Sweep": "model.simulate.sweep",
    "Timeline": "values.timeline",
    "Workload": "values.workload",
    "WorkloadBuilder": "values.workload",
    "blocks_beside": "model.residency",
    "dry_run": "act.launch.run",
    "load_device": "values.device",
    "load_footprint": "values.collective",
    "load_plan": "read.plan_file",
    "load_preset": "model.presets",
    "load_workload": "values.workload",
    "make_room": "model.room",
    "pad_range": "model.residency",
    "parse_control": "values.control",
    "parse_resources": "values.kernel",
    "report_of": "show.report",
    "resident_blocks": "model.residency",
    "run": "act.launch.run",
    "simulate": "model.simulate.predict",
    "sweep": "model.simulate.sweep",
    "verdict": "model.room",
}

__all__ = [
    "CommFootprint",
    "Control",
    "Device",
    "DryRun",
    "KernelResources",
    "MakewayError",
    "Plan",
    "Prediction",
    "Receipt",
    "RoomAnswer",
    "Run",
    "SmLimits",
    "Sweep",
    "Timeline",
    "Workload",
    "WorkloadBuilder",
    "__version__",
    "blocks_beside",
    "dry_run",
    "load_device",
    "load_footprint",
    "load_plan",
    "load_preset",
    "load_workload",
    "make_room",
    "pad_range",
    "parse_control",
    "parse_resources",
    "report_of",
    "resident_blocks",
    "run",
    "simulate",
    "sweep",
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
