"""What torch and its GPUs offer here, as one value, and what is missing. Not yet run on hardware.

torch is passed in as a namespace or imported on demand, so that this works on a machine without it.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, replace
from typing import Any, Literal

from makeway.act.cuda.streams import green_refusal
from makeway.values.errors import MissingExtraError, UnsupportedError

Vendor = Literal["nvidia", "amd"]

_BUILDS: dict[Vendor, tuple[str, str]] = {"nvidia": ("cuda", "CUDA"), "amd": ("hip", "ROCm")}
_GPUS: dict[Vendor, tuple[str, str]] = {
    "nvidia": ("NVIDIA GPU", "CUDA_VISIBLE_DEVICES and `nvidia-smi`"),
    "amd": ("AMD GPU", "HIP_VISIBLE_DEVICES and `rocm-smi`"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMachine:
    """One vendor's GPUs as torch sees them; None where that is not known."""

    vendor: Vendor
    torch: str | None = None  # its version
    built: str | None = None  # the CUDA or ROCm version of torch's build
    devices: int = 0
    device: str | None = None  # the current device's name
    sms: int | None = None  # CUs on AMD
    arch: str | None = None  # sm_90, gfx942
    smem_block_bytes: int | None = None  # the most that one block may request
    nccl: tuple[int, ...] | None = None  # RCCL reports NCCL's number too
    green_contexts: bool = False  # with streams
    no_green_contexts: str | None = None  # why not, once torch was asked
    symmetric_memory: bool = False
    triton: bool = False

    @property
    def missing(self) -> str | None:
        """Why no control of this vendor can work here; None when a GPU is ready."""
        runtime, (what, check) = _BUILDS[self.vendor][1], _GPUS[self.vendor]
        if self.torch is None:
            return "torch is not installed"
        if self.built is None:
            return f"torch {self.torch} was built without {runtime}"
        if not self.devices:
            return f"torch {self.torch} sees no {what}; check {check}"
        return None


def load_torch() -> Any:
    """The torch package, or an error that names the extra."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("controls on a GPU need torch, which is not installed.", "torch")
    return importlib.import_module("torch")


def look(vendor: Vendor, torch: Any | None = None) -> GpuMachine:
    """What this machine offers; `torch` stands in for the package."""
    if torch is None:
        if importlib.util.find_spec("torch") is None:
            return GpuMachine(vendor=vendor)
        torch = load_torch()
    built = getattr(torch.version, _BUILDS[vendor][0], None)
    devices = torch.cuda.device_count() if built is not None else 0
    machine = GpuMachine(vendor=vendor, torch=str(torch.__version__), built=built, devices=devices)
    return _described(machine, torch) if devices else machine


def _described(machine: GpuMachine, torch: Any) -> GpuMachine:
    current = torch.cuda.current_device()
    facts = torch.cuda.get_device_properties(current)
    amd = machine.vendor == "amd"
    no_green = None if amd else green_refusal(torch)
    return replace(
        machine,
        device=facts.name,
        sms=facts.multi_processor_count,
        arch=facts.gcnArchName.partition(":")[0] if amd else f"sm_{facts.major}{facts.minor}",
        # HIP has no opt-in limit; torch's type file does not list CUDA's.
        smem_block_bytes=facts.shared_memory_per_block
        if amd
        else getattr(facts, "shared_memory_per_block_optin", None),
        nccl=tuple(torch.cuda.nccl.version()[:3]) if torch.distributed.is_nccl_available() else None,
        green_contexts=not amd and no_green is None,
        no_green_contexts=no_green,
        symmetric_memory=symmetric_memory(torch) is not None,
        triton=importlib.util.find_spec("triton") is not None,
    )


def symmetric_memory(torch: Any) -> Any | None:
    """torch.distributed._symmetric_memory, which torch does not load itself; None where there is none."""
    if hasattr(torch.distributed, "_symmetric_memory") or getattr(torch, "__spec__", None) is None:
        return getattr(torch.distributed, "_symmetric_memory", None)
    try:
        return importlib.import_module("torch.distributed._symmetric_memory")
    except ImportError:
        return None


def require(machine: GpuMachine, what: str) -> None:
    """Raise an error that says what is missing where no GPU is ready."""
    if reason := machine.missing:
        raise UnsupportedError(
            f"{what} was asked for, but {reason}. `makeway doctor` lists what works here; "
            "`--on sim:DEVICE` predicts instead."
        )
