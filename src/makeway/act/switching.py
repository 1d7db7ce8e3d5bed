"""Which controls can be switched inside a running job on GPUs."""

from __future__ import annotations

from makeway.values.control import Chunks, CommBlocks, CommPriority, Compress, Control, SmemPad, control_word

WHOLE_RUNS = "compare whole runs (--compare-runs)"


def not_switchable(control: Control, platform: str) -> str | None:
    """Why a control stays as it is while a program runs on GPUs; None when it can be switched."""
    match control:
        case CommBlocks(cluster=cluster) if cluster is not None:
            why = "NCCL reads its clusters when a program starts"
        case CommPriority() if platform == "rocm":
            why = "HIP launches take no priority, the stream must have it"
        case SmemPad() | CommPriority() | CommBlocks() | Chunks() | Compress():
            return None
        case _:
            why = "on GPUs it is set when a program starts"
    return f"{control_word(control)} cannot be switched inside a running job: {why}; {WHOLE_RUNS}"
