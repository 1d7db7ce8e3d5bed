"""Collectives among many GPUs: laws of time and bytes, and the published measurements that the numbers come from."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.decide.scale.collectives import Algorithm, collective_ns
from makeway.decide.scale.rows import plain_cluster
from makeway.values.cluster import Cluster, Group
from makeway.values.collective import CollectiveKind
from makeway.values.device import load_device
from makeway.values.errors import InputError

H100 = plain_cluster(load_device("H100-SXM5-80GB"), node_gpus=8, net_bytes_per_s=50e9)
H200 = plain_cluster(load_device("H200"), node_gpus=8, net_bytes_per_s=50e9)
B200 = plain_cluster(load_device("B200"), node_gpus=8, net_bytes_per_s=50e9)

kinds = st.sampled_from(("all-reduce", "all-gather", "reduce-scatter", "all-to-all"))
sizes = st.integers(1 << 10, 1 << 34)
groups = st.builds(Group, size=st.integers(2, 512), stride=st.sampled_from((1, 2, 4, 8, 64)))


def ns(cluster: Cluster, kind: CollectiveKind, size: float, group: Group, **options: float) -> float:
    return collective_ns(cluster, kind, float(size), group, **options).ns


@given(kinds, sizes, groups)
def test_more_bytes_never_take_less_time(kind: CollectiveKind, size: int, group: Group) -> None:
    assert ns(H100, kind, size, group) <= ns(H100, kind, 2 * size, group)


@given(sizes, groups, st.integers(1, 16))
def test_copies_that_share_a_node_or_a_gpu_travel_as_one(size: int, group: Group, copies: int) -> None:
    apart, merged = ns(H100, "all-to-all", size, group), ns(H100, "all-to-all", size, group, copies=copies)
    assert merged <= apart * (1 + 1e-9)
    assert merged * copies >= apart * (1 - 1e-9)  # at most all copies of a token are one


@given(kinds, sizes, groups, st.floats(1, 8))
def test_groups_that_share_links_are_slower_but_not_slower_than_in_turn(
    kind: CollectiveKind, size: int, group: Group, sharing: float
) -> None:
    alone, shared = ns(H100, kind, size, group), ns(H100, kind, size, group, sharing=sharing)
    assert alone <= shared <= sharing * alone * (1 + 1e-9)


@given(kinds, sizes, groups, st.floats(1, 8))
def test_an_oversubscribed_network_is_never_faster(
    kind: CollectiveKind, size: int, group: Group, factor: float
) -> None:
    inner, outer = H100.levels
    crowded = replace(H100, levels=(inner, replace(outer, oversubscription=factor)))
    assert ns(crowded, kind, size, group) >= ns(H100, kind, size, group)


@given(sizes, st.integers(2, 512))
def test_an_all_reduce_is_at_most_a_scatter_and_a_gather(size: int, ranks: int) -> None:
    group = Group(size=ranks)
    whole = ns(H100, "all-reduce", size, group)
    assert whole <= (ns(H100, "reduce-scatter", size, group) + ns(H100, "all-gather", size, group)) * (1 + 1e-9)


@given(kinds, sizes)
def test_one_rank_exchanges_nothing(kind: CollectiveKind, size: int) -> None:
    assert ns(H100, kind, size, Group(size=1)) == 0


def test_the_latency_of_a_small_all_reduce_grows_with_the_logarithm_of_the_ranks() -> None:
    few, many = (ns(H100, "all-reduce", 4096, Group(size=ranks, stride=8)) for ranks in (64, 4096))
    assert collective_ns(H100, "all-reduce", 4096.0, Group(size=4096, stride=8)).algorithm == "tree"
    assert many - few == pytest.approx(2 * 6 * H100.levels[1].latency_ns)  # six more levels, up and down


def test_ranks_of_one_node_use_all_its_nics_together() -> None:
    one, eight = (
        ns(H100, "all-gather", 1 << 34, Group(size=size, stride=stride)) for size, stride in ((4, 8), (32, 1))
    )
    assert eight < one / 2


def test_switches_add_up_all_reduces_of_more_than_four_gpus() -> None:
    assert collective_ns(H200, "all-reduce", 2.0**34, Group(size=8)).algorithm == "nvls"
    assert collective_ns(H200, "all-reduce", 2.0**34, Group(size=4)).algorithm != "nvls"


# Bus bandwidth in GB/s: stas00/ml-engineering, network/README.md.
@pytest.mark.parametrize(
    ("cluster", "kind", "ranks", "size", "measured"),
    [
        (H200, "all-reduce", 8, 2**34, 482.3),
        (H200, "all-reduce", 8, 2**26, 346.5),
        (H200, "all-gather", 8, 2**34, 361.4),
        (H200, "reduce-scatter", 8, 2**34, 362.9),
        (B200, "all-reduce", 4, 2**33, 673.2),
        (B200, "all-reduce", 8, 2**34, 845.7),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(
    cluster: Cluster, kind: CollectiveKind, ranks: int, size: int, measured: float
) -> None:
    share = (2 if kind == "all-reduce" else 1) * (ranks - 1) / ranks
    predicted = share * size / ns(cluster, kind, size, Group(size=ranks))
    assert predicted == pytest.approx(measured, rel=0.2)


def test_sharing_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="at least this group"):
        ns(H100, "all-reduce", 1 << 20, Group(size=8), sharing=0.5)


def test_between_two_nodes_a_tree_sends_half_of_what_a_ring_does() -> None:
    size, inner_free = 1 << 34, replace(H100, levels=(replace(H100.levels[0], bytes_per_s=1e18), H100.levels[1]))

    def across(gpus: int, algorithm: Algorithm) -> float:
        return collective_ns(inner_free, "all-reduce", float(size), Group(size=gpus), algorithm=algorithm).ns

    assert across(16, "tree") / across(16, "ring") == pytest.approx(16 / 30, rel=0.01)
    assert across(64, "tree") > across(64, "ring")
