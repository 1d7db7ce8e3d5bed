"""GPUs and drivers as the Linux kernel lists them; loads no driver library and runs no tool.

NVIDIA: /proc/driver/nvidia (driver README, chapter "Using the /proc File System Interface"; MIG User Guide, "Device
Nodes and Capabilities"). AMD: /sys/class/kfd/kfd/topology (Linux kernel, drivers/gpu/drm/amd/amdkfd/kfd_topology.c).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from makeway.values.support import Platform

_UNNAMED = "NVIDIA GPU, name not readable here"
_DEFAULT_PIPES = "tmp/nvidia-mps"  # Multi-Process Service, CUDA_MPS_PIPE_DIRECTORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs of one vendor; a program's variables decide which of them it sees."""

    names: tuple[str, ...] = ()
    driver: str | None = None  # None: no driver, or its version is not readable
    mig_instances: int = 0  # NVIDIA only


def gpu_platform(root: Path = Path("/")) -> Platform | None:
    """The platform of this machine's GPUs, as the kernel lists them; None without one."""
    if nvidia_gpus(root).names:
        return "cuda"
    return "rocm" if amd_gpus(root).names else None


def nvidia_gpus(root: Path = Path("/")) -> Gpus:
    """NVIDIA's GPUs, by name where the driver's files are readable, else by device node."""
    driver = root / "proc/driver/nvidia"
    names = [_model(text(path / "information")) for path in entries(driver / "gpus")]
    if not names:
        names = [_UNNAMED for path in entries(root / "dev") if re.fullmatch(r"nvidia\d+", path.name)]
    version = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", _first_line(driver / "version"))
    instances = [
        path
        for gpu in entries(driver / "capabilities")
        for path in entries(gpu / "mig")
        if re.fullmatch(r"gi\d+", path.name)
    ]
    return Gpus(names=tuple(names), driver=version[0] if version else None, mig_instances=len(instances))


def amd_gpus(root: Path = Path("/")) -> Gpus:
    """AMD's GPUs by architecture and number of compute units."""
    names = []
    for node in entries(root / "sys/class/kfd/kfd/topology/nodes"):
        facts = dict(re.findall(r"^(\w+) (\d+)$", text(node / "properties"), re.M))
        version, simds, per_cu = (
            whole(facts.get(key, "")) or 0 for key in ("gfx_target_version", "simd_count", "simd_per_cu")
        )
        if version and simds:  # a node without SIMDs is a CPU
            names.append(f"{gfx_name(version)}, {simds // max(per_cu, 1)} CUs")
    return Gpus(names=tuple(names), driver=_first_line(root / "sys/module/amdgpu/version") or None)


def gfx_name(version: int) -> str:
    """The architecture behind KFD's number: 90402 is gfx942, 90010 is gfx90a."""
    return f"gfx{version // 10_000}{version // 100 % 100:x}{version % 100:x}"


def mps_pipe(environ: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """The pipe of a Multi-Process Service daemon, if there is one; the daemon may have died since."""
    named = environ.get("CUDA_MPS_PIPE_DIRECTORY")
    pipe = (Path(named) if named else root / _DEFAULT_PIPES) / "control"
    with suppress(OSError):
        return str(pipe) if pipe.exists() else None
    return None


# --- files that may be missing or unreadable ----------------------------------------------------


def text(path: Path) -> str:
    """The content of a file, "" where it is not readable."""
    try:
        return path.read_text(errors="replace")
    except (OSError, ValueError):  # ValueError: not a valid path
        return ""


def whole(word: str) -> int | None:
    """The number in a word, None where it is something else."""
    return int(word) if re.fullmatch(r"\s*[0-9]{1,20}\s*", word) else None


def entries(path: Path) -> Iterator[Path]:
    """The sorted entries of a directory; none where it is not readable."""
    with suppress(OSError):
        yield from sorted(path.iterdir())


def _first_line(path: Path) -> str:
    return next(iter(text(path).splitlines()), "").strip()


def _model(information: str) -> str:
    match = re.search(r"^Model:\s*(\S.*?)\s*$", information, re.M)
    return match[1] if match else _UNNAMED
