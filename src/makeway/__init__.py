"""makeway makes room for communication on a busy GPU."""

from makeway.collective import CommFootprint, load_footprint
from makeway.control import Control, parse_control
from makeway.device import Device, SmLimits, load_device
from makeway.errors import MakewayError
from makeway.kernel import KernelResources, parse_resources
from makeway.presets import load_preset
from makeway.residency import blocks_beside, pad_range, resident_blocks
from makeway.room import RoomAnswer, make_room, verdict
from makeway.workload import Workload, WorkloadBuilder, load_workload

__version__ = "0.1.0"

__all__ = [
    "CommFootprint",
    "Control",
    "Device",
    "KernelResources",
    "MakewayError",
    "RoomAnswer",
    "SmLimits",
    "Workload",
    "WorkloadBuilder",
    "__version__",
    "blocks_beside",
    "load_device",
    "load_footprint",
    "load_preset",
    "load_workload",
    "make_room",
    "pad_range",
    "parse_control",
    "parse_resources",
    "resident_blocks",
    "verdict",
]
