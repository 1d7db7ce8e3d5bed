"""Laws of collectives on copy engines, and the published all-gather table beside the model's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.model.simulate.dma import dma_cost
from makeway.model.simulate.network import comm_facts, number
from makeway.values.collective import Collective, CollectiveKind
from makeway.values.control import DmaVariant
from makeway.values.device import Device, device_names, load_device
from makeway.values.errors import InputError, UnsupportedError

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
MI300X, MI250X, H100 = load_device("MI300X"), load_device("MI250X"), load_device("H100-SXM5-80GB")
GPUS = [device for device in map(load_device, device_names()) if device.limits and device.copy_engines]

WAYS: list[tuple[CollectiveKind, DmaVariant]] = [
    ("all-gather", "parallel-copy"), ("all-gather", "broadcast"), ("all-gather", "one-engine"),
    ("all-to-all", "parallel-copy"), ("all-to-all", "swap"), ("all-to-all", "one-engine"),
    ("send-recv", "parallel-copy"),
]  # fmt: skip
devices = st.sampled_from(GPUS)
ways = st.sampled_from(WAYS)
sizes, ranks_counts = st.integers(1, 1 << 34), st.integers(2, 8)


@given(devices, ways, sizes, st.integers(1, GB), ranks_counts, st.booleans())
def test_more_bytes_are_never_faster(
    device: Device, way: tuple[CollectiveKind, DmaVariant], size: int, extra: int, ranks: int, prelaunch: bool
) -> None:
    kind, variant = way
    small, large = (Collective(kind=kind, size_bytes=count, ranks=ranks) for count in (size, size + extra))
    small_cost = dma_cost(device, small, variant=variant, prelaunch=prelaunch)
    assert small_cost.total_ns <= dma_cost(device, large, variant=variant, prelaunch=prelaunch).total_ns


@given(devices, ways, sizes, ranks_counts, st.integers(1, 16))
def test_more_engines_are_never_slower(
    device: Device, way: tuple[CollectiveKind, DmaVariant], size: int, ranks: int, extra: int
) -> None:
    kind, variant = way
    collective = Collective(kind=kind, size_bytes=size, ranks=ranks)
    richer = replace(device, copy_engines=(device.copy_engines or 0) + extra)
    assert (
        dma_cost(richer, collective, variant=variant).total_ns <= dma_cost(device, collective, variant=variant).total_ns
    )


@given(devices, ways, sizes, ranks_counts)
def test_prelaunch_never_loses_and_changes_neither_copy_nor_engines(
    device: Device, way: tuple[CollectiveKind, DmaVariant], size: int, ranks: int
) -> None:
    kind, variant = way
    collective = Collective(kind=kind, size_bytes=size, ranks=ranks)
    plain = dma_cost(device, collective, variant=variant)
    early = dma_cost(device, collective, variant=variant, prelaunch=True)
    assert early.total_ns < plain.total_ns
    assert (early.copy_ns, early.copy_engines) == (plain.copy_ns, plain.copy_engines)


@given(devices, ways, sizes, ranks_counts)
def test_no_engine_outruns_its_links_or_the_memory(
    device: Device, way: tuple[CollectiveKind, DmaVariant], size: int, ranks: int
) -> None:
    kind, variant = way
    collective = Collective(kind=kind, size_bytes=size, ranks=ranks)
    cost = dma_cost(device, collective, variant=variant)
    raw = max(device.link_bytes_per_s or 0, device.pcie_bytes_per_s or 0)
    assert collective.wire_bytes / cost.copy_ns * 1e9 < raw
    assert 0 < cost.hbm_bytes_per_s <= 2 * raw < (device.hbm_bytes_per_s or 0)
    assert 1 <= cost.copy_engines <= (device.copy_engines or 0)
    assert min(cost.control_ns, cost.schedule_ns, cost.copy_ns, cost.sync_ns) > 0


@given(devices, ways, ranks_counts)
def test_copying_dominates_at_a_gigabyte(device: Device, way: tuple[CollectiveKind, DmaVariant], ranks: int) -> None:
    kind, variant = way
    cost = dma_cost(device, Collective(kind=kind, size_bytes=GB, ranks=ranks), variant=variant)
    assert cost.copy_ns > 0.9 * cost.total_ns


@given(sizes)
def test_a_wider_engine_plan_only_pays_in_commands(size: int) -> None:
    gather = Collective(kind="all-gather", size_bytes=size, ranks=8)
    wide, paired, narrow = (
        dma_cost(MI300X, gather, variant=variant) for variant in ("parallel-copy", "broadcast", "one-engine")
    )
    assert (wide.copy_engines, paired.copy_engines, narrow.copy_engines) == (7, 4, 1)
    assert wide.copy_ns < paired.copy_ns < narrow.copy_ns
    assert wide.sync_ns > paired.sync_ns > narrow.sync_ns
    assert wide.schedule_ns > paired.schedule_ns > narrow.schedule_ns


# AMDResearch/AMD-DMA-Latte (arXiv 2511.06605), all-gather on 8 MI300X: speed-up over parallel copies by gathered bytes.
VARIANTS: list[tuple[DmaVariant, bool]] = [
    ("parallel-copy", True), ("broadcast", False), ("broadcast", True), ("one-engine", False), ("one-engine", True),
]  # fmt: skip
PUBLISHED = {
    1 * KB: (2.87, 1.59, 3.67, 2.58, 4.10),
    128 * KB: (3.48, 2.05, 4.52, 3.07, 4.58),
    1 * MB: (3.22, 1.75, 2.93, 1.56, 1.84),
    4 * MB: (2.29, 1.10, 1.23, 0.61, 0.65),
    16 * MB: (1.54, 0.67, 0.75, 0.27, 0.27),
    64 * MB: (1.11, 0.46, 0.48, 0.17, 0.17),
    256 * MB: (1.03, 0.43, 0.44, 0.15, 0.15),
    1 * GB: (1.02, 0.43, 0.43, 0.15, 0.15),
}
# Share of control, schedule, copy and sync in one GPU-to-GPU copy, percent, same source.
PHASES = {
    1 * KB: (5, 31, 29, 35),
    16 * KB: (4, 30, 33, 33),
    64 * KB: (4, 23, 46, 27),
    128 * KB: (7, 20, 51, 22),
    256 * KB: (3, 17, 62, 18),
    512 * KB: (2, 13, 72, 13),
    1 * MB: (1, 10, 79, 10),
    2 * MB: (1, 5, 89, 5),
    4 * MB: (1, 3, 93, 3),
    8 * MB: (0, 1, 97, 1),
    64 * MB: (0, 0, 100, 0),
}


def speedup(kind: CollectiveKind, size: int, variant: DmaVariant, *, prelaunch: bool) -> float:
    collective = Collective(kind=kind, size_bytes=size, ranks=8)
    faster = dma_cost(MI300X, collective, variant=variant, prelaunch=prelaunch)
    return dma_cost(MI300X, collective).total_ns / faster.total_ns


@pytest.mark.parametrize("size", [size for size in PUBLISHED if size >= 16 * MB])
def test_large_all_gathers_are_within_a_fifth_of_the_published_speedups(size: int) -> None:
    for (variant, prelaunch), published in zip(VARIANTS, PUBLISHED[size], strict=True):
        ours = speedup("all-gather", size, variant, prelaunch=prelaunch)
        assert ours == pytest.approx(published, rel=0.20), (variant, prelaunch)


@pytest.mark.parametrize("size", PUBLISHED)
def test_variants_are_ordered_as_published(size: int) -> None:
    ours = [speedup("all-gather", size, variant, prelaunch=prelaunch) for variant, prelaunch in VARIANTS]
    published = PUBLISHED[size]
    for first in range(len(VARIANTS)):
        for second in range(len(VARIANTS)):
            if published[first] > published[second]:
                assert ours[first] > ours[second], (VARIANTS[first], VARIANTS[second])


MISSED = {(4 * MB, "broadcast", False): "published 1.10 of parallel copies; the model has it slower already, at 0.96"}


@pytest.mark.parametrize(
    ("size", "variant", "prelaunch", "published"),
    [
        pytest.param(
            *(size, variant, prelaunch, published),
            marks=[pytest.mark.xfail(strict=True, reason=MISSED[size, variant, prelaunch])]
            if (size, variant, prelaunch) in MISSED
            else [],
        )
        for size, row in PUBLISHED.items()
        for (variant, prelaunch), published in zip(VARIANTS, row, strict=True)
    ],
)
def test_a_variant_beats_or_loses_to_parallel_copies_as_published(
    size: int, variant: DmaVariant, prelaunch: bool, published: float
) -> None:
    assert (speedup("all-gather", size, variant, prelaunch=prelaunch) > 1) == (published > 1)


@pytest.mark.parametrize("size", PHASES)
def test_phase_shares_of_one_copy_are_within_ten_points_of_the_published_ones(size: int) -> None:
    cost = dma_cost(MI300X, Collective(kind="send-recv", size_bytes=size, ranks=2))
    shares = [100 * part / cost.total_ns for part in (cost.control_ns, cost.schedule_ns, cost.copy_ns, cost.sync_ns)]
    assert shares == pytest.approx(PHASES[size], abs=10)


def test_a_worked_example_a_reader_can_check() -> None:
    # 7 x 0.45 us + 7 x 2.8 us + 2.6 us + 2 MiB / 48 GB/s + 3.1 us + 6 x 0.76 us
    cost = dma_cost(MI300X, Collective(kind="all-gather", size_bytes=16 * MB, ranks=8))
    assert cost.total_ns == pytest.approx(3150 + 19600 + 2600 + 2 * MB / 48 + 3100 + 4560)
    # Each byte sent is read once, each byte that arrives is written once, over seven links.
    assert cost.hbm_bytes_per_s == pytest.approx(2 * 7 * 48e9)


def test_all_to_all_costs_what_all_gather_costs_where_the_commands_are_the_same() -> None:
    for size in PUBLISHED:
        for variant in ("parallel-copy", "one-engine"):
            gather, spread = (
                dma_cost(MI300X, Collective(kind=kind, size_bytes=size, ranks=8), variant=variant)
                for kind in ("all-gather", "all-to-all")
            )
            assert gather.total_ns == spread.total_ns


def test_swap_halves_the_commands_and_loses_when_bytes_rule() -> None:
    assert speedup("all-to-all", KB, "swap", prelaunch=False) > 1.5
    assert speedup("all-to-all", GB, "swap", prelaunch=False) == pytest.approx(0.44, abs=0.01)


def test_an_nvidia_device_sends_to_one_peer_after_another() -> None:
    gather = Collective(kind="all-gather", size_bytes=GB, ranks=8)
    cost = dma_cost(H100, gather)
    assert cost.copy_engines == 1
    assert gather.wire_bytes / cost.copy_ns == pytest.approx(370.8, rel=0.01)
    assert any("NVIDIA" in sentence for sentence in cost.assumed)


def test_few_engines_serve_several_peers_each() -> None:
    # Five engines less two for the host leave three for seven peers: the busiest makes three copies.
    gather = Collective(kind="all-gather", size_bytes=GB, ranks=8)
    cost = dma_cost(MI250X, gather)
    assert cost.copy_engines == 3
    assert cost.copy_ns == pytest.approx(2600 + 3 * GB / 8 / 36)


def test_at_most_six_constants_carry_the_model() -> None:
    facts = comm_facts("dma", "gfx942")
    assert sorted(set(facts) - {"host_copy_engines", "command_scale"}) == [
        "control_ns", "poll_ns", "schedule_ns", "start_ns", "sync_ns", "two_way_share",
    ]  # fmt: skip
    assert number(facts, "command_scale") == 1


@pytest.mark.parametrize(
    ("device", "kind", "variant", "said"),
    [
        (MI300X, "all-reduce", "parallel-copy", "copy and cannot add"),
        (MI300X, "reduce-scatter", "parallel-copy", "copy and cannot add"),
        (MI300X, "all-to-all", "broadcast", "works for all-gather only"),
        (MI300X, "all-gather", "swap", "works for all-to-all only"),
        (
            replace(MI300X, copy_engines=None),
            "all-gather",
            "parallel-copy",
            "how many copy engines MI300X has is unknown",
        ),
        (load_device("CPU-host"), "all-gather", "parallel-copy", "no communication rates for x86_64"),
    ],
)
def test_what_copy_engines_cannot_do_is_refused(
    device: Device, kind: CollectiveKind, variant: DmaVariant, said: str
) -> None:
    with pytest.raises(UnsupportedError, match=said):
        dma_cost(device, Collective(kind=kind, size_bytes=GB, ranks=8), variant=variant)


def test_an_unknown_variant_is_named() -> None:
    with pytest.raises(InputError, match="did you mean 'broadcast'"):
        dma_cost(MI300X, Collective(kind="all-gather", size_bytes=1, ranks=8), variant="brodcast")  # type: ignore[arg-type]
