"""Laws of what a collective costs when blocks move the data, and a few numbers a reader can check."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from makeway.model.simulate.network import PATHS, collective_cost, comm_facts, default_blocks
from makeway.values.collective import Collective, CollectiveKind
from makeway.values.device import Device, device_names, load_device
from makeway.values.errors import InputError, UnknownNameError, UnsupportedError
from makeway.values.facts import data_files, read_facts

GIB = 1 << 30
H100, A40, B200 = load_device("H100-SXM5-80GB"), load_device("A40"), load_device("B200")
A100, L40S, V100 = load_device("A100-SXM4-80GB"), load_device("L40S"), load_device("V100-SXM2-32GB")
MI250X, MI300X = load_device("MI250X"), load_device("MI300X")
GPUS = [device for device in map(load_device, device_names()) if device.limits]

KINDS: list[CollectiveKind] = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-recv"]
devices = st.sampled_from(GPUS)
collectives = st.builds(
    Collective, kind=st.sampled_from(KINDS), size_bytes=st.integers(1, 1 << 34), ranks=st.integers(2, 8)
)
blocks_counts = st.integers(1, 128)


@given(devices, collectives, blocks_counts, st.integers(1, 1 << 30))
def test_more_bytes_are_never_faster(device: Device, collective: Collective, blocks: int, extra: int) -> None:
    bigger = replace(collective, size_bytes=collective.size_bytes + extra)
    assert collective_cost(device, bigger).alone_ns(blocks) >= collective_cost(device, collective).alone_ns(blocks)


@given(devices, collectives, blocks_counts, blocks_counts)
def test_more_blocks_are_never_slower_alone_inside_a_node(
    device: Device, collective: Collective, one: int, more: int
) -> None:
    cost = collective_cost(device, collective)
    assert cost.alone_ns(one + more) <= cost.alone_ns(one)


def test_between_nodes_more_channels_can_be_slower() -> None:
    """ROCm/rocm-systems PR 9406: 249.4 GB/s with 48 channels, 229.7 with 64, 128 MiB on two MI350X nodes."""
    reduce = Collective(kind="all-reduce", size_bytes=128 << 20, ranks=16)
    cost = collective_cost(load_device("MI350X"), reduce, nodes=2)
    assert 1.0 < cost.rate_bytes_per_s(48) / cost.rate_bytes_per_s(64) < 1.09 * 1.25
    assert cost.rate_bytes_per_s(8) < cost.rate_bytes_per_s(16)  # too few cannot fill the network


@given(devices, collectives, blocks_counts)
def test_the_rate_is_above_neither_links_nor_blocks(device: Device, collective: Collective, blocks: int) -> None:
    cost = collective_cost(device, collective)
    assert 0 < cost.rate_bytes_per_s(blocks) <= cost.link_bytes_per_s
    assert cost.rate_bytes_per_s(blocks) <= blocks * cost.per_block_bytes_per_s


@given(devices, collectives)
def test_usable_link_rates_stay_below_the_raw_rates_of_the_device(device: Device, collective: Collective) -> None:
    raw = max(device.link_bytes_per_s or 0, device.pcie_bytes_per_s or 0)
    assert collective_cost(device, collective).link_bytes_per_s < raw


@given(devices, collectives, blocks_counts)
def test_latency_is_positive_and_bounds_the_time(device: Device, collective: Collective, blocks: int) -> None:
    cost = collective_cost(device, collective)
    assert 0 < cost.latency_ns < cost.alone_ns(blocks)
    assert cost.wire_bytes == collective.wire_bytes


@given(devices, collectives, st.integers(1, 1024), st.integers(1, 1024))
def test_more_threads_never_lower_the_rate_of_a_block(
    device: Device, collective: Collective, one: int, other: int
) -> None:
    few, many = (collective_cost(device, collective, threads=count) for count in sorted((one, other)))
    assert few.per_block_bytes_per_s <= many.per_block_bytes_per_s
    assert many.per_block_bytes_per_s <= collective_cost(device, collective, threads=1024).per_block_bytes_per_s


@given(devices, collectives, st.sampled_from([2, 4, 8]))
def test_leaving_the_node_is_never_faster(device: Device, collective: Collective, nodes: int) -> None:
    # Pairs on a bridge, each board with a card of its own, may beat eight boards that share PCIe.
    assume(device.link != "nvlink-bridge" or 8 // nodes != 2)
    wide = replace(collective, ranks=8)
    one, many = collective_cost(device, wide), collective_cost(device, wide, nodes=nodes)
    assert many.latency_ns >= one.latency_ns
    # Two cards of 100 Gb/s carry what PCIe Gen4 does, but for rounding.
    assert many.link_bytes_per_s <= one.link_bytes_per_s * 1.0001


@given(devices, collectives, st.integers(1, 1 << 30))
def test_the_library_never_takes_fewer_blocks_for_more_bytes(
    device: Device, collective: Collective, extra: int
) -> None:
    bigger = replace(collective, size_bytes=collective.size_bytes + extra)
    assert 1 <= default_blocks(device, collective) <= default_blocks(device, bigger) <= 128


@given(devices, collectives)
def test_memory_traffic_is_two_to_three_bytes_per_wire_byte(device: Device, collective: Collective) -> None:
    assert 2 <= collective_cost(device, collective).hbm_bytes_per_wire_byte <= 3


def test_every_constant_has_a_source() -> None:
    for entry in data_files("comm").iterdir():
        document = tomllib.loads(entry.read_text())
        tables = [document["facts"], *document.get("arch", {}).values()]
        for table in tables:
            own = {key: fact for key, fact in table.items() if key != "serves"}
            assert all(isinstance(fact, dict) and fact.get("source") for fact in own.values()), entry.name
            read_facts({"sources": document["sources"], "facts": own}, "facts", where=entry.name)


def test_every_known_architecture_has_constants_and_names_its_assumptions() -> None:
    for device in GPUS:
        cost = collective_cost(device, Collective(kind="all-reduce", size_bytes=GIB, ranks=2))
        assert cost.assumed
        assert all(sentence.endswith(".") for sentence in cost.assumed)


def bus_bytes_per_s(device: Device, collective: Collective, path: str = "ring-simple") -> float:
    blocks = default_blocks(device, collective)
    return collective.wire_bytes / collective_cost(device, collective, path=path).alone_ns(blocks) * 1e9


@pytest.mark.parametrize(
    ("device", "ranks", "path", "low", "high"),
    [
        (H100, 8, "ring-simple", 330e9, 450e9),
        (H100, 8, "nvls-simple", 430e9, 500e9),  # the switches add: above the links' own rate
        (A100, 8, "ring-simple", 220e9, 240e9),
        (V100, 8, "ring-simple", 100e9, 150e9),
        (MI300X, 8, "generic", 290e9, 336e9),
        (L40S, 4, "ring-simple", 15e9, 24.1e9),
        (A40, 2, "ring-simple", 40e9, 56e9),  # one NVLink bridge
        (A40, 4, "ring-simple", 15e9, 24.1e9),  # bridges join pairs only
    ],
)
def test_bus_bandwidth_of_a_gibibyte_all_reduce_is_plausible(
    device: Device, ranks: int, path: str, low: float, high: float
) -> None:
    collective = Collective(kind="all-reduce", size_bytes=GIB, ranks=ranks)
    assert low <= bus_bytes_per_s(device, collective, path) <= high


def test_a_worked_example_a_reader_can_check() -> None:
    # 18 links x 20.6 GB/s; 14 steps of 3.4 us after 8.4 us; one block moves 36.7 GB/s, so 11 fill the links.
    cost = collective_cost(H100, Collective(kind="all-reduce", size_bytes=8 * 10**9, ranks=8))
    assert cost.link_bytes_per_s == pytest.approx(370.8e9)
    assert cost.latency_ns == pytest.approx(8400 + 14 * 3400)
    assert cost.rate_bytes_per_s(10) == pytest.approx(367e9)
    assert cost.rate_bytes_per_s(11) == cost.link_bytes_per_s
    assert cost.alone_ns(24) == pytest.approx(56_000 + 14e9 / 370.8, rel=1e-6)


def test_a_mesh_uses_one_link_per_peer() -> None:
    rates = [collective_cost(MI300X, Collective(kind="all-gather", size_bytes=GIB, ranks=n)) for n in (2, 4, 8)]
    assert [rate.link_bytes_per_s for rate in rates] == pytest.approx([48e9, 144e9, 336e9])


def test_two_dies_of_a_package_share_four_links() -> None:
    ring, spread = (Collective(kind=kind, size_bytes=GIB, ranks=8) for kind in ("all-reduce", "all-to-all"))
    assert collective_cost(MI250X, ring).link_bytes_per_s == pytest.approx(4 * 36e9)
    assert collective_cost(MI250X, spread).link_bytes_per_s == pytest.approx(3 * 36e9 * 7 / 6)


def test_default_blocks_follow_the_libraries() -> None:
    large = Collective(kind="all-reduce", size_bytes=GIB, ranks=8)
    taken = [default_blocks(device, large) for device in (V100, A100, H100, B200, L40S, MI250X, MI300X)]
    assert taken == [12, 24, 24, 16, 2, 32, 64]
    assert default_blocks(A40, replace(large, ranks=2)) == 4
    assert default_blocks(H100, replace(large, size_bytes=100_000)) == 3  # 512 threads x 64 B each


def test_half_the_threads_move_half_the_bytes() -> None:
    collective = Collective(kind="all-gather", size_bytes=GIB, ranks=8)
    whole, half = collective_cost(H100, collective), collective_cost(H100, collective, threads=272)
    assert half.per_block_bytes_per_s == pytest.approx(whole.per_block_bytes_per_s / 2)
    assert any("thread exponent" in sentence for sentence in half.assumed)
    assert not any("thread exponent" in sentence for sentence in whole.assumed)


def test_rings_over_nodes_use_all_network_cards_and_all_to_all_its_own() -> None:
    ring, spread = (Collective(kind=kind, size_bytes=GIB, ranks=16) for kind in ("all-reduce", "all-to-all"))
    assert collective_cost(H100, ring, nodes=2).link_bytes_per_s == pytest.approx(370.8e9)
    assert collective_cost(H100, spread, nodes=2).link_bytes_per_s == pytest.approx(48e9 * 15 / 8)
    assert any("network" in sentence for sentence in collective_cost(H100, ring, nodes=2).assumed)


def test_low_latency_paths_begin_sooner_and_carry_less() -> None:
    collective = Collective(kind="all-reduce", size_bytes=4096, ranks=8)
    quick, plain = (collective_cost(H100, collective, path=path) for path in ("ring-ll", "ring-simple"))
    assert quick.latency_ns < plain.latency_ns
    assert quick.link_bytes_per_s < plain.link_bytes_per_s


# Per path of an all-reduce over eight H100: what links carry, what a block moves, and the latency, by NCCL's tuner.
LINK = 18 * 20.6e9
PATH_FIGURES = {
    "ring-simple": (LINK, 36.7e9, 8_400 + 14 * 3_400),
    "generic": (LINK, 36.7e9, 8_400 + 14 * 3_400),
    "ring-ll": (0.25 * LINK, 0.25 * 36.7e9, 6_600 + 14 * 600),
    "ring-ll128": (0.92 * LINK, 36.7e9, 14_000 + 14 * 1_900),
    "tree-simple": (0.92 * LINK, 38.7e9, 8_400 + 2 * 7 * 4_000),
    "nvls-simple": (0.85 * 0.8333 * LINK * 14 / 8, 0.85 * 0.8333 * LINK * 14 / 8 / 16, 25_000),
}


@pytest.mark.parametrize("path", PATH_FIGURES)
def test_every_path_of_an_all_reduce_has_its_figures(path: str) -> None:
    assert set(PATH_FIGURES) == set(PATHS) - {"sendrecv"}
    cost = collective_cost(H100, Collective(kind="all-reduce", size_bytes=GIB, ranks=8), path=path)
    link, block, latency = PATH_FIGURES[path]
    assert cost.link_bytes_per_s == pytest.approx(link)
    assert cost.per_block_bytes_per_s == pytest.approx(block)
    assert cost.latency_ns == pytest.approx(latency)


def test_two_nodes_add_hops_on_the_network_and_fill_it_by_the_size_of_messages() -> None:
    reduce = Collective(kind="all-reduce", size_bytes=GIB, ranks=16)
    ring, tree = (collective_cost(H100, reduce, path=path, nodes=2) for path in ("ring-simple", "tree-simple"))
    assert ring.latency_ns == pytest.approx(8_400 + 26 * 3_400 + 4 * 14_000)  # 30 steps, four of them between nodes
    assert tree.latency_ns == pytest.approx(8_400 + 2 * (7 * 4_000 + 14_000))
    assert tree.per_block_bytes_per_s == 41.4e9
    gather = collective_cost(H100, replace(reduce, kind="all-gather"), nodes=2)
    assert gather.latency_ns == pytest.approx(8_400 + 14 * 3_400 + 14_000)
    message = GIB / 16 / 24
    assert ring.rate_bytes_per_s(24) == pytest.approx(LINK * message / (message + 262_144))
    pair = collective_cost(H100, Collective(kind="send-recv", size_bytes=GIB, ranks=2), nodes=2)
    assert pair.link_bytes_per_s == 48e9
    assert pair.latency_ns == pytest.approx(8_400 + 14_000)
    low = collective_cost(H100, reduce, path="ring-ll", nodes=2)
    assert low.link_bytes_per_s == 45e9  # NCCL's limit for two nodes


def test_the_links_of_each_kind_of_node() -> None:
    gather = Collective(kind="all-gather", size_bytes=GIB, ranks=8)

    def links(device: Device, ranks: int, kind: CollectiveKind = "all-gather") -> float:
        return collective_cost(device, replace(gather, kind=kind, ranks=ranks)).link_bytes_per_s

    assert [links(V100, ranks) for ranks in (2, 4, 8)] == pytest.approx([40e9, 80e9, 120e9])  # a mesh of six links
    assert links(A40, 2) == pytest.approx(4 * 12e9)  # one bridge
    assert links(A40, 4) == links(A40, 8) == pytest.approx(0.7619 * (A40.pcie_bytes_per_s or 0))
    assert [links(MI250X, 2), links(MI250X, 4)] == pytest.approx([4 * 36e9, 4 * 36e9])
    assert links(MI250X, 4, "all-to-all") == pytest.approx(3 * 36e9 * 3 / 2)
    assert links(MI300X, 8, "send-recv") == pytest.approx(48e9)


@pytest.mark.parametrize(
    ("device", "kind", "path", "said"),
    [
        (load_device("CPU-host"), "all-reduce", "ring-simple", "CPU host"),
        (replace(H100, links=None), "all-reduce", "ring-simple", "needs the fact links"),
        (replace(L40S, pcie_bytes_per_s=None), "all-reduce", "ring-simple", "needs the fact pcie_bytes_per_s"),
        (replace(H100, arch="sm_61"), "all-reduce", "ring-simple", "rates for sm_61; .* has sm_70"),
        (H100, "all-gather", "tree-simple", "all-gather on H100-SXM5-80GB has no path tree-simple"),
        (A100, "all-reduce", "nvls-simple", "switches that add"),
        (MI300X, "all-reduce", "ring-ll", "use ring-simple"),
    ],
)
def test_what_is_not_known_is_refused(device: Device, kind: CollectiveKind, path: str, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        collective_cost(device, Collective(kind=kind, size_bytes=GIB, ranks=8), path=path)


def test_bad_requests_say_what_was_asked() -> None:
    collective = Collective(kind="all-reduce", size_bytes=GIB, ranks=8)
    with pytest.raises(UnknownNameError, match="did you mean 'ring-simple'"):
        collective_cost(H100, collective, path="ring-simpel")
    with pytest.raises(InputError, match="8 ranks cannot be spread evenly over 3 nodes"):
        collective_cost(H100, collective, nodes=3)
    with pytest.raises(InputError, match="threads must be in"):
        collective_cost(H100, collective, threads=0)
    with pytest.raises(InputError, match="at least 1 block"):
        collective_cost(H100, collective).alone_ns(0)
    with pytest.raises(UnsupportedError, match="join at most 8"):
        collective_cost(MI300X, replace(collective, ranks=16))
    with pytest.raises(UnsupportedError, match="over 2 nodes"):
        collective_cost(H100, replace(collective, ranks=16), path="nvls-simple", nodes=2)


def test_facts_of_all_architectures_are_readable() -> None:
    for device in GPUS:
        assert comm_facts("dma", device.arch)


def test_a_ring_cuts_its_messages_by_ranks_and_a_tree_does_not() -> None:
    few, many = (Collective(kind="all-reduce", size_bytes=256 << 20, ranks=ranks) for ranks in (64, 4096))
    ring = [collective_cost(H100, each, nodes=each.ranks // 8).step_bytes for each in (few, many)]
    tree = [collective_cost(H100, each, path="tree-simple", nodes=each.ranks // 8).step_bytes for each in (few, many)]
    assert ring[0] == 64 * ring[1]
    assert tree[0] == tree[1] == 128 << 20
