"""A launch as a profiler recorded it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from makeway.values.errors import InvalidKernelError
from makeway.values.kernel import KernelResources, Launch


def recorded_launch(grid: Sequence[Any], block: Sequence[Any], **resources: Any) -> Launch | None:
    """The launch of these sizes; without resources if they are missing or out of range, None if the sizes are."""
    try:
        x, y, z = grid
        launch = Launch(blocks=prod(grid), threads=prod(block), grid=(x, y, z))
    except (InvalidKernelError, TypeError):
        return None
    try:
        return replace(launch, resources=KernelResources(threads=launch.threads, **resources))
    except (InvalidKernelError, TypeError):
        return launch
