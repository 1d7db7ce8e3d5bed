"""makeway makes room for communication on a busy GPU.

One function per question, one value per answer; each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from makeway.act.measure.bench import bench
    from makeway.act.measure.demo import Demo, demo
    from makeway.act.measure.experiment import Experiments
    from makeway.act.measure.job import Job
    from makeway.act.measure.outcome import Bench
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
    from makeway.values.timeline import Timeline
    from makeway.values.workload import Workload, WorkloadBuilder, load_workload

__version__ = "0.1.0"

_HOMES = {
    "Bench": "act.measure.outcome",
    "CommFootprint": "values.collective",
    "Control": "values.control",
    "Demo": "act.measure.demo",
    "Device": "values.device",
    "Experiments": "act.measure.experiment",
    "Job": "act.measure.job",
    "KernelResources": "values.kernel",
    "MakewayError": "values.errors",
    "Plan": "values.control",
    "Prediction": "model.simulate.predict",
    "RoomAnswer": "model.room",
    "SmLimits": "values.device",
    "Sweep": "model.simulate.sweep",
    "Timeline": "values.timeline",
    "Workload": "values.workload",
    "WorkloadBuilder": "values.workload",
    "bench": "act.measure.bench",
    "blocks_beside": "model.residency",
    "demo": "act.measure.demo",
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
    "simulate": "model.simulate.predict",
    "sweep": "model.simulate.sweep",
    "verdict": "model.room",
}

__all__ = [
    "Bench",
    "CommFootprint",
    "Control",
    "Demo",
    "Device",
    "Experiments",
    "Job",
    "KernelResources",
    "MakewayError",
    "Plan",
    "Prediction",
    "RoomAnswer",
    "SmLimits",
    "Sweep",
    "Timeline",
    "Workload",
    "WorkloadBuilder",
    "__version__",
    "bench",
    "blocks_beside",
    "demo",
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
