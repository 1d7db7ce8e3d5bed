"""makeway makes room for communication on a busy GPU."""

from makeway.collective import CommFootprint, load_footprint
from makeway.device import Device, SmLimits, load_device
from makeway.errors import MakewayError
from makeway.kernel import KernelResources, parse_resources
from makeway.residency import blocks_beside, pad_range, residency, resident_blocks
from makeway.room import RoomAnswer, make_room, verdict

__version__ = "0.1.0"

__all__ = [
    "CommFootprint",
    "Device",
    "KernelResources",
    "MakewayError",
    "RoomAnswer",
    "SmLimits",
    "__version__",
    "blocks_beside",
    "load_device",
    "load_footprint",
    "make_room",
    "pad_range",
    "parse_resources",
    "residency",
    "resident_blocks",
    "verdict",
]
