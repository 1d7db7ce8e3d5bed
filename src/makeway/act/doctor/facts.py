"""The machine as one value, from files and package lists; loads no torch and runs no tool."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from makeway.act.cpu.threads import may_be_realtime, may_be_undone, niceness_of, slice_ns
from makeway.act.doctor.cgroup import Limits, cgroup_limits
from makeway.act.doctor.gpus import Gpus, amd_gpus, mps_pipe, nvidia_gpus, text
from makeway.act.preload.prebuilt import PLACE

PriorityBy = Literal["real-time priority", "niceness", "time slices"]

_VARIABLES = re.compile(
    r"CUDA_(DEVICE_MAX_CONNECTIONS|VISIBLE_DEVICES|LAUNCH_BLOCKING|MODULE_LOADING|MPS_\w+)|RCCL_\w+|NCCL_\w+"
    r"|TORCH_NCCL_\w+|(HIP|ROCR)_VISIBLE_DEVICES|HSA_CU_MASK|GPU_MAX_HW_QUEUES|GLOO_\w+|OMP_NUM_THREADS"
    r"|LD_PRELOAD|MAKEWAY_\w+"
)
_COMPILERS = ("cc", "gcc", "clang")
_LINK_TOOLS = ("unshare", "nsenter", "setpriv", "ip", "tc")
_NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """An installed torch as its version file describes it; it is not loaded."""

    version: str
    cuda: str | None = None  # the CUDA version of the build
    hip: str | None = None
    green_contexts: bool = False  # the module exists; whether the build supports it shows when it is loaded
    symmetric_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine's facts; None where there is nothing, or nothing readable."""

    kernel: str
    python: str
    cores: int
    cgroup: Limits
    shm_free_bytes: int | None
    no_user_namespaces: str | None  # why not; None: they seem allowed
    missing_link_tools: tuple[str, ...]  # needed to pace a link
    compiler: str | None
    priority_by: PriorityBy | None  # how communication threads can get priority
    nvidia: Gpus
    amd: Gpus
    mps: str | None  # the daemon's pipe
    torch: Torch | None
    nccl: str | None  # of its package, which torch's CUDA builds use
    rccl: str | None
    triton: str | None
    cuda_bindings: str | None
    variables: tuple[tuple[str, str], ...]
    shim_prebuilt: bool = False  # this install carries a launch shim for this machine


def look_around(
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    *,
    which: Callable[[str], str | None] = shutil.which,
    version: Callable[[str], str | None] | None = None,
) -> Machine:
    """This machine; `root`, `which` and `version` stand in for its files, tools and packages."""
    version = version or installed
    return Machine(
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        cores=len(os.sched_getaffinity(0)),
        cgroup=cgroup_limits(root),
        shm_free_bytes=_free_bytes(root / "dev/shm"),
        no_user_namespaces=_no_user_namespaces(root),
        missing_link_tools=tuple(tool for tool in _LINK_TOOLS if which(tool) is None),
        compiler=_compiler(environ.get("CC", ""), which),
        priority_by=_priority_by(),
        nvidia=nvidia_gpus(root),
        amd=amd_gpus(root),
        mps=mps_pipe(environ, root),
        torch=_torch(version),
        nccl=next(filter(None, map(version, _NCCL_PACKAGES)), None),
        rccl=_rccl(root),
        triton=version("triton"),
        cuda_bindings=version("cuda-bindings"),
        variables=tuple((name, environ[name]) for name in sorted(environ) if _VARIABLES.fullmatch(name)),
        shim_prebuilt=(root / str(PLACE).lstrip("/") / f"launch-{platform.machine()}.so").is_file(),
    )


def _compiler(cc: str, which: Callable[[str], str | None]) -> str | None:
    """The compiler of the launch shim: CC alone where it is set."""
    return next(filter(None, map(which, cc.split()[:1] or _COMPILERS)), None)


def installed(package: str) -> str | None:
    """The version of an installed package, without loading it; damaged records count as none."""
    try:
        return str(metadata.version(package))
    except Exception:  # whatever a damaged installation raises
        return None


def _torch(version: Callable[[str], str | None]) -> Torch | None:
    """Torch from its version.py, read as text: loading it takes seconds, and may fail."""
    installed_version = version("torch")
    if installed_version is None:
        return None
    source, package = "", None
    with suppress(Exception):  # a damaged installation
        spec = importlib.util.find_spec("torch")
        package = Path(next(iter(spec.submodule_search_locations or ()))) if spec else None
    if package is not None:
        source = text(package / "version.py")
    return Torch(
        version=_assigned(source, "__version__") or installed_version,
        cuda=_assigned(source, "cuda"),
        hip=_assigned(source, "hip"),
        green_contexts=package is not None and (package / "cuda/green_contexts.py").exists(),
        symmetric_memory=package is not None and (package / "distributed/_symmetric_memory").exists(),
    )


def _assigned(source: str, name: str) -> str | None:
    match = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", source, re.M)
    return match[1] if match else None


def _rccl(root: Path) -> str | None:
    header = text(root / "opt/rocm/include/rccl/rccl.h")
    parts = [re.search(rf"#define NCCL_{part}\s+(\d+)", header) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(part[1] for part in parts if part) or None


def _free_bytes(place: Path) -> int | None:
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None


def _no_user_namespaces(root: Path) -> str | None:
    settings = root / "proc/sys"
    if not (root / "proc/self/ns/user").exists():
        return "the kernel has none"
    if text(settings / "user/max_user_namespaces").strip() == "0":
        return "user.max_user_namespaces is 0"
    if os.geteuid() != 0:
        if text(settings / "kernel/unprivileged_userns_clone").strip() == "0":
            return "kernel.unprivileged_userns_clone is 0"
        if text(settings / "kernel/apparmor_restrict_unprivileged_userns").strip() == "1":
            return "kernel.apparmor_restrict_unprivileged_userns is 1"
    return None


def _priority_by() -> PriorityBy | None:
    try:
        if may_be_realtime():
            return "real-time priority"
        if may_be_undone(niceness_of(0)):
            return "niceness"
        return "time slices" if slice_ns(0) is not None else None
    except OSError:
        return None


def cautions(machine: Machine) -> tuple[str, ...]:
    """What prevents overlap whatever the plan says."""
    variables = dict(machine.variables)
    warnings = []
    if variables.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        warnings.append("CUDA_LAUNCH_BLOCKING is set: every launch waits for its kernel, so nothing overlaps; unset it")
    if variables.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        warnings.append("CUDA_DEVICE_MAX_CONNECTIONS=1: all streams share one queue, so work starts in launch order")
    if machine.nvidia.mig_instances:
        warnings.append(
            f"{machine.nvidia.mig_instances} MIG instances: no peer copies between them (MIG User Guide), so "
            "collectives do not leave an instance"
        )
    if machine.mps is not None:
        warnings.append(f"MPS seems to run ({machine.mps}): other programs may share the SMs while you measure")
    if machine.cgroup.cpus is not None and machine.cgroup.cpus < machine.cores:
        warnings.append(
            f"the control group allows {machine.cgroup.cpus:g} of {machine.cores} cores: threads stop when "
            "their time is used up, whatever their priority"
        )
    return tuple(warnings)
