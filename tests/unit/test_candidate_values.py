"""The values that a planner tries, one kind at a time, as lists that a reader can check."""

from __future__ import annotations

from dataclasses import replace

import pytest

from makeway.decide.planning.candidates import MOST_SHAPES, candidates
from makeway.decide.planning.control_sets import Candidates
from makeway.model.residency import resident_blocks
from makeway.values.control import Chunks, CommBlocks, Control, SmemPad, SmPartition
from makeway.values.device import Device, load_device
from makeway.values.errors import InputError
from makeway.values.kernel import KernelResources
from makeway.values.workload import BlockWork, Workload, WorkloadBuilder

A100, H100 = load_device("A100-SXM4-80GB"), load_device("H100-SXM5-80GB")
TWO = KernelResources(threads=256, registers_per_thread=98, smem_bytes=48 * 1024)  # two blocks per SM
FOUR = KernelResources(threads=256, registers_per_thread=64, smem_bytes=16 * 1024)  # four
SIXTEEN = KernelResources(threads=128, registers_per_thread=16)  # sixteen
NCCL = "nccl-2.27.5/ring-simple"


def workload(*kernels: tuple[str, KernelResources, int], library: str = NCCL, **options: object) -> Workload:
    builder = WorkloadBuilder("values", ranks=8)
    for name, resources, blocks in kernels or (("k", TWO, 2000),):
        builder.kernel(name, resources, BlockWork(blocks=blocks, flops_per_block=1e8))
    builder.collective("c", "all-reduce", 2**28, library, **options)
    return builder.done()


def axis(offered: Candidates, kind: type[Control], kernel: str = "*") -> list[tuple[Control, ...]]:
    """The values of a kind, for the kernels of a pattern."""
    options = [option for each in offered.axes for option in each if type(option[0]) is kind]
    return [option for option in options if getattr(option[0], "kernel", "*") == kernel]


def rejected(offered: Candidates, kind: type[Control]) -> dict[Control, str]:
    return {item.control: item.reason for item in offered.rejected if type(item.control) is kind}


# --- channels ----------------------------------------------------------------------------------


def blocks_of(given: Workload, device: Device = A100) -> list[int]:
    return [
        option[0].blocks for option in axis(candidates(given, device), CommBlocks) if isinstance(option[0], CommBlocks)
    ]


def test_channel_counts_go_from_an_eighth_to_twice_the_librarys_own_without_it() -> None:
    assert blocks_of(workload()) == [4, 8, 16, 32, 48]  # 24 of its own
    assert blocks_of(workload(blocks=8)) == [2, 4, 16]
    assert blocks_of(workload(blocks=32)) == [4, 8, 16, 24, 48, 64]
    clusters = workload(library="nccl-2.32.3/ring-simple")
    assert blocks_of(clusters, H100) == [4, 8, 16, 22, 32, 48]  # 22: no multiple of four


def test_counts_beyond_the_library_or_the_device_are_turned_down() -> None:
    few = replace(A100, sms=30)
    offered = candidates(workload(), few)
    assert blocks_of(workload(), few) == [4, 8, 16]
    assert rejected(offered, CommBlocks) == {CommBlocks(32): f"{A100.name} holds at most 30 at once"}
    beyond = candidates(workload(blocks=64), A100)
    assert blocks_of(workload(blocks=64)) == [8, 16, 24, 32, 48]
    assert rejected(beyond, CommBlocks) == {}


# --- partitions --------------------------------------------------------------------------------


def test_partitions_go_up_to_twice_what_all_channels_need() -> None:
    offered = axis(candidates(workload(), A100), SmPartition)
    assert offered == [
        (SmPartition(8), CommBlocks(8)), (SmPartition(16), CommBlocks(16)), (SmPartition(24),), (SmPartition(32),),
        (SmPartition(48),),
    ]  # fmt: skip
    ten = axis(candidates(workload(blocks=10), A100), SmPartition)  # whole steps of eight: sixteen hold them
    assert ten == [(SmPartition(8), CommBlocks(8)), (SmPartition(16),), (SmPartition(24),), (SmPartition(32),)]


def test_compute_keeps_half_of_the_device() -> None:
    half = replace(A100, sms=48)
    offered = candidates(workload(), half)
    assert [option[0] for option in axis(offered, SmPartition)] == [SmPartition(8), SmPartition(16), SmPartition(24)]
    assert rejected(offered, SmPartition) == {SmPartition(32): "leaves compute 16 of 48 SMs, less than half"}


# --- pads --------------------------------------------------------------------------------------


def residencies(given: Workload, resources: KernelResources, kernel: str = "*") -> list[int]:
    pads = [option[0] for option in axis(candidates(given, A100), SmemPad, kernel)]
    return [resident_blocks(A100, resources.padded(pad.pad_bytes)) for pad in pads if isinstance(pad, SmemPad)]


def test_each_residency_has_its_smallest_pad_and_high_ones_only_a_few() -> None:
    assert resident_blocks(A100, SIXTEEN) == 16
    assert residencies(workload(("k", TWO, 100)), TWO) == [1]
    assert residencies(workload(("k", FOUR, 100)), FOUR) == [3, 2, 1]
    few = residencies(workload(("k", SIXTEEN, 100)), SIXTEEN)
    assert {1, 2, 8} <= set(few)
    assert len(few) <= 5
    pads = [option[0] for option in axis(candidates(workload(("k", FOUR, 100)), A100), SmemPad)]
    for pad, blocks in zip(pads, (3, 2, 1), strict=True):
        assert isinstance(pad, SmemPad)
        assert resident_blocks(A100, FOUR.padded(pad.pad_bytes - 1)) == blocks + 1


def patterns(*kernels: tuple[str, KernelResources, int]) -> list[str]:
    offered = candidates(workload(*kernels), A100)
    pads = [option[0] for each in offered.axes for option in each if isinstance(option[0], SmemPad)]
    return list(dict.fromkeys(pad.kernel for pad in pads if isinstance(pad, SmemPad)))


def test_pads_for_one_kind_of_block_name_its_kernels_and_no_others() -> None:
    assert patterns(("a", TWO, 10), ("b", TWO, 10)) == ["*"]  # one kind
    assert patterns(("a", TWO, 10), ("b", FOUR, 20)) == ["*", "b", "a"]  # the most blocks first
    assert patterns(("gemm 1", TWO, 10), ("gemm 22", TWO, 10), ("norm", FOUR, 15)) == ["*", "gemm *", "norm"]
    # together the gemms have more blocks than the norm, each alone has fewer
    assert patterns(("norm", FOUR, 15), ("gemm 1", TWO, 10), ("gemm 22", TWO, 10))[1] == "gemm *"
    # a pattern that would match a kernel of another kind is not used
    assert patterns(("gemm 1", TWO, 10), ("gemm 2", TWO, 10), ("gemm x", FOUR, 5), ("n", SIXTEEN, 5)) == [
        "*", "gemm x", "n",
    ]  # fmt: skip
    assert patterns(("gemm", TWO, 10), ("gemm 2", FOUR, 5)) == ["*", "gemm", "gemm 2"]  # exact names
    assert patterns(("g*", TWO, 10), ("n", FOUR, 5), ("m", SIXTEEN, 4)) == ["*", "n", "m"]  # no wildcards in names


def test_only_the_largest_kinds_of_block_are_padded_by_themselves() -> None:
    kinds = [(f"kind {at}", replace(FOUR, smem_bytes=1024 * (16 + at)), 100 - at) for at in range(MOST_SHAPES + 2)]
    assert patterns(*kinds) == ["*", *(name for name, _, _ in kinds[:MOST_SHAPES])]


# --- pieces ------------------------------------------------------------------------------------


def test_pieces_need_a_byte_each_and_not_too_many_operations() -> None:
    assert [option[0] for option in axis(candidates(workload(), A100), Chunks)] == [Chunks(2), Chunks(4), Chunks(8)]
    many = [(f"k{index}", TWO, 10) for index in range(199)]  # and a collective
    offered = candidates(workload(*many), A100)
    assert [option[0] for option in axis(offered, Chunks)] == [Chunks(2)]
    assert rejected(offered, Chunks)[Chunks(4)].startswith("about 800 operations would be too many")
    builder = WorkloadBuilder("tiny", ranks=8)
    builder.kernel("k", TWO, BlockWork(blocks=10, flops_per_block=1e8))
    builder.collective("c", "all-reduce", 4, NCCL)
    tiny = candidates(builder.done(), A100)
    assert [option[0] for option in axis(tiny, Chunks)] == [Chunks(2), Chunks(4)]
    assert rejected(tiny, Chunks) == {Chunks(8): "the smallest collective has 4 bytes"}


def test_two_of_a_kind_cannot_be_required_for_the_same_kernels() -> None:
    with pytest.raises(InputError, match="each kind of control once"):
        candidates(workload(), A100, forced=(CommBlocks(4), CommBlocks(8)))
    pads = (SmemPad(60_000, "a"), SmemPad(50_000, "b"))
    assert candidates(workload(("a", TWO, 10), ("b", TWO, 10)), A100, forced=pads).forced == tuple(
        sorted(pads, key=repr)
    )
