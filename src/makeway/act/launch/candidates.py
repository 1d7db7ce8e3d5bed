"""What `run --tune` tries: sets of controls that makeway can switch in an unmodified, running program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from makeway.act.doctor.gpus import amd_gpus, nvidia_gpus
from makeway.act.switching import not_switchable
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    Compress,
    Control,
    CopyEngine,
    OwnCores,
    SmPartition,
)
from makeway.values.errors import MakewayError, UnsupportedError
from makeway.values.support import Platform

Sets = tuple[tuple[Control, ...], ...]
# Large buckets: each wakes both ranks. Where ranks share memory, copies through it do more, and trials cost steps.
OVER_NETWORK: Sets = ((CommPriority(), Chunks(8)), (OwnCores(), CommPriority(), Chunks(8)))
_LOSSY = ((Compress("bf16"),), (Compress("fp16"),), (Compress("powersgd"),), (Compress("topk"),))


def candidate_sets(cores: int, first: Sequence[Control] = (), *, allow_lossy: bool = False) -> Sets:
    """What tuning tries on CPU ranks, all of which the carrier brings to an unmodified program; `first` comes first."""
    sets: list[tuple[Control, ...]] = [
        (CommPriority(), CopyEngine()),
        (OwnCores(), CommPriority(), CopyEngine()),
        (OwnCores(), CopyEngine()),  # where priority is refused, or by time slices alone
        (CommPriority(),),  # for ranks on several hosts, too
        (OwnCores(), CommPriority()),
        *OVER_NETWORK,
    ]
    if cores > 2:  # of two cores, one for communication would leave one to two ranks: 60 to 100 % slower
        sets.append((SmPartition(1),))
    if allow_lossy:
        sets += _LOSSY
    return tuple(dict.fromkeys([tuple(first), *sets] if first else sets))


def gpu_candidate_sets(
    platform: Platform, first: Sequence[Control] = (), *, blocks: int | None = None, allow_lossy: bool = False
) -> Sets:
    """What tuning tries on a machine with GPUs: the plan's controls, each of them alone, and what needs no plan.

    `blocks` are the channels that the library takes by itself; None where that is not known, and none are tried. Pads
    name kernels, so they come from a plan only. Not yet run on hardware.
    """
    for control in first:
        if reason := not_switchable(control, platform):
            raise UnsupportedError(f"--tune cannot try the plan: {reason}")
    planned: list[tuple[Control, ...]] = [tuple(first), *((control,) for control in first)] if first else []
    own: list[tuple[Control, ...]] = [(CommPriority(),)] if not_switchable(CommPriority(), platform) is None else []
    own += [(CommBlocks(fewer),) for fewer in _fewer(blocks)]
    own.append((Chunks(4),))
    if allow_lossy:
        own += _LOSSY
    return tuple(dict.fromkeys([*planned, *own]))


def _fewer(blocks: int | None) -> list[int]:
    """Half and a quarter, of at least one block."""
    return [] if blocks is None else [fewer for fewer in (blocks // 2, blocks // 4) if fewer]


def default_channels(platform: Platform, root: Path = Path("/")) -> int | None:
    """Channels that the vendor's library takes by itself on this machine's GPUs; None where that is not known."""
    from makeway.model.simulate.network import comm_facts, number  # 0.2 s to load
    from makeway.values.device import load_device

    try:
        if platform == "rocm":
            facts = comm_facts("rccl", amd_gpus(root).names[0].partition(",")[0])
        else:
            facts = comm_facts("nccl", load_device(nvidia_gpus(root).names[0]).arch)
        return int(number(facts, "default_blocks"))
    except (IndexError, KeyError, MakewayError):
        return None
