"""What a collective costs when blocks move the data: latency, rate on the wire, memory traffic.

The rate is the smaller of what the links carry and what the blocks move together: a hard minimum, as in the ring and
tree model of NCCL's own tuner. Between nodes, links carry less of small messages, and more channels cut them smaller.
Constants are cited facts, keyed by architecture, in data/comm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, assert_never

from makeway.values.collective import Collective
from makeway.values.device import Device
from makeway.values.errors import DataFileError, InputError, UnknownNameError, UnsupportedError, suggestion
from makeway.values.facts import Fact, data_files, parse_toml, read_facts, refuse_unknown
from makeway.values.kernel import MAX_THREADS

PATHS = ("ring-simple", "ring-ll", "ring-ll128", "tree-simple", "nvls-simple", "sendrecv", "generic")
_RCCL_PATHS = ("ring-simple", "sendrecv", "generic")
_DIRECT_KINDS = ("all-to-all", "send-recv")  # sent to each peer as it is: no ring, no tree
_REDUCE_ONLY = ("tree-simple", "nvls-simple")
_NODE_RANKS = 8  # GPUs of one DGX, HGX or OAM board
_NVL72_RANKS = 72  # of a GB200 NVL72 rack, whose switches join all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCost:
    """What a collective takes from links and memory, and its time alone with a given number of blocks."""

    latency_ns: float  # before the first byte: base + hops
    wire_bytes: float  # per rank
    per_block_bytes_per_s: float  # what one block moves on the wire at its thread count
    link_bytes_per_s: float  # what the links of one device carry for this collective, usable
    hbm_bytes_per_wire_byte: float
    assumed: tuple[str, ...]  # the numbers that are assumptions
    step_bytes: float = 0.0  # what a rank sends at once over all channels
    half_rate_bytes: float = 0.0  # message of a channel at which the links reach half their rate; 0: at any size

    def rate_bytes_per_s(self, blocks: int) -> float:
        """Bytes per second on the wire, per rank, with `blocks` resident and nothing beside them."""
        if blocks < 1:
            raise InputError(f"a collective needs at least 1 block, got {blocks}")
        message = self.step_bytes / blocks
        filled = message / (message + self.half_rate_bytes) if self.half_rate_bytes else 1.0
        return min(self.link_bytes_per_s * filled, blocks * self.per_block_bytes_per_s)

    def alone_ns(self, blocks: int) -> float:
        """Time alone on an idle device, all ranks starting together: latency + wire bytes / rate."""
        return self.latency_ns + self.wire_bytes / self.rate_bytes_per_s(blocks) * 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The links of one device inside its node, as one collective uses them."""

    bytes_per_s: float  # all of them together, usable, one direction
    peer_bytes_per_s: float  # to one peer
    hop: str  # "nvlink", "xgmi" or "pcie": the slowest kind of hop
    assumed: tuple[str, ...] = ()


def collective_cost(
    device: Device, collective: Collective, *, path: str = "ring-simple", threads: int | None = None, nodes: int = 1
) -> CollectiveCost:
    """The cost of `collective` on devices like this one, spread evenly over `nodes` nodes.

    `path` is the algorithm and protocol as in a footprint's name; all-to-all and send-recv have only one and accept
    any. Fewer `threads` than the library's own lower a block's rate; more do not raise it.
    """
    facts = library_facts(device)
    path = _chosen_path(device, collective, path, nodes)
    wire = node_wire(device, collective, ranks=_ranks_per_node(collective, nodes))
    link = _across_nodes(wire.bytes_per_s, facts, collective, nodes)
    usable, block, block_key = _path_rates(facts, collective, path, link, nodes)
    full = _full_threads(facts, path)
    given = _default_threads(facts, path, link) if threads is None else _checked_threads(threads)
    kind = collective.kind.replace("-", "_")
    traffic = _traffic_facts()
    return CollectiveCost(
        latency_ns=_latency_ns(facts, collective, path, wire.hop, nodes),
        wire_bytes=collective.wire_bytes,
        per_block_bytes_per_s=block * min(1.0, (given / full) ** number(facts, "thread_exponent")),
        link_bytes_per_s=usable,
        hbm_bytes_per_wire_byte=_hbm_per_wire_byte(collective, path),
        assumed=(
            *wire.assumed,
            *assumptions(facts, [block_key, *(["thread_exponent"] if given < full else [])]),
            *assumptions(facts, ["net_bytes_per_s", "net_half_rate_bytes"] if nodes > 1 else []),
            *assumptions(traffic, ["nvls_passes" if path == "nvls-simple" else kind]),
        ),
        step_bytes=_step_bytes(collective, path),
        half_rate_bytes=number(facts, "net_half_rate_bytes") if nodes > 1 else 0.0,
    )


def _step_bytes(collective: Collective, path: str) -> float:
    """What a rank sends at once over all channels: a ring cuts the buffer by ranks, each of two trees carries half."""
    return collective.size_bytes / (2 if path == "tree-simple" else collective.ranks)


def check_one_node(device: Device, collective: Collective) -> None:
    """Refuse more ranks than one node's links join: the simulator models collectives inside a node."""
    most = _NVL72_RANKS if device.arch == "sm_100" and device.link == "nvlink-switch" else _NODE_RANKS
    if collective.ranks > most:
        raise UnsupportedError(
            f"{collective.kind} over {collective.ranks:,} ranks; the simulator models one node, at most {most} "
            f"{device.name}.\nAsk for 2 to {most} ranks, or give collectives their measured time_ms in a workload "
            "file; `makeway scale` predicts training steps on many nodes."
        )


def default_blocks(device: Device, collective: Collective) -> int:
    """Blocks (channels) that the vendor's library uses by default, in one node.

    As many as its topology search gives, fewer for small messages: NCCL drops blocks until each thread has 64 B.
    On PCIe and bridges about one per 12 GB/s, at least 2.
    """
    facts = library_facts(device)
    wire = node_wire(device, collective, ranks=collective.ranks)
    if "default_blocks" in facts and wire.hop != "pcie":
        most = int(number(facts, "default_blocks"))
    else:
        wanted = math.ceil(wire.bytes_per_s / number(facts, "slow_block_bytes_per_s"))
        most = min(int(number(facts, "slow_blocks_most")), max(2, wanted))
    block_bytes = int(number(facts, "channel_threads") * number(facts, "bytes_per_thread"))
    return min(most, max(1, collective.size_bytes // block_bytes))


def node_wire(device: Device, collective: Collective, *, ranks: int) -> Wire:
    """The links that `collective` uses among `ranks` devices of one node."""
    facts = library_facts(device)
    if ranks == 1:  # one rank per node: all traffic is on the network
        return Wire(bytes_per_s=math.inf, peer_bytes_per_s=math.inf, hop="pcie")
    match device.link:
        case "nvlink-mesh":
            return _nvlink_mesh(device, facts, ranks)
        case "nvlink-switch" | "nvlink-bridge" if device.link == "nvlink-switch" or ranks == 2:
            whole = _links(device) * number(facts, "nvlink_bytes_per_s")
            return Wire(bytes_per_s=whole, peer_bytes_per_s=whole, hop="nvlink")
        case "nvlink-bridge" | "pcie":
            return _pcie(device, facts)
        case "xgmi-mesh":
            return _xgmi_mesh(device, facts, collective, ranks)
        case "loopback":
            raise UnsupportedError(f"{device.name} has no links between devices to model")
        case _:
            assert_never(device.link)


def _nvlink_mesh(device: Device, facts: Mapping[str, Fact], ranks: int) -> Wire:
    # Links to devices outside the group are idle: in a DGX-1 a pair shares up to 2 of a V100's 6 links,
    # a quad uses 4, and all eight use 6.
    link = number(facts, "nvlink_bytes_per_s")
    return Wire(
        bytes_per_s=min(_links(device), ranks) * link,
        peer_bytes_per_s=link,
        hop="nvlink",
        assumed=("The wiring of the NVLink mesh is assumed to be that of a DGX-1.",),
    )


def _pcie(device: Device, facts: Mapping[str, Fact]) -> Wire:
    if device.pcie_bytes_per_s is None:
        raise _missing(device, "pcie_bytes_per_s")
    usable = device.pcie_bytes_per_s * number(facts, "pcie_share")
    return Wire(
        bytes_per_s=usable,
        peer_bytes_per_s=usable,
        hop="pcie",
        assumed=("Devices on PCIe are assumed to share neither a switch port nor a socket link.",),
    )


def _xgmi_mesh(device: Device, facts: Mapping[str, Fact], collective: Collective, ranks: int) -> Wire:
    # One link per peer. Copies to all peers at once and rings in all directions both fill ranks - 1 links.
    links, link = _links(device), number(facts, "xgmi_bytes_per_s")
    if ranks - 1 > links:
        raise UnsupportedError(
            f"{ranks} ranks in one node; the {links} links of {device.name} join at most {links + 1}.\n"
            "Say how many nodes the ranks are spread over."
        )
    if collective.kind == "send-recv":
        used = 1.0
    elif "twin_links" in facts:
        used = _twin_mesh_links(links, int(number(facts, "twin_links")), collective, ranks)
    else:
        used = float(ranks - 1)
    assumed = assumptions(facts, ["xgmi_bytes_per_s"])
    return Wire(bytes_per_s=used * link, peer_bytes_per_s=link, hop="xgmi", assumed=assumed)


def _twin_mesh_links(links: int, twin: int, collective: Collective, ranks: int) -> float:
    # Two dies per package, joined by `twin` links; the rest leave the package. A ring enters a package at one die
    # and leaves at the other, so the twin links bound it; all-to-all is bound by what leaves.
    outside = links - twin
    if ranks == 2:
        return float(twin)
    if collective.kind == "all-to-all":
        return outside * (ranks - 1) / (ranks - 2)
    return float(min(twin, 2 * outside))


def _across_nodes(inside: float, facts: Mapping[str, Fact], collective: Collective, nodes: int) -> float:
    """Usable bytes per second per rank, one NIC per device: rings use all NICs of a node, direct sends their own."""
    if nodes == 1:
        return inside
    nic, local = number(facts, "net_bytes_per_s"), collective.ranks // nodes
    if collective.kind == "send-recv":
        return nic
    if collective.kind == "all-to-all":
        leaving = (collective.ranks - local) / (collective.ranks - 1)
        return min(inside, nic / leaving)
    return min(inside, nic * local)


def _path_rates(
    facts: Mapping[str, Fact], collective: Collective, path: str, link: float, nodes: int
) -> tuple[float, float, str]:
    """What the links carry on this path, what one block moves, and the fact behind the latter."""
    block, by_nodes = number(facts, "block_bytes_per_s"), min(nodes, 3) - 1
    match path:
        case "ring-ll":
            reducing = nodes > 1 or collective.kind == "all-reduce"
            share = number(facts, "ll_reduce_share" if reducing else "ll_copy_share")
            return min(link * share, numbers(facts, "ll_bytes_per_s")[by_nodes]), block * share, "block_bytes_per_s"
        case "ring-ll128":
            return link * number(facts, "ll128_share"), block, "block_bytes_per_s"
        case "tree-simple":
            tree = numbers(facts, "tree_block_bytes_per_s")[by_nodes]
            return link * number(facts, "tree_share"), tree, "tree_block_bytes_per_s"
        case "nvls-simple":
            # The switch adds: fewer bytes pass than 2(n-1)/n of the buffer, so the bus rate exceeds the link's.
            buffer_rate = link * number(facts, "nvls_share") * number(facts, "nvls_ratio")
            bus = buffer_rate * collective.wire_bytes / collective.size_bytes
            return bus, bus / number(facts, "nvls_blocks"), "nvls_blocks"
        case _:
            own = "block_all_to_all_bytes_per_s"
            key = own if collective.kind == "all-to-all" and own in facts else "block_bytes_per_s"
            return link, number(facts, key), key


def _latency_ns(facts: Mapping[str, Fact], collective: Collective, path: str, hop: str, nodes: int) -> float:
    if path == "nvls-simple":
        return number(facts, "nvls_simple_latency_ns")
    name = "ring_simple" if path == "direct" else path.replace("-", "_")
    base, inside = number(facts, f"{name}_base_ns"), number(facts, f"{name}_{hop}_hop_ns")
    between = number(facts, f"{name}_net_hop_ns") if nodes > 1 else inside
    if path == "direct":
        return base + between
    if path == "tree-simple":
        return base + 2 * ((collective.ranks // nodes - 1) * inside + math.floor(math.log2(nodes)) * between)
    twice = 2 if collective.kind == "all-reduce" else 1
    steps = twice * (collective.ranks - 1)
    outside = 0 if nodes == 1 else min(steps, 2 * nodes if twice == 2 else nodes - 1)
    return base + (steps - outside) * inside + outside * between


def _chosen_path(device: Device, collective: Collective, path: str, nodes: int) -> str:
    known = PATHS if device.vendor == "nvidia" else _RCCL_PATHS
    if path not in PATHS:
        raise UnknownNameError(f"no rates known for path {path!r}{suggestion(path, known)}; known: {', '.join(known)}")
    if collective.kind in _DIRECT_KINDS:
        return "direct"
    wrong_kind = path == "sendrecv" or (path in _REDUCE_ONLY and collective.kind != "all-reduce")
    if path not in known or wrong_kind:
        raise UnsupportedError(f"{collective.kind} on {device.name} has no path {path}; use ring-simple.")
    if path == "nvls-simple" and ("nvls_share" not in library_facts(device) or device.link != "nvlink-switch"):
        raise UnsupportedError(f"nvls-simple needs switches that add; {device.name} has none. Use ring-simple.")
    if path == "nvls-simple" and nodes > 1:
        raise UnsupportedError(f"nvls-simple over {nodes} nodes; the model has it in one node only. Use tree-simple.")
    return "ring-simple" if path == "generic" else path


def _full_threads(facts: Mapping[str, Fact], path: str) -> int:
    """Threads at which a block reaches its full rate."""
    return int(number(facts, "ring_simple_threads" if path == "direct" else f"{path.replace('-', '_')}_threads"))


def _default_threads(facts: Mapping[str, Fact], path: str, link: float) -> int:
    slow = "slow_ring_bytes_per_s"
    if path == "ring-simple" and slow in facts and link <= number(facts, slow):
        return int(number(facts, "ring_simple_slow_threads"))
    return _full_threads(facts, path)


def _checked_threads(threads: int) -> int:
    if not 1 <= threads <= MAX_THREADS:
        raise InputError(f"threads must be in 1..{MAX_THREADS:,}, got {threads}")
    return threads


def _ranks_per_node(collective: Collective, nodes: int) -> int:
    if nodes < 1 or collective.ranks % nodes:
        raise InputError(f"{collective.ranks} ranks cannot be spread evenly over {nodes} nodes")
    return collective.ranks // nodes


def _hbm_per_wire_byte(collective: Collective, path: str) -> float:
    traffic = _traffic_facts()
    if path == "nvls-simple":
        return number(traffic, "nvls_passes") * collective.size_bytes / collective.wire_bytes
    return number(traffic, collective.kind.replace("-", "_"))


def _links(device: Device) -> int:
    if device.links is None:
        raise _missing(device, "links")
    return device.links


def _missing(device: Device, key: str) -> UnsupportedError:
    return UnsupportedError(
        f"a collective between {device.name}s over {device.link} needs the fact {key}, which is unknown.\n"
        "Pass a device file of your own that gives it, with `--device FILE.toml`."
    )


def library_facts(device: Device) -> Mapping[str, Fact]:
    """Constants of the vendor's library (NCCL, RCCL) on this device's architecture."""
    if device.vendor == "cpu":
        raise UnsupportedError(f"{device.name} is a CPU host: its collectives have no blocks. Ask about a GPU.")
    return comm_facts("nccl" if device.vendor == "nvidia" else "rccl", device.arch)


@cache
def comm_facts(file: str, arch: str) -> Mapping[str, Fact]:
    """The facts of data/comm/`file`.toml for `arch`: those of all architectures and its own."""
    where = f"{file}.toml"
    document = parse_toml(data_files("comm").joinpath(where).read_bytes(), where=where)
    refuse_unknown(document, ("sources", "facts", "arch"), where=where)
    for name, table in document["arch"].items():
        if arch == name or arch in table.get("serves", []):
            own = {key: entry for key, entry in table.items() if key != "serves"}
            sourced: dict[str, Any] = {"sources": document["sources"], "facts": own}
            return {**read_facts(document, "facts", where=where), **read_facts(sourced, "facts", where=where)}
    raise UnsupportedError(
        f"no communication rates for {arch}; {where} has {', '.join(document['arch'])}.\n"
        "Use a device of one of these architectures."
    )


@cache
def _traffic_facts() -> Mapping[str, Fact]:
    where = "traffic.toml"
    return read_facts(parse_toml(data_files("comm").joinpath(where).read_bytes(), where=where), "facts", where=where)


def number(facts: Mapping[str, Fact], key: str) -> float:
    """The number of a required fact."""
    if key not in facts:
        raise UnsupportedError(f"{key} is not known for this architecture; use another path, link or device.")
    value = facts[key].value
    if isinstance(value, tuple):
        raise DataFileError(f"{key} must be one number, got {value!r}")
    return float(value)


def numbers(facts: Mapping[str, Fact], key: str) -> tuple[int, ...]:
    """The numbers of a required fact."""
    value = facts[key].value
    if not isinstance(value, tuple):
        raise DataFileError(f"{key} must be a list of numbers, got {value!r}")
    return value


def assumptions(facts: Mapping[str, Fact], keys: Iterable[str]) -> tuple[str, ...]:
    """A sentence for each of these facts that is unconfirmed."""
    doubts = ((key, facts[key].unconfirmed) for key in keys)
    return tuple(f"{key.replace('_', ' ')}: {why}." for key, why in doubts if why)
