"""Plans in a PyTorch program: the same calls on CUDA, ROCm, and CPUs with Gloo.

Names are loaded on first use: the start hook runs while torch itself is being imported, and may load nothing that
needs more of torch than is there by then.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

from makeway.values.errors import MissingExtraError

if TYPE_CHECKING:
    from makeway.act.torch.ddp import prepare_ddp
    from makeway.act.torch.frameworks import lightning_callback, trainer_callback, tune_accelerator
    from makeway.act.torch.fsdp import prepare_fsdp2
    from makeway.act.torch.graphs import shaped_graph
    from makeway.act.torch.groups import init_process_group, process_group_options
    from makeway.act.torch.in_force import InForce, overlap
    from makeway.act.torch.kernels import padded, tiled
    from makeway.act.torch.split import split_all_reduce
    from makeway.act.torch.streams import comm_stream, compute_partition
    from makeway.act.torch.tune import Tuned, tune
    from makeway.act.torch.windows import copy_engine_buffer

__all__ = [
    "InForce",
    "Tuned",
    "comm_stream",
    "compute_partition",
    "copy_engine_buffer",
    "init_process_group",
    "lightning_callback",
    "overlap",
    "padded",
    "prepare_ddp",
    "prepare_fsdp2",
    "process_group_options",
    "shaped_graph",
    "split_all_reduce",
    "tiled",
    "trainer_callback",
    "tune",
    "tune_accelerator",
]

_HOMES = {
    "InForce": "in_force",
    "Tuned": "tune",
    "comm_stream": "streams",
    "compute_partition": "streams",
    "copy_engine_buffer": "windows",
    "init_process_group": "groups",
    "lightning_callback": "frameworks",
    "overlap": "in_force",
    "padded": "kernels",
    "prepare_ddp": "ddp",
    "prepare_fsdp2": "fsdp",
    "process_group_options": "groups",
    "shaped_graph": "graphs",
    "split_all_reduce": "split",
    "tiled": "kernels",
    "trainer_callback": "frameworks",
    "tune": "tune",
    "tune_accelerator": "frameworks",
}

if importlib.util.find_spec("torch") is None:
    raise MissingExtraError("makeway.torch applies plans to torch programs, and torch is not installed.", "torch")


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'makeway.torch' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"makeway.act.torch.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
