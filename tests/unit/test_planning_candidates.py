"""What the planner may try, and the reasons for what it may not."""

from __future__ import annotations

from typing import get_args

import pytest

from makeway.decide.planning.candidates import candidates
from makeway.decide.planning.control_sets import INTRUSIVENESS, Candidates, ordered
from makeway.decide.planning.score import QuickScorer, dispatch_policies
from makeway.model.presets import load_preset
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Control,
    CopyEngine,
    LaunchOrder,
    SmemPad,
    SmPartition,
    TileChoice,
)
from makeway.values.device import load_device
from makeway.values.errors import InputError
from makeway.values.kernel import KernelResources
from makeway.values.workload import BlockWork, Gemm, Workload, WorkloadBuilder

A100 = load_device("A100-SXM4-80GB")
H100 = load_device("H100-SXM5-80GB")
MI250X = load_device("MI250X")
TILE = KernelResources(threads=256, registers_per_thread=98, smem_bytes=48 * 1024)
SMALL = KernelResources(threads=256, registers_per_thread=64, smem_bytes=16 * 1024)


def pair(kind: str = "all-gather", *, resources: KernelResources = TILE, library: str | None = None) -> Workload:
    builder = WorkloadBuilder("pair", ranks=8)
    builder.kernel("k", resources, BlockWork(blocks=2000, flops_per_block=1e8))
    builder.collective("c", kind, 2**28, library or "nccl-2.32.3/ring-simple")  # type: ignore[arg-type]
    return builder.done()


def reasons(offered: Candidates, kind: type[Control]) -> list[str]:
    return [item.reason for item in offered.rejected if type(item.control) is kind]


def values(offered: Candidates, kind: type[Control]) -> tuple[Control, ...]:
    return tuple(option[0] for axis in offered.axes for option in axis if type(option[0]) is kind)


def test_every_kind_of_control_has_its_place() -> None:
    assert set(INTRUSIVENESS) == set(get_args(Control))


@pytest.mark.parametrize("device", [A100, H100, MI250X], ids=lambda device: device.name)
@pytest.mark.parametrize("preset", ["gemm-ar", "conccl-01", "tp-llama-70b"])
def test_every_kind_is_offered_or_turned_down_with_a_reason(device, preset) -> None:  # type: ignore[no-untyped-def]
    offered = candidates(load_preset(preset, device), device, allow_lossy=True)
    kinds = {type(axis[0][0]) for axis in offered.axes} | {type(item.control) for item in offered.rejected}
    assert kinds == set(get_args(Control))
    assert all(item.reason for item in offered.rejected)


@pytest.mark.parametrize("device", [A100, H100, MI250X], ids=lambda device: device.name)
@pytest.mark.parametrize("kind", ["all-gather", "all-reduce"])
def test_every_candidate_runs_by_itself(device, kind) -> None:  # type: ignore[no-untyped-def]
    library = "rccl-5.4.3/generic" if device.vendor == "amd" else None
    workload = pair(kind, library=library, resources=KernelResources(threads=256, registers_per_thread=64))
    offered = candidates(workload, device)
    scorer = QuickScorer(workload, device, dispatch_policies(device)[0])
    for axis in offered.axes:
        for option in axis:
            assert scorer.time_ns(option) is not None, option


def test_copy_engines_cannot_add() -> None:
    assert values(candidates(pair("all-reduce"), A100), CopyEngine) == ()
    assert "cannot add: all-reduce" in reasons(candidates(pair("all-reduce"), A100), CopyEngine)[0]
    assert CopyEngine() in values(candidates(pair("all-gather"), A100), CopyEngine)


def test_a_collective_that_waits_for_its_kernel_cannot_be_launched_first() -> None:
    assert "waits for a kernel" in reasons(candidates(load_preset("cb-ar", A100), A100), LaunchOrder)[0]


def test_only_matrix_products_that_offer_a_tile_get_one() -> None:
    assert values(candidates(load_preset("cb-ar", A100), A100), TileChoice) == (TileChoice(64, 64, 64),)
    assert "no kernel is a matrix product" in reasons(candidates(pair(), A100), TileChoice)
    library_gemm = load_preset("gemm-ar", A100)
    assert "offer no other tile" in reasons(candidates(library_gemm, A100), TileChoice)[0]
    offered = candidates(library_gemm, A100, tiles=((128, 64, 32),))
    assert values(offered, TileChoice) == (TileChoice(128, 64, 32),)


def test_fewer_threads_are_not_tried_for_want_of_a_source() -> None:
    offered = candidates(pair(), A100)
    assert values(offered, CommThreads) == ()
    assert "no source" in reasons(offered, CommThreads)[0]
    assert candidates(pair(), A100, forced=(CommThreads(288),)).forced == (CommThreads(288),)


def test_a_partition_brings_the_channels_that_it_holds() -> None:
    for device in (A100, H100):
        axis = next(axis for axis in candidates(pair(), device).axes if isinstance(axis[0][0], SmPartition))
        assert axis[0] == (SmPartition(8), CommBlocks(8))
        assert (SmPartition(24),) in axis  # room for all 24 of the library's own
    with pytest.raises(InputError, match="add comm-blocks=8, or make the partition larger"):
        candidates(pair(), A100, forced=(SmPartition(8),))
    assert candidates(pair(), A100, forced=(SmPartition(8), CommBlocks(8))).forced


def test_every_way_to_copy_is_a_candidate_where_the_device_has_it() -> None:
    plain = {CopyEngine(v, p) for v in ("parallel-copy", "one-engine") for p in (False, True)}
    assert set(values(candidates(pair(), A100), CopyEngine)) == plain
    for kind, variant in (("all-gather", "broadcast"), ("all-to-all", "swap")):
        offered = candidates(pair(kind, library="rccl-5.4.3/generic", resources=SMALL), MI250X)
        more = {CopyEngine(variant, prelaunch) for prelaunch in (False, True)}  # type: ignore[arg-type]
        assert set(values(offered, CopyEngine)) == plain | more


def test_different_kernels_may_have_different_pads() -> None:
    offered = candidates(pair(), A100)
    both = offered.replaced((SmemPad(1024, "a*"),), (SmemPad(2048, "b*"),))
    assert both == (SmemPad(1024, "a*"), SmemPad(2048, "b*"))
    assert offered.replaced(both, (SmemPad(512),)) == (SmemPad(512),)
    assert offered.replaced((SmemPad(512),), (SmemPad(2048, "b*"),)) == (SmemPad(2048, "b*"),)


def test_a_pad_that_can_lower_nothing_names_what_the_collective_lacks() -> None:
    full = KernelResources(threads=384, registers_per_thread=168, smem_bytes=200 * 1024)  # one block per SM
    (reason,) = reasons(candidates(pair(resources=full), H100), SmemPad)
    assert "registers" in reason
    assert "bytes of shared memory" in reason


def test_pads_of_one_kind_of_kernel_name_that_kind_only() -> None:
    builder = WorkloadBuilder("layer", ranks=8)
    for index in range(2):
        builder.kernel(f"gemm {index}", TILE, BlockWork(blocks=2000, flops_per_block=1e8))
    small = KernelResources(threads=512, registers_per_thread=32)
    builder.kernel("norm", small, BlockWork(blocks=900, flops_per_block=1e6))
    builder.collective("c", "all-gather", 2**26, "nccl-2.32.3/ring-simple")
    pads = [item for item in values(candidates(builder.done(), A100), SmemPad) if isinstance(item, SmemPad)]
    assert {pad.kernel for pad in pads} == {"*", "gemm *", "norm"}


def test_a_collective_with_clusters_is_offered_a_count_that_breaks_them() -> None:
    offered = [control for control in values(candidates(pair(), H100), CommBlocks) if isinstance(control, CommBlocks)]
    assert any(control.blocks % 4 for control in offered)


def test_partitions_leave_compute_at_least_half() -> None:
    offered = candidates(pair(), A100)
    assert all(isinstance(item, SmPartition) and 2 * item.comm_sms <= A100.sms for item in values(offered, SmPartition))
    assert any("less than half" in reason for reason in reasons(offered, SmPartition))


def test_a_workload_without_collectives_offers_nothing() -> None:
    builder = WorkloadBuilder("alone")
    builder.kernel("k", TILE, BlockWork(blocks=200, flops_per_block=1e8))
    assert candidates(builder.done(), A100).axes == ()


@pytest.mark.parametrize(
    ("control", "message"),
    [
        (
            SmemPad(160 * 1024),
            "exceeds the 163 KiB of shared memory per block by 46,080 bytes",
        ),
        (CopyEngine(), "cannot add"),
        (CommThreads(96), "cannot have 96 threads; its block sizes: 544, 288, 160, 128"),
        (CommBlocks(65), "65 blocks; nccl-2.32.3/ring-simple has at most 64"),
        (SmPartition(108), "leave none of 108"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_forced_control_that_cannot_work_names_what_is_short(control: Control, message: str) -> None:
    with pytest.raises(InputError, match=message):
        candidates(pair("all-reduce"), A100, forced=(control,))


def test_a_forced_partition_too_small_for_forced_blocks_is_refused() -> None:
    with pytest.raises(InputError, match="has 32 blocks that must be resident at once, and 8 SMs hold 8 of them"):
        candidates(pair(), A100, forced=(CommBlocks(32), SmPartition(8)))


def test_forced_kinds_are_not_tried_again() -> None:
    offered = candidates(pair(), A100, forced=(CommBlocks(8),))
    assert values(offered, CommBlocks) == ()
    assert offered.point((CommBlocks(4), CommPriority())) == (CommPriority(), CommBlocks(8))


def test_copy_engines_leave_block_settings_idle() -> None:
    offered = candidates(pair(), A100)
    assert offered.point((CommPriority(), CommBlocks(8), CopyEngine())) == (CopyEngine(),)
    mixed = candidates(load_preset("fsdp-llama-7b", A100), A100)  # its reduce-scatter stays on blocks
    assert mixed.point((CommBlocks(8), CopyEngine())) == (CommBlocks(8), CopyEngine())


def test_controls_are_ordered_from_a_hint_to_another_kernel() -> None:
    mixed = (TileChoice(64, 64, 64), Chunks(2), SmemPad(1024), CommPriority(), SmPartition(8), CommBlocks(4))
    assert [INTRUSIVENESS[type(control)] for control in ordered(mixed)] == [1, 2, 3, 4, 6, 7]


def test_tiles_that_cannot_be_launched_are_turned_down() -> None:
    builder = WorkloadBuilder("gemm", ranks=8)
    builder.kernel("k", TILE, Gemm(m=4096, n=4096, k=4096, tile=(64, 64, 32)))
    builder.collective("c", "all-gather", 2**26, "nccl-2.32.3/ring-simple")
    offered = candidates(builder.done(), A100, tiles=((512, 512, 64),))
    assert "of shared memory per block" in reasons(offered, TileChoice)[0]
