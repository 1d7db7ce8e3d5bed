"""Streams of a plan: one of high priority for communication, one confined to some SMs for compute.

Not yet run on hardware. Without a GPU there are no streams: both are None then, which `torch.cuda.stream` takes for
"leave the stream as it is".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from makeway.act.cuda.machine import load_torch
from makeway.act.cuda.streams import ConfinedStream, prioritised_stream
from makeway.act.cuda.streams import green_stream as _green_stream
from makeway.act.plans import PlanLike, plan_of
from makeway.act.torch.where import where_runs
from makeway.values.control import CommPriority, SmPartition


def comm_stream(plan: PlanLike, *, torch: Any | None = None) -> Any | None:
    """A stream for the program's own communication, of the highest priority if the plan says so; None without a GPU."""
    torch = torch or load_torch()
    if where_runs(torch=torch) == "cpu":
        return None
    device = torch.cuda.current_device()
    if any(isinstance(control, CommPriority) for control in plan_of(plan).controls):
        return prioritised_stream(torch, device)
    return torch.cuda.Stream(device=device)


@contextmanager
def compute_partition(plan: PlanLike, *, torch: Any | None = None) -> Iterator[ConfinedStream | None]:
    """A stream whose kernels leave the plan's SMs (CUs) to communication; None without a partition or a GPU.

    Only what is launched on the stream inside the block is confined: `with torch.cuda.stream(confined.stream)`.
    """
    torch = torch or load_torch()
    partition = next((control for control in plan_of(plan).controls if isinstance(control, SmPartition)), None)
    where = where_runs(torch=torch)
    if partition is None or where == "cpu":
        yield None
        return
    device = torch.cuda.current_device()
    if where == "cuda":
        with _green_stream(torch, device, partition.comm_sms) as confined:
            yield confined
        return
    from makeway.act.rocm.masks import hip_library, mask_words, masked_stream

    units = torch.cuda.get_device_properties(device).multi_processor_count
    mask = mask_words(partition.comm_sms, units - partition.comm_sms)
    with masked_stream(torch, hip_library(), device, mask) as confined:
        yield confined
