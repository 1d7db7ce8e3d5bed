"""What a collective costs on copy engines (DMA): no block on any SM, one command per copy.

A copy has four phases: the host writes a command (control), rings the copy engine's doorbell (schedule), the copy
engine moves the bytes (copy), and the host sees its completion flag (sync). Copy engines run in parallel, each runs
its commands in order, and the host submits them in order, so the last command is on the critical path:

    total = commands x control + submissions x schedule + start + bytes of one copy engine / its rate
          + sync + (flags - 1) x poll

Prelaunched commands wait on the copy engine for a flag in memory: control and schedule shrink to one poll.

AMD: a copy engine drives about one link, and two are reserved for the host. NVIDIA: the driver serializes copies of
one direction on one copy engine, however many there are; that one is assumed to fill the links.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import assert_never, get_args

from makeway.model.simulate.network import assumptions, comm_facts, node_wire, number
from makeway.values.collective import Collective
from makeway.values.control import DmaVariant
from makeway.values.device import Device
from makeway.values.errors import InputError, UnsupportedError, suggestion
from makeway.values.facts import Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class DmaCost:
    """Phases of one collective on copy engines, in order on the critical path."""

    control_ns: float
    schedule_ns: float  # prelaunched: until the trigger is seen
    copy_ns: float
    sync_ns: float
    hbm_bytes_per_s: float  # read and written on one device while copying
    copy_engines: int
    assumed: tuple[str, ...]

    @property
    def total_ns(self) -> float:
        return self.control_ns + self.schedule_ns + self.copy_ns + self.sync_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commands:
    """How a variant spends commands and copy engines on one device."""

    commands: int
    submissions: int  # doorbells
    flags: int  # completions the host waits for
    copy_engines: int
    chunks: int  # written by the busiest copy engine
    two_way: bool  # each command writes two places
    reads_per_write: float  # HBM reads for each byte sent


def dma_cost(
    device: Device, collective: Collective, *, variant: DmaVariant = "parallel-copy", prelaunch: bool = False
) -> DmaCost:
    """The cost of `collective` among the devices of one node, moved by their copy engines.

    Variants: one copy per peer on its own copy engine (parallel-copy); one command that writes to two peers (broadcast,
    all-gather only); all copies on one copy engine with one flag (one-engine); one command that exchanges two chunks
    (swap, all-to-all only). A copy engine that writes two places serves two links with somewhat less than its
    bandwidth, so broadcast and swap need half the commands and at large sizes run at 0.44 of parallel copies
    (0.43 published for broadcast).
    """
    _check(collective, variant)
    facts = comm_facts("dma", device.arch)
    # Each copy goes straight to its peer, whatever the collective: the links are used as by an all-to-all.
    direct = collective if collective.kind == "send-recv" else replace(collective, kind="all-to-all")
    wire = node_wire(device, direct, ranks=collective.ranks)
    peers = 1 if collective.kind == "send-recv" else collective.ranks - 1
    plan = _commands(variant, peers, _peer_copy_engines(device, facts))
    chunk_bytes = collective.wire_bytes / peers
    copy_rate = wire.peer_bytes_per_s * (number(facts, "two_way_share") if plan.two_way else 1.0)
    moving_s = max(plan.chunks * chunk_bytes / copy_rate, collective.wire_bytes / wire.bytes_per_s)
    scale = number(facts, "command_scale")
    control_ns, schedule_ns = _lead_ns(facts, plan, prelaunch=prelaunch)
    return DmaCost(
        control_ns=control_ns * scale,
        schedule_ns=schedule_ns * scale,
        copy_ns=number(facts, "start_ns") * scale + moving_s * 1e9,
        sync_ns=(number(facts, "sync_ns") + (plan.flags - 1) * number(facts, "poll_ns")) * scale,
        hbm_bytes_per_s=(1 + plan.reads_per_write) * collective.wire_bytes / moving_s,
        copy_engines=plan.copy_engines,
        assumed=(
            *wire.assumed,
            *assumptions(
                facts, [key for key in ("command_scale", "peer_copy_engines", "host_copy_engines") if key in facts]
            ),
        ),
    )


def _check(collective: Collective, variant: str) -> None:
    if variant not in get_args(DmaVariant):
        raise InputError(f"unknown copy-engine variant {variant!r}{suggestion(variant, get_args(DmaVariant))}")
    if collective.needs_arithmetic:
        raise UnsupportedError(
            f"{collective.kind} cannot run on copy engines: they copy and cannot add.\n"
            "Leave it to SMs, or use all-gather or all-to-all."
        )
    only = {"broadcast": "all-gather", "swap": "all-to-all"}.get(variant)
    if only is not None and collective.kind != only:
        raise UnsupportedError(f"copy-engine={variant} works for {only} only, not for {collective.kind}.")


def _peer_copy_engines(device: Device, facts: Mapping[str, Fact]) -> int:
    if device.copy_engines is None:
        raise UnsupportedError(
            f"how many copy engines {device.name} has is unknown.\n"
            "Give copy_engines in a device file of your own, with `--device FILE.toml`."
        )
    if "peer_copy_engines" in facts:
        return min(device.copy_engines, int(number(facts, "peer_copy_engines")))
    return max(1, device.copy_engines - int(number(facts, "host_copy_engines")))


def _commands(variant: DmaVariant, peers: int, available: int) -> _Commands:
    half = -(-peers // 2)
    match variant:
        case "parallel-copy":
            return _spread(peers, min(peers, available), two_way=False, reads_per_write=1.0)
        case "broadcast":
            paired = peers > 1  # a lone peer gets a plain copy
            return _spread(half, min(half, available), two_way=paired, reads_per_write=half / peers)
        case "swap":
            # Each pair is exchanged by one of its two devices; the busiest has half its pairs, rounded up.
            return _spread(half, min(half, available), two_way=True, reads_per_write=1.0)
        case "one-engine":
            serial = _spread(peers, 1, two_way=False, reads_per_write=1.0)
            return replace(serial, submissions=1, flags=1)
        case _:
            assert_never(variant)


def _spread(commands: int, copy_engines: int, *, two_way: bool, reads_per_write: float) -> _Commands:
    return _Commands(
        commands=commands,
        submissions=commands,
        flags=commands,
        copy_engines=copy_engines,
        chunks=-(-commands // copy_engines) * (2 if two_way else 1),
        two_way=two_way,
        reads_per_write=reads_per_write,
    )


def _lead_ns(facts: Mapping[str, Fact], plan: _Commands, *, prelaunch: bool) -> tuple[float, float]:
    """Control and schedule before the last copy engine starts."""
    if prelaunch:
        return 0.0, number(facts, "poll_ns")
    return plan.commands * number(facts, "control_ns"), plan.submissions * number(facts, "schedule_ns")
