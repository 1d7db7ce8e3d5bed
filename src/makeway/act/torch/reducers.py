"""DistributedDataParallel modules whose reducer is replaced between steps: other bucket sizes, a hook or none."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import _compute_bucket_assignment_by_size  # torch.distributed only re-exports it
from torch.nn.parallel import DistributedDataParallel

from makeway.act.cpu.direct import DirectGroup
from makeway.values.units import MIB

Buckets = list[list[int]]  # parameters by number, in the order in which their gradients come


@dataclass(slots=True)
class Known:
    """A module as the program made it, and the shared memory that its ranks took for it."""

    direct: DirectGroup | None
    caps: dict[str, Any]  # its attributes that hold bucket sizes
    chosen: bool  # the program chose the bucket size
    buckets: Buckets | None = None  # of the program's own reducer, once it has laid them out

    def refusal(self, module: DistributedDataParallel) -> str | None:
        """Why this module keeps its reducer; every rank gives the same answer."""
        if module.device_type not in ("cpu", "cuda"):  # on GPUs not yet run on hardware
            return "reducers are replaced on CPUs and GPUs only"
        if module._comm_hooks:
            return "the program registered its own hook for gradients, which stays"
        if module.static_graph or module.mixed_precision is not None or module._use_python_reducer:
            return "a module with a static graph, mixed precision or a Python reducer keeps its reducer"
        if module._delay_all_reduce_all_params or module._join_config.enable:
            return "a module with delayed parameters, or inside a join, keeps its reducer"
        return None

    def rebuild(self, module: DistributedDataParallel, cap_mib: float | None) -> None:
        """A new reducer without a hook, as after unpickling; `cap_mib`: the bucket size, None for the program's.

        A reducer lays out its buckets after its first step, in which it has a single one: nothing overlaps, and more
        than two ranks add up in another order. A new one begins with what the program's own has found.
        """
        untyped: Any = module
        if self.buckets is None:
            self.buckets = _laid_out(module)
        module.reducer._remove_autograd_hooks()
        vars(module).update(self.caps if cap_mib is None else _caps(self.caps, int(cap_mib * MIB)))
        parameters, sparse = untyped._build_params_for_reducer()
        names = untyped._build_debug_param_to_name_mapping(parameters)
        buckets = self.buckets
        if buckets is not None and cap_mib is not None:
            order = [number for bucket in buckets for number in bucket]
            tensors, flags = ([values[number] for number in order] for values in (parameters, sparse))
            buckets = _compute_bucket_assignment_by_size(tensors, [module.bucket_bytes_cap], flags, order)[0]
        with _beginning_with(buckets, module.bucket_bytes_cap):
            untyped._ddp_init_helper(parameters, sparse, names, module.static_graph)


def _laid_out(module: DistributedDataParallel) -> Buckets | None:
    """The buckets that a reducer has laid out after its first step; None where it has not, or torch does not say."""
    untyped: Any = module
    text = untyped._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices")
    return [list(map(int, bucket.split())) for bucket in text.split(",")] if text else None


@contextmanager
def _beginning_with(buckets: Buckets | None, cap: int) -> Iterator[None]:
    """Inside the block a reducer is made with these buckets; None: as torch makes it."""
    if buckets is None:
        yield
        return

    def assigned(*_: Any, **__: Any) -> tuple[Sequence[Sequence[int]], Sequence[int]]:
        return buckets[::-1], [cap] * len(buckets)  # torch turns them round

    name = _compute_bucket_assignment_by_size.__name__
    setattr(dist, name, assigned)
    try:
        yield
    finally:
        setattr(dist, name, _compute_bucket_assignment_by_size)


_CAPS = ("bucket_bytes_cap", "bucket_bytes_cap_default", "_bucket_config")  # the last since torch 2.12


def _caps(before: dict[str, Any], size: int) -> dict[str, Any]:
    """The attributes as if the program had asked for buckets of that size."""
    caps = before | {"bucket_bytes_cap": size, "bucket_bytes_cap_default": False}
    if (config := before.get("_bucket_config")) is not None:
        sizes = {"bucket_bytes_cap": size, "first_bucket_bytes_cap": size, "per_bucket_bytes_caps": ()}
        caps["_bucket_config"] = replace(config, **sizes)
    return caps


class Switched:
    """The modules of a program whose plan may change between steps; `copies`: some setting may copy directly."""

    def __init__(self, *, copies: bool) -> None:
        self.copies = copies
        self._known: weakref.WeakKeyDictionary[DistributedDataParallel, Known] = weakref.WeakKeyDictionary()

    def add(self, module: DistributedDataParallel, direct: DirectGroup | None, *, chosen: bool) -> None:
        caps = {name: vars(module)[name] for name in _CAPS if name in vars(module)}
        self._known[module] = Known(direct, caps, chosen)

    def modules(self) -> Iterator[tuple[DistributedDataParallel, Known]]:
        """In the order in which they were made, which is the same on every rank."""
        yield from list(self._known.items())
