"""What the ranks of an unmodified program agree on: only when every rank takes part, and no rank waits long."""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from makeway.act.booted import boot_id
from makeway.act.cpu.cores import Placement, Seat, launched_seat, place_on_host, seat_of
from makeway.act.cpu.direct import DirectGroup
from makeway.values.errors import InputError, MakewayError, UnsupportedError

PATIENCE = timedelta(seconds=30)
_SEATINGS: Counter[str] = Counter()  # by name of the group


def met(group: dist.ProcessGroup, *, number: int, patience: timedelta = PATIENCE) -> DirectGroup:
    """A DirectGroup of the group's ranks, or the same error on all of them.

    Building one takes all ranks, and some may run without a plan. So ranks first sign in at the group's store, and a
    rank that has waited long enough calls it off for all. `number` distinguishes the meetings of one store.
    """
    ranks = dist.get_world_size(group)
    place = place_on_host()
    if place is not None and place[1] < ranks and group is dist.group.WORLD:
        raise UnsupportedError(
            f"copies through shared memory need ranks that share a host: {place[1]} of {ranks} ranks run on this one"
        )
    if not all_present(dist.distributed_c10d._get_process_group_store(group), ranks, f"makeway/{number}", patience):
        raise MakewayError(
            f"not all {ranks} ranks signed in within {patience.total_seconds():g} s to share memory; start every rank "
            "under the same plan"
        )
    return shared_memory(group)


def shared_memory(group: dist.ProcessGroup | None) -> DirectGroup:
    """A DirectGroup whose ranks wait for each other as long as the process group's would; all ranks must call it."""
    group = group if group is not None else (dist.group.WORLD if dist.is_initialized() else None)
    if group is None:
        raise InputError("copies through shared memory need a process group; call init_process_group first")
    timeout = group._get_backend(torch.device("cpu")).options._timeout
    return DirectGroup(group, timeout_s=timeout.total_seconds())


def seated(group: dist.ProcessGroup | None, *, patience: timedelta = PATIENCE) -> Seat:
    """This rank among those of its host that may use the same cores; all ranks of the group must call it.

    Where some do not come, the launcher's word counts, or else all ranks of the group are taken to share a host.
    """
    if not dist.is_initialized():
        return launched_seat((0, 1))
    group = group if group is not None else dist.distributed_c10d._get_default_group()
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    store = dist.distributed_c10d._get_process_group_store(group)
    _SEATINGS[group.group_name] += 1
    key = f"makeway/seats/{_SEATINGS[group.group_name]}"
    mine = Placement(host=boot_id(), cores=tuple(sorted(os.sched_getaffinity(0))))
    store.set(f"{key}/{rank}", msgspec.json.encode(mine).decode())
    if not all_present(store, ranks, key, patience):
        return launched_seat((rank, ranks))
    placements = [msgspec.json.decode(store.get(f"{key}/{other}"), type=Placement) for other in range(ranks)]
    return seat_of(rank, placements)


def all_present(store: Store, ranks: int, key: str, patience: timedelta) -> bool:
    """True when all ranks have signed in; every rank gets the same answer."""
    verdict = f"{key}/verdict"
    if store.add(f"{key}/present", 1) == ranks:
        return bool(store.compare_set(verdict, "", "go") == b"go")
    try:
        store.wait([verdict], patience)
    except (RuntimeError, dist.DistStoreError):
        return bool(store.compare_set(verdict, "", "off") == b"go")
    return bool(store.get(verdict) == b"go")
