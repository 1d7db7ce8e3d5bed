"""Buffers that NCCL's copy engines can fill, for collectives that the program calls itself. Not yet run on hardware.

What must hold, from NCCL 2.28 on (NCCL, src/ce_coll.cc, `ncclCeImplemented` and `ncclCeAvailable`): all-gather,
all-to-all, gather or scatter; a driver of CUDA 12.5; every rank in one NVLink domain; the zero-CTA policy; and a
symmetric window to receive into, while the buffer that is sent may be any. Where one is missing, NCCL silently uses
blocks. torch calls NCCL's all-to-all only for equal pieces; with split sizes it sends and receives piece by piece
(PyTorch, torch/csrc/cuda/nccl.cpp, `all2all_single_unequal_split`), which copy engines do not carry.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from makeway.act.backend import TORCH_CARRIERS
from makeway.act.cuda.machine import load_torch, symmetric_memory
from makeway.act.cuda.options import group_receipt, overriding
from makeway.act.export.values import Library
from makeway.act.torch.where import where_runs
from makeway.values.control import CopyEngine
from makeway.values.receipt import Receipt
from makeway.values.support import support

ON_CPU = "copy engines belong to GPUs; on CPUs makeway.torch.overlap sends collectives through shared memory"
ON_ROCM = "copy-engine collectives are NCCL's; nothing in RCCL is known to do the same"
NOT_SEEN = "a profile shows whether NCCL took copy engines: then no NCCL kernel runs"
SPLITS = "all_to_all_single with split sizes still uses blocks"


def copy_engine_buffer(
    *sizes: int,
    dtype: Any,
    group: Any | None = None,
    torch: Any | None = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Any, Receipt]:
    """An empty tensor to receive an all-gather or an equal all-to-all into by copy engines, and a receipt.

    A collective call: every rank of the group (None: the default one) asks for the same sizes in the same order. The
    group must have the zero-CTA policy (`init_process_group` with `copy-engine` in the plan). Where copies cannot work,
    the tensor is an ordinary one and the receipt says why; symmetric memory is NCCL's from then on in this process.
    """
    torch = torch or load_torch()
    where = where_runs(group, torch=torch)
    receipt = Receipt(control=CopyEngine(), status="refused", detail=ON_CPU, carrier=TORCH_CARRIERS[where])
    if where == "cpu":
        return torch.empty(sizes, dtype=dtype), replace(receipt, status="no effect")
    group = group if group is not None else torch.distributed.group.WORLD
    device = torch.device("cuda", torch.cuda.current_device())
    reason, held = zero_cta(torch, group, environ)
    if reason is None:
        try:
            return first_window(torch, sizes, dtype, device, group), replace(
                held,
                detail=f"a symmetric window to receive into; {held.detail}; {SPLITS}; {NOT_SEEN}",
                carrier=receipt.carrier,
            )
        except Exception as error:  # torch's or NCCL's, in their own words
            reason = f"no symmetric window: {type(error).__name__}: {error}"
    return torch.empty(sizes, dtype=dtype, device=device), replace(receipt, detail=reason, evidence=held.evidence)


def zero_cta(torch: Any, group: Any, environ: Mapping[str, str]) -> tuple[str | None, Receipt]:
    """Why NCCL would not use copy engines in this group (None: nothing is known to be missing), and its policy."""
    control = CopyEngine()
    version = tuple(torch.cuda.nccl.version()[:3])
    held = group_receipt(torch, group, control, "in the process group")
    rocm = getattr(torch.version, "hip", None) is not None
    reason = ON_ROCM if rocm else support(control, "torch module").refusal("cuda", version)
    if reason is None and held.status != "applied":
        reason = (
            f"{held.detail.partition(';')[0]}: the group needs the zero-CTA policy from its start; make it with "
            "makeway.torch.init_process_group"
        )
    return reason or overriding(control, environ, Library(name="nccl", version=version)), held


def first_window(torch: Any, sizes: tuple[int, ...], dtype: Any, device: Any, group: Any) -> Any:
    """A symmetric window of a group that may have none yet."""
    _symmetric(torch).set_backend("NCCL")  # an error once another kind of symmetric memory was used in this process
    torch.distributed.barrier(group=group)  # a window needs the communicator, which the first collective makes
    return window(torch, sizes, dtype, device, group)


def window(torch: Any, sizes: tuple[int, ...], dtype: Any, device: Any, group: Any) -> Any:
    """A further symmetric window; every rank of the group asks for the same in the same order."""
    module = _symmetric(torch)
    tensor = module.empty(*sizes, dtype=dtype, device=device)
    module.rendezvous(tensor, group)
    if module.get_backend(device) != "NCCL":
        raise RuntimeError(f"symmetric memory is {module.get_backend(device)}'s, not NCCL's")
    return tensor


def _symmetric(torch: Any) -> Any:
    module = symmetric_memory(torch)
    if module is None:
        raise RuntimeError("this torch has no symmetric memory")
    return module
