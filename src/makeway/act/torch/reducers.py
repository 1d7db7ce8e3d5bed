"""DistributedDataParallel modules whose reducer is replaced between steps: other bucket sizes, a hook or none."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from makeway.act.cpu.direct import DirectGroup
from makeway.values.units import MIB


@dataclass(frozen=True, slots=True)
class Known:
    """A module as the program made it, and the shared memory that its ranks took for it."""

    direct: DirectGroup | None
    caps: dict[str, Any]  # its attributes that hold bucket sizes
    chosen: bool  # the program chose the bucket size

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
        """A new reducer without a hook, as after unpickling; `cap_mib`: the bucket size, None for the program's."""
        untyped: Any = module
        module.reducer._remove_autograd_hooks()
        vars(module).update(self.caps if cap_mib is None else _caps(self.caps, int(cap_mib * MIB)))
        parameters, sparse = untyped._build_params_for_reducer()
        names = untyped._build_debug_param_to_name_mapping(parameters)
        untyped._ddp_init_helper(parameters, sparse, names, module.static_graph)


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
