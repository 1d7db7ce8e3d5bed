"""`makeway inspect` of libnccl for one architecture against NVIDIA's cuobjdump alone, both as processes.

Goal: at most 1.5 times cuobjdump's time.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

import nvidia.nccl
from timing import interleaved, line

from makeway.read.binaries.cuobjdump import cuobjdump_path


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    library = Path(next(iter(nvidia.nccl.__path__))) / "lib" / "libnccl.so.2"
    tool = cuobjdump_path()
    for arch in ("sm_80", "sm_90"):
        ours = (sys.executable, "-m", "makeway", "inspect", library, "--arch", arch, "--json")
        theirs = (tool, "-arch", arch, "--dump-resource-usage", library)
        seconds = interleaved({"makeway": partial(run, *ours), "cuobjdump": partial(run, *theirs)}, rounds=15)
        print(f"inspect libnccl.so.2, {arch} (whole process)")
        for name, values in seconds.items():
            print(line(name, values))
        ratio = statistics.median(seconds["makeway"]) / statistics.median(seconds["cuobjdump"])
        print(f"makeway / cuobjdump: {ratio:.2f} (goal: at most 1.50)")


if __name__ == "__main__":
    main()
