"""Run a program on a stand-in driver in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.standin.build import (
    HERE,
    compiled_client,
    cuda_driver,
    environment,
    hip_runtime,
    program_kernels,
    shared_place,
)

from makeway.values.device import load_device

PROGRAMS = HERE / "programs"
CHECKS = HERE / "checks"


def driver_for(device: str) -> Path:
    """The directory with the driver library that a device of that name wants."""
    make = cuda_driver if load_device(device).vendor == "nvidia" else hip_runtime
    return make(shared_place())


def kernels() -> str:
    """The directory with the example programs' kernels."""
    return str(program_kernels(shared_place()))


def run(
    device: str, script: Path, *arguments: str, record: Path | None, refuse: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The finished program; `variables` are set in its environment."""
    env = environment(driver_for(device), device=device, record=record, refuse=refuse)
    env |= {"PYTHONPATH": str(HERE.parents[1]), **variables}
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def answers(device: str, check: str, *arguments: str, record: Path | None = None, **variables: str) -> Any:
    """What a script of tests/standin/checks prints, which is JSON."""
    done = run(device, CHECKS / f"{check}.py", *arguments, record=record, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def storm(device: str, *, threads: int, launches: int, record: Path | None, **variables: str) -> str:
    """What storm.c prints: so many threads of one process, each with so many launches on a stream of its own."""
    driver, name = driver_for(device), "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    client = compiled_client(shared_place(), HERE / "storm.c", driver)
    env = environment(driver, device=device, record=record) | variables
    cubin = f"{kernels()}/{name}.{load_device(device).arch}.cubin"
    command = [str(client), cubin, name, str(threads), str(launches)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True).stdout
