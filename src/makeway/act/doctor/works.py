"""Which control can work here, by which way in, and if not, why: a function of what was found, nothing else.

The Python API's answers for GPUs are those of the backends; what the environment carries is what `makeway export` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal, assert_never, get_args

from makeway.act.cpu.cores import divided
from makeway.act.cuda.backend import BY_CALLER, CudaBackend
from makeway.act.cuda.machine import GpuMachine
from makeway.act.doctor.facts import Machine
from makeway.act.doctor.gpus import Gpus
from makeway.act.export.nccl import env
from makeway.act.export.values import Library
from makeway.act.rocm.backend import RocmBackend
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Control,
    CopyEngine,
    LaunchOrder,
    SmemPad,
    SmPartition,
    TileChoice,
)
from makeway.values.device import load_device
from makeway.values.errors import UnknownNameError
from makeway.values.plan import Plan

Platform = Literal["cpu", "cuda", "rocm"]
Way = Literal["launcher", "graph", "python", "environment"]
GpuPlatform = Literal["cuda", "rocm"]

# One of each kind, of sizes that any machine that can do it at all can do.
SAMPLES: tuple[Control, ...] = (
    SmemPad(1024),
    TileChoice(64, 64, 32),
    CommPriority(),
    LaunchOrder(),
    CommBlocks(1),
    CommThreads(288),
    SmPartition(1),
    CopyEngine(),
    Chunks(2),
)
_GPU_PARTITION = SmPartition(16)  # divides by 8, the unit of CUDA from Hopper on and of CDNA 3
_NO_TORCH = "torch is not installed: pip install 'makeway[torch]'"
_BUCKETS = "smaller buckets of DistributedDataParallel, where the program chose no size"
_FIXED_GRID = "a collective's blocks and threads must agree between ranks: only its library may set them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Whether one kind of control can work by one way in: how, or why not."""

    platform: Platform
    control: str  # its kind, as plan files name it
    way: Way
    works: bool
    words: str


_Said = tuple[bool, str]


def _yes(words: str) -> _Said:
    return True, words


def _no(words: str) -> _Said:
    return False, words


def answers(machine: Machine) -> tuple[Answer, ...]:
    """Every control on every platform by every way."""
    return tuple(
        Answer(platform=platform, control=type(control).__name__, way=way, works=works, words=words)
        for platform in get_args(Platform)
        for control in SAMPLES
        for way, (works, words) in _by_ways(machine, platform, control)
    )


def _by_ways(machine: Machine, platform: Platform, control: Control) -> Iterator[tuple[Way, _Said]]:
    for way in get_args(Way):
        if platform == "cpu":
            yield way, _on_cpu(machine, control, way)
        else:
            yield way, _on_gpu(machine, platform, control, way)


def absent(machine: Machine, platform: Platform) -> str | None:
    """Why nothing of a platform can work here by any way; None when something might."""
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


# --- this host's processors ----------------------------------------------------------------------


def _on_cpu(machine: Machine, control: Control, way: Way) -> _Said:
    if reason := absent(machine, "cpu"):
        return _no(reason)
    if way == "graph":
        return _no("CPU kernels are not captured in graphs")
    if way == "environment":
        return _no("no variable of torch or Gloo sets it")
    match control:
        case SmPartition(cores):
            if divided(range(machine.cores), cores, rank=0, ranks=1) is None:
                return _no(f"communication on cores of its own needs 2 cores; this process may use {machine.cores}")
            return _yes("affinity of communication threads and of all others")
        case CommPriority():
            if machine.priority_by is None:
                return _no("needs CAP_SYS_NICE, a higher `ulimit -e`, or Linux 6.12")
            return _yes(f"by {machine.priority_by} of threads")
        case CopyEngine() | CommBlocks():
            if not machine.shm_free_bytes:
                return _no("copies between ranks go through /dev/shm, which is missing or full here")
            if isinstance(control, CommBlocks):
                return _yes("threads that copy, beside CopyEngine")
            return _yes("ranks of one host copy through shared memory")
        case Chunks():
            return _yes(_BUCKETS)
        case LaunchOrder():
            return _no(BY_CALLER)
        case CommThreads():
            return _no("a copier on a CPU is one thread; comm-blocks sets their number")
        case SmemPad() | TileChoice():
            return _no("CPU kernels have no shared memory to pad, and their tiles are their library's choice")
        case _:
            assert_never(control)


# --- GPUs ----------------------------------------------------------------------------------------


def _on_gpu(machine: Machine, platform: GpuPlatform, control: Control, way: Way) -> _Said:
    if reason := absent(machine, platform):
        return _no(reason)
    match way:
        case "launcher":
            return _by_launcher(machine, platform, control)
        case "graph":
            return _by_graph(machine, platform, control)
        case "python":
            return _by_python(machine, platform, control)
        case "environment":
            return _by_environment(machine, platform, control)
        case _:
            assert_never(way)


def _by_launcher(machine: Machine, platform: GpuPlatform, control: Control) -> _Said:
    """What `makeway run` does to a program as it is: the launch shim, and variables before the start."""
    match control:
        case SmemPad():
            if machine.compiler is None:
                return _no("the launch shim is compiled on first use, and no C compiler was found (cc, gcc, clang)")
            return _yes("the launch shim adds dynamic shared memory to each launch")
        case CommPriority():
            carried, words = _by_environment(machine, platform, control)
            if machine.compiler is None or platform == "rocm":
                return carried, words
            return _yes(f"the launch shim raises communication kernels; {words}")
        case SmPartition():
            return _no("compute must be launched on the partition's stream: use the Python API")
        case TileChoice() | LaunchOrder() | CommBlocks() | CommThreads() | CopyEngine() | Chunks():
            return _by_environment(machine, platform, control)
        case _:
            assert_never(control)


def _by_graph(machine: Machine, platform: GpuPlatform, control: Control) -> _Said:
    if platform == "rocm":
        return _no("graphs are rewritten through CUDA's API only")
    match control:
        case SmemPad() | CommPriority():
            if machine.cuda_bindings is None:
                return _no("cuda-bindings is not installed: pip install 'makeway[cuda]'")
            what = "dynamic shared memory" if isinstance(control, SmemPad) else "priority"
            return _yes(f"{what} of captured kernel nodes")
        case CommBlocks() | CommThreads():
            return _no(_FIXED_GRID)
        case LaunchOrder() | Chunks():
            return _no("a captured graph keeps its nodes and edges")
        case TileChoice() | SmPartition() | CopyEngine():
            return _no("a captured node keeps its kernel and its context")
        case _:
            assert_never(control)


def _by_environment(machine: Machine, platform: GpuPlatform, control: Control) -> _Said:
    return _carried(_on_device(control), _library(machine, platform))


@cache
def _carried(control: Control, library: Library) -> _Said:
    told = env(Plan(controls=(control,)), library)
    if told.not_carried:
        return _no(told.not_carried[0].reason)
    settings = " ".join(f"{name}={value}" for name, value in told.carried[0].settings)
    return _yes("; ".join(filter(None, (settings, told.carried[0].note))))


_MECHANISMS: dict[type[Control], str] = {
    SmemPad: "launches of Triton kernels",
    TileChoice: "launches of Triton kernels that offer a tile",
    CommPriority: "a process group on a high-priority stream",
    CommBlocks: "CTAs of a process group",
    CommThreads: "set in the environment",
    CopyEngine: "peer copies through symmetric memory; zero-CTA policy of a process group",
    Chunks: _BUCKETS,
}


def _by_python(machine: Machine, platform: GpuPlatform, control: Control) -> _Said:
    if machine.torch is None:
        return _no(_NO_TORCH)
    if isinstance(control, LaunchOrder):
        return _no(BY_CALLER)
    found, control = _gpu_machine(machine, platform), _on_device(control)
    if isinstance(control, SmPartition):
        words = "a compute stream in a green context" if platform == "cuda" else "a compute stream with a CU mask"
        if found.missing is None and found.sms is None and (platform == "rocm" or found.green_contexts):
            return _yes(f"{words}; how many SMs are possible depends on the device, which makeway does not know")
    else:
        words = _MECHANISMS[type(control)]
    reason = _refusal(found, machine.variables, control)
    return _no(reason) if reason else _yes(words)


@cache
def _refusal(found: GpuMachine, variables: tuple[tuple[str, str], ...], control: Control) -> str | None:
    kind = _DescribedCuda if found.vendor == "nvidia" else _DescribedRocm
    return kind(found=found, environ=dict(variables)).refusal(control)


def _on_device(control: Control) -> Control:
    return _GPU_PARTITION if isinstance(control, SmPartition) else control


# --- the backends' own answers, without loading torch --------------------------------------------


@dataclass
class _DescribedCuda(CudaBackend):
    """The backend of a machine that was described, not asked."""

    found: GpuMachine = GpuMachine(vendor="nvidia")  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        self.machine = self.found

    def _without_nccl(self) -> str | None:
        return None  # torch's CUDA builds bring one; which one is known when it is loaded


@dataclass
class _DescribedRocm(RocmBackend):
    found: GpuMachine = GpuMachine(vendor="amd")  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        self.machine = self.found

    def _without_nccl(self) -> str | None:
        return None


def _gpu_machine(machine: Machine, platform: GpuPlatform) -> GpuMachine:
    """What torch would tell, as far as files do. The first GPU stands for all."""
    assert machine.torch is not None
    gpus, built = (machine.nvidia, machine.torch.cuda) if platform == "cuda" else (machine.amd, machine.torch.hip)
    name = gpus.names[0]
    try:
        device = load_device(name)
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
        green_contexts=machine.torch.green_contexts and _at_least(built, (12, 8)),
        symmetric_memory=machine.torch.symmetric_memory,
        triton=machine.triton is not None,
    )


def _library(machine: Machine, platform: GpuPlatform) -> Library:
    if platform == "rocm":
        return Library(name="rccl")
    return Library(name="nccl", version=_numbers(machine.nccl))


def _at_least(version: str | None, least: tuple[int, ...]) -> bool:
    numbers = _numbers(version)
    return numbers is not None and numbers >= least


def _numbers(version: str | None) -> tuple[int, ...] | None:
    parts = [part for part in (version or "").split(".") if part.isdigit()]
    return tuple(map(int, parts)) or None
