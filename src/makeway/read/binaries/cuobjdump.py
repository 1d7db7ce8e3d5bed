"""Kernels as NVIDIA's cuobjdump reports them: for code that makeway cannot unpack, and as a reference in tests."""

from __future__ import annotations

import bisect
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

from makeway.read.binaries.kernels import BinaryKernel
from makeway.values.errors import BinaryError, MissingExtraError

_ARCH = re.compile(r"^arch = (sm_\d+\w*)", re.M)
# A kernel has a parameter bank, CONSTANT[0]; a device function has none.
_KERNEL = re.compile(r"^ Function (\S+):\n\s+REG:(\d+) .*?SHARED:(\d+) .*?CONSTANT\[0\]", re.M)
_TIMEOUT_S = 600


def cuobjdump_path() -> Path | None:
    """The cuobjdump of the PATH or of the nvidia-cuda-cuobjdump package; None without either."""
    if on_path := shutil.which("cuobjdump"):
        return Path(on_path)
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations if spec and spec.submodule_search_locations else ():
        for tool in sorted(Path(root).glob("*/bin/cuobjdump")):
            return tool
    return None


def cuobjdump_kernels(path: Path, *, arch: str | None = None) -> list[BinaryKernel]:
    """Every kernel that `cuobjdump --dump-resource-usage` lists."""
    tool = cuobjdump_path()
    if tool is None:
        raise MissingExtraError("reading this file needs NVIDIA's cuobjdump, which is not installed.", "cuda")
    command = [str(tool), *(["-arch", arch] if arch else []), "--dump-resource-usage", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BinaryError(f"cuobjdump did not finish on {str(path)!r}: {error}") from None
    if done.returncode:
        raise BinaryError(f"cuobjdump cannot read {str(path)!r}: {(done.stderr or done.stdout).strip()[:300]}")
    return _parse(done.stdout, arch)


def _parse(output: str, arch: str | None) -> list[BinaryKernel]:
    marks = list(_ARCH.finditer(output))
    starts = [mark.start() for mark in marks]
    kernels = []
    for match in _KERNEL.finditer(output):
        before = bisect.bisect(starts, match.start())
        kernels.append(
            BinaryKernel(
                name=match[1],
                arch=marks[before - 1][1] if before else arch or "unknown",
                registers=int(match[2]),
                threads=None,
                smem_static_bytes=int(match[3]),
            )
        )
    return kernels
