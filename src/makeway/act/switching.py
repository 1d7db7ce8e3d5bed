"""Which controls can be switched inside a running job."""

from __future__ import annotations

from collections.abc import Sequence

from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    Compress,
    Control,
    CopyEngine,
    OwnCores,
    SmemPad,
    SmPartition,
    control_word,
)

_ON_CPU = (CommPriority, SmPartition, OwnCores, CommBlocks, CopyEngine, Chunks, Compress)
WHOLE_RUNS = "compare whole runs (--compare-runs)"


def not_switchable(control: Control, platform: str) -> str | None:
    """Why a control stays as it is while a program runs on GPUs; None when it can be switched."""
    match control:
        case CommBlocks(cluster=cluster) if cluster is not None:
            why = "NCCL reads its clusters when a program starts"
        case CommPriority() if platform == "rocm":
            why = "HIP launches take no priority, the stream must have it"
        case OwnCores():
            why = "it is for ranks that compute on a CPU"
        case SmemPad() | CommPriority() | CommBlocks() | Chunks() | Compress():
            return None
        case _:
            why = "on GPUs it is set when a program starts"
    return f"{control_word(control)} cannot be switched inside a running job: {why}; {WHOLE_RUNS}"


def nothing_to_switch(controls: Sequence[Control]) -> str | None:
    """Why a job on CPU ranks would be the same with these controls as without; None when one can be switched."""
    if not controls or any(isinstance(control, _ON_CPU) for control in controls):
        return None
    named = ", ".join(map(control_word, controls))
    return (
        f"{named}: CPU ranks have nothing to switch for this, and no GPU is seen here; compare on a machine that has "
        "one, or take a plan that `makeway plan RECORDING --for run` makes of this job"
    )
