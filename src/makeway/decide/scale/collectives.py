"""What a collective costs among many GPUs: each network level that it crosses, by algorithm.

Every level takes its share of the bytes at the rate that messages of this size reach. Phases on different levels are
pipelined, but not perfectly. Where the library may choose, the fastest algorithm is taken, as NCCL's own tuner does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from makeway.decide.planning.host import carrier_rates
from makeway.values.cluster import Cluster, Group, Level
from makeway.values.collective import CollectiveKind
from makeway.values.errors import InputError

Algorithm = Literal["ring", "tree", "nvls", "pairwise", "direct"]

# Levels overlap in part: of what a perfect pipeline hides, this share is added. An all-reduce on 4 x 8 B200 takes
# 16.1 ms if levels overlap wholly, 26.3 ms if not at all, 22.05 ms measured (stas00/ml-engineering, network/README.md).
SERIAL_SHARE = 0.6
# Of a link's rate that an all-reduce added up by switches reaches, over its buffer: 480 GB/s of bus bandwidth on
# eight H200 with 450 GB/s each way (stas00/ml-engineering), at 2 x 7/8 bytes on the bus per byte of the buffer.
NVLS_SHARE = 480 / 450 / 1.75
NVLS_LEAST_RANKS = 5  # NCCL's own choice on H200: ring up to 4 GPUs (same source)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """The time of a collective alone, and what it moved."""

    ns: float
    wire_bytes: float  # that one rank sends
    level: str  # the outermost that it crosses
    algorithm: Algorithm
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Hop:
    """One level of a group: how many of its units take part, and the ranks that send from each of them."""

    level: Level
    units: int
    senders: int


@lru_cache(maxsize=65536)
def collective_ns(
    cluster: Cluster,
    kind: CollectiveKind,
    size_bytes: float,
    group: Group,
    *,
    sharing: float = 1,
    algorithm: Algorithm | None = None,
    copies: int = 1,
) -> CollectiveTime:
    """The time of a collective of `group` alone; `size_bytes` as nccl-tests counts it.

    `sharing` groups use the same links at the same time. Without an algorithm, the fastest that is known. Of the
    `copies` of a token in an all-to-all, those for one node or one GPU travel as one.
    """
    if sharing < 1:
        raise InputError(f"at least this group uses its links, got a sharing of {sharing!r}")
    depth = cluster.depth(group)
    if group.size == 1 or size_bytes <= 0:
        return CollectiveTime(ns=0.0, wire_bytes=0.0, level=cluster.levels[0].name, algorithm="direct")
    if cluster.device.vendor == "cpu":
        return _on_host(cluster, kind, size_bytes, group, sharing)
    hops = _hops(cluster, group, depth)
    choices = (algorithm,) if algorithm else _choices(kind, hops, group.size)
    times = {choice: _time_ns(choice, kind, size_bytes, group.size, hops, sharing, copies) for choice in choices}
    fastest = min(times, key=times.__getitem__)
    return CollectiveTime(
        ns=times[fastest],
        wire_bytes=_wire_bytes(kind, size_bytes, group.size),
        level=cluster.levels[depth].name,
        algorithm=fastest,
        assumed=tuple(
            f"{hop.level.name}: {hop.level.oversubscription:g}-fold oversubscribed"
            for hop in hops
            if hop.level.oversubscription > 1
        ),
    )


def _on_host(cluster: Cluster, kind: CollectiveKind, size_bytes: float, group: Group, sharing: float) -> CollectiveTime:
    """Gloo between ranks of one host, at its calibrated costs; all of them share the one link."""
    level = cluster.levels[0]
    senders = (1 if kind == "send-recv" else group.size) * sharing
    wire_bytes = _wire_bytes(kind, size_bytes, group.size)
    if kind == "reduce-scatter":  # torch adds up everything everywhere and keeps a part: the bytes of an all-reduce
        senders *= 2
    ns = carrier_rates(cluster.device, "gloo", kind).alone_ns(wire_bytes, senders, level.bytes_per_s)
    return CollectiveTime(
        ns=ns, wire_bytes=wire_bytes, level=level.name, algorithm="direct" if kind == "send-recv" else "ring"
    )


def _choices(kind: CollectiveKind, hops: tuple[_Hop, ...], ranks: int) -> tuple[Algorithm, ...]:
    if kind == "send-recv":
        return ("direct",)
    if kind == "all-to-all":
        return ("pairwise",)
    if kind != "all-reduce":
        return ("ring",)
    added_up = len(hops) == 1 and hops[0].level.reduces and ranks >= NVLS_LEAST_RANKS
    return ("ring", "tree", "nvls") if added_up else ("ring", "tree")


def _hops(cluster: Cluster, group: Group, depth: int) -> tuple[_Hop, ...]:
    """The levels that a group crosses, inside out; levels inside which it has one rank only are left out."""
    hops, below = [], 1
    for level in cluster.levels[: depth + 1]:
        inside = group.size if level.gpus is None else min(group.size, max(1, level.gpus // group.stride))
        inside = max(inside, below)
        if inside > below:
            hops.append(_Hop(level, -(-inside // below), below))
        below = inside
    if below < group.size:  # ranks that do not fill whole units
        hops.append(_Hop(cluster.levels[depth], -(-group.size // below), below))
    return tuple(hops)


def _wire_bytes(kind: CollectiveKind, size_bytes: float, ranks: int) -> float:
    share = (ranks - 1) / ranks
    return {"all-reduce": 2 * share, "send-recv": 1.0}.get(kind, share) * size_bytes


def _time_ns(
    algorithm: Algorithm,
    kind: CollectiveKind,
    size_bytes: float,
    ranks: int,
    hops: tuple[_Hop, ...],
    sharing: float,
    copies: int,
) -> float:
    phases = [_phase_ns(algorithm, kind, size_bytes, ranks, hop, sharing, copies) for hop in hops]
    longest = max(phases)
    return longest + SERIAL_SHARE * (sum(phases) - longest)


def _phase_ns(
    algorithm: Algorithm, kind: CollectiveKind, size_bytes: float, ranks: int, hop: _Hop, sharing: float, copies: int
) -> float:
    """What one level takes: its latency by steps, its bytes at the rate of messages of this size."""
    level, twice = hop.level, 2 if kind == "all-reduce" else 1
    sent = _wire_bytes(kind, size_bytes, ranks)
    match algorithm:
        case "nvls":
            steps, per_gpu = 2.0, size_bytes / NVLS_SHARE * level.efficiency
        case "tree":
            # Up and down a double binary tree, half of the buffer in each. Of two, each is the root of one tree and a
            # leaf of the other: one half up, one down. Of more, one in the middle of a tree has two children.
            steps = 2.0 * math.ceil(math.log2(hop.units))
            per_gpu = (1.0 if hop.units == 2 else 2.0) * size_bytes / hop.senders
        case "ring":
            steps, per_gpu = float(twice * (hop.units - 1)), sent / hop.senders
        case "pairwise":
            # What stays inside the level below does not pass here. Of uniformly spread copies, the chance that none
            # goes to a given unit is (1 - 1/units) to their number.
            units = ranks / hop.senders
            steps, per_gpu = 1.0, size_bytes / copies * (units - 1) * (1 - (1 - 1 / units) ** copies)
        case "direct":
            steps, per_gpu = 1.0, sent
    rate = level.bytes_per_s * level.efficiency / level.oversubscription / sharing
    filled = size_bytes / (size_bytes + level.half_rate_bytes)
    return steps * level.latency_ns + per_gpu / (rate * filled) * 1e9
