"""Which control can work on a machine, by which route, and if not, why: a pure function of the machine's facts.

The support table says what a carrier can do at all; one function per carrier says what this machine lacks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal, assert_never, get_args

from makeway.act.cpu.cores import divided
from makeway.act.cuda.backend import CudaBackend
from makeway.act.cuda.machine import GpuMachine
from makeway.act.doctor.facts import Machine
from makeway.act.doctor.gpus import Gpus
from makeway.act.export.targets import environment
from makeway.act.export.values import Library
from makeway.act.rocm.backend import RocmBackend
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Compress,
    Control,
    CopyEngine,
    LaunchOrder,
    OwnCores,
    SmemPad,
    SmPartition,
    TileChoice,
)
from makeway.values.device import named_device
from makeway.values.errors import UnknownNameError
from makeway.values.plan import Plan
from makeway.values.support import Platform, support

Route = Literal["run", "graph", "python", "environment"]
PLATFORMS: tuple[Platform, ...] = get_args(Platform)
ROUTES: tuple[Route, ...] = get_args(Route)

_ENVIRONMENT = "NCCL environment"
_CARRIERS: dict[Route, dict[Platform, tuple[str, ...]]] = {
    "run": {
        "cpu": ("torch on CPU",),
        "cuda": ("launch shim (CUDA)", _ENVIRONMENT),
        "rocm": ("launch shim (HIP)", _ENVIRONMENT),
    },
    "graph": dict.fromkeys(PLATFORMS, ("CUDA graph",)),
    "python": {"cpu": ("torch on CPU",), "cuda": ("torch on CUDA",), "rocm": ("torch on ROCm",)},
    "environment": dict.fromkeys(PLATFORMS, (_ENVIRONMENT,)),
}

# One of each kind, in sizes that suit any machine.
SAMPLES: tuple[Control, ...] = (
    SmemPad(1024),
    TileChoice(64, 64, 32),
    CommPriority(),
    LaunchOrder(),
    CommBlocks(1),
    CommThreads(288),
    SmPartition(1),
    OwnCores(),
    CopyEngine(),
    Chunks(2),
    Compress("fp16"),
)
_GPU_PARTITION = SmPartition(16)  # a multiple of 8, the unit of CUDA from Hopper on and of CDNA 3
_NO_TORCH = "torch is not installed: pip install 'makeway[torch]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Whether one control can work on one platform by one route: how, or why not."""

    platform: Platform
    control: str  # its name: "partition"
    route: Route
    carrier: str  # of the support table
    works: bool
    detail: str
    proof: str = ""  # what the self-test proved; "": nobody asked


Finding = tuple[bool, str]  # whether it works, and how or why not


def answers(machine: Machine) -> tuple[Answer, ...]:
    """Every control on every platform by every route."""
    return tuple(
        _answer(machine, platform, control, route) for platform in PLATFORMS for control in SAMPLES for route in ROUTES
    )


def _answer(machine: Machine, platform: Platform, control: Control, route: Route) -> Answer:
    """What the route's carriers can do together; a refusal by one that could do it elsewhere counts most."""
    carriers, missing = _CARRIERS[route][platform], absent(machine, platform)
    findings = [(name, _finding(machine, platform, control, name)) for name in carriers] if missing is None else []
    working = [(name, detail) for name, (works, detail) in findings if works]
    if working:
        carrier, detail = working[0][0], "; ".join(detail for _, detail in working)
    else:
        refusals = [(name, detail) for name, (_, detail) in findings] or [(carriers[0], missing or "")]
        carrier, detail = next((each for each in refusals if support(control, each[0]).supported), refusals[0])
    return Answer(
        platform=platform,
        control=control.name,
        route=route,
        carrier=carrier,
        works=bool(working),
        detail=detail,
    )


def _finding(machine: Machine, platform: Platform, control: Control, carrier: str) -> Finding:
    row = support(control, carrier)
    if reason := row.refusal(platform):
        return False, reason
    works, detail = _HERE[carrier](machine, platform, control)
    return works, detail or row.how


def absent(machine: Machine, platform: Platform) -> str | None:
    """Why nothing can work on a platform here; None when something might."""
    match platform:
        case "cpu":
            return _NO_TORCH if machine.torch is None else None
        case "cuda":
            return _no_gpu(machine, machine.nvidia, "NVIDIA", "CUDA_VISIBLE_DEVICES")
        case "rocm":
            return _no_gpu(machine, machine.amd, "AMD", "HIP_VISIBLE_DEVICES")
        case _:
            assert_never(platform)


def _no_gpu(machine: Machine, gpus: Gpus, vendor: str, variable: str) -> str | None:
    if not gpus.names:
        return f"no {vendor} GPU was found"
    if dict(machine.variables).get(variable, "0") in ("", "-1"):
        return f"{variable} hides every {vendor} GPU"
    return None


# --- what a machine lacks for a carrier ------------------------------------------------------------


def _shim_here(machine: Machine, platform: Platform, control: Control) -> Finding:
    if machine.compiler is None and not machine.shim_prebuilt:
        return False, "the launch shim is compiled on first use, and no C compiler was found (cc, gcc, clang)"
    return True, ""


def _graph_here(machine: Machine, platform: Platform, control: Control) -> Finding:
    if machine.cuda_bindings is None:
        return False, "cuda-bindings is not installed: pip install 'makeway[cuda]'"
    return True, ""


def _cpu_here(machine: Machine, platform: Platform, control: Control) -> Finding:
    match control:
        case SmPartition(cores) if divided(range(machine.cores), cores, rank=0, ranks=1) is None:
            return False, f"communication on cores of its own needs 2 cores; this process may use {machine.cores}"
        case OwnCores() if machine.cores < 2:
            return False, f"each of several ranks needs a core; this process may use {machine.cores}"
        case CommPriority() if machine.priority_by is None:
            return False, "needs CAP_SYS_NICE, `ulimit -r 1`, a higher `ulimit -e`, or Linux 6.12"
        case CommPriority():
            return True, f"{machine.priority_by} of threads"
        case CopyEngine() | CommBlocks() if not machine.shm_free_bytes:
            return False, "copies between ranks go through /dev/shm, which is missing or full here"
        case _:
            return True, ""


def _environment_here(machine: Machine, platform: Platform, control: Control) -> Finding:
    return _exported(_on_device(control), _library(machine, platform))


@cache
def _exported(control: Control, library: Library) -> Finding:
    (entry,) = environment(Plan(controls=(control,)), library).entries
    if entry.refusal:
        return False, entry.refusal
    return True, "; ".join(filter(None, (entry.as_text if entry.settings else "", entry.note)))


def _gpu_here(machine: Machine, platform: Platform, control: Control) -> Finding:
    """The back end's own answer, from files alone: torch is not loaded."""
    if machine.torch is None:
        return False, _NO_TORCH
    gpu, control = _gpu_machine(machine, platform), _on_device(control)
    sizes_unknown = gpu.missing is None and gpu.sms is None and (platform == "rocm" or gpu.green_contexts)
    if isinstance(control, SmPartition) and sizes_unknown:
        how = support(control, "torch on CUDA" if platform == "cuda" else "torch on ROCm").how
        return True, f"{how}; how many SMs are possible depends on the device, which makeway does not know"
    reason = _refusal(gpu, machine.variables, control)
    return reason is None, reason or ""


_HERE: dict[str, Callable[[Machine, Platform, Control], Finding]] = {
    "launch shim (CUDA)": _shim_here,
    "launch shim (HIP)": _shim_here,
    "CUDA graph": _graph_here,
    "torch on CPU": _cpu_here,
    "torch on CUDA": _gpu_here,
    "torch on ROCm": _gpu_here,
    _ENVIRONMENT: _environment_here,
}


@cache
def _refusal(gpu: GpuMachine, variables: tuple[tuple[str, str], ...], control: Control) -> str | None:
    kind = _DescribedCuda if gpu.vendor == "nvidia" else _DescribedRocm
    return kind(described=gpu, environ=dict(variables), gemm_bytes=None).refusal(control)


def _on_device(control: Control) -> Control:
    return _GPU_PARTITION if isinstance(control, SmPartition) else control


@dataclass
class _DescribedCuda(CudaBackend):
    """The back end of a machine that is described rather than probed."""

    described: GpuMachine = GpuMachine(vendor="nvidia")  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        self.machine = self.described

    def _without_nccl(self) -> str | None:
        return None  # torch's CUDA builds bring one; which one is known when it is loaded


@dataclass
class _DescribedRocm(RocmBackend):
    described: GpuMachine = GpuMachine(vendor="amd")  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        self.machine = self.described

    def _without_nccl(self) -> str | None:
        return None


def _gpu_machine(machine: Machine, platform: Platform) -> GpuMachine:
    """What torch would report, as far as files say. The first GPU stands for all."""
    assert machine.torch is not None
    gpus, built = (machine.nvidia, machine.torch.cuda) if platform == "cuda" else (machine.amd, machine.torch.hip)
    name = gpus.names[0]
    try:
        device = named_device(name)
    except UnknownNameError:
        device = None
    return GpuMachine(
        vendor="nvidia" if platform == "cuda" else "amd",
        torch=machine.torch.version,
        built=built,
        devices=len(gpus.names),
        device=name,
        sms=device.sms if device else None,
        arch=device.arch if device else None,
        smem_block_bytes=device.sm.smem_block_bytes if device else None,
        nccl=_library(machine, platform).version,
        green_contexts=machine.torch.green_contexts
        and _at_least(built, (12, 8))
        and _at_least(machine.torch.version, (2, 11)),  # before that without streams
        symmetric_memory=machine.torch.symmetric_memory,
        triton=machine.triton is not None,
    )


def _library(machine: Machine, platform: Platform) -> Library:
    if platform == "rocm":
        return Library(name="rccl")
    return Library(name="nccl", version=_numbers(machine.nccl))


def _at_least(version: str | None, least: tuple[int, ...]) -> bool:
    numbers = _numbers(version)
    return numbers is not None and numbers >= least


def _numbers(version: str | None) -> tuple[int, ...] | None:
    parts = [part for part in (version or "").split(".") if part.isdigit()]
    return tuple(map(int, parts)) or None
